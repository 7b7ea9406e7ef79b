--- The library `bit` of Redis: LuaBitOp, on numbers of 32 bits.

local values = require "rlockctl.model.lua51.values"

local bit = {}

-- A number as 32 bits without a sign: rounded to the nearest, ties to even.
local function bits(value, i, name)
  ---@type any
  local number = values.number(value, i, name)
  if number ~= number or math.abs(number) >= 2.0 ^ 51 then
    values.lacks "bit operations on numbers beyond 2^51"
  end
  local whole = math.floor(number + 0.5)
  if number + 0.5 == whole and whole % 2 == 1 then whole = whole - 1 end
  return whole & 0xffffffff
end

-- The 32 bits as a signed number.
local function signed(n)
  return ((n + 0x80000000 & 0xffffffff) - 0x80000000) + 0.0
end

function bit.tobit(x) return signed(bits(x, 1, "tobit")) end
function bit.bnot(x) return signed(~bits(x, 1, "bnot")) end

function bit.bswap(x)
  local n = bits(x, 1, "bswap")
  return signed(n >> 24 | n >> 8 & 0xff00 | (n & 0xff00) << 8 | n << 24)
end

for name, combine in pairs {
  band = function(a, b) return a & b end,
  bor = function(a, b) return a | b end,
  bxor = function(a, b) return a ~ b end,
} do
  bit[name] = function(first, ...)
    local n = bits(first, 1, name)
    for i = 1, select("#", ...) do
      n = combine(n, bits((select(i, ...)), i + 1, name))
    end
    return signed(n)
  end
end

for name, shift in pairs {
  lshift = function(n, by) return n << by end,
  rshift = function(n, by) return n >> by end,
  arshift = function(n, by) return math.tointeger(signed(n)) >> by
    | (n >= 0x80000000 and ~(-1 >> by) or 0) end,
  rol = function(n, by) return n << by | n >> 32 - by end,
  ror = function(n, by) return n >> by | n << 32 - by end,
} do
  bit[name] = function(x, by)
    return signed(shift(bits(x, 1, name), bits(by, 2, name) & 31))
  end
end

function bit.tohex(x, ...)
  ---@type any
  local digits = select("#", ...) == 0 and 8
    or math.tointeger(signed(bits((...), 2, "tohex")))
  local form = digits < 0 and "%08X" or "%08x"
  local text = form:format(bits(x, 1, "tohex"))
  ---@diagnostic disable-next-line: param-type-mismatch
  return text:sub(9 - math.min(math.abs(digits), 8))
end

return bit
