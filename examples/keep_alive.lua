-- First experiment: a lock with neither a lease nor an unlock.
--
--    rlockctl examples/keep_alive.lua [WATCHDOG]       (seconds, default 30)
--
-- Run it in two terminals. The first process acquires the lock and keeps it
-- until it ends: on the server the lock expires after WATCHDOG seconds, but
-- the watchdog renews it three times as often. The second process waits. Then
-- kill the first one with `kill -9`: it cannot release the lock, yet within
-- WATCHDOG seconds the lock expires, and the second process gets it.

local rlock = require "rlock"

local watchdog = tonumber(arg[1]) or 30
local began = rlock.now()

io.stdout:setvbuf("line")

local function say(text, ...)
  print(("%6.2f s  %s"):format(rlock.now() - began, text:format(...)))
end

local function process_id()
  local file = io.open("/proc/self/stat")
  return file and file:read("n") or "of this process"
end

local client <close> = assert(rlock.open { watchdog = watchdog })
local lock = client:lock("keep-alive")

local ok, _, detail = lock:try_lock()
if not ok then
  say("busy: %s", detail)
  assert(lock:lock())                   -- waits for as long as it takes
end
say("the lock is mine; end me with: kill -9 %s", process_id())

while true do
  rlock.sleep(watchdog / 3)
  local left = lock:valid_for()
  if left == 0 then break end
  say("still mine; without a renewal it would end in %.1f s", left)
end
say "it is lost"
