--- losses(lock): a table that records the calls of the lock's on_lost callback:
--- their number `n`, and of the last one the arguments `told` (the lock) and
--- `reason`, and the time `at`.

local rlock = require "rlock"

return function(lock)
  local heard = { n = 0 }
  assert(lock:on_lost(function(told, reason)
    heard.n = heard.n + 1
    heard.told, heard.reason, heard.at = told, reason, rlock.now()
  end))
  return heard
end
