--- The library `math` of Lua 5.1.

local values = require "rlockctl.model.lua51.values"

local number = values.number

local maths = { huge = math.huge, pi = math.pi }

for name, fn in pairs {
  abs = math.abs, acos = math.acos, asin = math.asin, atan = math.atan,
  cos = math.cos, deg = math.deg, exp = math.exp, floor = values.floor,
  rad = math.rad, sin = math.sin, sqrt = math.sqrt, tan = math.tan,
  ceil = function(x) return -values.floor(-x) end,
  log = function(x) return math.log(x) end,
  log10 = function(x) return math.log(x, 10) end,
} do
  maths[name] = function(x) return fn(number(x, 1, name)) end
end

for name, fn in pairs {
  atan2 = math.atan, fmod = math.fmod, mod = math.fmod,
  pow = function(x, y) return x ^ y end,
} do
  maths[name] = function(x, y)
    return fn(number(x, 1, name), number(y, 2, name))
  end
end

for _, name in ipairs { "max", "min" } do
  local fn = math[name]
  maths[name] = function(...)
    ---@type any[]
    local numbers = { ... }
    for i = 1, math.max(select("#", ...), 1) do
      numbers[i] = number(numbers[i], i, name)
    end
    return fn(table.unpack(numbers))
  end
end

local function with_sign_of(x, y)
  return (y < 0 or 1 / y < 0) and -x or x
end

function maths.modf(x)
  x = number(x, 1, "modf")
  if x ~= x then return x, x end
  local whole = x < 0 and -values.floor(-x) or values.floor(x)
  return whole, with_sign_of(whole == x and 0.0 or math.abs(x - whole), x)
end

function maths.ldexp(x, n)
  x, n = number(x, 1, "ldexp"), values.int(n, 2, "ldexp")
  if math.abs(n) > 1022 then values.lacks "ldexp by more than 1022" end
  return x * 2.0 ^ n
end

function maths.frexp(x)
  x = number(x, 1, "frexp")
  if x == 0 or x ~= x or math.abs(x) == math.huge then return x, 0.0 end
  if math.abs(x) < 2.0 ^ -1022 then values.lacks "frexp of tiny numbers" end
  local digits, exponent = ("%a"):format(x):match("^(.*)p(.*)$")
  return tonumber(digits .. "p0") --[[@as number]] / 2,
    tonumber(exponent) --[[@as number]] + 1.0
end

-- random: no two servers draw the same numbers.
for _, name in ipairs { "cosh", "random", "randomseed", "sinh", "tanh" } do
  maths[name] = function() values.lacks("math." .. name) end
end

return maths
