--- A process of a calm run whose tasks wait for one lock at a time, which no
--- other process uses. At the moment of a wake some waiters are cancelled, or
--- their time is over. Nobody else publishes on the lock's channel, so a wake
--- that is not passed on delays the others, which the oracle reports.

local sim = require "rlockctl.model.host"
local uses = require "spec.simulate.uses"

local crowd = {}

local WAITERS = 4         -- of a lock, at most
local MANY = 15           -- of what they all get at once
local HELD = 0.03         -- seconds, so that all of them wait
local LONG = 1.3          -- seconds: others must not wait to read for so long
local MOST = 3            -- permits
local WAIT = 4            -- seconds, long enough to be reported
local PAUSE = 0.5         -- seconds between two rounds, on average
local DELAYS = { 0.0005, 0.005 }        -- of the network, in seconds

-- Cancels a waiter, mostly the first one, now or while it retries.
local function disturb(self, task)
  local random = task.random
  local left = {}
  for _, part in ipairs(task.parts) do
    if not part.job.over then left[#left + 1] = part end
  end
  local part = left[random() < 0.7 and 1 or math.floor(random() * #left) + 1]
  if not part then return end
  self.network:note "cancel at a wake"
  if random() < 0.5 then return part.job:cancel() end
  self.universe:after(random() * 3 * task.delay, function()
    part.job:cancel()
  end)
end

local function start_part(task, i)
  local part = setmetatable({ label = ("%s.%d"):format(task.label, i),
    may_end = true }, { __index = task })
  local wait = task.random() < 0.2 and HELD + task.random() * 0.02 or WAIT
  part.stay, part.is_first = i == 0 and HELD or task.random() * 0.002, i == 0
  if i > 0 and task.is_slow then part.stay = LONG end
  part.reads = task.is_crowded and i > 0
  part.reads_on = i == 0 and task.reads_on
  part.job = task.host.spawn(uses.crowd[task.thing.use], part, task.thing, wait)
  return part
end

-- Counters have another name in each round: a cancelled task may have lost
-- permits. What can be shared is held for long in some rounds.
local function prepare(task)
  local thing, random = task.thing, task.random
  task.is_crowded = (thing.kind:find "read" or thing.use == "latch")
    and random() < 0.3 or nil
  local is_shared = thing.kind:find "read" or thing.use ~= "lock"
  task.reads_on = task.is_crowded and thing.use == "lock" and random() < 0.5
    and LONG
  task.is_slow = task.is_crowded or is_shared and random() < 0.3
  thing.generation = thing.generation + 1
  if thing.use == "latch" then
    thing.cycle = { needed = 1, takers = {},
      name = ("%s:%d"):format(thing.name, thing.generation) }
  elseif thing.use ~= "lock" then
    thing.generations, thing.most = {}, 1 + math.floor(random() * MOST)
  end
end

-- One task holds the lock while others wait for it.
local function use(self, task)
  prepare(task)
  local holder = start_part(task, 0)
  task.host.sleep(HELD / 3)
  task.parts = {}
  for i = 1, task.is_crowded and MANY
      or 2 + math.floor(task.random() * (WAITERS - 1)) do
    task.parts[i] = start_part(task, i)
  end
  holder.job:join()
  for _, part in ipairs(task.parts) do part.job:join() end
  task.parts = {}                       -- nothing refers to ended tasks
  self.network:note "crowds"
end

local function work(self, task, things)
  while not self.is_ending do
    task.delay = DELAYS[math.floor(task.random() * #DELAYS) + 1]
    task.thing = things[math.floor(task.random() * #things) + 1]
    self.network:route(task.host, task.thing.servers[1]).delay = task.delay
    use(self, task)
    task.host.sleep(task.random() * 2 * PAUSE)
  end
  task.is_done = true
end

--- Starts the process.
---@param self table world
---@param process table not a target of faults
---@param things table the locks
function crowd.start(self, process, things)
  local host = process.host
  local task = { world = self, process = process, host = host,
    open = process.open, label = host.label, parts = {}, delay = 0,
    random = sim.stream(self.seed, "crowd") }
  process.workers[1] = task
  function host.heard()
    if task.random() < 0.5 then disturb(self, task) end
  end
  task.job = host.daemon(work, self, task, things)
end

return crowd
