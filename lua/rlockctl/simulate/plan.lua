--- The faults of one run of a program: a list of { time, kind, a, b, seconds },
--- made from the seed and from what a run without faults has shown: `moments`,
--- the times at which the server was asked, and the longest `lease`.

local faults = require "rlockctl.simulate.faults"
local sim = require "rlockctl.model.host"

local plan = {}

local MOST = 8                          -- faults of a short program
local EVERY = 2                         -- seconds for each further one
local SHORTEST = 0.01                   -- seconds of a pause

-- The kinds of each group, with odds.
local GROUPS = {
  crash = { kill = 2 },
  pause = { stall = 4 },
  late = { late = 3, deaf = 3, reset = 2, ["half-open"] = 1, partition = 1,
    ["requests delayed"] = 1, ["replies delayed"] = 1, refuse = 1, slow = 1,
    freeze = 1 },
}

--- The groups, in the order of the manual.
plan.groups = { "crash", "pause", "late" }

-- A list with each kind as often as its odds.
local function kinds_of(groups)
  local list = {}
  for _, group in ipairs(plan.groups) do
    local names = {}
    for kind in next, groups[group] and GROUPS[group] or {} do
      names[#names + 1] = kind
    end
    table.sort(names)
    for _, kind in ipairs(names) do
      for _ = 1, GROUPS[group][kind] do list[#list + 1] = kind end
    end
  end
  return list
end

-- A time at which the program is busy: between any two requests of the probe,
-- or at any time. Most requests are sent when a client connects; most time
-- passes elsewhere.
local function moment(moments, random)
  local i, first = math.floor(random() * #moments) + 1, moments[1]
  if random() < 0.5 then
    return first + random() * (moments[#moments] - first)
  end
  local from = moments[i]
  return from + random() * ((moments[i + 1] or from + SHORTEST) - from)
end

-- From 10 ms to twice the longest lease; each order of magnitude as often.
local function duration(lease, random)
  return SHORTEST * (2 * lease / SHORTEST) ^ random()
end

--- Makes the plan of a seed.
---@param seed integer
---@param probe table `moments`, `lease`, `span`
---@param groups table set of the names of groups
---@return table
function plan.make(seed, probe, groups)
  local kinds, list = kinds_of(groups), {}
  if not kinds[1] or not probe.moments[1] then return list end
  local random = sim.stream(seed, "plan")
  local most = MOST + probe.moments[#probe.moments] / EVERY
  for i = 1, math.floor(random() * most) + 1 do
    local kind = faults.one_of(kinds, random())
    list[i] = { moment(probe.moments, random), kind, random(), random(),
      kind == "reset" and random() * 8 or duration(probe.lease, random) }
  end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return list
end

--- When all faults of a plan are over.
function plan.ends(list)
  ---@type number
  local last = 0
  for _, event in ipairs(list) do
    last = math.max(last, event[1] + event[5])
  end
  return last
end

return plan
