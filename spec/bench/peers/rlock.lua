--- rlock's driver; spec/bench/peers/run says what it is told and prints.
---
---   rlockctl rlock.lua PATTERN KIND TASKS SECONDS WARM_UP FILE ADDRESS...

local rlock = require "rlock"

local PATTERN, KIND, FILE = arg[1], arg[2], arg[6]
local TASKS, SECONDS, WARM_UP = tonumber(arg[3]), tonumber(arg[4]),
  tonumber(arg[5])
local HOLD, REST, PERMITS = 0.005, 0.001, 4
local now = rlock.now

local clients = {}
local SCHEME = KIND == "zookeeper" and "zk://" or "redis://"
for i = 7, #arg do clients[i - 6] = assert(rlock.open(SCHEME .. arg[i])) end
local client = clients[1]

local samples, count, total, cpu, finish, begun, ended = {}, 0, 0

-- A function that takes it, and one that gives it back.
local function both(lock)
  return function() assert(lock:lock()) end,
    function() assert(lock:unlock()) end
end

local make = {
  lock = function(name) return both(client:lock(name)) end,
  zookeeper = function(name) return both(client:lock(name)) end,
  fair = function(name) return both(client:fair_lock(name)) end,
  red = function(name) return both(rlock.red_lock(clients, name)) end,
  semaphore = function(name)
    local all = client:semaphore(name)
    all:set(PERMITS)
    return function() assert(all:acquire()) end,
      function() assert(all:release()) end
  end,
}
if PATTERN ~= "readers" and not make[KIND] then os.exit(3) end

local function is_over()
  local at = now()
  if at < begun then return false end
  if not cpu then cpu = os.clock() end
  return at >= finish
end

local function sample(seconds)
  total = total + 1
  if not cpu then return end
  count = count + 1
  samples[count] = seconds
end

local function cycle(take, give)
  repeat
    local at = now()
    take()
    give()
    sample(now() - at)
  until is_over()
end

-- The time of the last release, or 0 since somebody has taken the lock.
local stamp = FILE ~= "" and assert(io.open(FILE, "r+"))
if stamp then stamp:setvbuf "no" end     -- other processes write it, too

local function put(time)
  stamp:seek "set"
  stamp:write(("%020.9f"):format(time))
  stamp:flush()
end

local function get()
  stamp:seek "set"
  return tonumber(stamp:read(20)) or 0
end

local function pass_on()
  local take, give = make[KIND] "bench"
  repeat
    take()
    local at, released = now(), get()
    if released > 0 then sample(at - released) end
    put(0)
    rlock.sleep(HOLD)
    at = now()
    put(at)
    give()
    local mine = get()
    while mine > 0 and mine == get() and not is_over() do rlock.sleep(REST) end
  until is_over()
end

local function read_mostly(i)
  local lock = client:read_write_lock "bench"
  local read, unread = both(lock:read_lock())
  local write, unwrite = both(lock:write_lock())
  local n = i * 7
  cycle(function()
    n = n + 1
    return (n % 20 == 0 and write or read)()
  end, function() return (n % 20 == 0 and unwrite or unread)() end)
end

local function hold()
  for i = 1, TASKS do assert(client:lock("bench:" .. i):lock()) end
  begun, cpu = now(), os.clock()
  rlock.sleep(SECONDS)
  count, ended = TASKS, now()
end

local function resident()
  local file <close> = assert(io.open "/proc/self/statm")
  return select(2, file:read("n", "n")) * 4
end

local function report()
  ended = ended or now()
  cpu = os.clock() - cpu
  table.sort(samples)
  local function percentile(share)
    local value = samples[1 + (#samples - 1) * share // 1]
    return value and (',"p%.0f_us":%.1f'):format(share * 100, value * 1e6) or ""
  end
  print(('{"count":%d,"total":%d,"seconds":%.6f,"cpu_s":%.6f,"rss_kb":%d%s%s}')
    :format(count, total, ended - begun, cpu, resident(), percentile(0.50),
    percentile(0.99)))
  io.stdout:flush()
  os.exit(0, false)
end

local patterns = {
  cycles = function(i) cycle(make[KIND]("bench:" .. i)) end,
  tight = function() cycle(make[KIND] "bench") end,
  handover = pass_on,
  readers = read_mostly,
}

if PATTERN == "start" then
  local take, give = make[KIND] "bench"
  take()
  give()
  os.exit(0)
elseif PATTERN == "hold" then
  hold()
  report()
end
begun = now() + WARM_UP
finish = begun + SECONDS
for i = 1, TASKS do rlock.spawn(patterns[PATTERN] or os.exit(3), i) end
rlock.sleep(WARM_UP + SECONDS)
report()
