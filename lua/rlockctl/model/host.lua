--- A simulated host: tasks, events, timers and randomness from one seed, on a
--- virtual clock. Several hosts share a universe; each is one process, with its
--- own clock. The same seed gives the same run. The function `connect` of the
--- universe opens connections.
---
--- An item is a table whose `fire(item)` is called at its `deadline`, in true
--- time. An item with a `host` belongs to that process: a dead process drops
--- it, and a stalled one delays it; delayed items fire in the order of `rank`.

local guard = require "rlock.host.uv.guard"
local unwind = require "rlock.host.uv.unwind"

local sim = {}

local EPOCH = 1700000000  -- the wall clock at time 0

local create, resume = coroutine.create, coroutine.resume
---@type function, function
local running, yield = coroutine.running, coroutine.yield
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
local Universe = {}
Universe.__index = Universe

Universe.stream = sim.stream

---@param seed integer
---@return table # universe: `now`, seconds of true time; `random`; `connect`,
---  to be set: function(host, options) -> connection, or nil, code, detail
function sim.new(seed)
  return setmetatable({
    seed = seed, now = 0, n = 0, ready = {}, last = 0, serial = 0, idle = {},
    random = sim.stream(seed, "universe"),
  }, Universe)
end

--- Schedules an item at a point of true time. The array part of the universe
--- has the scheduled items, the next one last: most are due soon, so few move.
---@param deadline number
---@param item table must not be scheduled already; has a `deadline` while it is
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
      host.running = task
      resume(task.co, a, b, c)
      host.running = nil
    end
  end
  self.last = 0
end

-- Keeps an item until its process continues. Drops that of a dead process.
local function hold_back(item, host)
  if host.is_dead then return end
  item.is_delayed = true
  insert(host.delayed, item)
end

--- Runs until a point of true time, or until no items are left.
---@param deadline number
function Universe:run(deadline)
  run_ready(self)
  local n = self.n
  ---@type any
  local item = self[n]
  while item and item.deadline <= deadline do
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
  if deadline > self.now then self.now = deadline end
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

local function finished(task, ok, ...)
  local host = task.host
  task.over = true
  host.tasks[task] = nil
  if ok then
    task.results = { n = select("#", ...), ... }
  elseif not unwind.is((...)) then
    host.faults[#host.faults + 1] = tostring((...))
  end
  if not task.joiners then return end
  for _, event in ipairs(task.joiners) do event:set() end
end

local IDLE = 32                         -- coroutines kept for further tasks

-- A coroutine runs one task after another.
local function main(task, fn, values)
  local idle = task.host.universe.idle
  repeat
    finished(task, xpcall(fn, unwind.traceback, unpack(values, 1, values.n)))
    local n = #idle
    if n < IDLE then idle[n + 1] = task.co end
    task, fn, values = nil, nil, nil    -- can be collected
    if n < IDLE then task, fn, values = yield() end
  until not task
end

--- Waits until the task has ended.
---@return any # what its function returned; nothing if it was cancelled or
---  failed
function Task:join()
  if not self.over then
    local event = self.host.event()
    self.joiners = self.joiners or {}
    insert(self.joiners, event)
    event:wait()
  end
  if self.results then
    return unpack(self.results, 1, self.results.n)
  end
end

--- Cancels the task, as that of host/uv.lua.
function Task:cancel(why)
  if self.over or self.unwinding then return end
  local cancellation, wait = unwind.new(why or "cancelled"), self.wait_of
  self.unwinding = cancellation
  if not wait then return end               -- raised at its next wait
  self.wait_of, self.unwound = nil, true
  wait:abandon()
  make_ready(self.host.universe, self, nil, "cancelled", cancellation)
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
  function host.daemon(fn, ...)
    universe.serial = universe.serial + 1
    local task = setmetatable({
      host = host, serial = universe.serial, co = coroutine_of(universe),
      over = false,
    }, Task)
    host.tasks[task] = true
    make_ready(universe, task, task, fn, table.pack(...))
    return task
  end
  host.spawn, host.service = host.daemon, host.daemon
  function host.current()
    local task = host.running
    if not task or running() ~= task.co then
      error("no task is running", 2)
    end
    return task
  end
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

-- Time and randomness.
local function add_clock(host, universe)
  local Own = { host = host }
  for name, value in pairs(Event) do Own[name] = value end
  Own.__index = Own
  function host.now()
    return host.reading + (universe.now - host.since) * host.speed
  end
  --- Sets the speed of the clock; 1 is true time.
  function host.set_speed(speed)
    host.reading, host.since, host.speed = host.now(), universe.now, speed
  end
  function host.event()
    local serial = universe.serial + 1
    universe.serial = serial
    return setmetatable({              -- preallocates its later fields
      serial = serial, waiter = nil, deadline = nil, is_set = nil,
    }, Own)
  end
  function host.sleep(seconds) host.event():wait(math.max(seconds, 1e-9)) end
  local random = sim.stream(universe.seed, host.label)
  host.random_number = random
  function host.random(n)
    local bytes = {}
    for i = 1, n do bytes[i] = string.char(math.floor(random() * 256)) end
    return table.concat(bytes)
  end
end

--- Adds a process.
---@param options table name; speed (of its clock, 1 is true time) and offset
---  (seconds)
---@return table # a host; `faults` collects errors that its tasks did not
---  catch, `tasks` has those that have not ended
function Universe:host(options)
  local host = {
    name = "sim", label = options.name, universe = self, faults = {},
    tasks = {}, speed = options.speed or 1, reading = options.offset or 0,
    since = self.now, stalls_until = 0, delayed = {},
  }
  host.is_unwind = unwind.is
  function host.time() return EPOCH + math.floor(self.now) end
  function host.log(level, text)
    if self.on_log then self.on_log(host, level, text) end
  end
  function host.connect(connection_options)
    return self.connect(host, connection_options)
  end
  add_tasks(host, self)
  add_calls(host)
  add_clock(host, self)
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
