--- How many tasks have a permit at once, at most, while five tasks take and
--- release permits ten times each.
---
---   local function another() return open():permits(name) end
---   local most = most_inside(permits, another, 30)

local rlock = require "rlock"
local task = require "spec.tools.task"

local TASKS, TURNS, HELD = 5, 10, 0.005

local function take_turns(permits, entered, left)
  for _ = 1, TURNS do
    local id = assert(permits:acquire())   -- of a semaphore: true
    entered()
    rlock.sleep(HELD)
    left()
    assert(permits:release(id ~= true and id or nil))
  end
end

---@param shared table a semaphore or permits, for two of the tasks
---@param open function returns the same of a new client, for each other task
---@param seconds number for which to wait for each task
---@return integer
return function(shared, open, seconds)
  local inside, most, all = 0, 0, {}
  local function entered()
    inside = inside + 1
    most = math.max(most, inside)
  end
  local function left() inside = inside - 1 end
  for i = 1, TASKS do
    all[i] = task.start(take_turns, i % 2 == 0 and shared or open(), entered,
      left)
  end
  for i = 1, TASKS do all[i]:join(seconds) end
  return most
end
