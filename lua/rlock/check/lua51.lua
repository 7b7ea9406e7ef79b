--- Runs Lua 5.1 under Lua 5.4, with the results of the Lua 5.1 inside Redis:
--  all numbers are floats, and `tostring`, `..`, `%`, `#` and the libraries
--  behave as in 5.1. What this file does not know raises an error that begins
--  with lua51.LACKS; it never guesses.

local translate = require "rlock.check.translate"

local lua51 = {}

--- The start of an error for what is missing here.
lua51.LACKS = "the model of Redis has no "

local floor, huge, type = math.floor, math.huge, type
local kind_of = math.type

local function lacks(what) error(lua51.LACKS .. what, 0) end

-- numbers and text ------------------------------------------------------------

local function text_of(value)
  if type(value) == "number" then return ("%.14g"):format(value) end
  return value
end

local function float(value)
  if kind_of(value) == "integer" then return value + 0.0 end
  return value
end

local function floats(first, ...)
  if select("#", ...) == 0 then return float(first) end
  return float(first), floats(...)
end

-- Results of a function that may return nothing.
local function all_floats(...)
  if select("#", ...) == 0 then return end
  return floats(...)
end

local LIMIT = 2.0 ^ 63

-- As C converts a double: towards zero.
local function whole(value)
  if type(value) == "string" then value = tonumber(value) end
  if type(value) ~= "number" then return value end
  if value ~= value or value >= LIMIT or value < -LIMIT then
    return math.mininteger
  end
  return math.tointeger(value < 0 and -floor(-value) or floor(value))
end

local function concat(a, b)
  local one, two = type(a), type(b)
  if (one == "string" or one == "number")
      and (two == "string" or two == "number") then
    return text_of(a) .. text_of(b)
  end
  return a .. b
end

-- As C's floor: keeps infinities, NaN and the sign of zero.
local function floor_of(x)
  if x ~= x or x == huge or x == -huge or x == 0 then return x end
  return floor(x) + 0.0
end

local function modulo(a, b)
  local x, y = tonumber(a), tonumber(b)
  if not x or not y then return a % b end
  return x - floor_of(x / y) * y
end

local function length(value)
  if type(value) == "string" or type(value) == "table" then
    return rawlen(value) + 0.0
  end
  return #value
end

local base = {}                         -- the global functions of 5.1

function base.tostring(...)
  if select("#", ...) == 0 then
    error("bad argument #1 to 'tostring' (value expected)", 2)
  end
  local value = ...
  if type(value) == "number" then return text_of(value) end
  return tostring(value)
end

local function in_base(text, radix)
  local sign, digits = text_of(text):match("^%s*([+-]?)0?[xX]?(%w+)%s*$")
  if radix ~= 16 then
    sign, digits = text_of(text):match("^%s*([+-]?)(%w+)%s*$")
  end
  local value = digits and tonumber(digits, radix)
  if not value then return nil end
  return sign == "-" and 2.0 ^ 64 - value or value + 0.0
end

function base.tonumber(value, radix)
  if radix and radix ~= 10 then return in_base(value, whole(radix)) end
  if type(value) == "number" then return value end
  if type(value) ~= "string" then return nil end
  local word = value:lower():match("^%s*([+-]?%a+)%s*$")
  if word then
    local sign = word:sub(1, 1) == "-" and -1 or 1
    word = word:match("%a+")
    if word == "inf" or word == "infinity" then return sign * huge end
    if word == "nan" then return 0 / 0 end
  end
  local number = tonumber(value)
  return number and number + 0.0
end

-- tables ----------------------------------------------------------------------

function base.next(list, key)
  local found, value = next(list, key)
  if kind_of(found) == "integer" then found = found + 0.0 end
  return found, value
end

function base.pairs(list)
  if type(list) ~= "table" then
    error(("bad argument #1 to 'pairs' (table expected, got %s)")
      :format(type(list)), 2)
  end
  return base.next, list, nil
end

local function step(list, i)
  i = i + 1.0
  local value = rawget(list, i)
  if value ~= nil then return i, value end
end

function base.ipairs(list)
  if type(list) ~= "table" then
    error(("bad argument #1 to 'ipairs' (table expected, got %s)")
      :format(type(list)), 2)
  end
  return step, list, 0.0
end

function base.unpack(list, from, to)
  from, to = whole(from) or 1, whole(to) or rawlen(list)
  if getmetatable(list) == nil then return table.unpack(list, from, to) end
  local raw = {}
  for i = from, to do raw[i] = rawget(list, i) end
  return table.unpack(raw, from, to)
end

function base.select(n, ...)
  if n == "#" then return select("#", ...) + 0.0 end
  return select(whole(n), ...)
end

local tables = {}

function tables.insert(list, ...)
  local n = rawlen(list)
  if select("#", ...) == 1 then
    list[n + 1] = ...
    return
  elseif select("#", ...) ~= 2 then
    error("wrong number of arguments to 'insert'", 2)
  end
  local at, value = ...
  at = whole(at)
  for i = n + 1, at + 1, -1 do list[i] = list[i - 1] end
  list[at] = value
end

function tables.remove(list, at)
  local n = rawlen(list)
  at = whole(at) or n
  if at < 1 or at > n then return end
  return table.remove(list, at)
end

function tables.concat(list, separator, from, to)
  local texts = {}
  for i = whole(from) or 1, whole(to) or rawlen(list) do
    local value = list[i]
    if type(value) ~= "string" and type(value) ~= "number" then
      error(("invalid value (%s) at index %d in table for 'concat'")
        :format(type(value), i), 2)
    end
    texts[#texts + 1] = text_of(value)
  end
  return table.concat(texts, text_of(separator))
end

tables.sort = table.sort
function tables.getn(list) return rawlen(list) + 0.0 end

function tables.maxn(list)
  local most = 0.0
  for key in next, list do
    if type(key) == "number" and key > most then most = float(key) end
  end
  return most
end

function tables.foreach(list, fn)
  for key, value in base.pairs(list) do
    local result = fn(key, value)
    if result ~= nil then return result end
  end
end

function tables.foreachi(list, fn)
  for i = 1, rawlen(list) do
    local result = fn(i + 0.0, list[i])
    if result ~= nil then return result end
  end
end

-- strings ---------------------------------------------------------------------

local strings = {}

local function text_argument(value, name)
  if type(value) == "string" then return value end
  if type(value) == "number" then return text_of(value) end
  error(("bad argument to '%s' (string expected, got %s)"):format(name,
    type(value)), 3)
end

function strings.byte(text, from, to)
  return all_floats(text_argument(text, "byte"):byte(whole(from), whole(to)))
end

for _, name in ipairs { "len", "lower", "reverse", "upper" } do
  local fn = string[name]
  strings[name] = function(text) return float(fn(text_argument(text, name))) end
end
function strings.rep(text, n)
  return text_argument(text, "rep"):rep(whole(n))
end

function strings.sub(text, from, to)
  return text_argument(text, "sub"):sub(whole(from), whole(to) or -1)
end

function strings.char(...)
  local bytes = { ... }
  for i = 1, #bytes do bytes[i] = whole(bytes[i]) end
  return string.char(table.unpack(bytes))
end

-- Refuses patterns that 5.1 reads differently.
local function pattern_argument(pattern, name, repeated)
  pattern = text_argument(pattern, name)
  if pattern:gsub("%%%%", ""):find("%g", 1, true) or pattern:find("\0") then
    lacks("%g and zero bytes in patterns, which 5.1 reads differently")
  elseif repeated and pattern:sub(1, 1) ~= "^" and (""):find(pattern) then
    lacks("patterns that match the empty string in " .. name)
  end
  return pattern
end

function strings.find(text, pattern, init, plain)
  text = text_argument(text, "find")
  local at = whole(init)
  if at and at > #text + 1 then at = #text + 1 end
  if plain then
    return all_floats(text:find(text_argument(pattern, "find"), at, true))
  end
  return all_floats(text:find(pattern_argument(pattern, "find"), at))
end

function strings.match(text, pattern, init)
  text = text_argument(text, "match")
  local at = whole(init)
  if at and at > #text + 1 then at = #text + 1 end
  return all_floats(text:match(pattern_argument(pattern, "match"), at))
end

function strings.gmatch(text, pattern)
  local found = text_argument(text, "gmatch")
    :gmatch(pattern_argument(pattern, "gmatch", true))
  return function() return all_floats(found()) end
end

function strings.gsub(text, pattern, with, most)
  local replace
  if type(with) == "function" then
    replace = function(...) return text_of(with(all_floats(...))) end
  elseif type(with) == "table" then
    replace = function(key) return text_of(with[float(key)]) end
  else
    replace = text_argument(with, "gsub")
    if replace:gsub("%%%%", ""):find("%%[^%d]") then
      lacks("%x in the replacement of gsub, which 5.1 reads differently")
    end
  end
  return floats(text_argument(text, "gsub")
    :gsub(pattern_argument(pattern, "gsub", true), replace, whole(most)))
end

-- The argument of one conversion of format.
local function formatted(spec, value, i)
  local letter = spec:sub(-1)
  if letter == "s" then
    value = text_argument(value, "format")
    return value:match("^%Z*")
  elseif letter == "q" then
    value = text_argument(value, "format")
    if value:find("[\r\0]") then lacks("\\r and zero bytes in %q") end
    return value
  end
  local number = base.tonumber(value)
  if not number then
    error(("bad argument #%d to 'format' (number expected, got %s)")
      :format(i + 1, type(value)), 3)
  end
  return letter:find "[cdiouxX]" and whole(number) or number
end

function strings.format(format, ...)
  local values, i = { ... }, 0
  for spec in format:gsub("%%%%", ""):gmatch("%%[-+ #0%d.]*%a") do
    i = i + 1
    values[i] = formatted(spec, values[i], i)
  end
  return (format:gsub("%%([-+ #0%d.]*)u", "%%%1d")):format(
    table.unpack(values, 1, i))
end

strings.dump = function() lacks "string.dump" end

local function method(object, name, ...)
  if type(object) == "string" then
    local fn = strings[name]
    if not fn then
      error(("attempt to call method '%s' (a nil value)"):format(name), 2)
    end
    return fn(object, ...)
  end
  return object[name](object, ...)
end

-- mathematics -----------------------------------------------------------------

local maths = { huge = huge, pi = math.pi }

local function number_argument(value, name)
  local number = base.tonumber(value)
  if number then return number end
  error(("bad argument to '%s' (number expected, got %s)"):format(name,
    type(value)), 3)
end

for name, fn in pairs {
  abs = math.abs, acos = math.acos, asin = math.asin, atan = math.atan,
  cos = math.cos, deg = math.deg, exp = math.exp, floor = floor_of,
  rad = math.rad, sin = math.sin, sqrt = math.sqrt, tan = math.tan,
  log = math.log,
  ceil = function(x) return -floor_of(-x) end,
  log10 = function(x) return math.log(x, 10) end,
  cosh = function(x) return (math.exp(x) + math.exp(-x)) / 2 end,
  sinh = function(x) return (math.exp(x) - math.exp(-x)) / 2 end,
} do
  maths[name] = function(x) return fn(number_argument(x, name)) end
end
for name, fn in pairs {
  atan2 = math.atan, fmod = math.fmod, mod = math.fmod,
  pow = function(x, y) return x ^ y end,
  ldexp = function(x, n) return x * 2.0 ^ n end,
} do
  maths[name] = function(x, y)
    return fn(number_argument(x, name), number_argument(y, name))
  end
end

for _, name in ipairs { "max", "min" } do
  local fn = math[name]
  maths[name] = function(...)
    local numbers = { ... }
    for i = 1, select("#", ...) do
      numbers[i] = number_argument(numbers[i], name)
    end
    return fn(table.unpack(numbers))
  end
end

function maths.modf(x)
  local integral, fraction = math.modf(number_argument(x, "modf"))
  return integral + 0.0, fraction
end

-- the environment -------------------------------------------------------------

for name in ([[assert error getmetatable pcall rawequal rawget rawset
    setmetatable type]]):gmatch("%S+") do
  base[name] = _G[name]
end
base._VERSION = "Lua 5.1"
base.string, base.table, base.math = strings, tables, maths
base.coroutine = {
  create = coroutine.create, resume = coroutine.resume,
  status = coroutine.status, wrap = coroutine.wrap, yield = coroutine.yield,
}

function base.xpcall(fn, handler) return xpcall(fn, handler) end

local function named(library)
  return { __index = function(_, name)
    lacks(library .. "." .. tostring(name))
  end }
end

setmetatable(maths, named "math")
setmetatable(base.coroutine, named "coroutine")
for _, name in ipairs { "cjson", "cmsgpack", "struct", "bit" } do
  base[name] = setmetatable({}, named(name))
end
for _, name in ipairs { "collectgarbage", "gcinfo", "load" } do
  base[name] = function() lacks(name) end
end

--- The globals of a script.
-- @tparam table redis the library `redis`
-- @treturn table
function lua51.environment(redis)
  local globals = {}
  for name, value in pairs(base) do globals[name] = value end
  globals._G, globals.redis = globals, redis
  function globals.loadstring(text)
    return lua51.load(text, globals)
  end
  return setmetatable(globals, {
    __index = function(_, name)
      error(("Script attempted to access nonexistent global variable '%s'")
        :format(tostring(name)), 2)
    end,
    __newindex = function()
      error("Attempt to modify a readonly table", 2)
    end,
  })
end

--- Compiles a script.
-- @tparam string text
-- @tparam table globals from `environment`
-- @treturn[1] function
-- @treturn[2] nil
-- @treturn[2] string the syntax error
function lua51.load(text, globals)
  local translated, fault = translate(text)
  if not translated then return nil, fault end
  local chunk
  chunk, fault = load(translated, "@user_script", "t", globals)
  if not chunk then return nil, fault end
  return function() return chunk(concat, modulo, length, method) end
end

return lua51
