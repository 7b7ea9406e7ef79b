--- A deadline for several calls: each gets it as its `wait`.

local duration = require "rlock.util.duration"

---@class rlock.deadline
---@field now fun(): number
---@field at number by `now`
local deadline = {}
deadline.__index = deadline

local max = math.max

--- The detail of a call that begins after its deadline.
deadline.passed = "the deadline has passed"

--- Creates a deadline.
---@param now fun(): number the host's clock
---@param seconds number from now
---@return rlock.deadline
function deadline.new(now, seconds)
  seconds = duration.check(seconds, "seconds", 0, math.huge, 3)
  return setmetatable({ now = now, at = now() + seconds }, deadline)
end

--- Seconds until the deadline; 0 once it has passed.
---@return number
function deadline:left() return max(self.at - self.now(), 0) end

function deadline:__tostring()
  return ("deadline in %.3f s"):format(self:left())
end

--- The seconds that a call may wait: negative if the deadline has passed.
---@param value any a deadline, or anything else, which is returned
function deadline.wait_of(value)
  if getmetatable(value) ~= deadline then return value end
  local left = value.at - value.now()
  return left > 0 and left or -1
end

return deadline
