--- Cycles of lock and unlock by several tasks over one client, each task on a
--- lock of its own. Prints one line of JSON, like bare.c.
---
---   rlockctl cycles.lua TASKS SECONDS [OPTION=VALUE...]
---
--- The server is RLOCK_URL; the options are those of rlock.open.

local rlock = require "rlock"

local WARM_UP = 0.2

local tasks, seconds = tonumber(arg[1]), tonumber(arg[2])
local options = {}
for i = 3, #arg do
  local name, value = arg[i]:match "^(%w+)=(.*)$"
  options[name] = math.tointeger(tonumber(value)) or value
end
local client = assert(rlock.open(options))
local now = rlock.now

local function server_time()
  local text = assert(client:call("INFO", "commandstats"))
  local calls, usec = text:match("cmdstat_evalsha:calls=(%d+),usec=(%d+)")
  return tonumber(calls or 0), tonumber(usec or 0)
end

--- Cycles until `finish`; returns their number.
local function cycle(lock, finish, samples)
  local count, begun = 0, now()
  repeat
    assert(lock:lock())
    assert(lock:unlock())
    count = count + 1
    local ended = now()
    if samples then samples[count] = ended - begun end
    begun = ended
  until ended >= finish
  return count
end

local function run(duration, samples)
  local finish, cycles, running = now() + duration, 0, {}
  for i = 1, tasks do
    running[i] = rlock.spawn(function()
      local lock = client:lock("bench:" .. i - 1)
      local count = cycle(lock, finish, i == 1 and samples)
      cycles = cycles + count
    end)
  end
  for _, task in ipairs(running) do task:join() end
  return cycles
end

run(WARM_UP)
local samples = {}
local calls_before, usec_before = server_time()
local begun, cpu = now(), os.clock()
local cycles = run(seconds, samples)
cpu = os.clock() - cpu
local elapsed = now() - begun
local calls, usec = server_time()

table.sort(samples)
local function percentile(share)
  return samples[1 + (#samples - 1) * share // 1] * 1e6
end

print(('{"tasks":%d,"cycles":%d,"seconds":%.3f,"rate":%.0f,"cpu_us":%.3f,'
  .. '"mean_us":%.2f,"p50_us":%.2f,"p99_us":%.2f,"server_us":%.3f}'):format(
  tasks, cycles, elapsed, cycles / elapsed, cpu / cycles * 1e6,
  elapsed * tasks / cycles * 1e6, percentile(0.50), percentile(0.99),
  (usec - usec_before) / (calls - calls_before)))
