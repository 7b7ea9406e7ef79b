--- Arguments of commands: numbers, ranges and options, with the errors of
--- Redis.

local lacks = require("rlockctl.model.lua51.values").lacks

local arguments = {}

local floor, huge, kind_of = math.floor, math.huge, math.type

local function fail(text) error({ err = text }, 0) end

arguments.fail, arguments.lacks = fail, lacks

local MOST, LEAST = math.maxinteger, math.mininteger

function arguments.syntax() fail "ERR syntax error" end

--- Raises the error of a command with too few or too many words.
function arguments.wrong_number(words)
  fail(("ERR wrong number of arguments for '%s' command"):format(
    words[1]:lower()))
end

-- integers --------------------------------------------------------------------

--- A 64-bit integer, written as Redis writes it.
---@param text string
---@param fault? string the error's text
function arguments.integer(text, fault)
  local number = text:find("^%-?[1-9]%d*$") and tonumber(text)
  if kind_of(number) == "integer" then return number end
  if text == "0" then return 0 end
  fail(fault or "ERR value is not an integer or out of range")
end

--- An integer that is not negative.
function arguments.positive(text, fault)
  fault = fault or "ERR value is out of range, must be positive"
  local number = arguments.integer(text, fault)
  if number < 0 then fail(fault) end
  return number
end

--- Adds, with Redis' check for overflow.
function arguments.add(a, b)
  if b > 0 and a > MOST - b or b < 0 and a < LEAST - b then
    fail "ERR increment or decrement would overflow"
  end
  return a + b
end

--- First and last index (from 1) of a range in a list of n; first > last if it
--- is empty.
---@return any
---@return any
function arguments.range(first, last, n)
  if first < 0 then first = math.max(first + n, 0) end
  if last < 0 then last = last + n end
  last = math.min(last, n - 1)
  if first > last then return 1, 0 end
  return first + 1, last + 1
end

--- The index of a list's item. Beyond 2^31, Redis 8 and Valkey 8 truncate it.
function arguments.index(text)
  local i = arguments.integer(text)
  if i >= 2 ^ 31 or i < -2 ^ 31 then lacks "indexes beyond 2^31" end
  return i
end

--- A count whose sign is the direction. Versions differ in the minimum.
function arguments.directed(text)
  local n = arguments.integer(text)
  if n == LEAST then lacks "counts of -2^63" end
  return n
end

-- doubles ---------------------------------------------------------------------

local WORDS = { inf = huge, infinity = huge }

-- A double as C's strtod reads it, without blanks around; nil for NaN.
local function strtod(text)
  local number = tonumber(text)
  if number and not text:find("[%s%z]") then
    if kind_of(number) == "float" then return number end
    if text:find("[xX]") then return tonumber(text .. "p0") end
    return tonumber(text .. ".0")
  end
  local sign, word = text:lower():match("^([+-]?)(%a+)$")
  local value = WORDS[word]
  return value and (sign == "-" and -value or value)
end

-- Is this neither too big nor too small for a double?
local function fits(number, text)
  if number == huge or number == -huge then return not text:find("%d") end
  return number ~= 0 or not text:find("^[^eEpP]*[1-9a-fA-F]")
    or text:find("^[+-]?0[xX][0.]*[pP]?%d*$")
end

--- A double, as ZADD takes scores.
function arguments.double(text)
  local number = strtod(text)
  if not number or not fits(number, text) then
    fail "ERR value is not a valid float"
  end
  return number
end

--- A bound of scores. Redis 8 reads fewer forms than the others.
---@return number
---@return boolean # whether the bound is excluded
function arguments.bound(text)
  local is_excluded = text:sub(1, 1) == "("
  local rest = is_excluded and text:sub(2) or text
  if rest == "" then return 0.0, is_excluded end
  if rest:find("^%s") or rest:find("[%zxX]") then
    lacks "bounds in hex, or with blanks or zero bytes"
  end
  local number = strtod(rest)
  if not number then fail "ERR min or max is not a float" end
  return number, is_excluded
end

-- The shortest digits of a positive double, and the exponent of the last one.
local function digits_of(number)
  for n = 0, 16 do
    local text = ("%." .. n .. "e"):format(number)
    if tonumber(text) == number then
      ---@type any, any, any
      local whole, rest, exponent = text:match("^(%d)%.?(%d*)e(.+)$")
      return whole .. rest, math.tointeger(tonumber(exponent)) --[[@as integer]]
        - n
    end
  end
end

local function show_fraction(number)
  ---@type any, any
  local digits, last = digits_of(number)
  ---@type integer, integer
  local exponent, n = #digits + last - 1, #digits
  if last >= 0 and exponent < n + 7 then return digits .. ("0"):rep(last) end
  if last < 0 and (last > -7 or math.abs(exponent) < 4) then
    ---@diagnostic disable-next-line: param-type-mismatch
    if n + last <= 0 then return "0." .. ("0"):rep(-n - last) .. digits end
    return digits:sub(1, n + last) .. "." .. digits:sub(n + last + 1)
  end
  return digits:sub(1, 1) .. (n > 1 and "." .. digits:sub(2) or "")
    .. ("e%+d"):format(exponent)
end

--- The text of a double in a reply, since 7.2. Earlier, Redis showed fractions
--- with 17 digits, and large numbers with an exponent.
function arguments.show(number)
  if number == huge then return "inf" end
  if number == -huge then return "-inf" end
  if number == 0 then return 1 / number < 0 and "-0" or "0" end
  if number == floor(number) and math.abs(number) <= 2.0 ^ 62 then
    return ("%d"):format(number)
  end
  return (number < 0 and "-" or "") .. show_fraction(math.abs(number))
end

-- long doubles ----------------------------------------------------------------

local function trimmed(text)
  return (text:gsub("^([+-]?)0+(%d)", "%1%2"):gsub("%.(%d-)0*$", function(rest)
    return rest == "" and "" or "." .. rest
  end))
end

-- The text of a number in INCRBYFLOAT, which computes with long doubles. This
-- supports only numbers that are exact in 17 bits and 17 digits after the
-- point.
local function show_exactly(number)
  if not (math.abs(number) < 2.0 ^ 36 and number * 2.0 ^ 17 % 1 == 0) then
    lacks "sums of floats that are no binary fractions"
  end
  return trimmed(("%.17f"):format(number == 0 and 0.0 or number))
end

--- A float of INCRBYFLOAT.
function arguments.long_double(text, fault)
  local number = strtod(text)
  if not number or text:find("%z") then
    fail(fault or "ERR value is not a valid float")
  end
  if text:find("%d") and trimmed((text:gsub("^%+", "")))
      ~= show_exactly(number) then
    lacks "sums of floats that are no binary fractions"
  end
  return number
end

--- The sum of two floats, as text.
function arguments.add_floats(a, b)
  local sum = a + b
  if sum ~= sum or math.abs(sum) == huge then
    fail "ERR increment would produce NaN or Infinity"
  end
  return show_exactly(sum)
end

-- collections -----------------------------------------------------------------

--- The number of keys of a map, as a reply.
function arguments.size(map)
  local n = 0.0
  for _ in next, map do n = n + 1 end
  return n
end

--- The keys of a map, sorted.
function arguments.sorted(map)
  local keys = {}
  for key in next, map do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

--- Removes elements of a hash, set or sorted set.
---@param server table
---@param key string
---@param kind string
---@param names table
---@return number # of those removed, as a reply
function arguments.remove(server, key, kind, names)
  local removed = 0.0
  for _, name in ipairs(names) do
    local entry = server:entry(key, kind)
    if entry and entry.value[name] then
      server:change(key, kind).value[name] = nil
      removed = removed + 1
    end
  end
  server:tidy(key)
  return removed
end

--- The reply of HSCAN, SSCAN and ZSCAN, if it is complete: there are fewer
--- elements than COUNT.
---@param server table
---@param words table
---@param kind string
---@param list function returns the collection's elements
function arguments.scan(server, words, kind, list)
  ---@type any, any
  local name, count = words[1]:upper(), 10
  if words[3] ~= "0" then lacks(name .. " from a cursor") end
  local entry = server:entry(words[2], kind)
  if not entry then return { "0", {} } end
  for i = 4, #words, 2 do
    local option = words[i]:lower()
    if option == "match" or option == "novalues" or option == "noscores" then
      lacks(name .. " with " .. words[i]:upper())
    end
    if option ~= "count" or not words[i + 1] then arguments.syntax() end
    count = arguments.integer(words[i + 1])
    if count < 1 then arguments.syntax() end
  end
  if arguments.size(entry.value) >= count then
    lacks(name .. " of COUNT or more elements")
  end
  return { "0", list(server, words) }
end

return arguments
