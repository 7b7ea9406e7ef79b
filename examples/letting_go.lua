-- A job that releases its lock, between two steps, when another client requests
-- it.
--
--    rlockctl examples/letting_go.lua [STEPS]          (default 600)
--
-- Start it in two terminals: the second job sends a release request to the
-- first one, and takes over. `rlockctl revoke job --reason "a new version"`
-- also sends one, but takes no lock.
-- RLOCK_URL may be the URL of Redis or of ZooKeeper.

local rlock = require "rlock"

local client <close> = assert(rlock.open())
local lock = client:lock "job"

local hold = lock:hold { wait = 0 }
if not hold then
  print("busy; asked for it: ", lock:request_release "the next job")
  hold = assert(lock:hold())            -- waits
end

local reason
hold:on_release_request(function(_, why) reason = why end)
print "the lock is mine"
for step = 1, tonumber(arg[1]) or 600 do
  rlock.sleep(0.1)                      -- a step of the work
  if reason then
    print(("let go after step %d: %s"):format(step, reason))
    break
  end
end
assert(hold:unlock())
