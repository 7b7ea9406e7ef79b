--- A connection for subscriptions. A cosocket can be used only by the request
--  that opened it, here the worker timer (worker_timer.lua). In it, one light
--  thread reads, and another writes the commands that callers queue.

local guard = require("resty.rlock.host.guard").call
local worker_timer = require "resty.rlock.host.worker_timer"
local resp = require "resty.rlock.host.resp"
local socket = require "resty.rlock.host.socket"
local tasks = require "resty.rlock.host.tasks"

local subscriber = {}
subscriber.__index = subscriber

local READ = 1000        -- timeout of one read, in milliseconds
local QUIET = 15         -- reads without a byte until a PING is sent; after
                         -- twice as many, the connection is dead
local CLOSED = "the connection was closed"
local DIED = "nginx has ended its timer"

--- Reads bytes for the parser. Sends a PING to detect a half-open connection.
function subscriber:receiveany(size)
  local quiet = 0
  while true do
    local bytes, why = self.socket:receiveany(size)
    if bytes then return bytes end
    if self.is_closed then return nil, CLOSED end
    if why ~= "timeout" then return nil, why end
    quiet = quiet + 1
    if quiet == QUIET then
      self:write("PING")
    elseif quiet == 2 * QUIET then
      return nil, ("no sign of life for %d s"):format(quiet * READ / 1000)
    end
  end
end

-- LuaJIT would compile the code after a read once more for each number of
-- waiters that a message wakes, without bound.
jit.off(subscriber.receiveany)

local function read(self)
  local reader = resp.reader(self)
  while true do
    local push, code, detail = reader:read()
    if code or self.is_closed then return detail end
    if type(push) == "table" then self.heard(push[1], push[2], push[3]) end
  end
end

local function write(self)
  while not self.is_over do
    self.change:block()
    local texts = self.unsent
    self.unsent = {}
    if texts[1] and not self.is_over then self.socket:send(texts) end
  end
end

local function lose(self, options, why)
  if self.is_closed then return end
  self.is_closed = true
  options.lost(why)
end

-- The thread that reads.
local function listen(self, options)
  local code, detail
  local slot = {}
  self.socket, code, detail = socket.get(options, options.timeout, slot)
  self.identity = slot.identity
  self.fault = { code, detail }
  self.standing:set()
  if not self.socket then return end
  self.socket:settimeouts(READ, options.timeout, READ)
  local writer = ngx.thread.spawn(write, self)
  local why = read(self)
  self.is_over = true
  self.change:set()
  ngx.thread.wait(writer)
  self.socket:close()
  lose(self, options, why)
end

-- The thread that reads was killed, or has raised an error.
local function fail(what)
  local self = what.self
  self.is_over = true
  if self.fault then return lose(self, what.options, DIED) end
  self.fault = { "closed", DIED }
  self.standing:set()
end

local function run(self, options)
  guard(fail, { self = self, options = options }, listen, self, options)
end

--- Opens a connection.
-- @tparam table options as for socket.get; and message = function(kind,
--   channel, payload), lost = function(detail)
-- @return[1] the connection
-- @treturn[2] nil, code, detail
function subscriber.open(options)
  if not tasks.is_shared() then
    return nil, "connect", "no subscriber: this Lua state serves a single "
      .. "request (is lua_code_cache off?)"
  end
  local self = setmetatable({
    heard = options.message, unsent = {},
    change = tasks.event(), standing = tasks.event(),
  }, subscriber)
  local ok, code, detail = worker_timer.start(run, self, options)
  if not ok then return nil, code, detail end
  ok, code, detail = self.standing:pause(2 * options.timeout / 1000 + 1)
  if ok and self.socket then return self end
  self.is_closed = true
  if ok then return nil, self.fault[1], self.fault[2] end
  return nil, code or "connect", detail or "the subscriber did not start"
end

--- Queues a command.
function subscriber:write(...)
  if self.is_closed then return nil, "closed", CLOSED end
  self.unsent[#self.unsent + 1] = resp.request({ ... }, select("#", ...))
  self.change:set()
  return true
end

--- Sends a verb for a channel: "subscribe", "unsubscribe", or for a sharded
--  channel "ssubscribe", "sunsubscribe". Confirmations and messages go to the
--  `message` function; an error reply ends the connection.
function subscriber:listen(verb, channel) return self:write(verb, channel) end

--- Closes the connection. Nothing is delivered or sent afterwards.
function subscriber:close()
  self:write("QUIT")                    -- ends the reader at once
  self.is_closed = true
end

return subscriber
