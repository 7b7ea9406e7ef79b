--- Tasks, events and the dispatcher of the libuv host. A task is a coroutine
--- that may wait; meanwhile the loop of rlock.core runs the others.

local core = require "rlock.core"
local heap = require "rlock.util.heap"
local unwind = require "rlock.host.uv.unwind"

local tasks = {}

local xpcall = xpcall               -- the plain one: a program may wrap it
---@type function, function
local running, yield = coroutine.running, coroutine.yield
local isyieldable = coroutine.isyieldable
local create, resume = coroutine.create, core.resume
local cancellation_of = unwind.take
local state_of = coroutine.status

local GRACE = 5          -- seconds that unwinding tasks get to clean up
local TURN = 1000        -- ready tasks to run before the loop polls I/O again
local LARGE = 1000       -- a longer `ready` is replaced

--- The receiver of a completion, by id: a task, a table with a callback `fn`,
--- or one with the method `replied`, which has its id for one completion. Ids
--- are reused, so the table stays a small array.
local receivers, free_ids, n_free = {}, {}, 0
local NOBODY = { fn = function() end }     -- at the first ids in `free_ids`
--- Runnable tasks: ready[first..last], each with the three values that its
--- yield returns.
local ready, first, last = {}, 1, 0
---@type any
local current            -- the running task
local alive = 0          -- the number of tasks that keep the program running
---@type any
local ending             -- why the program ends: { status=, message= }
local finishing = false  -- the program has ended, and cleans up
---@type string?
local failure            -- the message of the first error that ends a task
local failing            -- this task; it may still close its variables
---@type function?
local explain            -- adds the detail to that message
--- Events with a timeout, by `deadline`; one timer of the core is set for the
--- first.
---@type rlock.heap, any, number
local timeouts, alarm, alarm_at = heap.new(), nil, math.huge

-- ids ---------------------------------------------------------------------

local function take_id(receiver)
  local id = free_ids[n_free]
  if id then
    n_free = n_free - 1
  else
    id = #receivers + 1
  end
  receivers[id] = receiver
  return id
end

local function free_id(id)
  receivers[id] = NOBODY
  n_free = n_free + 1
  free_ids[n_free] = id
end

--- An id whose completions are passed to `fn`, until `free_id`.
function tasks.callback(fn) return take_id { fn = fn } end

--- An id for one completion, which is passed to receiver:replied(...).
tasks.take_id = take_id

--- Reuses the id, which must not complete any more.
tasks.free_id = free_id

--- Opens a primitive of the core whose events are passed to `fn`.
---@param fn function
---@param open function of the core, with an id and these arguments
---@return any # the primitive
---@return any # its id, for `free_id`
---@return string? detail
function tasks.open(fn, open, ...)
  local id = tasks.callback(fn)
  local opened, code, detail = open(id, ...)
  if opened then return opened, id end
  free_id(id)
  return nil, code, detail
end

-- tasks -------------------------------------------------------------------

local function make_ready(task, a, b, c)
  local n = last
  ready[n + 1], ready[n + 2], ready[n + 3], ready[n + 4] = task, a, b, c
  last = n + 4
end

local function end_program(status, message)
  if ending then return end
  ending = { status = status, message = message }
end

-- The message handler of tasks. It keeps the first error: the `<close>`
-- variables of the failed task may make other tasks fail before that task ends.
local function traceback(message)
  message = unwind.traceback(message, 3)
  if not unwind.is(message) and not failure then
    failure = explain and explain(message) or message
    failing = current
  end
  return message
end

--- Sets the function that adds detail to the first uncaught error, a message
--- with a traceback. Its result is reported instead.
---@param fn? function
function tasks.explain_with(fn) explain = fn end

local function finished(task, ok, ...)
  task.over = true
  free_id(task.id)
  if not task.daemon then alive = alive - 1 end
  if ok then
    task.results = { n = select("#", ...), ... }
  elseif not unwind.is((...)) and not finishing then
    end_program(1, failure or (...))
  elseif task == failing and not ending then     -- cancelled after its error
    failure, failing = nil, nil
  end
  if ending and not ending.begun then return end     -- all will be cancelled
  for _, waiting in ipairs(task.joiners or {}) do waiting:set() end
end

-- Handles the results of a resume: the task waits again, or its xpcall has
-- ended, or the program itself called coroutine.yield.
local function stepped(task, resumed, ended, ...)
  current = nil
  if not resumed then error(ended, 0) end     -- our own code failed
  if task.wait_of then return end
  if state_of(task.co) == "dead" then
    finished(task, ended, ...)
  else
    finished(task, false, debug.traceback(task.co, unwind.ASTRAY))
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

---@class rlock.task: rlock.owner
---@field co thread internal
---@field id integer internal
---@field wait_of rlock.event | table | false internal
---@field daemon? true internal
---@field over? true internal
---@field results? table internal
---@field joiners? rlock.event[] internal
---@field unwinding? table internal
---@field unwound? true internal
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
  local task = setmetatable({ co = create(xpcall), id = 0, wait_of = false },
    Task)
  task.id = take_id(task)
  if daemon then task.daemon = true else alive = alive + 1 end
  make_ready(task, fn, traceback, a)
  return task
end

--- Starts a task. An error that it does not catch ends the program.
---@param fn function
---@param ... any its arguments
---@return rlock.task
function tasks.spawn(fn, ...)
  if type(fn) ~= "function" then
    error("bad argument fn of rlock.spawn: must be a function", 2)
  end
  return start(false, fn, ...)
end

--- Starts an internal task: it does not keep the program running.
function tasks.daemon(fn, ...)
  return start(true, fn, ...)
end

--- The running task, which is the owner of the locks that it takes.
---@return rlock.task
function tasks.current()
  local task = current
  if not task or running() ~= task.co then
    error(unwind.OUTSIDE, 3)
  end
  if not isyieldable() then
    error(unwind.NOT_HERE, 3)
  end
  return task
end

--- Has this task ended? (If so, its holds are not renewed any more.)
function tasks.is_over(task)
  return type(task) == "table" and task.over == true
end

--- Waits until the task has ended.
---@return any ... what its function returned; or nil, "cancelled" and why
function Task:join()
  tasks.current()
  if not self.over then
    local over = tasks.event()
    self.joiners = self.joiners or {}
    table.insert(self.joiners, over)
    over:wait()
  end
  if self.results then
    return table.unpack(self.results, 1, self.results.n)
  end
  return nil, "cancelled", self.unwinding and self.unwinding.why
end

--- Cancels the task: raises an error where it waits, so that its pcalls and
--- `<close>` variables clean up. Cleanup may wait. The task acquires none of
--- the locks that it waits for.
---@param why? string
---@return boolean # whether it was running, and was not cancelled before
function Task:cancel(why)
  if self.over or self.unwinding then return false end
  self.unwinding = unwind.new(why or "cancelled")
  local event = self.wait_of
  if event and event ~= CALLING then
    event.waiter, self.wait_of = nil, false
    if event.index then timeouts:remove(event) end
  elseif event then                       -- waiting for a completion
    local id = self.id                    -- gets the late completion
    receivers[id] = { fn = function() free_id(id) end }
    self.id = take_id(self)
    self.wait_of = false
  else
    return true                           -- raised at its next wait
  end
  self.unwound = true
  make_ready(self, nil, "cancelled", self.unwinding)
  return true
end

-- events ------------------------------------------------------------------

---@class rlock.event
---@field waiter? rlock.task internal
---@field is_set? true internal
---@field deadline? number internal
---@field index? integer internal
local Event = {}
Event.__index = Event

--- A new event. One task at a time waits for it; `set` wakes that task.
---@return rlock.event
function tasks.event()
  return setmetatable({                -- with room for the fields that it gets
    waiter = nil, is_set = nil, deadline = nil, index = nil,
  }, Event)
end

--- Wakes the waiter; without one, the next wait returns at once. Idempotent.
function Event:set()
  local task = self.waiter
  if not task then
    self.is_set = true
    return
  end
  self.waiter, task.wait_of = nil, false
  if self.index then timeouts:remove(self) end
  make_ready(task, true)
end

---@type function
local on_alarm

-- Sets the core's timer for the first event.
local function set_alarm(now)
  local first_event = timeouts:peek()
  if not first_event or first_event.deadline >= alarm_at then return end
  if alarm then alarm.timer:close() end
  alarm = alarm or { id = tasks.callback(on_alarm) }
  alarm_at = first_event.deadline
  ---@cast alarm_at -nil
  local ms = math.ceil((alarm_at - now) * 1000)
  alarm.timer = core.timer(alarm.id, ms > 0 and ms or 0)
end

-- Wakes the waiters whose timeout has passed.
function on_alarm()
  alarm_at = math.huge
  local now = core.now()
  local event = timeouts:peek()
  while event and event.deadline <= now do
    timeouts:remove(event)
    local task = event.waiter ---@cast task rlock.task
    event.waiter, task.wait_of = nil, false
    make_ready(task, false)
    event = timeouts:peek()
  end
  set_alarm(now)
end

-- Suspends the task. Its frame lives as long as the wait, so it is kept small.
local function suspended(event, task)
  event.waiter, task.wait_of = task, event
  return yield()
end

--- Waits for `set`, for internal code: returns a cancellation, does not raise.
---@param seconds? number at most; nil or math.huge: without limit
---@return boolean? # true if it was set, false on timeout
---@return rlock.failure? code # "cancelled"
---@return any # the error to raise after cleaning up
function Event:pause(seconds)
  local task = tasks.current()
  local cancellation = cancellation_of(task)
  if cancellation then return nil, "cancelled", cancellation end
  if self.is_set then
    self.is_set = nil
    return true
  end
  if seconds and seconds < 1e9 then
    if seconds <= 0 then return false end
    self.deadline = core.now() + seconds
    timeouts:push(self)
    if self.deadline < alarm_at then set_alarm(core.now()) end
  end
  return suspended(self, task)
end

--- Waits for `set`. Raises if the task is cancelled.
---@param seconds? number at most; nil or math.huge: without limit
---@return boolean # true if it was set, false on timeout
function Event:wait(seconds)
  if seconds ~= nil and (type(seconds) ~= "number" or seconds ~= seconds) then
    error("bad seconds: must be a number", 2)
  elseif self.waiter then
    error("another task waits for this event already", 2)
  end
  local is_set, _, cancellation = self:pause(seconds)
  if is_set == nil then error(cancellation, 0) end
  return is_set
end

--- Suspends the running task.
---@param seconds number
function tasks.sleep(seconds)
  if type(seconds) ~= "number" or seconds ~= seconds then
    error("bad seconds: must be a number", 2)
  end
  tasks.event():wait(seconds > 0 and seconds or 1e-9)
end

-- the dispatcher ----------------------------------------------------------

local wake_later

-- Lets the loop poll I/O before more tasks run.
local function run_the_rest_later()
  if wake_later then return end
  local id
  id = tasks.callback(function()
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
  if last > LARGE then ready = {} end       -- a table does not shrink
  first, last = 1, 0
end

local function check_for_end()
  if ending and not ending.begun then
    ending.begun = true
    for _, task in ipairs(receivers) do
      if task.co and not task.daemon then task:cancel "the program ends" end
    end
    local id = tasks.callback(function() ending.is_over = true core.stop() end)
    ending.grace = core.timer(id, GRACE * 1000)
    run_ready()
  end
  if alive == 0 then core.stop() end
end

core.dispatch(function(id, a, b, c)
  local receiver = receivers[id]
  local co = receiver.co
  if co then
    receiver.wait_of = false
    current = receiver
    stepped(receiver, resume(co, a, b, c))
  elseif receiver.replied then
    receivers[id] = NOBODY                         -- free_id, without a call
    n_free = n_free + 1
    free_ids[n_free] = id
    receiver:replied(a, b, c)
  else
    receiver.fn(a, b, c)
  end
  if first <= last then run_ready() end
  if ending or alive == 0 then check_for_end() end
end)

-- operations of the core --------------------------------------------------

--- The id with which the running task starts an operation.
---@return any
---@return rlock.failure? code # "cancelled"
---@return any # the error to raise after cleaning up
function tasks.begin()
  local cancellation = current.unwinding and cancellation_of(current)
  if cancellation then return nil, "cancelled", cancellation end
  return current.id
end

--- Waits for the completion of that operation. The arguments are what the core
--- has returned.
---@param code? string why not; "closed" becomes "connect"
---@param detail? string
---@return any ... # its values; nil, code, detail if it has not begun
function tasks.await(has_begun, code, detail)
  if not has_begun then
    return nil, code == "closed" and "connect" or code, detail
  end
  current.wait_of = CALLING
  return yield()
end

--- Completes operations that the core will not complete, because of a close.
---@param ids table
---@param code string each fails with nil, this code
---@param detail string and this detail. `replied` is called later, because the
---  receiver may be the one that closes
function tasks.fail(ids, code, detail)
  for _, id in ipairs(ids) do
    local receiver = receivers[id]
    if receiver.co then
      receiver.wait_of = false
      make_ready(receiver, nil, code, detail)
    elseif receiver.replied then
      free_id(id)
      tasks.daemon(receiver.replied, receiver, nil, code, detail)
    else
      receiver.fn(nil, code, detail)
    end
  end
end

-- running -----------------------------------------------------------------

local function loop_until_over()
  run_ready()
  check_for_end()
  while alive > 0 do
    local ok, message = core.run()
    if not ok then return nil, message end
    if ending and ending.is_over then break end
    if alive > 0 and first > last and not ending then
      end_program(1, unwind.STUCK)
      check_for_end()
    end
  end
  return true
end

--- Runs `fn` as a task, and the loop, until all tasks but daemons have ended, a
--- task has failed, or `exit` is called.
---@param fn function
---@return boolean? # true
---@return integer | table | nil # exit status
---@return string? # message, with a traceback
function tasks.run(fn, ...)
  ending, failure, failing = nil, nil, nil
  local main = tasks.spawn(fn, ...)
  local ok, message = loop_until_over()
  local stopped = ending
  if stopped and stopped.grace then stopped.grace:close() end
  ending = nil
  -- Tasks that did not end in time do not prolong a later run.
  for _, task in ipairs(receivers) do
    if task.co then task.daemon = true end
  end
  alive = 0
  if not ok then return nil, 1, message end
  if stopped then return nil, stopped.status, stopped.message end
  return true, main.results
end

--- As `run`, but `exit` ends only the task that calls it. For cleanup after the
--- program has ended.
---@param fn function
function tasks.finish(fn)
  finishing = true
  tasks.run(fn)
  finishing = false
end

--- Ends the program: cancels every task, then `run` returns.
---@param status integer
---@param message? string
function tasks.exit(status, message)
  if not finishing then end_program(status, message) end
  if current then
    current.unwinding = unwind.new "exit"
    current.unwound = true
    error(current.unwinding, 0)
  end
end

--- Is a task running?
function tasks.is_running() return current ~= nil end

--- Has the program ended, and does it clean up?
function tasks.is_finishing() return finishing end

--- Is the running task being unwound?
function tasks.is_unwinding()
  return current ~= nil and current.unwound == true
end

--- Clears the cancellation of the running task, which has caught it and
--- continues.
function tasks.revive()
  current.unwinding, current.unwound = nil, nil
end

return tasks
