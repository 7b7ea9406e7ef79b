--- The OpenResty host: tasks, events, sleep, and connections by cosockets.
--  One of the two files that know where rlock runs. It knows nothing of locks.
--
--  A task is a request (or a timer): all its phases and light threads are one
--  task. What the house itself does (`daemon`) runs as light threads of one
--  timer for each worker, the *home*: requests come and go, and 256 timers are
--  all that a worker has.

local ffi = require "ffi"
local semaphore = require "ngx.semaphore"
local base = require "resty.core.base"
local resp = require "rlock.host.ngx.resp"

local host = { name = "ngx" }

local ngx = ngx
local tcp, get_phase = ngx.socket.tcp, ngx.get_phase
local exiting = ngx.worker.exiting
local spawn_thread, wait_thread = ngx.thread.spawn, ngx.thread.wait
local get_request = base.get_request
local unpack = table.unpack or unpack
local ceil, huge, min, max = math.ceil, math.huge, math.min, math.max

local TICK = 0.5         -- seconds between the looks that the home takes
local LINGER = 60        -- seconds that an idle home stays
local SPAWNS = 10000     -- after so many threads a home gives way to another:
                         -- nginx frees what they took when the timer ends
local LONGEST = 3600     -- of one wait for a semaphore

-- clock and randomness ----------------------------------------------------

ffi.cdef [[
int rlock_clock_gettime(int clock, long *time) __asm__("clock_gettime");
]]

local CLOCKS = { Linux = { 7, 1 }, OSX = { 6 }, BSD = { 4 } }
local stamp = ffi.new("long[2]")       -- struct timespec
local clock

for _, candidate in ipairs(CLOCKS[ffi.os] or { 1 }) do
  if not clock and ffi.C.rlock_clock_gettime(candidate, stamp) == 0 then
    clock = candidate                  -- with sleep counted, where there is
  end
end

--- Seconds on a clock that is never set.
function host.now()
  ffi.C.rlock_clock_gettime(clock, stamp)
  return tonumber(stamp[0]) + tonumber(stamp[1]) / 1e9
end

--- n bytes from the system's generator.
function host.random(n)
  local file = assert(io.open("/dev/urandom", "rb"))
  local bytes = file:read(n)
  file:close()
  return bytes
end

local seed

--- For jitter only; [0,1). math.random begins alike in all workers.
function host.random_number()
  if not seed then
    local a, b, c = host.random(3):byte(1, 3)
    seed = a * 65536 + b * 256 + c + 1
  end
  seed = seed * 16807 % 2147483647
  return seed / 2147483647
end

local levels = { warn = ngx.WARN, info = ngx.INFO }

--- Tells people what happens. Never shows secrets: callers pass clean text.
function host.log(level, text)
  ngx.log(levels[level], "rlock: ", text)
end

-- phases ------------------------------------------------------------------

local waits = {
  rewrite = true, server_rewrite = true, access = true, content = true,
  timer = true, ssl_cert = true, ssl_client_hello = true,
  ssl_session_fetch = true,
}

-- Why nothing can be waited for here; nil if it can.
local function refusal()
  local phase = get_phase()
  if waits[phase] then return nil end
  return ("cannot wait in the %s phase"):format(phase)
end

-- tasks -------------------------------------------------------------------

local KEY = {}           -- under which ngx.ctx has the task
local tasks = {}         -- address of a request -> its task, perhaps over
local contexts = debug.getregistry().ngx_lua_ctx_tables  -- ngx.ctx of all

local function end_task(task)
  task.over = true
end

-- A request without a task. If another had one at the same address it has
-- ended, or its code has (ngx.exec).
local function new_task(context)
  local address = tonumber(ffi.cast("uintptr_t", get_request()))
  local before = tasks[address]
  if before then end_task(before) end
  local task = { over = false, address = address }
  context[KEY] = task
  tasks[address] = task
  return task
end

--- The running task: who asks for a lock.
function host.current()
  local context = ngx.ctx
  local task = context[KEY]
  if not task then return new_task(context) end
  if task.threads then return task.threads[coroutine.running()] end
  return task
end

--- Has this task ended? (Its holds are then no longer kept alive.)
function host.is_over(task)
  return type(task) == "table" and task.over == true
end

-- Ends the tasks whose requests have ended: nginx drops the ngx.ctx of a
-- request with it, however it ends.
local function look_for_the_dead()
  local alive = {}
  for _, context in pairs(contexts) do
    local task = type(context) == "table" and context[KEY]
    if task then alive[task] = true end
  end
  for address, task in pairs(tasks) do
    if not alive[task] then
      tasks[address] = nil
      if not task.over then end_task(task) end
    end
  end
end

-- events ------------------------------------------------------------------

local Event = {}
Event.__index = Event

--- An event for one waiting light thread: `set` wakes it, or the next `wait`
--  at once.
function host.event()
  return setmetatable({}, Event)
end

--- Wakes the waiter; without one, the next wait returns at once. Setting
--  twice is setting once.
function Event:set()
  if not self.is_waiting then
    self.is_set = true
    return
  end
  self.is_waiting = nil
  self.semaphore:post(1)
end

local function suspended(self, seconds)
  local sema = self.semaphore
  if not sema then
    sema = assert(semaphore.new(0))
    self.semaphore = sema
  end
  self.is_waiting = true
  local ok, why
  repeat
    ok, why = sema:wait(min(seconds, LONGEST))
    seconds = seconds - LONGEST
  until ok or why ~= "timeout" or seconds <= 0 or not self.is_waiting
  if ok then return true end
  if not self.is_waiting then          -- it was set just as the time ran out
    sema:wait(0)
    return true
  end
  self.is_waiting = nil
  if why ~= "timeout" then error(why) end
  return false
end

--- Waits for `set`.
-- @tparam[opt] number seconds at most; nil or math.huge: for ever
-- @treturn[1] boolean true if it was set, false when the time is over
-- @treturn[2] nil
-- @treturn[2] string "refused"
-- @treturn[2] string detail: the phase in which nothing can be waited for
function Event:pause(seconds)
  local why = refusal()
  if why then return nil, "refused", why end
  if self.is_set then
    self.is_set = nil
    return true
  end
  if seconds and seconds <= 0 then return false end
  return suspended(self, seconds or huge)
end

Event.wait = Event.pause

--- Suspends the running light thread.
function host.sleep(seconds)
  ngx.sleep(max(seconds, 0))
end

-- the home ----------------------------------------------------------------

local home               -- where daemons begin: { jobs, alive, spawned, ... }

local function run_job(self, fn, ...)
  local thread = coroutine.running()
  self.task.threads[thread] = { over = false }
  local ok, message = xpcall(fn, debug.traceback, ...)
  if not ok then ngx.log(ngx.ERR, "rlock: ", message) end
  self.task.threads[thread].over = true
  self.task.threads[thread] = nil
  self.finished[#self.finished + 1] = thread
  self.change:set()
end

-- A thread that has ended is only let go when it has been waited for.
local function reap(self)
  local finished = self.finished
  for i = #finished, 1, -1 do
    wait_thread(finished[i])
    finished[i] = nil
    self.alive = self.alive - 1
  end
end

local function start_jobs(self)
  local jobs = self.jobs
  self.jobs = {}
  for _, job in ipairs(jobs) do
    self.alive, self.spawned = self.alive + 1, self.spawned + 1
    spawn_thread(run_job, self, unpack(job, 1, job.n))
  end
end

-- The timer of a home.
local function keep_home(_, self)
  self.change = host.event()
  self.task = { over = false, threads = setmetatable({}, { __mode = "k" }) }
  ngx.ctx[KEY] = self.task
  self.used = host.now()
  while true do
    start_jobs(self)
    if self.spawned > SPAWNS and home == self then home = nil end
    self.change:pause(TICK)
    reap(self)
    look_for_the_dead()
    local now = host.now()
    if self.alive > 0 or self.jobs[1] then self.used = now end
    if self.alive == 0 and not self.jobs[1]
        and (home ~= self or now - self.used > LINGER or exiting()) then
      if home == self then home = nil end
      return
    end
  end
end

--- Starts a light thread of the house, in no request.
-- @tparam function fn runs with the further arguments
function host.daemon(fn, ...)
  if not home then
    local made = { jobs = {}, finished = {}, alive = 0, spawned = 0 }
    local ok, why = ngx.timer.at(0, keep_home, made)
    if not ok then
      ngx.log(ngx.ERR, "rlock: no timer: ", why)
      return
    end
    home = made
  end
  home.jobs[#home.jobs + 1] = { n = select("#", ...) + 1, fn, ... }
  if home.change then home.change:set() end
end

host.spawn = host.daemon

-- sockets -----------------------------------------------------------------

local function server_of(options)
  return options.path and "unix:" .. options.path or options.host,
    not options.path and options.port or nil
end

local function where_of(options)
  return options.path or ("%s:%d"):format(options.host, options.port)
end

-- A server that does not know AUTH repeats what it was sent.
local function told_safely(verb, detail)
  if verb == "AUTH" and detail:find("unknown command", 1, true) then
    detail = "the server does not know the command"
  end
  return ("%s (in reply to %s)"):format(detail, verb)
end

-- Sends commands and reads their replies.
-- @return replies, codes, details
local function exchange(socket, commands)
  local texts, reader = {}, resp.reader(socket)
  for i, command in ipairs(commands) do
    texts[i] = resp.request(command, #command)
  end
  local replies, codes, details = {}, {}, {}
  local ok, why = socket:send(texts)
  for i = 1, #commands do
    if ok then
      replies[i], codes[i], details[i] = reader:read()
      if codes[i] == "closed" then ok, why = nil, details[i] end
    else
      codes[i], details[i] = "closed", why
    end
  end
  return replies, codes, details
end

local function greet(socket, options)
  local commands = options.greeting or {}
  if #commands == 0 then return true end
  local replies, codes, details = exchange(socket, commands)
  for i, command in ipairs(commands) do
    if replies[i] == nil and not (command[1] == "CLIENT"
        and codes[i] == "redis") then          -- a name is a comfort only
      return nil, codes[i], told_safely(command[1], details[i])
    end
  end
  return true
end

-- Connects, from the pool if there is one.
-- @return socket; or nil, code, detail
local function connect(options, ms, pool)
  local socket = tcp()
  local ends = host.now() + ms / 1000
  socket:settimeouts(min(ms, options.timeout), ms, ms)
  local name, port = server_of(options)
  local ok, why
  if port then
    ok, why = socket:connect(name, port, pool)
  else
    ok, why = socket:connect(name, pool)
  end
  if not ok then
    return nil, "connect", ("%s: %s"):format(where_of(options), why)
  end
  if pool and socket:getreusedtimes() > 0 then return socket end
  local code, detail
  if options.tls then
    ok, why = socket:sslhandshake(nil, options.tls.server_name or options.host,
      options.tls.verify ~= false)
    if not ok then code, detail = "connect", why end
  end
  if ok then ok, code, detail = greet(socket, options) end
  if not ok then
    socket:close()
    if code == "closed" then code = "connect" end
    if code == "connect" then
      detail = ("%s: %s"):format(where_of(options), detail)
    end
    return nil, code, detail
  end
  local left = max(1, ceil((ends - host.now()) * 1000))
  socket:settimeouts(left, left, left)
  return socket
end

-- commands ----------------------------------------------------------------

--- What sends commands: each over a socket of the worker's pool, which it has
--  to itself while it is under way.
local Pool = {}
Pool.__index = Pool

-- What a reply that did not come means: code, detail.
local function unanswered(why, ms)
  if why == "timeout" then
    return "timeout", ("no answer within %d ms"):format(ms)
  end
  return "closed", "the connection was lost: " .. why
end

local function take(self, ms)
  local why = refusal()
  if why then return nil, "refused", why end
  if self.is_closed then return nil, "closed", "the client was closed" end
  local socket, code, detail = connect(self.options, ms, self.pool)
  if not socket and code == "connect" then
    local lost = self.lost
    self.lost = nil
    if lost then lost(detail) end
  end
  return socket, code, detail
end

--- Sends one command and waits for its reply.
-- @tparam integer ms  the command's deadline, 0 for none
-- @tparam table words the command and its arguments; free to be used again
-- @tparam integer n   how many words
-- @treturn[1] any the reply; false for a Redis nil
-- @treturn[2] nil
-- @treturn[2] string code "redis", "timeout", "closed", "connect", "refused"
-- @treturn[2] string detail
function Pool:send(ms, words, n)
  local text = resp.request(words, n)
  local socket, code, detail = take(self, ms)
  if not socket then return nil, code, detail end
  local ok, why = socket:send(text)
  if not ok then return nil, unanswered(why, ms) end
  local reader = resp.reader(socket)
  local reply
  reply, code, detail = reader:read()
  if code == "closed" or not reader:is_done() then
    socket:close()
    return nil, unanswered(detail or "more came than was asked for", ms)
  end
  socket:setkeepalive(self.idle, self.size)
  return reply, code, detail
end

--- As `send`, with the words as arguments.
function Pool:call(ms, ...)
  return self:send(ms, { ... }, select("#", ...))
end

--- Sends several commands at once and waits for all their replies.
-- @tparam integer ms deadline
-- @tparam table commands array of arrays
-- @treturn table replies; where one is nil,
-- @treturn table codes and
-- @treturn table details say why
function Pool:pipeline(ms, commands)
  local n, socket, code, detail = #commands, take(self, ms)
  local replies, codes, details = {}, {}, {}
  if not socket then
    for i = 1, n do codes[i], details[i] = code, detail end
    return replies, codes, details
  end
  replies, codes, details = exchange(socket, commands)
  if codes[n] ~= "closed" then
    socket:setkeepalive(self.idle, self.size)
    return replies, codes, details
  end
  socket:close()
  for i = 1, n do
    if codes[i] == "closed" then
      codes[i], details[i] = unanswered(details[i], ms)
    end
  end
  return replies, codes, details
end

function Pool:close() self.is_closed = true end

-- the subscriber ----------------------------------------------------------

--- A connection that listens. Its socket belongs to a thread of the home, which
--  reads; a second thread writes what others want to have sent.
local Subscriber = {}
Subscriber.__index = Subscriber

local READ = 1000        -- milliseconds of one read
local QUIET = 15         -- reads without a byte until a PING is sent; with
                         -- twice as many the connection is dead

-- What the parser reads from: waits on, but not when nothing is left to wait
-- for.
function Subscriber:receiveany(size)
  local quiet = 0
  while true do
    local bytes, why = self.socket:receiveany(size)
    if bytes then return bytes end
    quiet = quiet + 1
    if why ~= "timeout" then return nil, why end
    if self.is_closed then return nil, "the connection was closed" end
    if quiet == QUIET then
      self:tell("PING")
    elseif quiet == 2 * QUIET then
      return nil, ("no sign of life for %d s"):format(quiet * READ / 1000)
    end
  end
end

local function write(self)
  while not self.is_over do
    self.unsent_event:pause(huge)
    local texts = self.unsent
    self.unsent = {}
    if texts[1] and not self.is_over then self.socket:send(texts) end
  end
end

local function read(self)
  local reader = resp.reader(self)
  while true do
    local push, code, detail = reader:read()
    if code == "closed" or self.is_closed then return detail end
    if type(push) == "table" then self.heard(push[1], push[2], push[3]) end
  end
end

local function listen(self, options, standing)
  local socket, code, detail = connect(options, options.timeout)
  if not socket then
    self.fault = { code, detail }
    standing:set()
    return
  end
  self.socket = socket
  socket:settimeouts(READ, options.timeout, READ)
  local writer = spawn_thread(write, self)
  standing:set()
  local why = read(self)
  self.is_over = true
  self.unsent_event:set()
  wait_thread(writer)
  socket:close()
  if not self.is_closed then
    self.is_closed = true
    options.lost(why)
  end
end

function Subscriber:tell(...)
  if self.is_closed then return nil, "closed", "the connection was closed" end
  self.unsent[#self.unsent + 1] = resp.request({ ... }, select("#", ...))
  self.unsent_event:set()
  return true
end

--- Subscribes to a channel; its messages go to the `message` function.
function Subscriber:subscribe(channel)
  return self:tell("SUBSCRIBE", channel)
end

function Subscriber:unsubscribe(channel)
  return self:tell("UNSUBSCRIBE", channel)
end

function Subscriber:close()
  self:tell("QUIT")                   -- wakes the reader at once
  self.is_closed = true
end

local function subscriber(options)
  local self = setmetatable({
    heard = options.message, unsent = {}, unsent_event = host.event(),
  }, Subscriber)
  local standing = host.event()
  host.daemon(listen, self, options, standing)
  local ok, code, detail = standing:pause(2 * options.timeout / 1000 + 1)
  if not ok then
    self.is_closed = true
    return nil, code or "connect", detail or "no timer for the subscriber"
  end
  if self.fault then return nil, self.fault[1], self.fault[2] end
  return self
end

-- connections -------------------------------------------------------------

--- Opens a connection.
-- @tparam table options host, port or path, tls, timeout (ms), greeting (array
--   of commands), lost = function(detail), message = function(kind, channel,
--   payload) for a subscriber; pool = name, idle (ms) and size of the pool
-- @return the connection, or nil, code, detail
function host.connect(options)
  if options.message then return subscriber(options) end
  local pool = options.pool
  return setmetatable({
    options = options, pool = { pool = pool.name }, idle = pool.idle,
    size = pool.size, lost = options.lost,
  }, Pool)
end

return host
