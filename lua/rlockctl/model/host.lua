--- A simulated host: tasks, events, timers and randomness from one seed, on a
--- virtual clock. Several hosts share a universe; each is one process, with its
--- own clock. The same seed gives the same run. The function `connect` of the
--- universe opens connections.
---
--- An item is a table whose `fire(item)` is called at its `deadline`, in true
--- time. An item with a `host` belongs to that process: a dead process drops
--- it, and a stalled one delays it; delayed items fire in the order of `rank`.
---
--- To a program, a host is as host/uv.lua: spec/check/host_spec.lua runs on
--- both. Tasks take no time, unless one reads the clock again and again, or
--- they wake each other again and again: a loop until some time ends.

local guard = require "rlock.host.uv.guard"
local unwind = require "rlock.host.uv.unwind"

local sim = {}

local EPOCH = 1700000000  -- the wall clock at time 0
local GRACE = 5           -- seconds that unwinding tasks get to clean up
-- READINGS readings of the clock at the same time are free. The next one takes
-- READING seconds. Each further one takes longer by the factor GROWTH, up to
-- LONGEST seconds, so that a loop that polls the clock for an hour ends soon.
local READINGS, READING, GROWTH, LONGEST = 10000, 1e-4, 1.0001, 1
-- 10 000 steps of tasks, with four values each, take so many seconds.
local STEPS, BURST = 4 * 10000, 0.01

local create, resume = coroutine.create, coroutine.resume
---@type function, function
local running, yield = coroutine.running, coroutine.yield
local isyieldable = coroutine.isyieldable
local insert, remove, unpack = table.insert, table.remove, table.unpack

-- randomness ------------------------------------------------------------------

local function hash(text)
  local h = 0x0BF29CE484222325
  for i = 1, #text do h = (h ~ text:byte(i)) * 0x100000001B3 end
  return h ~ h >> 29
end

--- A stream of random numbers, independent of others (xorshift64*).
---@param seed integer
---@param name string of the stream
---@return function # returns a number in [0,1)
function sim.stream(seed, name)
  local x = hash(("%d %s"):format(seed, name))
  if x == 0 then x = 88675123 end
  return function()
    local y = x
    y = y ~ (y << 13)
    y = y ~ (y >> 7)
    y = y ~ (y << 17)
    x = y
    return (y * 0x2545F4914F6CDD1D >> 11) * 0x1p-53
  end
end

-- the universe ----------------------------------------------------------------

---@class rlockctl.model.host.Universe
---@field [integer] table
---@field seed any
---@field now number
---@field n integer
---@field ready table
---@field last number
---@field serial number
---@field idle table
---@field random any
---@field on_log any
---@field connect any
---@field hosts table
---@field is_over any
local Universe = {}
Universe.__index = Universe

Universe.stream = sim.stream

---@param seed integer
---@return table # universe: `now`, seconds of true time; `random`;
---  `connect`, to be set: function(host, options) -> connection
---@return rlock.failure? code
---@return string? detail
function sim.new(seed)
  return setmetatable({
    seed = seed, now = 0, n = 0, ready = {}, last = 0, serial = 0, idle = {},
    hosts = {}, random = sim.stream(seed, "universe"),
  }, Universe)
end

--- Schedules an item at a point of true time. The array part of the universe
--- has the scheduled items, the next one last: most are due soon, so few move.
---@param deadline number
---@param item table must not be scheduled already; has a `deadline` while
---  it is
function Universe:at(deadline, item)
  local n = self.n
  local i = n
  while i > 0 and self[i].deadline <= deadline do i = i - 1 end
  if i == n then
    self[n + 1] = item
  else
    insert(self, i + 1, item)
  end
  self.n, item.deadline = n + 1, deadline
end

--- Cancels an item.
function Universe:cancel(item)
  item.is_delayed = nil
  if not item.deadline then return end
  item.deadline = nil
  local i = self.n
  self.n = i - 1
  while self[i] ~= item do i = i - 1 end
  remove(self, i)
end

--- Calls fn after some seconds of true time.
---@return table # an item
function Universe:after(seconds, fn)
  local item = { fire = fn }
  self:at(self.now + seconds, item)
  return item
end

local function make_ready(self, task, a, b, c)
  local n, ready = self.last, self.ready
  ready[n + 1], ready[n + 2], ready[n + 3], ready[n + 4] = task, a, b, c
  self.last = n + 4
end

---@type function
local finished

-- Lets time pass before the tasks after ready[n] run.
local function run_later(self, n)
  local count = self.last - n
  local rest = table.move(self.ready, n + 1, self.last, 1, {})
  self.ready, self.last = {}, 0
  self:after(BURST, function()
    for i = 1, count, 4 do make_ready(self, unpack(rest, i, i + 3)) end
  end)
end

---@type any
local stepped               -- the task that runs

local function run_ready(self)
  local n, ready = 0, self.ready
  while n < self.last do
    local task, a, b, c = ready[n + 1], ready[n + 2], ready[n + 3], ready[n + 4]
    -- not nil: a slot that has a value is quicker to set
    ready[n + 1], ready[n + 2], ready[n + 3], ready[n + 4] =
      false, false, false, false
    n = n + 4
    local host = task.host
    if not host.is_dead and not task.over then
      local outer = stepped
      host.running, stepped = task, task
      resume(task.co, a, b, c)
      host.running, stepped = nil, outer
      if not task.wait_of and not task.over then     -- the program has yielded
        finished(task, false, debug.traceback(task.co, unwind.ASTRAY))
      end
      if self.on_resumed then self.on_resumed(host) end
    end
    if n >= STEPS then return run_later(self, n) end
  end
  self.last = 0
end

-- Keeps an item until its process continues. Drops that of a dead process.
local function hold_back(item, host)
  if host.is_dead then return end
  item.is_delayed = true
  insert(host.delayed, item)
end

local function loop(self, deadline)
  run_ready(self)
  local n = self.n
  ---@type any
  local item = self[n]
  while item and item.deadline <= deadline and not self.is_over do
    local now, due, host = self.now, item.deadline, item.host
    if due > now then
      self.now, now = due, due
    end
    self[n], self.n, item.deadline = nil, n - 1, nil
    if host and (host.stalls_until > now or host.is_dead) then
      hold_back(item, host)
    else
      item:fire()
    end
    if self.last > 0 then run_ready(self) end
    n = self.n
    item = self[n]
  end
end

--- Ends the programs whose tasks wait, although no items are left.
---@return boolean # whether there are any
local function end_stuck(self)
  local found = false
  for _, host in ipairs(self.hosts) do
    found = not host.is_dead and host.stop(1, unwind.STUCK) or found
  end
  return found
end

--- Runs until a point of true time, until no items are left, or until something
--- sets `is_over`. Calls `on_resumed(host)` after each step of a task, if that
--- is set.
---@param deadline number
function Universe:run(deadline)
  repeat
    loop(self, deadline)
  until self.n > 0 or self.is_over or not end_stuck(self)
  if deadline > self.now and not self.is_over then self.now = deadline end
end

-- tasks -----------------------------------------------------------------------

---@class rlockctl.model.host.Task
---@field host any
---@field serial any
---@field co any
---@field over any
---@field results any
local Task = {}
Task.__index = Task

function finished(task, ok, ...)
  local host = task.host
  task.over = true
  host.tasks[task] = nil
  if ok then
    task.results = { n = select("#", ...), ... }
  elseif not unwind.is((...)) then
    host.failed((...))
  elseif task == host.failing and not host.is_ending then
    host.failure, host.failing = nil, nil
  end
  if not task.is_daemon then host.ended() end
  if not task.joiners or host.is_ending then return end
  for _, event in ipairs(task.joiners) do event:set() end
end

-- The message handler of tasks: keeps the first error that ends a task, as the
-- handler in uv/tasks.lua does.
local function traceback(message)
  message = unwind.traceback(message, 3)
  local host = stepped.host
  if not unwind.is(message) and not host.failure then
    host.failure, host.failing = message, stepped
    host.on_failure()
  end
  return message
end

local IDLE = 32                         -- coroutines kept for further tasks

-- A coroutine runs one task after another.
local function main(task, fn, values)
  local idle = task.host.universe.idle
  repeat
    finished(task, xpcall(fn, traceback, unpack(values, 1, values.n)))
    local n = #idle
    if n < IDLE then idle[n + 1] = task.co end
    task, fn, values = nil, nil, nil    -- can be collected
    if n < IDLE then task, fn, values = yield() end
  until not task
end

--- As that of host/uv.lua.
function Task:join()
  self.host.current()
  if not self.over then
    local event = self.host.event()
    self.joiners = self.joiners or {}
    insert(self.joiners, event)
    event:wait()
  end
  if self.results then
    return unpack(self.results, 1, self.results.n)
  end
  return nil, "cancelled", self.unwinding and self.unwinding.why
end

--- Cancels the task, as that of host/uv.lua.
function Task:cancel(why)
  if self.over or self.unwinding then return false end
  local cancellation, wait = unwind.new(why or "cancelled"), self.wait_of
  self.unwinding = cancellation
  if not wait then return true end          -- raised at its next wait
  self.wait_of, self.unwound = nil, true
  wait:abandon()
  make_ready(self.host.universe, self, nil, "cancelled", cancellation)
  return true
end

-- events ----------------------------------------------------------------------

local Event = { rank = 1 }

-- Resumes the task that waits for an event or for a reply.
local function wake(task, a, b, c)
  task.wait_of = nil
  make_ready(task.host.universe, task, a, b, c)
end

function Event:set()
  local task = self.waiter
  if not task then
    self.is_set = true
    return
  end
  self.waiter = nil
  if self.deadline or self.is_delayed then self.host.universe:cancel(self) end
  wake(task, true)
end

-- Called when the wait times out.
function Event:fire()
  local task = self.waiter
  self.waiter = nil
  wake(task, false)
end

function Event:abandon()
  self.waiter = nil
  self.host.universe:cancel(self)
end

--- As the event of host/uv.lua.
function Event:pause(seconds)
  ---@type any
  local host = self.host
  local task = host.current()
  if task.unwinding then
    local cancellation = unwind.take(task)
    if cancellation then return nil, "cancelled", cancellation end
  end
  if self.is_set then
    self.is_set = nil
    return true
  end
  if seconds and seconds <= 0 then return false end
  self.waiter, task.wait_of = task, self
  if seconds and seconds < 1e9 then
    local universe = host.universe
    -- As on a real machine, a timer is never early.
    universe:at(universe.now + seconds / host.speed + 1e-6, self)
  end
  return yield()
end

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

-- the host --------------------------------------------------------------------

local function coroutine_of(universe)
  local co = remove(universe.idle)
  if co then return co end
  co = create(main)
  if universe.hook then universe.hook(co) end
  return co
end

-- The tasks of the host contract.
local function add_tasks(host, universe)
  local function start(fn, ...)
    universe.serial = universe.serial + 1
    local task = setmetatable({
      host = host, serial = universe.serial, co = coroutine_of(universe),
      over = false, is_daemon = true,
    }, Task)
    host.tasks[task] = true
    make_ready(universe, task, task, fn, table.pack(...))
    return task
  end
  host.daemon, host.service = start, start
  function host.spawn(fn, ...)
    if type(fn) ~= "function" then
      error("bad argument fn of rlock.spawn: must be a function", 2)
    end
    local task = start(fn, ...)
    task.is_daemon, host.alive = false, host.alive + 1
    return task
  end
  function host.current()
    local task = host.running
    if not task or running() ~= task.co then error(unwind.OUTSIDE, 3) end
    if not isyieldable() then error(unwind.NOT_HERE, 3) end
    return task
  end
  function host.is_running() return host.running ~= nil end
  function host.whole(fn, ...) return fn(...) end
  host.guard = guard
  host.whole_wait = host.whole
  function host.is_over(task)
    return type(task) == "table" and task.over == true
  end
  host.has_gone = host.is_over
end

-- Suspends a task until the reply to a call: `call.done` resumes it.
local function add_calls(host)
  --- Returns the cancellation of the running task, once, or nil. The task then
  --- sends nothing.
  function host.cancellation()
    local task = host.running or host.current()
    return task.unwinding and unwind.take(task)
  end
  ---@param call table gets `task`; cancelling the task calls call:abandon()
  function host.wait_for(call)
    local task = host.current()
    call.task, task.wait_of = task, call
    return yield()
  end
  host.wake = wake
end

-- Cancels all tasks but daemons, in the order of their start.
local function cancel_all(host)
  local list = {}
  for task in next, host.tasks do
    if not task.is_daemon then list[#list + 1] = task end
  end
  table.sort(list, function(a, b) return a.serial < b.serial end)
  for _, task in ipairs(list) do task:cancel "the program ends" end
end

-- The program of a process, which ends with the last of its tasks, by an error
-- that nothing catches, or by `exit`.
local function add_program(host, universe)
  local program

  -- Calls fn(program) after the tasks that are ready.
  local function later(seconds, fn)
    local its = program
    local item = universe:after(seconds, function()
      if program == its then fn(its) end
    end)
    item.host, item.rank = host, 1
  end

  local function finish(its)
    program = nil
    for task in next, host.tasks do task.is_daemon = true end
    host.alive = 0
    if its.status then return its.over(nil, its.status, its.message) end
    its.over(true, its.main.results)
  end

  --- Starts the program: as `run` of host/uv.lua, but returns at once.
  ---@param over function is called with the results of `run`, outside of
  ---  any task
  ---@param fn function
  function host.start(over, fn, ...)
    program = { over = over, main = host.spawn(fn, ...) }
  end

  --- Cancels all tasks of the program, which is over when they have ended.
  ---@param status integer
  ---@param message? string
  ---@return boolean # false if it ends already
  function host.stop(status, message)
    if not program or program.status then return false end
    program.status, program.message, host.is_ending = status, message, true
    later(0, function(its)
      host.is_ending = nil
      cancel_all(host)
      if host.alive == 0 then return finish(its) end
      later(GRACE, finish)
    end)
    return true
  end

  --- As that of host/uv.lua.
  function host.exit(status, message)
    if type(status) ~= "number" then status = status == false and 1 or 0 end
    host.stop(status, message)
    local task = host.running
    if not task then return end
    task.unwinding, task.unwound = unwind.new "exit", true
    error(task.unwinding, 0)
  end

  --- Called at the first uncaught error, before the task closes its `<close>`
  --- variables.
  function host.on_failure() end

  --- Is called with an error that a task did not catch.
  function host.failed(message)
    if program then return host.stop(1, host.failure or message) end
    host.faults[#host.faults + 1] = message
  end

  -- A task that is no daemon has ended.
  function host.ended()
    host.alive = host.alive - 1
    if host.alive > 0 or not program or host.is_ending then return end
    later(0, function(its)
      if host.alive == 0 then finish(its) end
    end)
  end
end

-- Time and randomness.
local function add_clock(host, universe, offset)
  local Own = { host = host }
  for name, value in pairs(Event) do Own[name] = value end
  Own.__index = Own
  local reading, since, speed = offset, universe.now, host.speed
  ---@type number, integer, number
  local before, readings, pace = -1, 0, READING
  function host.now()
    local now = universe.now
    if now ~= before then
      before, readings, pace = now, 0, READING
    elseif readings < READINGS then
      readings = readings + 1
    else
      now, pace = now + pace, math.min(pace * GROWTH, LONGEST)
      universe.now, before = now, now
    end
    return reading + (now - since) * speed
  end
  --- Sets the speed of the clock; 1 is true time.
  function host.set_speed(new)
    reading, since, speed, host.speed = host.now(), universe.now, new, new
  end
  function host.event()
    local serial = universe.serial + 1
    universe.serial = serial
    return setmetatable({              -- preallocates its later fields
      serial = serial, waiter = nil, deadline = nil, is_set = nil,
    }, Own)
  end
  function host.sleep(seconds)
    if type(seconds) ~= "number" or seconds ~= seconds then
      error("bad seconds: must be a number", 2)
    end
    host.event():wait(math.max(seconds, 1e-9))
  end
  local random = sim.stream(universe.seed, host.label)
  host.random_number = random
  function host.random(n)
    local bytes = {}
    for i = 1, n do bytes[i] = string.char(math.floor(random() * 256)) end
    return table.concat(bytes)
  end
end

--- Adds a process.
---@param options table name; speed (of its clock, 1 is true time) and
---  offset (seconds)
---@return table # a host; `tasks` has those that have not ended,
---  `alive` is the number of those that are no daemons; `faults` collects
---  errors that they did not catch, unless the process has a program
function Universe:host(options)
  local host = {
    name = "sim", label = options.name, universe = self, faults = {},
    tasks = {}, alive = 0, speed = options.speed or 1,
    stalls_until = 0, delayed = {},
  }
  insert(self.hosts, host)
  host.is_unwind = unwind.is
  function host.time()
    host.now()                        -- counts as a reading of the clock
    return EPOCH + math.floor(self.now)
  end
  function host.log(level, text)
    if self.on_log then self.on_log(host, level, text) end
  end
  function host.connect(connection_options)
    return self.connect(host, connection_options)
  end
  add_tasks(host, self)
  add_program(host, self)
  add_calls(host)
  add_clock(host, self, options.offset or 0)
  return host
end

--- Stops a process at once, as SIGKILL does.
function Universe:kill(host) host.is_dead = true end

-- Fires the delayed items, in the order of libuv's loop: timers, received data,
-- then the deadlines of connections.
local function resume_process(self, host)
  if host.is_dead or host.stalls_until > self.now then return end
  local delayed = host.delayed
  host.delayed = {}
  for rank = 1, 3 do
    for _, item in ipairs(delayed) do
      if item.rank == rank and item.is_delayed then
        item.is_delayed = nil
        item.fire(item)
      end
    end
    run_ready(self)
  end
end

--- Stalls a process, as SIGSTOP or a garbage collection does.
---@param host table
---@param seconds number
function Universe:stall(host, seconds)
  host.stalls_until = math.max(host.stalls_until, self.now + seconds)
  self:after(host.stalls_until - self.now, function()
    resume_process(self, host)
  end)
end

return sim
