--- Shrinks the plan of a run in which a fault was found, to few events (delta
--- debugging): drops parts of it as long as a fault of the same sort is found.

local shrink = {}

local RUNS, SECONDS = 400, 30           -- at most

local function without(plan, first, last)
  local rest = {}
  for i, event in ipairs(plan) do
    if i < first or i > last then rest[#rest + 1] = event end
  end
  return rest
end

-- Drops parts of this size.
local function drop(plan, size, fails)
  local first = 1
  while first <= #plan do
    local rest = without(plan, first, first + size - 1)
    if fails(rest) then plan = rest else first = first + size end
  end
  return plan
end

--- Shrinks a plan, within a number of runs and a time: a run takes long if many
--- tasks wait to the end.
---@param plan table with which a fault was found
---@param fails function plan -> is the fault found with this one, too?
---@param most? table `runs` (400) and `seconds` of processor time (30)
---@return table # the shorter plan
---@return integer # how many runs it took
---@return boolean # whether it ended early: more events might be dropped
function shrink.plan(plan, fails, most)
  most = most or {}
  local runs, is_early, start = 0, false, os.clock()
  local function still_fails(part)
    is_early = is_early or runs >= (most.runs or RUNS)
      or os.clock() - start >= (most.seconds or SECONDS)
    if is_early then return false end
    runs = runs + 1
    return fails(part)
  end
  local size = #plan // 2
  while size >= 1 do
    local before = #plan
    plan = drop(plan, size, still_fails)
    if size == 1 and #plan == before then break end
    size = math.max(size // 2, 1)
  end
  return plan, runs, is_early
end

return shrink
