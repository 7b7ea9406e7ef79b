--- Simulates clients and servers with faults. Each fault that is found is
--- printed with its seed, which reproduces the run. For the first one found,
--- the injected faults are shrunk to the last few needed, and printed, too.
---
---   rlockctl spec/simulate/run.lua [NAME=value...]
---
---   SEED=n       begin with this seed; only its run, unless RUNS or COVERAGE
---                is given
---   RUNS=n       how many runs
---   MINUTES=1    at most, of processor time
---   SEAL=kill|time|off
---   SENTINEL=1   behind Sentinels, with failovers
---   CLUSTER=1    in a cluster, with failovers and slots that move
---   REPLICAS=1   with replicas that confirm, and failovers to them
---   CALM=1       without faults that disturb a waiter or a holder. Without one
---                of these four, a part of the runs has each
---   ZOOKEEPER=1  on a model of ZooKeeper instead of Redis, with faults of its
---                servers; SERVERS=n: how many
---   KIND=lock    only this kind; also election, and red for a red lock
---   COUNTER=kind only a semaphore, permits, latch or double_barrier
---   COMPUTE=1    only a computation; with ZOOKEEPER=1 or CALM=1, too
---   LOG=1        print the log of each run
---   COVERAGE=1   print the coverage of the client, by default of 60 runs from
---                seed 1; fails if anything unreached is not in unreached.lua,
---                so MINUTES must be enough for all
---   EVENTS=a,b   inject only these of the run's faults
---   SHRINK=30    seconds of processor time to look for the few that are
---                needed; 0, and with COVERAGE: do not look for them
---   FIRST=1      end with the first run in which a fault is found

local faults = require "spec.simulate.faults"
local host = require "rlock.host.uv"
local shrink = require "rlockctl.simulate.shrink"
local world = require "spec.simulate.world"

io.stdout:setvbuf "line"

local options = {}
for _, word in ipairs(arg) do
  local name, value = word:match("^(%u+)=(.*)$")
  if name and value ~= "" then options[name] = value end
end

local seconds = 60 * tonumber(options.MINUTES or 1)
local seed = tonumber(options.SEED) or options.COVERAGE and 1
  or os.time() * 1000
local runs = tonumber(options.RUNS) or options.COVERAGE and 60
  or options.SEED and 1 or math.huge

local covered = options.COVERAGE
  and require("spec.simulate.coverage").start()

local sum = { runs = 0, grants = 0, contended = 0, faults = 0, longest = 0 }
local counts = {}

local function add(found)
  sum.runs, sum.grants = sum.runs + 1, sum.grants + found.oracle.grants
  sum.contended = sum.contended + found.oracle.contended
  sum.longest = math.max(sum.longest, found.oracle.longest)
  for _, list in ipairs { found.network.count, found.oracle.counts } do
    for name, count in pairs(list) do
      counts[name] = (counts[name] or 0) + count
    end
  end
end

local function numbers_of(plan, part)
  local place, numbers = {}, {}
  for i, event in ipairs(plan) do place[event] = i end
  for i, event in ipairs(part) do numbers[i] = place[event] end
  return table.concat(numbers, ",")
end

-- The part of a plan that EVENTS names.
local function chosen(plan)
  if not options.EVENTS then return nil end
  local part = {}
  for number in options.EVENTS:gmatch("%d+") do
    part[#part + 1] = plan[tonumber(number)]
  end
  return part
end

local function show_few(found, run_options)
  local what = found.oracle.faults[1].what
  local function fails(part)
    return world.simulate(found.seed, setmetatable({ plan = part, log = false,
      wanted = what }, { __index = run_options })).oracle.reported[what]
  end
  local few, tries, is_early = shrink.plan(found.plan, fails,
    { seconds = tonumber(options.SHRINK) })
  print(("  after %d runs%s: make simulate SEED=%d EVENTS=%s"):format(tries,
    is_early and ", stopped early (SHRINK=" .. (options.SHRINK or 30)
      .. " seconds)" or "", found.seed, numbers_of(found.whole, few)))
  for _, event in ipairs(few) do print("  " .. faults.show(event)) end
end

-- Those that are given; nil: by the seed.
local function surroundings()
  if options.ZOOKEEPER then
    return { zookeeper = true, kind = options.KIND, counter = options.COUNTER,
      servers = tonumber(options.SERVERS), compute = options.COMPUTE }
  end
  for _, name in ipairs { "SENTINEL", "CLUSTER", "REPLICAS", "CALM" } do
    if options[name] then
      return { [name:lower()] = true, kind = options.KIND,
        counter = options.COUNTER, compute = options.COMPUTE }
    end
  end
  if options.COUNTER or options.KIND or options.COMPUTE then
    return { counter = options.COUNTER, kind = options.KIND,
      compute = options.COMPUTE }
  end
end

local function simulate()
  local run_options = {
    seal = options.SEAL, log = options.LOG ~= nil,
    only = surroundings(),
    hook = covered and covered.hook,
  }
  local whole = world.plan(seed, run_options)
  run_options.plan = chosen(whole) or whole
  local found = world.simulate(seed, run_options)
  found.whole = whole
  add(found)
  if options.V then print(seed, os.clock(), found.oracle.grants) end
  if found.log then print(table.concat(found.log, "\n")) end
  local is_first = sum.faults == 0
  for _, fault in ipairs(found.oracle.faults) do
    sum.faults = sum.faults + 1
    print(("SEED=%d %s"):format(seed, fault.text))
  end
  if is_first and sum.faults > 0 and options.SHRINK ~= "0" and not covered then
    show_few(found, run_options)
  end
end

local start, began = os.clock(), host.now()
repeat
  simulate()
  seed = seed + 1
until sum.runs >= runs or os.clock() - start > seconds
  or options.FIRST and sum.faults > 0
local took, names = host.now() - began, {}
for name in pairs(counts) do names[#names + 1] = name end
table.sort(names)
for i, name in ipairs(names) do
  names[i] = ("%s %d"):format(name, counts[name])
end
print(table.concat(names, ", "))
print(("%d runs, %d grants, %d of them contended (%.0f a second), longest wait "
  .. "at the end %.1f s, %d faults found"):format(sum.runs, sum.grants,
  sum.contended, sum.contended / took, sum.longest, sum.faults))
local unexplained = covered and covered:report() or 0
os.exit(sum.faults == 0 and unexplained == 0)
