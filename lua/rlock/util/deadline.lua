--- A deadline for several calls: each gets it as its `wait`.

local duration = require "rlock.util.duration"

local deadline = {}
deadline.__index = deadline

local max = math.max

--- The detail of a call that begins after its deadline.
deadline.passed = "the deadline has passed"

--- Creates a deadline.
-- @tparam function now  the host's clock
-- @tparam number seconds from now
function deadline.new(now, seconds)
  seconds = duration.check(seconds, "seconds", 0, math.huge, 3)
  return setmetatable({ now = now, at = now() + seconds }, deadline)
end

--- Seconds until the deadline; 0 once it has passed.
function deadline:left() return max(self.at - self.now(), 0) end

function deadline:__tostring()
  return ("deadline in %.3f s"):format(self:left())
end

--- The seconds that a call may wait: negative if the deadline has passed.
-- @param value a deadline, or anything else, which is returned
function deadline.wait_of(value)
  if getmetatable(value) ~= deadline then return value end
  local left = value.at - value.now()
  return left > 0 and left or -1
end

return deadline
