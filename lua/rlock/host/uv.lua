--- The libuv host: tasks, events, sleep, connections and child processes.
--  One of the two files that know where rlock runs. A task is a coroutine that
--  may wait; while it does, the loop of rlock.core runs the others. This file
--  knows nothing of locks.

local core = require "rlock.core"

local host = { name = "uv" }

local running, yield = coroutine.running, coroutine.yield
local create, resume = coroutine.create, coroutine.resume

local GRACE = 5          -- seconds that unwinding tasks get to clean up
local TURN = 1000        -- ready tasks run before the loop looks at I/O again

--- Who waits: id -> task, or a function to call. Ids are used again, so that
--  the table stays a small array.
local parked, free_ids, last_id = {}, {}, 0
--- Tasks that can go on: ready[first..last], each followed by its value.
local ready, first, last = {}, 1, 0
local current            -- the task that is running now
local tasks = {}         -- every task that has not ended
local alive = 0          -- how many of them keep the program running
local ending             -- why the program ends: { status=, message= }

host.now = core.now
host.random = core.random
host.random_number = math.random     -- for jitter only; [0,1)
host.verbosity = 1       -- 0 quiet, 1 warnings, 2 everything

--- Tells people what happens. Never shows secrets: callers pass clean text.
-- @tparam string level "warn" or "info"
-- @tparam string text  one line
function host.log(level, text)
  if host.verbosity >= (level == "warn" and 1 or 2) then
    io.stderr:write("rlock: ", text, "\n")
  end
end

-- ids ------------------------------------------------------------------------

local function take_id(target)
  local n = #free_ids
  local id = free_ids[n]
  if id then
    free_ids[n] = nil
  else
    id = last_id + 1
    last_id = id
  end
  parked[id] = target
  return id
end

local function free_id(id)
  parked[id] = false
  free_ids[#free_ids + 1] = id
end

-- tasks ----------------------------------------------------------------------

local function make_ready(task, value)
  ready[last + 1], ready[last + 2] = task, value
  last = last + 2
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
  tasks[task] = nil
  task.over = true
  if not task.daemon then alive = alive - 1 end
  if ok then
    task.results = { n = select("#", ...), ... }
  elseif getmetatable((...)) ~= Unwind then
    end_program(1, (...))
  end
  for _, waiting in ipairs(task.joiners or {}) do waiting:set() end
end

local function step(task, ...)
  local before = current
  current = task
  local ok, message = resume(task.co, ...)
  current = before
  if not ok then                 -- only our own code runs outside the xpcall
    tasks[task] = nil
    error(message, 0)
  end
end

local Task = {}
Task.__index = Task

local function start(daemon, fn, ...)
  local task = setmetatable({ daemon = daemon }, Task)
  local arguments, n = { ... }, select("#", ...)
  task.co = create(function()
    finished(task, xpcall(fn, traceback, table.unpack(arguments, 1, n)))
  end)
  tasks[task] = true
  if not daemon then alive = alive + 1 end
  make_ready(task)
  return task
end

--- Starts a task. An error that it does not catch ends the program.
-- @tparam function fn  runs with the further arguments
-- @return the task; `task:join()` waits for it
function host.spawn(fn, ...)
  return start(false, fn, ...)
end

--- Starts a task of the house: it does not keep the program running.
function host.daemon(fn, ...)
  return start(true, fn, ...)
end

--- The running task: who asks for a lock.
function host.current()
  if not current or running() ~= current.co then
    error("rlock waits, so it runs in a task: use rlock.spawn (or rlock.run "
      .. "under plain lua), not a coroutine of your own", 3)
  end
  return current
end

--- Has this task ended? (Its holds are then no longer kept alive.)
function host.is_over(task)
  return type(task) == "table" and task.over == true
end

--- What a parked task is given when its connection is closed under it.
local CLOSED = setmetatable({}, { __name = "rlock.closed" })

-- What a suspended task wakes up to. Raises if it was cancelled meanwhile.
local function landed(value, ...)
  if type(value) == "table" then
    if getmetatable(value) == Unwind then error(value, 0) end
    if value == CLOSED then
      return nil, "closed", "the connection was closed"
    end
  end
  return value, ...
end

local function park()
  return landed(yield())
end

local function assert_task()
  if not current or running() ~= current.co then host.current() end
end

--- Waits until the task has ended.
-- @treturn any what its function returned; nothing if it was cancelled
function Task:join()
  assert_task()
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

--- Unwinds the task: an error is raised where it waits, so that its pcalls and
--  `<close>` variables clean up. It may wait again while it does.
-- @tparam[opt] string why
function Task:cancel(why)
  if self.over or self.unwinding then return end
  local unwind = setmetatable({ why = why or "cancelled" }, Unwind)
  self.unwinding = unwind
  if self == current then return end      -- raised at its next wait
  if self.wait_of then                    -- waiting for an event
    local event = self.wait_of
    event.waiter, self.wait_of = nil, nil
    if self.timer then
      self.timer:close()
      free_id(self.id)
    end
  elseif self.id then                     -- waiting for a completion
    local id = self.id
    parked[id] = function() free_id(id) end
  else
    return                                -- ready to run: raised at its wait
  end
  self.id, self.timer = nil, nil
  self.unwound = true
  make_ready(self, unwind)
end

-- A task cancelled while it was not waiting is told when it next does.
local function check_cancelled()
  local task = current
  if task.unwinding and not task.unwound then
    task.unwound = true
    error(task.unwinding, 0)
  end
end

-- events ---------------------------------------------------------------------

local Event = {}
Event.__index = Event

--- An event for one waiting task: `set` wakes it, or the next `wait` at once.
function host.event()
  return setmetatable({}, Event)
end

--- Wakes the waiter; without one, the next wait returns at once. Setting
--  twice is setting once.
function Event:set()
  local task = self.waiter
  if not task then
    self.is_set = true
    return
  end
  self.waiter, task.wait_of = nil, nil
  if task.timer then
    task.timer:close()
    free_id(task.id)
    task.timer, task.id = nil, nil
  end
  make_ready(task, true)
end

--- Waits for `set`.
-- @tparam[opt] number seconds at most; nil or math.huge: for ever
-- @treturn boolean true if it was set, false when the time is over
function Event:wait(seconds)
  assert_task()
  check_cancelled()
  if self.is_set then
    self.is_set = nil
    return true
  end
  local task = current
  if seconds and seconds < 1e9 then
    if seconds <= 0 then return false end
    local id = take_id(self)
    task.id, task.timer = id, core.timer(id, math.ceil(seconds * 1000))
  end
  self.waiter, task.wait_of = task, self
  return park()
end

-- A timer of an event ran out.
local function time_is_over(event)
  local task = event.waiter
  event.waiter, task.wait_of, task.timer, task.id = nil, nil, nil, nil
  step(task, false)
end

--- Suspends the running task.
-- @tparam number seconds
function host.sleep(seconds)
  host.event():wait(seconds > 0 and seconds or 1e-9)
end

-- the dispatcher ---------------------------------------------------------------

local wake_later

local function run_ready()
  local turns = TURN
  while first <= last do
    if turns == 0 then
      if not wake_later then         -- let the loop look at I/O, then go on
        local id = take_id(function(id) wake_later = nil free_id(id) end)
        wake_later = core.timer(id, 0)
      end
      return
    end
    turns = turns - 1
    local task, value = ready[first], ready[first + 1]
    ready[first], ready[first + 1] = nil, nil
    first = first + 2
    step(task, value)
  end
  first, last = 1, 0
end

local function cancel_all(why)
  for task in pairs(tasks) do
    if not task.daemon then task:cancel(why) end
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

core.dispatch(function(id, ...)
  local target = parked[id]
  if not target then return end
  local kind = getmetatable(target)
  if kind == Task then
    free_id(id)
    target.id = nil
    step(target, ...)
  elseif kind == Event then
    free_id(id)
    time_is_over(target)
  else
    target(id, ...)
  end
  if first <= last then run_ready() end
  if ending or alive == 0 then look_for_the_end() end
end)

-- running ----------------------------------------------------------------------

local function loop_until_over()
  run_ready()
  look_for_the_end()
  while alive > 0 do
    local ok, message = core.run()
    if not ok then return nil, message end
    if ending and ending.is_over then break end
    if alive > 0 and first > last and not ending then
      end_program(1, "every task waits for something that cannot happen")
      look_for_the_end()
    end
  end
  return true
end

--- Runs `fn` as a task and the loop with it, until it and every task that was
--  spawned have ended, a task failed, or the program was told to exit.
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
  if not ok then return nil, 1, message end
  if stopped then return nil, stopped.status, stopped.message end
  return true, main.results
end

--- Ends the program: every task is unwound, then `host.run` returns.
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

--- Is the running task being unwound?
function host.is_unwind(message)
  return getmetatable(message) == Unwind
end

--- Calls `fn` at each signal. The handler does not keep the program running.
-- @tparam string name "INT", "TERM", "HUP", ...
-- @tparam function fn
function host.on_signal(name, fn)
  return core.signal(take_id(function() fn() end), name)
end

-- connections ------------------------------------------------------------------

local Connection = {}
Connection.__index = Connection

-- Waits for the completion of an operation that has just been started.
local function completed(id)
  current.id = id
  return park()
end

--- Sends one command and waits for its reply.
-- @tparam integer ms the command's deadline, 0 for none
-- @tparam string ... the command and its arguments
-- @treturn[1] any the reply; false for a Redis nil
-- @treturn[2] nil
-- @treturn[2] string code "redis", "timeout" or "closed"
-- @treturn[2] string detail
function Connection:call(ms, ...)
  assert_task()
  if current.unwinding then check_cancelled() end
  local id = take_id(current)
  local ok, code, detail = self.raw:call(id, ms, ...)
  if not ok then
    free_id(id)
    return nil, code, detail
  end
  current.id = id
  return landed(yield())
end

--- Sends several commands at once and waits for all their replies.
-- @tparam integer ms deadline of each
-- @tparam table commands array of arrays
-- @treturn table replies; where one is nil,
-- @treturn table codes and
-- @treturn table details say why
function Connection:pipeline(ms, commands)
  assert_task()
  local replies, codes, details = {}, {}, {}
  local left, all = 0, host.event()
  for i, command in ipairs(commands) do
    local id = take_id(function(id, reply, code, detail)
      free_id(id)
      replies[i], codes[i], details[i] = reply, code, detail
      left = left - 1
      if left == 0 then all:set() end
    end)
    local ok, code, detail = self.raw:call(id, ms, table.unpack(command))
    if ok then
      left = left + 1
    else
      free_id(id)
      codes[i], details[i] = code, detail
    end
  end
  if left > 0 then all:wait() end
  return replies, codes, details
end

--- Subscribes to a channel; its messages go to the `message` function.
function Connection:subscribe(channel) return self.raw:subscribe(channel) end
function Connection:unsubscribe(channel) return self.raw:unsubscribe(channel) end

--- Closes the connection. Commands in flight fail with "closed".
function Connection:close()
  for _, id in ipairs(self.raw:close()) do
    local target = parked[id]
    if getmetatable(target) == Task then
      free_id(id)
      target.id = nil
      make_ready(target, CLOSED)
    elseif target and id ~= self.lost_id then
      target(id, nil, "closed", "the connection was closed")
    end
  end
  for _, id in ipairs { self.lost_id, self.message_id } do free_id(id) end
  self.lost_id, self.message_id = nil, nil
end

--- Opens a connection and sends the greeting.
-- @tparam table options host, port or path, tls, timeout (ms), silent (ms),
--   greeting (array of commands), lost = function(detail),
--   message = function(kind, channel, payload) for a subscriber
-- @return the connection, or nil, code, detail
function host.connect(options)
  assert_task()
  local self = setmetatable({}, Connection)
  self.lost_id = take_id(function(_, detail)
    if options.lost then options.lost(detail) end
  end)
  if options.message then
    self.message_id = take_id(function(_, kind, channel, payload)
      options.message(kind, channel, payload)
    end)
  end
  local id = take_id(current)
  local raw, code, detail = core.connect(id, {
    host = options.host, port = options.port, path = options.path,
    tls = options.tls, timeout = options.timeout, silent = options.silent,
    lost = self.lost_id, message = self.message_id,
  })
  if not raw then
    free_id(id)
  else
    self.raw = raw
    local ok
    ok, code, detail = completed(id)
    if not ok then raw:close() raw = nil end
  end
  if not raw then
    free_id(self.lost_id)
    if self.message_id then free_id(self.message_id) end
    return nil, code, detail
  end
  return self:greet(options)
end

function Connection:greet(options)
  local commands = options.greeting or {}
  if #commands == 0 then return self end
  local replies, codes, details = self:pipeline(options.timeout, commands)
  for i, command in ipairs(commands) do
    if replies[i] == nil then
      self:close()
      return nil, codes[i], ("%s (in reply to %s)"):format(details[i], command[1])
    end
  end
  return self
end

-- processes and files ------------------------------------------------------------

local Process = {}
Process.__index = Process

--- Starts a program.
-- @tparam table options file, args, env, cwd, detached, stdin, stdout, stderr
-- @return the process (`pid`, `wait`, `kill`), or nil, code, detail
function host.process(options)
  local self = setmetatable({ over = host.event() }, Process)
  local id = take_id(function(id, status, signal)
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

--- Waits for the program's end.
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

--- Lets it run on by itself.
function Process:forget() self.child:close() end

host.private_dir = core.private_dir
host.lock_file = core.flock
host.uid = core.uid
host.pid = core.pid
host.versions = core.versions
host.is_terminal = core.isatty

return host
