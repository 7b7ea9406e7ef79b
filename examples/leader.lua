-- Leader election: one of several processes works, the others stand by.
--
--    rlockctl examples/leader.lua [WATCHDOG]           (seconds, default 10)
--
-- Run it in several terminals. Stop the leader with Ctrl-C: the next candidate
-- leads at once. Kill it with `kill -9`: the next candidate leads when the
-- lease has expired. See also: rlockctl help run, for --leader.

local rlock = require "rlock"

io.stdout:setvbuf "line"

local client <close> =
  assert(rlock.open { watchdog = tonumber(arg[1]) or 10 })
local election = client:election "example:leader"

election:on_change(function(leads, why)
  print(leads and "I lead" or "I do not lead any more: " .. why)
end)

while true do
  print((election:leader() or "nobody") .. " leads")
  assert(election:campaign())
  repeat
    print "at work"                     -- what only the leader may do
    rlock.sleep(1)
  until not election:is_leader()
end
