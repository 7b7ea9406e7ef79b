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

--- An integer as a reply: a float, which is what scripts get, or for a client
--- an integer if that would lose digits.
function arguments.exactly(number, by_client)
  if by_client and (number > 2 ^ 53 or number < -2 ^ 53) then return number end
  return number + 0.0
end

--- First and last index (from 1) of a range in a list of n; first > last if it
--- is empty.
---@return any, any
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

--- A float of INCRBYFLOAT, see long_double.lua.
function arguments.long_double(text, fault)
  local number = require("rlockctl.model.commands.long_double").read(text)
  return number or fail(fault or "ERR value is not a valid float")
end

--- The sum of two such floats, as text.
function arguments.add_floats(a, b)
  local long_double = require "rlockctl.model.commands.long_double"
  local sum = not a.is_infinite and not b.is_infinite and long_double.add(a, b)
  if not sum or sum.is_infinite then
    fail "ERR increment would produce NaN or Infinity"
  end
  return long_double.show(sum)
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

--- The members of a sorted set, by score and then by name.
---@param scores table
function arguments.by_score(scores)
  local members = {}
  for member in next, scores do members[#members + 1] = member end
  table.sort(members, function(a, b)
    if scores[a] ~= scores[b] then return scores[a] < scores[b] end
    return a < b
  end)
  return members
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

--- Random positions from 1 to n. The model lacks the command if the server has
--- no source of randomness, as in `rlockctl check`, which tries all outcomes.
---@param server table
---@param words table
---@return fun(n: integer): integer
function arguments.random(server, words)
  local random = server.random or lacks("command " .. words[1]:upper())
  return function(n) return floor(random() * n) + 1 end
end

--- Sets a key to a collection; deletes it if that is empty.
---@return any # the number of elements, as a reply
function arguments.replace(server, key, kind, value)
  server:entry(key)
  server.entries[key] = nil
  if next(value) == nil then return 0.0 end
  server:change(key, kind, value)
  return arguments.size(value)
end

--- A number of keys, which follow it.
---@param words table
---@param i integer the position of the number
---@param fault string if it is not positive
---@return integer
---@return integer # the position after the keys
function arguments.numbered_keys(words, i, fault)
  local n = arguments.positive(words[i], fault)
  if n == 0 then fail(fault) end
  return n, i + n + 1
end

-- scanning --------------------------------------------------------------------

-- Not zero, so that a cursor is never that of a new scan.
local function hash(name)
  local sum = 2166136261
  for i = 1, #name do sum = (sum ~ name:byte(i)) * 16777619 & 0xffffffff end
  return sum | 1 << 32
end

-- The names from a cursor on, of at least `count` if there are so many, and the
-- next cursor. They are in the order of their hashes, so a name that is there
-- all the time is found, whatever is added or removed meanwhile.
local function part(names, cursor, count)
  if cursor == 0 and #names <= count then return names, "0" end
  local hashes, found, last = {}, {}, nil
  for _, name in ipairs(names) do hashes[name] = hash(name) end
  table.sort(names, function(a, b)
    return hashes[a] < hashes[b] or hashes[a] == hashes[b] and a < b
  end)
  for _, name in ipairs(names) do
    local its = hashes[name]
    if #found >= count and its ~= last then return found, ("%d"):format(its) end
    if its >= cursor then found[#found + 1], last = name, its end
  end
  return found, "0"
end

--- The cursor of a scan. Redis reads signs and blanks, too.
function arguments.cursor(text)
  if text:find "^[%s+-]" then lacks "cursors with a sign or blanks" end
  if not text:find "^%d*$" or #text > 19 then fail "ERR invalid cursor" end
  return text == "" and 0 or math.tointeger(tonumber(text)) or 1 << 62
end

--- The options of a scan.
---@param words table
---@param i integer the first of them
---@param known? table other options with an argument
---@return table # `count`, `match`
function arguments.scan_options(words, i, known)
  local options = { count = 10 }
  for at = i, #words, 2 do
    local option, value = words[at]:lower(), words[at + 1]
    if option == "novalues" or option == "noscores" then
      lacks(words[1]:upper() .. " with " .. words[at]:upper())
    elseif not value then
      arguments.syntax()
    elseif option == "count" then
      options.count = arguments.integer(value)
      if options.count < 1 then arguments.syntax() end
    elseif option == "match" or known and known[option] then
      options[option] = value
    else
      arguments.syntax()
    end
  end
  return options
end

--- The reply to a scan.
---@param server table
---@param names table sorted; gets another order
---@param cursor integer
---@param options table `count`, `match`
---@param add function called with the list and each name
function arguments.scanned(server, names, cursor, options, add)
  local found, next_cursor = part(names, cursor, options.count)
  local matches, list = options.match
    and require("rlockctl.model.commands.glob").compile(options.match), {}
  for _, name in ipairs(server:in_some_order(found)) do
    if not matches or matches(name) then add(list, name) end
  end
  return { next_cursor, list }
end

local SMALL = 128                        -- hash-max-listpack-entries

--- The reply of HSCAN, SSCAN and ZSCAN. Redis replies with all of a small
--- collection, whatever the cursor and COUNT are.
---@param server table
---@param words table
---@param kind string
---@param add function called with the list, a name and what it has
function arguments.scan(server, words, kind, add)
  local cursor = arguments.cursor(words[3])
  local entry = server:entry(words[2], kind)
  if not entry then return { "0", {} } end
  local value, options = entry.value, arguments.scan_options(words, 4)
  local names = arguments.sorted(value)
  if #names <= SMALL then cursor = 0 end
  options.count = math.max(options.count, SMALL)
  return arguments.scanned(server, names, cursor, options,
    function(list, name) add(list, name, value[name]) end)
end

return arguments
