--- Exponential back-off with full jitter: each pause is uniformly random from 0
--- to a limit, and the limit doubles up to a cap. Does not sleep, and has no
--- random generator of its own.

local backoff = {}

---@class rlock.backoff
---@field first number
---@field cap number
---@field limit number
---@field random fun(): number
local Backoff = {}
Backoff.__index = Backoff

--- The next pause. The limit doubles with each call.
---@return number # seconds, from 0 up to the current limit
function Backoff:next()
  local pause = self.random() * self.limit
  self.limit = math.min(self.cap, self.limit * 2)
  return pause
end

--- Resets to the first limit, after a success.
function Backoff:reset()
  self.limit = self.first
end

---@param first_s number the first limit in seconds, above 0
---@param cap_s number the greatest limit, at least first_s
---@param random fun(): number from 0 (inclusive) to 1 (exclusive)
---@return rlock.backoff
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
