--- Arguments of commands: numbers, ranges and options, with the errors of
--  Redis.

local arguments = {}

local function fail(text) error({ err = text }, 0) end

arguments.fail = fail

local MOST = 9223372036854775807

--- A 64-bit integer.
-- @tparam string text
-- @tparam[opt] string fault the error's text
function arguments.integer(text, fault)
  local number = text:find("^%-?%d+$") and #text <= 20 and math.tointeger(text)
  if not number or text:find("^%-?0%d") or text == "-0" then
    fail(fault or "ERR value is not an integer or out of range")
  end
  return number
end

--- A double, as ZADD takes scores.
function arguments.double(text, fault)
  local word = text:lower():match("^([+-]?)inf$")
    or text:lower():match("^([+-]?)infinity$")
  if word then return word == "-" and -math.huge or math.huge end
  local number = text:find("^[+-.%dxXa-fA-FpP]+$") and tonumber(text)
  if not number then fail(fault or "ERR value is not a valid float") end
  return number + 0.0
end

--- The text of a double, as Redis 7 and later reply with it.
function arguments.show(number)
  if number == math.huge then return "inf" end
  if number == -math.huge then return "-inf" end
  if number == math.floor(number) and math.abs(number) < 2.0 ^ 53 then
    if number == 0 and 1 / number < 0 then return "-0" end
    return ("%.0f"):format(number)
  end
  for digits = 1, 17 do
    local text = ("%." .. digits .. "g"):format(number)
    if tonumber(text) == number then return text end
  end
end

--- Adds, with Redis' check for overflow.
function arguments.add(a, b)
  if b > 0 and a > MOST - b or b < 0 and a < math.mininteger - b then
    fail "ERR increment or decrement would overflow"
  end
  return a + b
end

--- First and last index (from 1) of a range in a list of n; first > last if it
--  is empty.
function arguments.range(first, last, n)
  if first < 0 then first = math.max(first + n, 0) end
  if last < 0 then last = last + n end
  return first + 1, math.min(last, n - 1) + 1
end

function arguments.syntax() fail "ERR syntax error" end

return arguments
