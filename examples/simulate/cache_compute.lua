--- cache.lua with `compute`: one process renders, the others get its result. A
--- process that has lost the lock does not store its result.

local rlock = require "rlock"
local simulate = require "rlock.simulate"

local page = simulate.shared "page"
simulate.always(function()
  local now = simulate.redis("GET", "rlock_compute:{page}:value")
  page.first = page.first or now
  if now ~= page.first then error("the cache was filled twice", 0) end
end)

local client <close> = assert(rlock.open())

local function render()
  rlock.sleep(0.02)
  return ("page %x"):format(math.random(1 << 40))
end

local value = assert(client:compute("page", { ttl = 3600, wait = 10 }, render))
print(value)
