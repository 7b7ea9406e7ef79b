--- The libuv host: tasks, events, sleep, connections and child processes.
--  A task is a coroutine that may wait; meanwhile the loop of rlock.core runs
--  the others. Only a host depends on where rlock runs; no host depends on
--  locks.

-- A Lua state has one loop, so it has one host, even if a program clears
-- package.loaded and requires this file again.
local registry, KEY = debug.getregistry(), "rlock.host.uv"
if registry[KEY] then return registry[KEY] end

local core = require "rlock.core"
local errors = require "rlock.redis.errors"
local heap = require "rlock.heap"

local host = { name = "uv", version = "0.1.0" }

if core.versions.rlock ~= host.version then
  error(("rlock.core is of rlock %s, but its Lua modules are of rlock %s")
    :format(core.versions.rlock or "before 0.1.0", host.version), 0)
end
registry[KEY] = host

local xpcall = xpcall               -- the plain one: a program may wrap it
local running, yield = coroutine.running, coroutine.yield
local isyieldable = coroutine.isyieldable
local create, resume = coroutine.create, core.resume
local state_of = coroutine.status

local GRACE = 5          -- seconds that unwinding tasks get to clean up
local TURN = 1000        -- ready tasks to run before the loop polls I/O again

--- The receiver of a completion, by id: a task or, above FUNCTIONS, a callback.
--  Ids are reused, so the tables stay small arrays.
local FUNCTIONS = 1 << 40
local callers, free_callers = {}, {}
local parked, free_ids = {}, {}
--- Runnable tasks: ready[first..last], each with the three values that its
--  yield returns.
local ready, first, last = {}, 1, 0
local current            -- the running task
local alive = 0          -- the number of tasks that keep the program running
local ending             -- why the program ends: { status=, message= }
--- Events with a timeout, by `deadline`; one timer of the core is set
--  for the first.
local times, alarm, alarm_at = heap.new(), nil, math.huge

host.now = core.now
host.random = core.random
host.random_number = math.random     -- for jitter only; [0,1)
host.verbosity = 1       -- 0 quiet, 1 warnings, 2 everything

--- Writes a log line. Callers pass text without secrets.
-- @tparam string level "warn" or "info"
-- @tparam string text  one line
function host.log(level, text)
  if host.verbosity >= (level == "warn" and 1 or 2) then
    io.stderr:write("rlock: ", text, "\n")
  end
end

-- ids ---------------------------------------------------------------------

-- Stores `target` at an unused index of `list`, and returns that index.
local function take(list, free, target)
  local n = #free
  local id = free[n]
  if id then
    free[n] = nil
  else
    id = #list + 1
  end
  list[id] = target
  return id
end

local function take_id(fn)
  return FUNCTIONS + take(parked, free_ids, fn)
end

local function free_id(id)
  id = id - FUNCTIONS
  parked[id] = false
  free_ids[#free_ids + 1] = id
end

local function take_caller(task)
  return take(callers, free_callers, task)
end

local function free_caller(id)
  callers[id] = false
  free_callers[#free_callers + 1] = id
end

-- tasks -------------------------------------------------------------------

local function make_ready(task, a, b, c)
  local n = last
  ready[n + 1], ready[n + 2], ready[n + 3], ready[n + 4] = task, a, b, c
  last = n + 4
end

--- The object that unwinds a task when the program ends or it is cancelled.
local Unwind = { __name = "rlock.unwind" }
Unwind.__tostring = function(unwind) return unwind.why end

local function traceback(message)
  if getmetatable(message) == Unwind then return message end
  if type(message) ~= "string" then
    local meta = getmetatable(message)
    message = meta and meta.__tostring and tostring(message)
      or ("(error object is a %s value)"):format(type(message))
  end
  return debug.traceback(message, 2)
end

local function end_program(status, message)
  if ending then return end
  ending = { status = status, message = message }
end

local function finished(task, ok, ...)
  task.over = true
  free_caller(task.id)
  if not task.daemon then alive = alive - 1 end
  if ok then
    task.results = { n = select("#", ...), ... }
  elseif getmetatable((...)) ~= Unwind then
    end_program(1, (...))
  end
  if ending and not ending.begun then return end     -- all will be cancelled
  for _, waiting in ipairs(task.joiners or {}) do waiting:set() end
end

local ASTRAY = "a task called coroutine.yield, and nothing resumes it: use "
  .. "rlock.sleep, rlock.event, or a coroutine of its own"

-- Handles the results of a resume: the task waits again, or its xpcall has
-- ended, or the program itself called coroutine.yield.
local function stepped(task, resumed, ended, ...)
  current = nil
  if not resumed then error(ended, 0) end     -- our own code failed
  if task.wait_of then return end
  if state_of(task.co) == "dead" then
    finished(task, ended, ...)
  else
    finished(task, false, debug.traceback(task.co, ASTRAY))
  end
end

local NOTHING = {}       -- stands for the argument of a task without one
local CALLING = {}       -- `wait_of` of a task that waits for a completion

local function step(task, a, b, c)
  current = task
  if c == NOTHING then
    stepped(task, resume(task.co, a, b))
  else
    stepped(task, resume(task.co, a, b, c))
  end
end

local Task = {}
Task.__index = Task

local function with_all(fn, ...)
  local n, all = select("#", ...), { ... }
  return function() return fn(table.unpack(all, 1, n)) end
end

-- The coroutine's function is xpcall itself: that saves a frame, which is a
-- tenth of a task's memory.
local function start(daemon, fn, ...)
  local n, a = select("#", ...), ...
  if n > 1 then fn = with_all(fn, ...) end
  if n ~= 1 then a = NOTHING end
  local task = setmetatable({ co = create(xpcall), id = 0 }, Task)
  task.id = take_caller(task)
  if daemon then task.daemon = true else alive = alive + 1 end
  make_ready(task, fn, traceback, a)
  return task
end

--- Starts a task. An error that it does not catch ends the program.
-- @tparam function fn  runs with the further arguments
-- @return the task; `task:join()` waits for it
function host.spawn(fn, ...)
  if type(fn) ~= "function" then
    error("bad argument fn of rlock.spawn: must be a function", 2)
  end
  return start(false, fn, ...)
end

--- Starts an internal task: it does not keep the program running.
function host.daemon(fn, ...)
  return start(true, fn, ...)
end

--- The running task, which is the owner of the locks that it takes.
function host.current()
  local task = current
  if not task or running() ~= task.co then
    error("rlock waits, so it runs in a task: use rlock.spawn (or rlock.run "
      .. "under plain lua), not a coroutine of your own", 3)
  end
  if not isyieldable() then
    error("rlock cannot wait here: inside table.sort, string.gsub, a "
      .. "metamethod of C or while a module is being required", 3)
  end
  return task
end

--- Runs fn to completion, even if the task ends earlier, which this host's
--  tasks never do.
function host.whole(fn, ...) return fn(...) end

local Guard = {}
Guard.__index = Guard
function Guard:__close() if not self.is_over then self.undo(self.what) end end

local function completed(guard, ...)
  guard.is_over = true
  return ...
end

--- Calls fn(...). If it raises, undo(what) runs before the error propagates.
--  Nothing here catches the error, so it keeps its own traceback.
-- @return what fn returned
function host.guard(undo, what, fn, ...)
  local guard <close> = setmetatable({ undo = undo, what = what }, Guard)
  return completed(guard, fn(...))
end

--- Has this task ended? (If so, its holds are not renewed any more.)
function host.is_over(task)
  return type(task) == "table" and task.over == true
end

--- As is_over: here only the task itself waits for its work.
host.has_gone = host.is_over

-- The cancellation that the running task has not been told of, if any.
local function untold_cancel()
  local task = current
  if task.unwinding and not task.unwound then
    task.unwound = true
    return task.unwinding
  end
end

--- Waits until the task has ended.
-- @treturn any what its function returned; nothing if it was cancelled
function Task:join()
  host.current()
  if not self.over then
    local over = host.event()
    self.joiners = self.joiners or {}
    table.insert(self.joiners, over)
    over:wait()
  end
  if self.results then
    return table.unpack(self.results, 1, self.results.n)
  end
end

--- Cancels the task: raises an error where it waits, so that its pcalls and
--  `<close>` variables clean up. It may wait again while it does.
-- @tparam[opt] string why
function Task:cancel(why)
  if self.over or self.unwinding then return end
  local unwind = setmetatable({ why = why or "cancelled" }, Unwind)
  self.unwinding = unwind
  local event = self.wait_of
  if event and event ~= CALLING then
    event.waiter, self.wait_of = nil, nil
    if event.place then times:remove(event) end
  elseif event then                       -- waiting for a completion
    callers[self.id] = { over = true, id = self.id }   -- gets the late reply
    self.id = take_caller(self)
    self.wait_of = nil
  else
    return                                -- raised at its next wait
  end
  self.unwound = true
  make_ready(self, nil, "cancelled", unwind)
end

-- events ------------------------------------------------------------------

local Event = {}
Event.__index = Event

--- A new event. One task at a time waits for it; `set` wakes that task.
function host.event()
  return setmetatable({}, Event)
end

--- Wakes the waiter; without one, the next wait returns at once. Idempotent.
function Event:set()
  local task = self.waiter
  if not task then
    self.is_set = true
    return
  end
  self.waiter, task.wait_of = nil, nil
  if self.place then times:remove(self) end
  make_ready(task, true)
end

local look_at_times

-- Arms the core's timer for the event that is due first.
local function set_alarm(now)
  local first_event = times:peek()
  if not first_event or first_event.deadline >= alarm_at then return end
  if alarm then alarm.timer:close() end
  alarm = alarm or { id = take_id(look_at_times) }
  alarm_at = first_event.deadline
  local ms = math.ceil((alarm_at - now) * 1000)
  alarm.timer = core.timer(alarm.id, ms > 0 and ms or 0)
end

-- Wakes the waiters whose time is over.
function look_at_times()
  alarm_at = math.huge
  local now = core.now()
  local event = times:peek()
  while event and event.deadline <= now do
    times:remove(event)
    local task = event.waiter
    event.waiter, task.wait_of = nil, nil
    make_ready(task, false)
    event = times:peek()
  end
  set_alarm(now)
end

local function set_time(event, deadline)
  event.deadline = deadline
  times:push(event)
  if deadline < alarm_at then set_alarm(core.now()) end
end

-- Suspends the task. Its frame lives as long as the wait, so it is kept small.
local function suspended(event, task)
  event.waiter, task.wait_of = task, event
  return yield()
end

--- Waits for `set`, for internal code: returns a cancellation, does not raise.
-- @tparam[opt] number seconds at most; nil or math.huge: without limit
-- @treturn[1] boolean true if it was set, false on timeout
-- @treturn[2] nil
-- @treturn[2] string "cancelled"
-- @return[2] the error to raise after cleaning up
function Event:pause(seconds)
  local task = host.current()
  local unwind = untold_cancel()
  if unwind then return nil, "cancelled", unwind end
  if self.is_set then
    self.is_set = nil
    return true
  end
  if seconds and seconds < 1e9 then
    if seconds <= 0 then return false end
    set_time(self, core.now() + seconds)
  end
  return suspended(self, task)
end

--- Waits for `set`. Raises if the task is cancelled.
-- @tparam[opt] number seconds at most; nil or math.huge: without limit
-- @treturn boolean true if it was set, false on timeout
function Event:wait(seconds)
  if seconds ~= nil and (type(seconds) ~= "number" or seconds ~= seconds) then
    error("bad seconds: must be a number", 2)
  elseif self.waiter then
    error("another task waits for this event already", 2)
  end
  local is_set, _, unwind = self:pause(seconds)
  if is_set == nil then error(unwind, 0) end
  return is_set
end

--- Suspends the running task.
-- @tparam number seconds
function host.sleep(seconds)
  if type(seconds) ~= "number" or seconds ~= seconds then
    error("bad seconds: must be a number", 2)
  end
  host.event():wait(seconds > 0 and seconds or 1e-9)
end

-- the dispatcher ----------------------------------------------------------

local wake_later

-- Lets the loop poll I/O before more tasks run.
local function run_the_rest_later()
  if wake_later then return end
  local id
  id = take_id(function()
    wake_later = nil
    free_id(id)
  end)
  wake_later = core.timer(id, 0)
end

local function run_ready()
  local turns = TURN
  while first <= last do
    if turns == 0 then return run_the_rest_later() end
    turns = turns - 1
    local n = first
    local task, a, b, c = ready[n], ready[n + 1], ready[n + 2], ready[n + 3]
    ready[n], ready[n + 1], ready[n + 2], ready[n + 3] = nil, nil, nil, nil
    first = n + 4
    step(task, a, b, c)
  end
  first, last = 1, 0
end

local function cancel_all(why)
  for _, task in ipairs(callers) do
    if task and not task.over and not task.daemon then task:cancel(why) end
  end
end

local function look_for_the_end()
  if ending and not ending.begun then
    ending.begun = true
    cancel_all("the program ends")
    local id = take_id(function() ending.is_over = true core.stop() end)
    ending.grace = core.timer(id, GRACE * 1000)
    run_ready()
  end
  if alive == 0 then core.stop() end
end

core.dispatch(function(id, a, b, c)
  if id < FUNCTIONS then
    local task = callers[id]
    if task.over then                  -- the task was cancelled meanwhile
      free_caller(id)
    else
      task.wait_of = nil
      current = task
      stepped(task, resume(task.co, a, b, c))
    end
  else
    local fn = parked[id - FUNCTIONS]
    if fn then fn(a, b, c) end
  end
  if first <= last then run_ready() end
  if ending or alive == 0 then look_for_the_end() end
end)

-- running -----------------------------------------------------------------

local function loop_until_over()
  run_ready()
  look_for_the_end()
  while alive > 0 do
    local ok, message = core.run()
    if not ok then return nil, message end
    if ending and ending.is_over then break end
    if alive > 0 and first > last and not ending then
      end_program(1, "deadlock: every task waits, and nothing can wake one")
      look_for_the_end()
    end
  end
  return true
end

-- Keeps tasks that did not end in time from prolonging a later run.
local function abandon_the_rest()
  for _, task in ipairs(callers) do
    if task and not task.over then task.daemon = true end
  end
  alive = 0
end

--- Runs `fn` as a task, and the loop, until all tasks but daemons have ended, a
--  task has failed, or the program is told to exit.
-- @tparam function fn
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] integer exit status
-- @treturn[2] string|nil message, with a traceback
function host.run(fn, ...)
  ending = nil
  local main = host.spawn(fn, ...)
  local ok, message = loop_until_over()
  local stopped = ending
  if stopped and stopped.grace then stopped.grace:close() end
  ending = nil
  abandon_the_rest()
  if not ok then return nil, 1, message end
  if stopped then return nil, stopped.status, stopped.message end
  return true, main.results
end

--- Ends the program: cancels every task, then `host.run` returns.
-- @tparam integer status
-- @tparam[opt] string message
function host.exit(status, message)
  end_program(status, message)
  if current then
    current.unwinding = setmetatable({ why = "exit" }, Unwind)
    current.unwound = true
    error(current.unwinding, 0)
  end
end

--- Is a task running?
function host.is_running() return current ~= nil end

--- Has the running task been told to unwind?
function host.is_told() return current ~= nil and current.unwound == true end

--- Calls `fn` with the number of a termination signal, inside a task that has
--  not yielded since it arrived. nil: removes the callback.
host.on_interrupt = core.interrupt

--- As coroutine.resume, but the coroutine can be interrupted.
host.resume = core.resume

--- Is this error the one that unwinds a task?
function host.is_unwind(message)
  return getmetatable(message) == Unwind
end

local Signal = {}
Signal.__index = Signal

--- Calls `fn` at each signal, until the returned handle is closed. The handle
--  does not keep the program running.
-- @tparam string name "INT", "TERM", "HUP", ...
-- @tparam function fn
function host.on_signal(name, fn)
  local self = setmetatable({}, Signal)
  self.id = take_id(function() fn(self) end)    -- also prevents collection
  local code, detail
  self.raw, code, detail = core.signal(self.id, name)
  if self.raw then return self end
  free_id(self.id)
  return nil, code, detail
end

--- Stops the calls; without other handles the default action is restored.
function Signal:close()
  if self.id then free_id(self.id) end
  self.id = nil
  self.raw:close()
end

-- connections -------------------------------------------------------------

local Connection = {}
Connection.__index = Connection

--- Sends one command and waits for its reply.
-- @tparam integer ms  the command's deadline, 0 for none
-- @tparam table words the command and its arguments; may be reused afterwards
-- @tparam integer n   how many words
-- @treturn[1] any the reply; false for a Redis nil
-- @treturn[2] nil
-- @treturn[2] string code "redis", "timeout", "closed", "connect" (it was not
--   sent), or "cancelled"
-- @return[2] detail; for "cancelled", the error to raise
function Connection:send(ms, words, n)
  local task = current
  if task.unwinding then
    local unwind = untold_cancel()
    if unwind then return nil, "cancelled", unwind end
  end
  local ok, code, detail = self.raw:call(task.id, ms, words, n)
  if not ok then return nil, code == "closed" and "connect" or code, detail end
  task.wait_of = CALLING
  return yield()
end

--- As `send`, with the words as arguments.
function Connection:call(ms, ...)
  return self:send(ms, { ... }, select("#", ...))
end

--- Sends several commands at once and waits for all their replies.
-- @tparam integer ms deadline of each
-- @tparam table commands array of arrays
-- @treturn table replies; where one is nil,
-- @treturn table codes and
-- @treturn table details say why
function Connection:pipeline(ms, commands)
  local replies, codes, details = {}, {}, {}
  local left, all = 0, host.event()
  for i, command in ipairs(commands) do
    local id
    id = take_id(function(reply, code, detail)
      free_id(id)
      replies[i], codes[i], details[i] = reply, code, detail
      left = left - 1
      if left == 0 then all:set() end
    end)
    local ok, code, detail = self.raw:call(id, ms, command, #command)
    if ok then
      left = left + 1
    else
      free_id(id)
      codes[i], details[i] = code, detail
    end
  end
  if left > 0 then all:pause() end
  return replies, codes, details
end

--- Subscribes to a channel; its messages go to the `message` function.
function Connection:subscribe(channel) return self.raw:subscribe(channel) end
function Connection:unsubscribe(channel)
  return self.raw:unsubscribe(channel)
end

local CLOSED = "the connection was closed"

-- Fails the operations that will never complete, because of a close.
local function fail_all(ids, code, detail)
  for _, id in ipairs(ids) do
    if id >= FUNCTIONS then
      local fn = parked[id - FUNCTIONS]
      if fn then fn(nil, code, detail) end
    elseif callers[id].over then
      free_caller(id)
    else
      callers[id].wait_of = nil
      make_ready(callers[id], nil, code, detail)
    end
  end
end

--- Closes the connection. Commands in flight fail with "closed".
-- @tparam[opt] string why the detail of that
function Connection:close(why)
  fail_all(self.raw:close(), "closed", why or CLOSED)
  self:free_ids()
end

function Connection:free_ids()
  if self.lost_id then free_id(self.lost_id) end
  if self.message_id then free_id(self.message_id) end
  self.lost_id, self.message_id = nil, nil
end

-- Waits for the connection to be established.
local function established(self, options)
  local task = current
  local raw, code, detail = core.connect(task.id, {
    host = options.host, port = options.port, path = options.path,
    tls = options.tls, timeout = options.timeout, silent = options.silent,
    lost = self.lost_id, message = self.message_id,
  })
  if not raw then return nil, code, detail end
  self.raw = raw
  task.wait_of = CALLING
  local ok
  ok, code, detail = yield()
  if not ok then fail_all(raw:close(), code, detail) end
  return ok, code, detail
end

--- Opens a connection, sends the greeting, and queries the connection's
--  `identity`, see seal.lua.
-- @tparam table options host, port or path, tls, timeout (ms), silent (ms),
--   greeting (array of commands), lost = function(detail),
--   message = function(kind, channel, payload) for a subscriber
-- @return the connection, or nil, code, detail
function host.connect(options)
  host.current()
  local self = setmetatable({}, Connection)
  self.lost_id = take_id(function(detail)
    self:free_ids()
    if options.lost then options.lost(detail) end
  end)
  if options.message then self.message_id = take_id(options.message) end
  local ok, code, detail = established(self, options)
  if not ok then
    self:free_ids()
    return nil, code, detail
  end
  return self:greet(options)
end

-- A server that does not know AUTH echoes its arguments: the password.
local function told_safely(verb, detail)
  if verb == "AUTH" and detail:find("unknown command", 1, true) then
    detail = "the server does not know the command"
  end
  return ("%s (in reply to %s)"):format(detail, verb)
end

-- May this failure be ignored? CLIENT only names the connection, but it is the
-- first command to learn that the server accepts no commands.
local function is_comfort(command, code, detail)
  return command[1] == "CLIENT" and code == "redis"
    and errors.classify(detail).code ~= "connect"
end

function Connection:greet(options)
  local seal = require "rlock.redis.seal"           -- loaded on first use
  local greeting = options.greeting or {}
  local n, commands = #greeting, { table.unpack(greeting) }
  for _, question in ipairs(seal.questions) do
    commands[#commands + 1] = question
  end
  local replies, codes, details = self:pipeline(options.timeout, commands)
  for i, command in ipairs(greeting) do
    if replies[i] == nil and not is_comfort(command, codes[i], details[i]) then
      self:close()
      return nil, codes[i], told_safely(command[1], details[i])
    end
  end
  self.identity, self.fault, self.why =
    seal.identity(replies, codes, details, n + 1)
  return self
end

--- Queries the connection's identity, if that is unknown, and seals the
--  connections that were lost before.
-- @tparam integer ms   deadline of each command
-- @tparam table seals  see seal.lua
-- @return true, or nil, code, detail
function Connection:make_ready(ms, seals)
  local identity, seal = self.identity, require "rlock.redis.seal"
  if not identity and self.has_been_asked then
    local replies, codes, details = self:pipeline(ms, seal.questions)
    identity, self.fault, self.why = seal.identity(replies, codes, details, 1)
    self.identity = identity
  end
  self.has_been_asked = true
  if not identity then return nil, self.fault, self.why end
  local ok, code, detail = seals:discharge(identity, function(commands)
    return self:pipeline(ms, commands)
  end)
  if ok then seals:prove(identity) end
  return ok, code, detail
end

-- processes and files -----------------------------------------------------

local Process = {}
Process.__index = Process

--- Starts a program.
-- @tparam table options file, args, env, cwd, detached, stdin, stdout, stderr
-- @return the process (`pid`, `wait`, `kill`), or nil, code, detail
function host.process(options)
  local self = setmetatable({ over = host.event() }, Process)
  local id
  id = take_id(function(status, signal)
    free_id(id)
    self.status, self.signal = status, signal
    self.over:set()
  end)
  local child, code, detail = core.spawn(id, options)
  if not child then
    free_id(id)
    return nil, code, detail
  end
  self.child, self.pid = child, child:pid()
  return self
end

--- Waits for the program to exit.
-- @tparam[opt] number seconds at most
-- @return exit status and signal, or nil, "timeout"
function Process:wait(seconds)
  if not self.status and not self.over:wait(seconds) then
    return nil, "timeout", "process " .. self.pid .. " still runs"
  end
  return self.status, self.signal
end

--- Sends a signal by number.
function Process:kill(signal) return self.child:kill(signal) end

--- Stops watching the program, which runs on.
function Process:forget() self.child:close() end

host.private_dir = core.private_dir
host.check_private = core.check_private
host.lock_file = core.flock
host.uid = core.uid
host.pid = core.pid
host.versions = core.versions
host.is_terminal = core.isatty
host.new_assert = core.new_assert

return host
