--- A simulated host: tasks, events, timers and randomness of one seed, on a
--  virtual clock. Several hosts share a universe; each is one process of a
--  client, with its own clock. The same seed gives the same run. Connections
--  are made by the function `connect` of the universe.

local heap = require "rlock.heap"

local sim = {}

local running, yield, status = coroutine.running, coroutine.yield,
  coroutine.status

-- the universe ----------------------------------------------------------------

local Universe = {}
Universe.__index = Universe

--- @tparam integer seed
-- @treturn table universe: `now`, seconds of true time; `connect`, to be set:
--   function(host, options) -> connection, or nil, code, detail
function sim.new(seed)
  return setmetatable({
    now = 0, state = seed * 2654435761 % 4294967296, timers = heap.new(),
    ready = {}, first = 1, last = 0, order = 0,
  }, Universe)
end

--- A number in [0,1), from the seed (xorshift32).
function Universe:random()
  local x = self.state
  if x == 0 then x = 88675123 end
  x = x ~ (x << 13) & 0xFFFFFFFF
  x = x ~ (x >> 17)
  x = x ~ (x << 5) & 0xFFFFFFFF
  self.state = x
  return x / 4294967296
end

--- A whole number from 1 to n.
function Universe:pick(n) return math.floor(self:random() * n) + 1 end

--- Calls fn after some seconds of true time.
-- @treturn table a timer for `cancel`
function Universe:after(seconds, fn)
  self.order = self.order + 1
  -- Timers of one moment fire in the order in which they were set.
  local timer = { deadline = self.now + seconds + self.order * 1e-12, fn = fn }
  self.timers:push(timer)
  return timer
end

function Universe:cancel(timer) self.timers:remove(timer) end

local function make_ready(self, task, ...)
  self.last = self.last + 1
  self.ready[self.last] = { task = task, n = select("#", ...), ... }
end

local step

local function run_ready(self)
  while self.first <= self.last do
    local item = self.ready[self.first]
    self.ready[self.first] = nil
    self.first = self.first + 1
    step(self, item.task, table.unpack(item, 1, item.n))
  end
end

--- Runs until a moment of true time, or until nothing is left to happen.
-- @tparam number deadline
function Universe:run(deadline)
  run_ready(self)
  local timer = self.timers:peek()
  while timer and timer.deadline <= deadline do
    self.timers:remove(timer)
    if timer.deadline > self.now then self.now = timer.deadline end
    timer.fn()
    run_ready(self)
    timer = self.timers:peek()
  end
  self.now = math.max(self.now, deadline)
end

-- tasks -----------------------------------------------------------------------

local Task = {}
Task.__index = Task

local function finished(task, ok, ...)
  task.over = true
  if ok then
    task.results = { n = select("#", ...), ... }
  else
    local host = task.host
    host.faults[#host.faults + 1] = tostring((...))
  end
  for _, event in ipairs(task.joiners or {}) do event:set() end
end

local function stepped(task, resumed, ...)
  task.host.running = nil
  if not resumed then
    return finished(task, false, debug.traceback(task.co, tostring((...))))
  elseif status(task.co) == "dead" then
    finished(task, true, ...)
  end
end

function step(self, task, ...)
  local host = task.host
  if host.is_dead or task.over then return end
  if host.stalls_until > self.now then
    local values, n = { ... }, select("#", ...)
    self:after(host.stalls_until - self.now, function()
      step(self, task, table.unpack(values, 1, n))
    end)
    return
  end
  host.running = task
  stepped(task, coroutine.resume(task.co, ...))
end

--- Waits until the task has ended.
function Task:join()
  if not self.over then
    local event = self.host.event()
    self.joiners = self.joiners or {}
    table.insert(self.joiners, event)
    event:wait()
  end
  if self.results then
    return table.unpack(self.results, 1, self.results.n)
  end
end

-- events ----------------------------------------------------------------------

local Event = {}
Event.__index = Event

local function wake(event, value)
  local task, universe = event.waiter, event.host.universe
  event.waiter = nil
  if event.timer then universe:cancel(event.timer) end
  event.timer = nil
  make_ready(universe, task, value)
end

function Event:set()
  if self.waiter then
    wake(self, true)
  else
    self.is_set = true
  end
end

--- As the event of host/uv.lua; nothing is ever cancelled.
function Event:pause(seconds)
  local host = self.host
  local task = host.current()
  if self.is_set then
    self.is_set = nil
    return true
  end
  if seconds and seconds <= 0 then return false end
  self.waiter = task
  if seconds and seconds < 1e9 then
    self.timer = host.universe:after(seconds / host.speed, function()
      self.timer = nil
      wake(self, false)
    end)
  end
  return yield()
end

function Event:wait(seconds) return self:pause(seconds) end

-- the host --------------------------------------------------------------------

local Guard = {}
Guard.__index = Guard
function Guard:__close() if not self.is_over then self.undo(self.what) end end

local function completed(guard, ...)
  guard.is_over = true
  return ...
end

-- Tasks, as the host contract has them.
local function add_tasks(host, universe)
  function host.daemon(fn, ...)
    local task = setmetatable({ host = host, co = coroutine.create(fn) }, Task)
    make_ready(universe, task, ...)
    return task
  end
  host.spawn = host.daemon
  function host.current()
    local task = host.running
    if not task or running() ~= task.co then
      error("no task is running", 2)
    end
    return task
  end
  function host.whole(fn, ...) return fn(...) end
  function host.guard(undo, what, fn, ...)
    local guard <close> = setmetatable({ undo = undo, what = what }, Guard)
    return completed(guard, fn(...))
  end
  function host.is_over(task)
    return type(task) == "table" and task.over == true
  end
  host.has_gone = host.is_over
end

-- Time and randomness.
local function add_clock(host, universe)
  function host.now() return host.offset + universe.now * host.speed end
  function host.event() return setmetatable({ host = host }, Event) end
  function host.sleep(seconds) host.event():wait(math.max(seconds, 1e-9)) end
  function host.random_number() return universe:random() end
  function host.random(n)
    local bytes = {}
    for i = 1, n do bytes[i] = string.char(universe:pick(256) - 1) end
    return table.concat(bytes)
  end
end

--- Adds a process.
-- @tparam table options name; speed (of its clock, 1 is true time) and offset
--   (seconds)
-- @treturn table a host; `faults` collects errors that its tasks did not catch
function Universe:host(options)
  local host = {
    name = "sim", label = options.name, universe = self, faults = {},
    speed = options.speed or 1, offset = options.offset or 0, stalls_until = 0,
  }
  function host.log(level, text)
    if self.on_log then self.on_log(host, level, text) end
  end
  function host.connect(connection_options)
    return self.connect(host, connection_options)
  end
  add_tasks(host, self)
  add_clock(host, self)
  return host
end

--- Stops a process at once, as SIGKILL does.
function Universe:kill(host) host.is_dead = true end

--- Lets a process stand still, as SIGSTOP or a pause for garbage does.
-- @tparam number seconds
function Universe:stall(host, seconds)
  host.stalls_until = math.max(host.stalls_until, self.now + seconds)
end

return sim
