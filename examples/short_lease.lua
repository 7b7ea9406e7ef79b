-- Second experiment: a lease that is shorter than the work.
--
--    rlockctl examples/short_lease.lua [LEASE]         (seconds, default 1)
--
-- A lock with a lease is not renewed. When the lease ends, the next waiter gets
-- the lock, whether or not the first holder has finished: both work at once.
-- The lock can only report that: in advance (valid_for, need), when it happens
-- (on_lost), and afterwards (unlock).

local rlock = require "rlock"

local lease = tonumber(arg[1]) or 1
local began = rlock.now()

local function say(who, text, ...)
  print(("%5.2f s  %-6s %s"):format(rlock.now() - began, who,
    text:format(...)))
end

local client <close> = assert(rlock.open())
local lock = client:lock("short-lease")

local at_work = {}

local function enter(who)
  at_work[who] = true
  say(who, "at work%s", at_work.first and at_work.second
    and "; and so is the other one!" or "")
end

local first = rlock.spawn(function()
  assert(lock:lock { lease = lease })
  lock:on_lost(function(_, reason)
    say("first", "lost the lock: %s", reason)
  end)
  enter("first")
  for _ = 1, 4 do                       -- twice as much work as there is time
    if lock:need(lease / 2) then
      say("first", "mine for %.2f s more: enough for the next step",
        lock:valid_for())
    else
      say("first", "mine for %.2f s more: a careful program would stop here",
        lock:valid_for())
    end
    rlock.sleep(lease / 2)
  end
  at_work.first = nil
  local ok, code, detail = lock:unlock()
  say("first", "unlock: %s, %s (%s)", ok, code, detail)
end)

local second = rlock.spawn(function()
  rlock.sleep(lease / 10)
  say("second", "waits")
  assert(lock:lock())
  enter("second")
  rlock.sleep(lease * 1.5)
  at_work.second = nil
  say("second", "unlock: %s", lock:unlock())
end)

first:join()
second:join()
