--- The fault schedule of one run of a program: a list of { time, kind, a, b,
--- seconds }. It depends on the seed and on the probe, a run without faults,
--- which has recorded `moments`, the time of each request, and the longest
--- `lease`.

local faults = require "rlockctl.simulate.faults"
local sim = require "rlockctl.model.host"

local plan = {}

local MOST = 8                          -- faults, at most, of a short program
local EVERY = 2                         -- seconds per further fault
local UNKNOWN = 5       -- seconds: the longest lease, if no lock is taken
local SHORTEST = 0.01                   -- seconds of a pause

local LATE = { late = 3, deaf = 3, reset = 2, ["half-open"] = 1, partition = 1,
  ["requests delayed"] = 1, ["replies delayed"] = 1, refuse = 1, slow = 1 }

-- The faults of every deployment of Redis.
local function of_redis(kinds)
  return { redis = kinds, sentinel = kinds, replicas = kinds, cluster = kinds }
end

-- The kinds of faults in each group, with their odds; `servers` and the last
-- three depend on the sort of servers. rlock does not protect against the last
-- three.
local GROUPS = {
  crash = { kill = 2 },
  pause = { stall = 4 },
  late = LATE,
  servers = {
    redis = { freeze = 1 },
    sentinel = { freeze = 1, failover = 4 },
    replicas = { freeze = 1, ["replica lags"] = 4,
      ["failover to a replica"] = 3 },
    cluster = { freeze = 1, move = 4, ["failover in the cluster"] = 3,
      ["node removed"] = 1, ["slot uncovered"] = 1 },
    zookeeper = { ["server freezes"] = 2, ["server restarts"] = 2,
      ["server cut off"] = 2, ["server lags"] = 2, ["server's disk"] = 1,
      ["leader deposed"] = 1 },
  },
  restart = of_redis { ["restart, empty"] = 3 },
  evict = of_redis { evict = 3 },
  clock = of_redis { ["clock, forward"] = 2, ["clock, back"] = 1 },
}

--- The default groups, in the order of the manual.
plan.groups = { "crash", "pause", "late", "servers" }

--- All groups.
plan.known = { "crash", "pause", "late", "servers", "restart", "evict",
  "clock" }

--- Kind of fault -> how it violates an assumption of rlock.
plan.broken = {
  ["restart, empty"] = "the server lost its data, which no lock survives",
  evict = "the server evicted a key, which no lock survives",
  ["clock, forward"] = "the server's clock was stepped: leases end early",
  ["clock, back"] = "the server's clock was stepped: leases end late",
}

-- The kinds of faults in a group.
local function kinds_in(group, sort)
  local all = GROUPS[group]
  return type(next(all) and all[next(all)]) == "table" and (all[sort] or {})
    or all
end

-- A list that has each kind as often as its odds say.
local function kinds_of(groups, sort)
  local list = {}
  for _, group in ipairs(plan.known) do
    local kinds, names = groups[group] and kinds_in(group, sort) or {}, {}
    for kind in next, kinds do names[#names + 1] = kind end
    table.sort(names)
    for _, kind in ipairs(names) do
      for _ = 1, kinds[kind] do list[#list + 1] = kind end
    end
  end
  return list
end

-- A random time for a fault: half of the time uniform, half of the time between
-- two successive requests of the probe. Most requests are sent while a client
-- connects, but most time passes later.
local function moment(moments, random)
  local i, first = math.floor(random() * #moments) + 1, moments[1]
  if random() < 0.5 then
    return first + random() * (moments[#moments] - first)
  end
  local from = moments[i]
  return from + random() * ((moments[i + 1] or from + SHORTEST) - from)
end

-- A random duration from 10 ms to twice the longest lease, log-uniform: each
-- order of magnitude is equally likely.
local function duration(lease, random)
  lease = lease > 0 and lease or UNKNOWN
  return SHORTEST * (2 * lease / SHORTEST) ^ random()
end

--- Makes the plan for a seed.
---@param seed integer
---@param probe table with `moments`, `lease` and `sort`, from programs.run
---@param groups table set of group names
---@return table
function plan.make(seed, probe, groups)
  local kinds, list = kinds_of(groups, probe.sort), {}
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

--- The time at which all faults of a plan are over.
function plan.ends(list)
  ---@type number
  local last = 0
  for _, event in ipairs(list) do
    last = math.max(last, event[1] + event[5])
  end
  return last
end

return plan
