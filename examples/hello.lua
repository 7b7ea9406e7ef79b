-- Acquires, keeps and hands over a lock, step by step.
--
--    rlockctl examples/hello.lua
--
-- Nothing is configured: without RLOCK_URL the server is `local:`, a private
-- Redis that is started on demand.

local rlock = require "rlock"

local began = rlock.now()

local function say(who, text, ...)
  print(("%5.2f s  %-6s %s"):format(rlock.now() - began, who,
    text:format(...)))
end

-- A client is this program's session with one Redis.
local client <close> = assert(rlock.open())
say("main", "connected")

-- The owner of a hold is the task that acquired it, here the main task.
local lock = client:lock("hello")
assert(lock:lock())
say("main", "acquired the lock; valid for %.0f s, and renewed before the end",
  lock:valid_for())

-- The lock is reentrant: its holder may acquire it again, which is counted.
assert(lock:lock())
say("main", "acquired it again: hold count %d", assert(lock:hold_count()))
assert(lock:unlock())
say("main", "released one hold: hold count %d", assert(lock:hold_count()))

-- Any other task, here or in another process on another machine, is excluded.
-- try_lock does not wait; lock does, and sleeps until the lock is released.
local given_back ---@type number
local other = rlock.spawn(function()
  local ok, code, detail = lock:try_lock()
  say("other", "tried to acquire it: %s, %s (%s)", ok, code, detail)
  if not ok then                        -- as it is, unless main has lost it
    say("other", "waits")
    assert(lock:lock())
    say("other", "got it %.2f ms after its release",
      (rlock.now() - (given_back or rlock.now())) * 1000)
  end
  assert(lock:unlock())
  say("other", "released it")
end)

rlock.sleep(0.5)                        -- the work that the lock protects
say("main", "releases it")
given_back = rlock.now()
assert(lock:unlock())
other:join()

-- The usual form: holds the lock while the function runs, and releases it even
-- if the function raises.
local sum = assert(lock:with(function() return 1 + 1 end))
say("main", "computed %d under the lock", sum)
say("main", "done; the lock is %s",
  lock:is_locked() == false and "free" or "taken")
