--- Many tasks of one client wait for a fair lock: how long does a grant take,
--- and how many requests does the client send while nothing happens? Prints
--- JSON.
---
---   rlockctl queue.lua fair|write [WAITERS]   the server is RLOCK_URL
---
--- The server must be private: statistics and data are reset.

local rlock = require "rlock"

local KIND = arg[1]
local WAITERS = tonumber(arg[2] or 20000)
local BATCH = 100                      -- tasks started at a time
local SETTLE = 2                       -- seconds until all are waiting
local QUIET = 3                        -- seconds in which requests are counted
local GRANTS = math.min(WAITERS // 2, 2000)

local client, other = assert(rlock.open()), assert(rlock.open())

local function lock()
  if KIND == "fair" then return client:fair_lock("queue") end
  return client:fair_read_write_lock("queue"):write_lock()
end

local function queued()
  if KIND == "fair" then
    return assert(other:call("LLEN", "redisson_lock_queue:{queue}"))
  end
  return assert(other:call("ZCARD", "rlock_frw_queue:{queue}"))
end

-- The requests since the last reset, and the server's microseconds for them.
local function requests()
  local calls, usec = assert(other:call("INFO", "commandstats"))
    :match("cmdstat_evalsha:calls=(%d+),usec=(%d+)")
  return tonumber(calls or 0), tonumber(usec or 0)
end

local held = lock()
assert(held:lock())
local turns, done = 0, rlock.event()

local function wait_for_turn()
  local its = lock()
  assert(its:lock())
  turns = turns + 1
  if turns > GRANTS then return done:set() end
  assert(its:unlock())
end

for i = 1, WAITERS do
  rlock.spawn(wait_for_turn)
  if i % BATCH == 0 then rlock.sleep(0) end
end
repeat rlock.sleep(0.1) until queued() == WAITERS
rlock.sleep(SETTLE)

assert(other:call("CONFIG", "RESETSTAT"))
rlock.sleep(QUIET)
local calls, usec = requests()
local begun = rlock.now()
assert(held:unlock())
done:wait()
print(('{"waiters":%d,"grants":%d,"grant_us":%.0f,"requests":%.0f,'
  .. '"server_percent":%.1f}'):format(WAITERS, GRANTS,
  (rlock.now() - begun) / GRANTS * 1e6, calls / QUIET, usec / QUIET / 1e4))
io.stdout:flush()
other:call("FLUSHALL")
os.exit(0)
