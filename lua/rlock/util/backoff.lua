--- Exponential back-off with full jitter: each pause is uniformly random from 0
--  to a limit, and the limit doubles up to a cap. Does not sleep, and has no
--  random generator of its own.
--  @module rlock.util.backoff

local backoff = {}

local Backoff = {}
Backoff.__index = Backoff

--- The next pause. The limit doubles with each call.
--  @treturn number seconds, from 0 up to the current limit
function Backoff:next()
  local pause = self.random() * self.limit
  self.limit = math.min(self.cap, self.limit * 2)
  return pause
end

--- Resets to the first limit, after a success.
function Backoff:reset()
  self.limit = self.first
end

--- @tparam number first_s the first limit in seconds, above 0
--  @tparam number cap_s the greatest limit, at least first_s
--  @tparam function random returns a number from 0 (inclusive) to 1 (exclusive)
--  @treturn Backoff an object with `:next()` and `:reset()`
function backoff.new(first_s, cap_s, random)
  local first_ok = type(first_s) == "number" and first_s > 0
  if not first_ok then error("bad first_s: must be above 0", 2) end
  local cap_ok = type(cap_s) == "number" and cap_s >= first_s
  if not cap_ok then error("bad cap_s: must not be below first_s", 2) end
  if type(random) ~= "function" then
    error("bad random: must be a function", 2)
  end
  return setmetatable({
    first = first_s, cap = cap_s, limit = first_s, random = random,
  }, Backoff)
end

return backoff
