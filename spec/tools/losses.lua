--- losses(lock): a table that records the calls of its on_lost function: their
--- number `n`, and the arguments `told` and `reason` and time `at` of the last.

local rlock = require "rlock"

return function(lock)
  local heard = { n = 0 }
  assert(lock:on_lost(function(told, reason)
    heard.n = heard.n + 1
    heard.told, heard.reason, heard.at = told, reason, rlock.now()
  end))
  return heard
end
