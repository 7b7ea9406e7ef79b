--- Values of Lua 5.1 and how its C library converts them. All numbers are
--- floats here; a script must never see an integer of Lua 5.4.

local values = {}

local floor, huge, kind_of = math.floor, math.huge, math.type

--- The start of an error for an unsupported feature.
values.LACKS = "the model of Redis has no "

--- The start of the error if a script calls an unknown command.
values.UNKNOWN = "ERR Unknown Redis command called from script: "

--- Raises that error.
function values.lacks(what) error(values.LACKS .. what, 0) end

--- Is this error one of those?
function values.is_lack(fault)
  return type(fault) == "string"
    and fault:sub(1, #values.LACKS) == values.LACKS
end

--- What the model lacks, such as "command XADD", by such an error; or nil.
function values.lack_of(fault)
  return values.is_lack(fault) and fault:sub(#values.LACKS + 1) or nil
end

-- numbers and text ------------------------------------------------------------

--- A number as text; other values as they are.
function values.text_of(value)
  if kind_of(value) then return ("%.14g"):format(value) end
  return value
end

--- An integer as a float; other values as they are.
function values.float(value)
  if kind_of(value) == "integer" then return value + 0.0 end
  return value
end

local float = values.float

local function floats(n, first, ...)
  if n == 1 then return float(first) end
  return float(first), floats(n - 1, ...)
end

--- The results of a function, integers as floats.
function values.floats(...)
  local n = select("#", ...)
  if n > 0 then return floats(n, ...) end
end

local NAN = 0 / 0
if ("%f"):format(NAN):find("-", 1, true) then NAN = -NAN end

local WORDS = { inf = huge, infinity = huge, nan = NAN }

-- Infinity and NaN, which 5.4 does not read.
local function word_of(text)
  local sign, word = text:lower():match("^%s*([+-]?)(%a+)%s*$")
  local value = WORDS[word]
  return value and (sign == "-" and -value or value)
end

--- The number that a text represents, as C's strtod reads it, or nil. A zero
--- byte ends the text.
function values.number_of(text)
  local number = tonumber(text)
  if kind_of(number) == "float" then return number end
  if number and number ~= 0 and #text < 16 then return number + 0.0 end
  local hex = text:match("^%s*([+-]?0[xX]%x+)%s*$")
  if hex then return tonumber(hex .. "p0") end
  if number == 0 and text:find("-", 1, true) then return -0.0 end
  if number then return number + 0.0 end
  local ends = text:find("\0", 1, true)
  if ends then return values.number_of(text:sub(1, ends - 1)) end
  return word_of(text)
end

local number_of = values.number_of

local LIMIT = 2.0 ^ 63

--- A number as C's `long`: truncated; LONG_MIN if it is out of range.
function values.long(number)
  if number ~= number or number >= LIMIT or number < -LIMIT then
    return math.mininteger
  end
  return math.tointeger(number < 0 and -floor(-number) or floor(number))
end

--- As C's floor: keeps infinities, NaN and the sign of zero.
function values.floor(x)
  if x ~= x or x == huge or x == -huge or x == 0 then return x end
  return floor(x) + 0.0
end

-- arguments -------------------------------------------------------------------

local function refuse(i, name, wanted, value)
  error(("bad argument #%d to '%s' (%s expected, got %s)"):format(i, name,
    wanted, value == nil and "no value" or type(value)), 4)
end

--- Argument `i` of the function `name`, which must be a text or number.
---@return any
function values.text(value, i, name)
  if type(value) == "string" then return value end
  if kind_of(value) then return ("%.14g"):format(value) end
  refuse(i, name, "string", value)
end

--- An argument that must be a number, or text that represents one.
---@return number
function values.number(value, i, name)
  if kind_of(value) == "float" then return value end
  local number = type(value) == "string" and number_of(value)
    or kind_of(value) and value + 0.0
  if not number then refuse(i, name, "number", value) end
  return number
end

--- A number as `long`; `default` (if there is one) for nil.
function values.integer(value, i, name, default)
  if value == nil and default then return default end
  local number = type(value) == "string" and number_of(value) or value
  if not kind_of(number) then refuse(i, name, "number", value) end
  return values.long(number)
end

--- A number as `int`, of 32 bits.
function values.int(value, i, name, default)
  if value == nil and default then return default end
  local number = type(value) == "string" and number_of(value) or value
  if not kind_of(number) then refuse(i, name, "number", value) end
  local long = values.long(number)
  ---@cast long -nil
  return ((long + 0x80000000) & 0xffffffff) - 0x80000000
end

--- An argument that must be a table.
function values.table(value, i, name)
  if type(value) ~= "table" then refuse(i, name, "table", value) end
  return value
end

return values
