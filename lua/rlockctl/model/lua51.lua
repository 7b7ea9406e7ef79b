--- Runs Lua 5.1 under Lua 5.4, with the results of the Lua 5.1 inside Redis:
--- all numbers are floats, and operators and libraries behave as in 5.1.
--- Anything that this file does not support raises an error that begins with
--- lua51.LACKS and that no `pcall` of a script catches; it never guesses.
---
--- Some results that 5.1 leaves undefined are fixed here: `pairs` and `next`
--- traverse lists in order, then other keys, sorted. Texts are compared byte by
--- byte, as in a server with the locale "C".

local bit = require "rlockctl.model.lua51.bit"
local maths = require "rlockctl.model.lua51.math_library"
local strings = require "rlockctl.model.lua51.string_library"
local tables = require "rlockctl.model.lua51.table_library"
local translate = require "rlockctl.model.translate"
local values = require "rlockctl.model.lua51.values"

local lua51 = {}

lua51.LACKS = values.LACKS

local type = type
local kind_of = math.type
local lacks, is_lack, int, number_of, text_of = values.lacks, values.is_lack,
  values.int, values.number_of, values.text_of

local base = {}                         -- the global functions of 5.1

-- conversion ------------------------------------------------------------------

function base.tostring(...)
  if select("#", ...) == 0 then
    error("bad argument #1 to 'tostring' (value expected)", 2)
  end
  local value = ...
  if type(value) == "number" then return text_of(value) end
  local meta = getmetatable(value)
  if type(meta) == "table" and meta.__tostring then
    return meta.__tostring(value)
  end
  return tostring(value)
end

-- An integer without a sign as a number.
local function unsigned(n)
  if n >= 0 then return n + 0.0 end
  return (n >> 1 | n & 1) * 2.0
end

-- As C's strtoul.
local function in_base(text, radix)
  text = text:match("^[^\0]*"):lower()
  local sign, digits = text:match("^%s*([+-]?)(%w+)%s*$")
  if digits and radix == 16 then digits = digits:gsub("^0x(.)", "%1") end
  if not digits then return nil end
  ---@type any, any
  local n, rough = 0, 0.0
  for char in digits:gmatch(".") do
    local digit = tonumber(char, 36)
    if digit >= radix then return nil end
    ---@cast digit -nil
    n, rough = n * radix + digit, rough * radix + digit
  end
  if rough >= 2.0 ^ 64 then return 2.0 ^ 64 end
  return unsigned(sign == "-" and -n or n)
end

function base.tonumber(...)
  local value, radix = ...
  if radix ~= nil and radix ~= 10 then
    radix = int(radix, 2, "tonumber")
    if radix < 2 or radix > 36 then
      error("bad argument #2 to 'tonumber' (base out of range)", 2)
    end
    if radix ~= 10 then
      return in_base(values.text(value, 1, "tonumber"), radix)
    end
  end
  if kind_of(value) then return value end
  if type(value) == "string" then return number_of(value) end
  if select("#", ...) == 0 then
    error("bad argument #1 to 'tonumber' (value expected)", 2)
  end
  return nil
end

-- read-only tables ------------------------------------------------------------

-- The read-only view of a global table or library -> the table behind it.
local behind = setmetatable({}, { __mode = "k" })

local READ_ONLY = "Attempt to modify a readonly table"

-- A table of which scripts cannot change a field.
local function read_only(list)
  local seen = setmetatable({}, {
    __index = list, __newindex = function() error(READ_ONLY, 2) end,
  })
  behind[seen] = list
  return seen
end

function base.rawget(list, key)
  return rawget(behind[list] or list, key)
end

function base.rawset(list, key, value)
  if behind[list] then error(READ_ONLY, 2) end
  return rawset(list, key, value)
end

function base.getmetatable(value)
  if type(value) == "string" or behind[value] then
    lacks("getmetatable of a string or library")
  end
  return getmetatable(value)
end

-- Metamethods that 5.4 calls where 5.1 does not.
local NEWER = { "__eq", "__lt", "__le", "__gc", "__close", "__mode", "__name" }

function base.setmetatable(list, meta)
  if behind[list] then error(READ_ONLY, 2) end
  for _, name in ipairs(NEWER) do
    if type(meta) == "table" and rawget(meta, name) ~= nil then
      lacks(name .. " in a metatable, which 5.1 treats differently")
    end
  end
  return setmetatable(list, meta)
end

-- iteration -------------------------------------------------------------------

local RANKS = { number = 1, string = 2, boolean = 3 }

local function comes_before(a, b)
  local one, two = RANKS[type(a)], RANKS[type(b)]
  if one ~= two then return one < two end
  if one == 3 then return a and not b end
  return a < b
end

-- The keys of a table in order.
local function keys_of(list)
  local keys = {}
  for key in next, list do
    if not RANKS[type(key)] then
      lacks("pairs of a table with keys of type " .. type(key))
    end
    keys[#keys + 1] = kind_of(key) and key + 0.0 or key
  end
  table.sort(keys, comes_before)
  return keys
end

local function refuse(name, value)
  error(("bad argument #1 to '%s' (table expected, got %s)"):format(name,
    value == nil and "no value" or type(value)), 3)
end

function base.pairs(list)
  if type(list) ~= "table" then refuse("pairs", list) end
  if behind[list] then lacks "pairs of a library" end
  local keys, i = keys_of(list), 0
  return function()
    local value
    repeat
      i = i + 1
      value = list[keys[i]]
    until value ~= nil or i > #keys
    return keys[i], value
  end, list, nil
end

function base.next(list, key)
  if type(list) ~= "table" then refuse("next", list) end
  if behind[list] then lacks "next of a library" end
  if next(list) == nil then return nil end
  local keys, is_after = keys_of(list), key == nil
  for _, other in ipairs(keys) do
    if is_after then return other, list[other] end
    is_after = other == key
  end
  if is_after then return nil end
  lacks "next after a key that was removed"
end

local function step(list, i)
  i = i + 1.0
  local value = rawget(list, i)
  if value ~= nil then return i, value end
end

function base.ipairs(list)
  if type(list) ~= "table" then refuse("ipairs", list) end
  return step, list, 0.0
end

function tables.foreach(list, fn)
  for key, value in base.pairs(list) do
    local result = fn(key, value)
    if result ~= nil then return result end
  end
end

local MOST_RESULTS = 8000               -- of C functions in 5.1

function base.unpack(list, ...)
  if type(list) ~= "table" then refuse("unpack", list) end
  local from, to = ...
  from, to = int(from, 2, "unpack", 1), int(to, 3, "unpack", rawlen(list))
  if to - from + 1 + 1 + select("#", ...) > MOST_RESULTS then
    error("too many results to unpack", 2)
  end
  if getmetatable(list) == nil then return table.unpack(list, from, to) end
  local raw = {}
  for i = from, to do raw[i] = rawget(list, i) end
  return table.unpack(raw, from, to)
end

function base.select(n, ...)
  if type(n) == "string" and n:sub(1, 1) == "#" then
    return select("#", ...) + 0.0
  end
  return select(int(n, 1, "select"), ...)
end

-- errors ----------------------------------------------------------------------

function base.error(message, level)
  level = int(level, 2, "error", 1)
  if level < 1 then error(message, 0) end
  error(text_of(message), level + 1)
end

-- As in Redis: of a table with the text `err`, only that is passed on. Any
-- other `err` is passed on after the table.
local function caught(ok, ...)
  if ok then return ok, ... end
  local fault = ...
  if is_lack(fault) then error(fault, 0) end
  if type(fault) ~= "table" then return false, fault end
  local text = fault.err
  if type(text) == "string" or kind_of(text) then return false, text end
  return false, fault, text
end

function base.pcall(...)
  if select("#", ...) == 0 then lacks "pcall without arguments" end
  return caught(pcall(...))
end

local function handled(ok, ...)
  if not ok and is_lack((...)) then error((...), 0) end
  return ok, ...
end

function base.xpcall(fn, handler)
  return handled(xpcall(fn, function(fault)
    if is_lack(fault) then return fault end
    return handler(fault)
  end))
end

function base.assert(...)
  local value, message = ...
  if value then return ... end
  if select("#", ...) == 0 then
    error("bad argument #1 to 'assert' (value expected)", 2)
  end
  error(message == nil and "assertion failed!"
    or values.text(message, 2, "assert"), 0)
end

-- operators -------------------------------------------------------------------

local function concat(a, b)
  local one, two = type(a), type(b)
  if one == "string" and two == "string" then return a .. b end
  if (one == "string" or one == "number")
      and (two == "string" or two == "number") then
    return text_of(a) .. text_of(b)
  end
  return a .. b
end

local function modulo(a, b)
  if kind_of(a) and kind_of(b) then return a - values.floor(a / b) * b end
  local x = type(a) == "string" and number_of(a) or a
  local y = type(b) == "string" and number_of(b) or b
  if kind_of(x) and kind_of(y) then return modulo(x, y) end
  return a % b
end

local function length(value)
  if type(value) == "string" or type(value) == "table" then
    return rawlen(value) + 0.0
  end
  return #value
end

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

local function index(object, name)
  if type(object) == "string" then return strings[name] end
  return object[name]
end

-- A number of a numeric `for`.
local function bound(value, what)
  if kind_of(value) == "float" then return value end
  local number = type(value) == "string" and number_of(value)
  if not number then error(("'for' %s must be a number"):format(what), 2) end
  return number
end

-- The first number of a `for`. 5.1 subtracts the step and adds it again. `step`
-- is nil if it is not known yet.
local function first(value, step_)
  value = bound(value, "initial value")
  if step_ then return value - step_ + step_ end
  if value % 1 ~= 0 then lacks "a for loop from a fraction by a variable" end
  return value
end

local function by(value)
  value = bound(value, "step")
  if value % 1 ~= 0 or value == 0 then
    lacks "a for loop whose step is zero, or a fraction in a variable"
  end
  return value
end

-- The variable `arg` of a vararg function.
local function arg(...) return { n = select("#", ...) + 0.0, ... } end

local helpers = { concat, modulo, length, method, index, bound, first, by,
  arg }

-- Arithmetic of texts: these are the metamethods of strings during a run.
---@type table<string, any>
local texts = { __index = string }

local function numbers_only(a, b)
  local what = type(a) == "string" and not number_of(a) and a
    or kind_of(a) and b or a
  error(("attempt to perform arithmetic on a %s value"):format(type(what)), 3)
end

for name, calculate in pairs {
  __add = function(a, b) return a + b end,
  __sub = function(a, b) return a - b end,
  __mul = function(a, b) return a * b end,
  __div = function(a, b) return a / b end,
  __pow = function(a, b) return a ^ b end,
  __unm = function(a) return -a end,
} do
  texts[name] = function(a, b)
    local x = type(a) == "string" and number_of(a) or a
    local y = type(b) == "string" and number_of(b) or b
    if kind_of(x) and kind_of(y) then return calculate(x, y) end
    local other = type(a) == "string" and b or a
    local meta = type(other) ~= "string" and getmetatable(other)
    if not meta or not meta[name] then numbers_only(a, b) end
    return meta[name](a, b)
  end
end

-- the environment -------------------------------------------------------------

for _, name in ipairs { "rawequal", "type" } do
  base[name] = _G[name]
end
base._VERSION = "Lua 5.1"

-- A library that Redis has and this model does not.
local function missing(library)
  return read_only(setmetatable({}, { __index = function(_, name)
    lacks(library .. "." .. tostring(name))
  end }))
end

for _, name in ipairs { "collectgarbage", "gcinfo", "load" } do
  base[name] = function() lacks(name) end
end

local function undefined(_, name)
  error(("Script attempted to access nonexistent global variable '%s'")
    :format(tostring(name)), 2)
end

-- Globals that only some versions have.
local VERSIONS = { os = true, server = true }

--- The globals of a script.
---@param redis table the library `redis`
---@return table # what the script sees, for `load`
---@return table # behind it, to set KEYS and ARGV
function lua51.environment(redis)
  local globals = {}
  for name, value in pairs(base) do globals[name] = value end
  for _, name in ipairs { "cjson", "cmsgpack", "struct", "coroutine" } do
    globals[name] = missing(name)
  end
  globals.string, globals.table = read_only(strings), read_only(tables)
  globals.math, globals.bit = read_only(maths), read_only(bit)
  globals.redis = read_only(redis)
  setmetatable(globals, { __index = function(_, name)
    if VERSIONS[name] then lacks("global " .. name) end
    return undefined(_, name)
  end })
  local seen = read_only(globals)
  globals._G = seen
  function globals.loadstring(text)
    return lua51.load(values.text(text, 1, "loadstring"), seen)
  end
  return seen, globals
end

--- Compiles a script.
---@param text string
---@param globals table from `environment`
---@return function? # for `run`
---@return string? code # the syntax error
function lua51.load(text, globals)
  ---@type any, any
  local translated, fault = translate(text)
  if not translated then return nil, fault end
  ---@type any
  local chunk
  chunk, fault = load(translated, "@user_script", "t", globals)
  if not chunk then return nil, fault end
  return chunk(table.unpack(helpers))
end

local set_metatable, texts_of_54 = debug.setmetatable, getmetatable("")

local function ran(...)
  set_metatable("", texts_of_54)
  return ...
end

--- Runs a function of `load`, as pcall does.
function lua51.run(fn)
  set_metatable("", texts)
  return ran(pcall(fn))
end

return lua51
