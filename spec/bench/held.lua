--- One process holds many locks under its watchdog: is each renewed in time, at
--- what cost, and how much memory does a held lock take? Prints JSON.
---
---   rlockctl held.lua [LOCKS [SECONDS [LEASE]]]    the server is RLOCK_URL

local resident = require "spec.bench.resident"
local rlock = require "rlock"

local LOCKS = tonumber(arg[1] or 100000)
local SECONDS = tonumber(arg[2] or 35)
local HOLDERS = 100                    -- tasks that hold them
local LEASE = tonumber(arg[3] or 30)
local SLACK = 1                        -- tolerated delay of a renewal, seconds
local PAUSE = 0.5

local client = assert(rlock.open { watchdog = LEASE })
local now = rlock.now
local lost = 0

local function on_lost()
  lost = lost + 1
end

--- Each task takes its share and keeps it; returns all locks.
local function take_all()
  local locks, ready = {}, 0
  local all_taken = rlock.event()
  for holder = 1, HOLDERS do
    rlock.spawn(function()
      for i = holder, LOCKS, HOLDERS do
        local lock = client:lock("held:" .. i)
        assert(lock:lock())
        locks[i] = lock
      end
      ready = ready + 1
      if ready == HOLDERS then all_taken:set() end
      rlock.event():wait()                       -- without a limit
    end)
  end
  all_taken:wait()
  return locks
end

--- The shortest TTL of any lock on the server, and the number of locks.
local LEAST = [[
  local least, count, cursor = 1e9, 0, "0"
  repeat
    local page = redis.call("scan", cursor, "match", "held:*", "count", 1000)
    cursor = page[1]
    for _, key in ipairs(page[2]) do
      least = math.min(least, redis.call("pttl", key))
      count = count + 1
    end
  until cursor == "0"
  return { least, count }]]

local function calls_of(name)
  local text = assert(client:call("INFO", "commandstats"))
  return tonumber(text:match("cmdstat_" .. name .. ":calls=(%d+)") or 0)
end

--- The processor time that the server has used for requests of renewals and
--- others, in seconds.
local function server_seconds()
  local text = assert(client:call("INFO", "commandstats"))
  return tonumber(text:match "cmdstat_evalsha:calls=%d+,usec=(%d+)") / 1e6
end

--- Watches for a while; returns the shortest TTL, how often one was too short,
--- and the processor time used.
local function watch()
  local least, late, cpu, finish = math.huge, 0, os.clock(), now() + SECONDS
  while now() < finish do
    rlock.sleep(PAUSE)
    local reply = assert(client:call("EVAL", LEAST, 0))
    local seconds = reply[1] / 1000
    least = math.min(least, seconds)
    if seconds < LEASE * 2 / 3 - SLACK or reply[2] ~= LOCKS then
      late = late + 1
    end
  end
  return least, late, os.clock() - cpu
end

local warm = client:lock("warm")
assert(warm:lock())
assert(warm:unlock())
local before = resident()
local locks = take_all()
local lock_bytes = (resident() - before) / LOCKS
for _, lock in ipairs(locks) do lock:on_lost(on_lost) end

local renewals, used, begun = calls_of("pexpire"), server_seconds(), now()
local least, late, cpu = watch()
local elapsed = now() - begun
renewals, used = calls_of("pexpire") - renewals, server_seconds() - used

print(('{"locks":%d,"seconds":%.1f,"renewals":%d,"lease":%d,"least":%.2f,'
  .. '"lost":%d,"late":%d,"cpu_percent":%.2f,"server_percent":%.2f,'
  .. '"lock_bytes":%.0f}')
  :format(LOCKS, elapsed, renewals, LEASE, least, lost, late,
  cpu / elapsed * 100, used / elapsed * 100, lock_bytes))
io.stdout:flush()
os.exit(0)
