--- The long doubles of x86-64, with which INCRBYFLOAT and HINCRBYFLOAT compute:
--- 64 bits of mantissa, rounded to the nearest, half to even. All digits are
--- those of strtold and printf("%.17Lf"). On other processors, the last digits
--- may differ.
---
--- A value is { sign = 1 or -1, number = a natural number, exponent = of 2 },
--- or { sign, is_infinite = true }. A natural number is a list of digits of 24
--- bits, the lowest first; zero is empty.

local long_double = {}

local BITS = 24                          -- of a digit
local MASK = (1 << BITS) - 1
local STEP = 10000000                    -- 10^7 fits in a digit
local PRECISION, LEAST, MOST = 64, -16445, 16384
local LONGEST = 5 * 1024                 -- bytes of a text, in Redis

-- natural numbers -------------------------------------------------------------

local function trimmed(number)
  while number[#number] == 0 do number[#number] = nil end
  return number
end

-- number * factor + more, where the two are below 2^38.
local function scaled(number, factor, more)
  local result, carry = {}, more or 0
  for i, digit in ipairs(number) do
    carry = carry + digit * factor
    result[i], carry = carry & MASK, carry >> BITS
  end
  while carry > 0 do
    result[#result + 1], carry = carry & MASK, carry >> BITS
  end
  return result
end

-- number // divisor, and the remainder.
local function divided(number, divisor)
  ---@type table, any
  local result, rest = {}, 0
  for i = #number, 1, -1 do
    rest = rest << BITS | number[i]
    result[i], rest = rest // divisor, rest % divisor
  end
  return trimmed(result), rest
end

local function bits_of(number)
  local n, top = (#number - 1) * BITS, number[#number]
  if not top then return 0 end
  while top > 0 do n, top = n + 1, top >> 1 end
  return n
end

local function digit_at(number, i) return number[i + 1] or 0 end

-- Is one of the lowest `n` bits set?
local function has_bits(number, n)
  for i = 1, math.min(n // BITS, #number) do
    if number[i] > 0 then return true end
  end
  return digit_at(number, n // BITS) & (1 << n % BITS) - 1 ~= 0
end

-- number / 2^n, rounded; `has_rest` if the number is a little too small.
local function halved(number, n, has_rest)
  local result, skip, shift = {}, n // BITS, n % BITS
  for i = 1, #number - skip do
    result[i] = (number[i + skip] >> shift
      | digit_at(number, i + skip) << BITS - shift) & MASK
  end
  local is_half = digit_at(number, (n - 1) // BITS) >> (n - 1) % BITS & 1 == 1
  if is_half and (has_rest or digit_at(result, 0) % 2 == 1
      or has_bits(number, n - 1)) then
    result = scaled(trimmed(result), 1, 1)
  end
  return trimmed(result)
end

-- number * 2^n
local function doubled(number, n)
  local low = {}
  if not number[1] then return low end
  for i = 1, n // BITS do low[i] = 0 end
  local high = scaled(number, 1 << n % BITS)
  return table.move(high, 1, #high, #low + 1, low)
end

local function shifted(number, n)
  if n >= 0 then return doubled(number, n) end
  return halved(number, -n)
end

local function sum(a, b)
  local result, carry = {}, 0
  for i = 1, math.max(#a, #b) do
    carry = carry + (a[i] or 0) + (b[i] or 0)
    result[i], carry = carry & MASK, carry >> BITS
  end
  if carry > 0 then result[#result + 1] = carry end
  return result
end

local function is_less(a, b)
  if #a ~= #b then return #a < #b end
  for i = #a, 1, -1 do
    if a[i] ~= b[i] then return a[i] < b[i] end
  end
  return false
end

-- a - b, which is not negative.
local function difference(a, b)
  local result, borrow = {}, 0
  for i = 1, #a do
    local digit = a[i] - (b[i] or 0) - borrow
    result[i], borrow = digit & MASK, digit < 0 and 1 or 0
  end
  return trimmed(result)
end

--- number * 10^n; for a negative n rounded down to at least 66 bits.
---@return table
---@return integer # the exponent of 2 by which it must be multiplied
---@return boolean # whether it was rounded
local function times_ten(number, n)
  while n >= 7 do number, n = scaled(number, STEP), n - 7 end
  if n >= 0 then return scaled(number, math.tointeger(10 ^ n)), 0, false end
  local up = math.max(0, PRECISION + 2 - bits_of(number) - n * 10 // 3)
  local lost = 0
  number = doubled(number, up)
  while n < 0 do
    local few = math.max(n, -7)
    local quotient, rest = divided(number, math.tointeger(10 ^ -few))
    number, n, lost = quotient, n - few, lost | rest
  end
  return number, -up, lost > 0
end

-- values ----------------------------------------------------------------------

local function rounded(sign, number, exponent, has_rest)
  local excess = math.max(bits_of(number) - PRECISION, LEAST - exponent)
  if excess > 0 then
    number = halved(number, excess, has_rest)
    exponent = exponent + excess
  end
  if bits_of(number) + exponent > MOST then
    return { sign = sign, is_infinite = true }
  end
  return { sign = sign, number = number, exponent = exponent }
end

local function read_digits(text, base)
  local number = {}
  for digit in text:gmatch "%x" do
    number = scaled(number, base, tonumber(digit, base))
  end
  return number
end

-- The exponent after a mark, such as "e+5"; nil if that is malformed. It has no
-- bound, so it may be a float.
local function exponent_of(text, mark)
  if text == "" then return 0 end
  local digits = text:match("^" .. mark .. "([+-]?%d+)$")
  return digits and tonumber(digits)
end

local function read_decimal(sign, whole, fraction, tail)
  local exponent = exponent_of(tail, "[eE]")
  if not exponent or whole .. fraction == "" then return nil end
  local digits = (whole .. fraction):gsub("^0+", "")
  local scale = exponent - #fraction
  if digits == "" then return rounded(sign, {}, 0) end
  if math.abs(#digits + scale) > LONGEST then return nil end
  local number, power, has_rest =
    times_ten(read_digits(digits, 10), math.tointeger(scale))
  return rounded(sign, number, power, has_rest)
end

local function read_hex(sign, whole, fraction, tail)
  local exponent = exponent_of(tail, "[pP]")
  if not exponent or whole .. fraction == "" then return nil end
  local number = read_digits(whole .. fraction, 16)
  if not trimmed(number)[1] then exponent = 0 end
  if math.abs(exponent) > 8 * LONGEST then return nil end
  return rounded(sign, number, math.tointeger(exponent) --[[@as integer]]
    - 4 * #fraction)
end

-- A text without its sign.
local function read(sign, text)
  local word = text:lower()
  if word == "inf" or word == "infinity" then
    return { sign = sign, is_infinite = true }, true
  end
  local hex, hex_fraction, hex_tail =
    text:match "^0[xX](%x*)%.?(%x*)([pP]?[+-]?%d*)$"
  if hex then return read_hex(sign, hex, hex_fraction, hex_tail) end
  local whole, fraction, tail = text:match "^(%d*)%.?(%d*)([eE]?[+-]?%d*)$"
  if whole then return read_decimal(sign, whole, fraction, tail) end
end

--- Reads a text as Redis does.
---@param text string
---@return table? # nil if it is malformed, or beyond the range
function long_double.read(text)
  if #text >= LONGEST then return nil end
  local sign, rest = text:match "^([+-]?)(.*)$"
  if not rest then return nil end
  local value, is_word = read(sign == "-" and -1 or 1, rest)
  if not value or is_word then return value end
  local is_zero = not value.is_infinite and not value.number[1]
  ---@diagnostic disable-next-line: need-check-nil, param-type-mismatch
  local may_be_zero = not rest:match("^0?[xX]?([^eEpP]*)"):find "[1-9a-fA-F]"
  if value.is_infinite or is_zero and not may_be_zero then return nil end
  return value
end

--- Adds two finite values.
---@return table
function long_double.add(a, b)
  local exponent = math.min(a.exponent, b.exponent)
  local one = doubled(a.number, a.exponent - exponent)
  local two = doubled(b.number, b.exponent - exponent)
  if a.sign == b.sign then return rounded(a.sign, sum(one, two), exponent) end
  local sign = a.sign
  if is_less(one, two) then one, two, sign = two, one, b.sign end
  return rounded(sign, difference(one, two), exponent)
end

--- A finite value with up to 17 digits after the point.
---@return string
function long_double.show(value)
  local groups = {}
  local number = shifted(times_ten(value.number, 17), value.exponent)
  while number[1] do
    local rest
    number, rest = divided(number, STEP)
    table.insert(groups, 1, ("%07d"):format(rest))
  end
  local digits = ("0"):rep(18) .. table.concat(groups)
  local whole = digits:sub(1, -18):gsub("^0+", "")
  local fraction = digits:sub(-17):gsub("0+$", "")
  local text = (whole == "" and "0" or whole)
    .. (fraction ~= "" and "." .. fraction or "")
  return text ~= "0" and value.sign < 0 and "-" .. text or text
end

return long_double
