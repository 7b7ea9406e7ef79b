--- Explores all states that clients of a policy can reach within bounds, breadth
--  first, so that the first fault has a shortest trace.

local invariants = require "rlock.check.invariants"
local steps = require "rlock.check.steps"
local world = require "rlock.check.world"

local explore = {}

local NAME = "lock"

local function set(list)
  local result = {}
  for _, item in ipairs(list or {}) do result[item] = true end
  return result
end

local function reads_clock(sides)
  for _, side in ipairs(sides) do
    for _, op in pairs(side.ops) do
      if op.text:find('"time"', 1, true) then return true end
    end
  end
  return false
end

local function one_at_most() return false end

-- Readers share; a writer excludes other owners.
local function readers_or_writer(holders)
  local writer
  for _, holder in ipairs(holders) do
    if holder.mode == "write" then writer = holder.owner end
  end
  for _, holder in ipairs(holders) do
    if writer and holder.owner ~= writer then return false end
  end
  return true
end

--- Describes what is explored.
-- @tparam table sides  one policy, or those for reading and writing; results
--   of policy.load
-- @tparam table bounds clients, ops, ticks, breaks, evictions, tick (ms),
--   leases (ms), most_holds, faults (name -> true), options, is_symmetric
-- @treturn table
function explore.lock(sides, bounds)
  local first = sides[1]
  local lock = {
    name = first.name:match("^[^.]*"), sides = sides, bounds = bounds,
    keys = first.keys(NAME), options = bounds.options, faults = bounds.faults,
    leases = bounds.leases, tick = bounds.tick, most_holds = bounds.most_holds,
    is_symmetric = bounds.is_symmetric, is_absolute = reads_clock(sides),
    allows = first.allows or sides[2] and readers_or_writer or one_at_most,
    is_fair = first.fair, slack = (first.slack or 0) * 1000, progress = {},
  }
  lock.is_own = set(lock.keys)
  lock.keeps = set(first.keeps and first.keeps(lock.keys))
  for i = 1, bounds.clients * 8 + 8 do lock.progress[i] = {} end
  return lock
end

-- The steps that lead to a state.
local function trace_of(parents, id)
  local trace = {}
  while parents[id] do
    table.insert(trace, 1, parents[id].step)
    id = parents[id].from
  end
  return trace
end

--- Explores.
-- @tparam table lock from `lock`
-- @tparam[opt] function progress called with the result so far, now and then;
--   returns true to stop
-- @treturn table states, steps, is_complete; with a fault: fault (words), trace
--   (a list of steps)
function explore.run(lock, progress)
  local start = world.new(lock.bounds, #lock.sides)
  local seen = { [start:text(lock.is_absolute)] = 1 }
  local parents, frontier = {}, { { id = 1, state = start } }
  local result = { states = 1, steps = 0, depth = 0 }
  while frontier[1] do
    local next_frontier = {}
    for _, node in ipairs(frontier) do
      for _, step in ipairs(steps.of(lock, node.state)) do
        local state = node.state:fork()
        local verdict, fault = steps.take(lock, state, step)
        result.steps = result.steps + 1
        local is_new = false
        if not fault then
          local text = state:text(lock.is_absolute)
          is_new = not seen[text]
          if is_new then
            result.states = result.states + 1
            seen[text] = result.states
            parents[result.states] = { from = node.id, step = step }
            fault = invariants.check(lock, state)
          end
          if not fault and verdict == "held" then
            fault = invariants.check_order(lock, node.state, step)
          end
        end
        if fault then
          result.fault, result.trace = fault, trace_of(parents, node.id)
          table.insert(result.trace, step)
          return result
        end
        if is_new then
          next_frontier[#next_frontier + 1] =
            { id = result.states, state = state }
        end
        if progress and result.steps % 1000 == 0 and progress(result) then
          return result
        end
      end
    end
    frontier, result.depth = next_frontier, result.depth + 1
  end
  result.is_complete = true
  return result
end

--- Does the steps of a trace.
-- @treturn table as `run`
function explore.follow(lock, list)
  local state = world.new(lock.bounds, #lock.sides)
  local result = { states = 1, steps = 0, depth = #list, is_complete = true }
  for i, step in ipairs(list) do
    local before = state:fork()
    local verdict, fault = steps.take(lock, state, step)
    fault = fault or invariants.check(lock, state)
      or verdict == "held" and invariants.check_order(lock, before, step)
    result.steps, result.states = i, i + 1
    if fault then
      result.fault, result.trace = fault, table.move(list, 1, i, 1, {})
      return result
    end
  end
  result.trace = list
  return result
end

return explore
