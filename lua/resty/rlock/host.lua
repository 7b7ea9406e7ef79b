--- The OpenResty host: the same interface as host/uv.lua, on top of nginx. The
--- files in host/ implement it: clock, tasks (and events), worker_timer,
--- callbacks, guard, socket, pool, duplex, subscriber, frames, resp. No host
--- depends on locks.

local ffi = require "ffi"

local callbacks = require "resty.rlock.host.callbacks"
local clock = require "resty.rlock.host.clock"
local frames = require "resty.rlock.host.frames"
local guard = require "resty.rlock.host.guard"
local worker_timer = require "resty.rlock.host.worker_timer"
local pool = require "resty.rlock.host.pool"
local socket = require "resty.rlock.host.socket"
local subscriber = require "resty.rlock.host.subscriber"
local tasks = require "resty.rlock.host.tasks"

local host = {
  name = "ngx",
  now = clock.now,
  time = os.time,
  random = clock.random,
  random_number = clock.random_number,
  event = tasks.event,
  current = tasks.current,
  is_over = tasks.is_over,
  has_gone = tasks.has_gone,
  ends_tasks = true,     -- at any point: see `whole`
  finish = tasks.finish,
  guard = guard.call,
  on_death = guard.on_death,
  whole = worker_timer.run,
  whole_wait = worker_timer.wait,
  daemon = worker_timer.start,
  service = worker_timer.service,
  spawn = callbacks.start,
}

ffi.cdef [[
int rlock_gethostname(char *name, size_t size) __asm__("gethostname");
]]

local function host_name()
  local name = ffi.new("char[?]", 256)     -- the last byte stays 0
  local is_known = ffi.C.rlock_gethostname(name, 255) == 0
  return is_known and ffi.string(name) or nil
end

--- The identity of this process, see identity.lua.
---@return table # host, pid, program
function host.process_identity()
  return { host = host_name(), pid = ngx.worker.pid(), program = "nginx" }
end

local levels = { warn = ngx.WARN, info = ngx.INFO }

--- Writes a log line. Callers pass text without secrets.
function host.log(level, text)
  ngx.log(levels[level], "rlock: ", text)
end

--- Suspends the running light thread for at least a millisecond: during a
--- shorter sleep nginx runs nothing else.
function host.sleep(seconds)
  ngx.sleep(math.max(seconds, 0.001))
end

--- Registers a callback that runs periodically when the worker is about to exit
--- and no request uses rlock any more.
function host.on_rest(fn) worker_timer.rest = fn end

--- Opens a connection.
---@param options table host, port or path, tls, timeout (ms), handshake (array
---  of commands), lost = function(detail); message = function(kind, channel,
---  payload) for a subscriber, or pool = { name, idle, size }; is_single: for
---  the calling light thread
---@return any # the connection
---@return rlock.failure? code, string? detail
function host.connect(options)
  if options.message then return subscriber.open(options) end
  if options.is_single then return socket.single(options) end
  return pool.new(options)
end

--- Opens a connection of frames, see host/frames.lua.
function host.frames(options) return frames.open(options, host_name()) end

return host
