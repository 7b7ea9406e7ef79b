--- within(seconds, fn, ...): returns fn(...); raises if it took longer. Runs
--- inside rlockctl.

local rlock = require "rlock"

return function(seconds, fn, ...)
  local before = rlock.now()
  local results = table.pack(fn(...))
  local took = rlock.now() - before
  assert(took < seconds, ("it took %g s instead of at most %g s"):format(
    took, seconds))
  return table.unpack(results, 1, results.n)
end
