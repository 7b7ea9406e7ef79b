--- A cache that is filled under a lock, but not checked again after the wait:
--- each waiter computes the value again. cache_compute.lua computes it once.

local rlock = require "rlock"
local simulate = require "rlock.simulate"

local page = simulate.shared "page"
simulate.always(function()
  local now = simulate.redis("GET", "page")
  page.first = page.first or now
  if now ~= page.first then error("the cache was filled twice", 0) end
end)

local client <close> = assert(rlock.open())

local function render()
  rlock.sleep(0.02)
  return ("page %x"):format(math.random(1 << 40))
end

local value, code = client:call("GET", "page")
assert(value ~= nil, code)
if not value then
  client:lock("page:lock"):with(function(lock)
    value = render()
    assert(lock:call("SET", "page", value))
  end)
end
print(value)
