--- seconds(fn, ...): how long fn(...) took.

local rlock = require "rlock"

return function(fn, ...)
  local before = rlock.now()
  fn(...)
  return rlock.now() - before
end
