--- Simulates clients and servers with faults. Each fault that is found is
--  printed with its seed; the same seed is the same run.
--
--    lua5.4 spec/simulate/run.lua [SEED=n] [MINUTES=n] [SECONDS=n] [RUNS=n]
--      [SEAL=kill|time|off] [LOG=1] [SHRINK=1]

local world = require "spec.simulate.world"

io.stdout:setvbuf "line"

local options = {}
for _, word in ipairs(arg) do
  local name, value = word:match("^(%u+)=(.*)$")
  if name and value ~= "" then options[name] = value end
end

local seconds = tonumber(options.SECONDS)
  or tonumber(options.MINUTES or 1) * 60
local seed = tonumber(options.SEED) or os.time() * 1000
local runs = tonumber(options.RUNS) or options.SEED and 1 or math.huge

local sum = { runs = 0, grants = 0, commands = 0, faults = 0, longest = 0 }
local counts = {}

local function add(found)
  sum.runs, sum.grants = sum.runs + 1, sum.grants + found.oracle.grants
  sum.longest = math.max(sum.longest, found.oracle.longest)
  for _, list in ipairs { found.network.count, found.oracle.counts } do
    for name, count in pairs(list) do
      counts[name] = (counts[name] or 0) + count
    end
  end
end

local start = os.clock()
repeat
  local found = world.simulate(seed, { seal = options.SEAL,
    log = options.LOG })
  add(found)
  if options.V then print(seed, os.clock() - start, found.oracle.grants) end
  if options.LOG then print(table.concat(found.log, "\n")) end
  for _, fault in ipairs(found.oracle.faults) do
    sum.faults = sum.faults + 1
    print(("SEED=%d %s"):format(seed, fault.text))
  end
  seed = seed + 1
until sum.runs >= runs or os.clock() - start > seconds
local took = os.clock() - start
local names = {}
for name in pairs(counts) do names[#names + 1] = name end
table.sort(names)
for i, name in ipairs(names) do names[i] = ("%s %d"):format(name, counts[name]) end
print(table.concat(names, ", "))
print(("%d runs, %d grants, %.0f a second, longest wait at the end %.1f s, "
  .. "%d faults found"):format(sum.runs, sum.grants, sum.grants / took,
  sum.longest, sum.faults))
os.exit(sum.faults == 0)
