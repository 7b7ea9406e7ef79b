--- Durations: what a caller may give, and what goes over the wire.
--  People give seconds with fractions; Redis and the core take whole
--  milliseconds. Knows no clock.
--  @module rlock.deadline

local deadline = {}

-- The longest duration that the core takes: 2^40 ms, nearly 35 years.
local MAX_MS = 1099511627776

--- The longest duration, in seconds.
deadline.max = MAX_MS / 1000

--- The shortest lease, in seconds. One of 1 ms is over at once if the server's
--  clock ticks before PEXPIRE: then Redis deletes the key.
deadline.least_lease = 0.002

local function bad(name, value, must, level)
  if type(value) == "string" then value = string.format("%q", value) end
  error(string.format("bad %s: %s: %s", name, tostring(value), must), level)
end

--- Checks a duration that somebody gave.
--  Raises, naming the argument, for what is not a number, for NaN, for less
--  than min, and for math.huge unless max is math.huge. Any other number above
--  max is taken as max.
--  @tparam any value
--  @tparam string name what the caller calls it: "lease", "wait"
--  @tparam[opt=0] number min seconds
--  @tparam[opt=deadline.max] number max seconds
--  @tparam[opt=2] number level whose fault it is, as in error()
--  @treturn number seconds
function deadline.check(value, name, min, max, level)
  min, max, level = min or 0, max or deadline.max, (level or 2) + 2
  if type(value) ~= "number" or value ~= value then
    bad(name, value, "must be a number of seconds", level)
  elseif value < min then
    local must = min == 0 and "must not be negative"
      or string.format("must be at least %.14g s", min)
    bad(name, value, must, level)
  elseif value == math.huge and max ~= math.huge then
    bad(name, value, "must be finite", level)
  end
  return math.min(value, max)
end

--- Seconds as whole milliseconds, rounded up; more than nothing is never 0.
--  What is too long, math.huge too, becomes 2^40 ms.
--  @tparam number seconds not negative, not NaN
--  @treturn number an integer
function deadline.ms(seconds)
  if seconds * 1000 >= MAX_MS then return MAX_MS end
  -- A thousandth of a millisecond off: 16.1 * 1000 is 16100.000000000002.
  local ms = math.ceil(seconds * 1000 - 0.001)
  if ms < 1 then return seconds > 0 and 1 or 0 end
  return ms
end

return deadline
