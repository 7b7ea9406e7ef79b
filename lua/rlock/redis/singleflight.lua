--- Coalesces concurrent calls with the same key: fn runs once and all callers
--  get its results. It runs in a background task, so a caller that times out or
--  is cancelled does not affect the others.

local singleflight = {}
singleflight.__index = singleflight

local unpack = table.unpack or unpack

--- @tparam table host
function singleflight.new(host)
  return setmetatable({ host = host, calls = {} }, singleflight)
end

local function finish(call, ...)
  call.n, call.values = select("#", ...), { ... }
end

-- Not a closure of `join`: nginx clears the stack of a request that has ended,
-- and with it the upvalues that are still on that stack.
local function settle(self, key, call, ...)
  if self.calls[key] ~= call then return end
  finish(call, ...)
  self.calls[key] = nil
  for event in pairs(call.waiting) do event:set() end
end

local function run(self, key, call)
  settle(self, key, call, call.fn(call.a, call.b))
end

--- Abandons a call in flight: its callers get these results, and the next
--  `join` starts another one. Its function runs on.
-- @param key
-- @param ... results
function singleflight:abandon(key, ...)
  local call = self.calls[key]
  if call then settle(self, key, call, ...) end
end

--- Starts `fn`, unless a call for this key is in flight.
-- @param key, fn, a, b as for `join`
-- @treturn table
function singleflight:start(key, fn, a, b)
  local call = self.calls[key]
  if not call then
    call = { waiting = {}, fn = fn, a = a, b = b }
    self.calls[key] = call
    self.host.daemon(run, self, key, call)
  end
  return call
end

--- Returns the results of `fn`, shared with all concurrent callers for `key`.
-- @param key anything that can be a table's key
-- @tparam number deadline by host.now()
-- @tparam function fn  may wait. Must not be a closure of a waiting caller: see
--   `run`
-- @param a,b its arguments
-- @return[1] what fn returned
-- @treturn[2] nil
-- @treturn[2] string "timeout", or "cancelled"
-- @return[2] detail; for "cancelled", the value to raise
function singleflight:join(key, deadline, fn, a, b)
  local host, call = self.host, self:start(key, fn, a, b)
  local event = host.event()
  call.waiting[event] = true
  local is_over, code, detail = event:pause(deadline - host.now())
  call.waiting[event] = nil
  if is_over == nil then return nil, code, detail end
  if not call.values then return nil, "timeout", "no answer in time" end
  return unpack(call.values, 1, call.n)
end

return singleflight
