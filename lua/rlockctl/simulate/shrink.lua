--- Reduces the plan of a run that has failed to a few events (delta debugging):
--- drops parts of it as long as the run still fails in the same way.

local shrink = {}

local RUNS, SECONDS = 400, 30           -- at most

local function without(plan, first, last)
  local rest = {}
  for i, event in ipairs(plan) do
    if i < first or i > last then rest[#rest + 1] = event end
  end
  return rest
end

-- Drops parts of this size, wherever the run still fails without them.
local function drop(plan, size, fails)
  local first = 1
  while first <= #plan do
    local rest = without(plan, first, first + size - 1)
    if fails(rest) then plan = rest else first = first + size end
  end
  return plan
end

--- Reduces a plan. The number of runs and the time are bounded, because a run
--- takes long if many tasks wait until its end.
---@param plan table of a run that has failed
---@param fails function plan -> does a run with this plan fail, too?
---@param most? table `runs` (400) and `seconds` of processor time (30)
---@return table # the reduced plan
---@return integer # the number of runs
---@return boolean # whether a bound ended the reduction early
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
