--- Durations: checks the caller's seconds (which may be fractions) and converts
--- them to the whole milliseconds of Redis and the core. Reads no clock.

local duration = {}

-- The longest duration that the core accepts: 2^40 ms, nearly 35 years.
local MAX_MS = 1099511627776

--- The longest duration, in seconds.
duration.max = MAX_MS / 1000

--- The shortest lease, in seconds. With 1 ms, PEXPIRE deletes the key at once
--- if the server's clock ticks first.
duration.least_lease = 0.002

local function bad(name, value, must, level)
  if type(value) == "string" then
    value = string.format("%q", (value:gsub("%c", "?")))
  end
  error(string.format("bad %s: %s: %s", name, tostring(value), must), level)
end

--- Checks a duration given by the caller.
--- Raises an error that names the argument if the value is not a number, is NaN
--- or less than min, or is math.huge while max is not. Any other number above
--- max is clamped to max.
---@param name string for messages: "lease", "wait"
---@param min? number seconds; default: 0
---@param max? number seconds; default: duration.max
---@param level? integer as in error(); default: 2
---@return number # seconds
function duration.check(value, name, min, max, level)
  min, max, level = min or 0, max or duration.max, (level or 2) + 2
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

--- Converts seconds to whole milliseconds, rounded up; 0 only for 0. Clamped to
--- 2^40 ms, also for math.huge.
---@param seconds number not negative, not NaN
---@return number # an integer
function duration.ms(seconds)
  if seconds * 1000 >= MAX_MS then return MAX_MS end
  -- Allows for rounding errors: 16.1 * 1000 is 16100.000000000002.
  local ms = math.ceil(seconds * 1000 - 0.001)
  if ms < 1 then return seconds > 0 and 1 or 0 end
  return ms
end

return duration
