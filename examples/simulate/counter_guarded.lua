--- counter.lua with a guarded write: Redis executes the SET only if the process
--- still holds the lock. Otherwise the call returns "lost" and changes nothing.

local rlock = require "rlock"
local simulate = require "rlock.simulate"

local done = simulate.shared "done"
done.n = done.n or 0
simulate.finally(function()
  local n = tonumber(simulate.redis("GET", "number") or 0)
  if n < done.n then
    error(("%d updates succeeded, the number is %d"):format(done.n, n), 0)
  end
end)

local client <close> = assert(rlock.open())
local lock = client:lock("counter")

assert(lock:lock { lease = 0.5, wait = 10 })
local n, code, why = client:call("GET", "number")
assert(n ~= nil, code, why)
rlock.sleep(0.01)                       -- computes the new value
assert(lock:call("SET", "number", (n or 0) + 1))
done.n = done.n + 1
assert(lock:unlock())
