--- Durations on the command line: 30s, 500ms, 2m, 1h; a bare number is seconds.

local UNITS = { [""] = 1, s = 1, ms = 0.001, m = 60, h = 3600 }

---@param text string
---@return number? # seconds
local function seconds_of(text)
  ---@type any, any
  local number, unit = text:match("^(%d*%.?%d*)(%a*)$")
  number = tonumber(number)
  return number and UNITS[unit] and number * UNITS[unit] or nil
end

return seconds_of
