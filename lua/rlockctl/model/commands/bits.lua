--- Commands of bits of a string.

local arguments = require "rlockctl.model.commands.arguments"

local bits = {}

local LIMIT = 512 * 1024 * 1024 * 8

local function value_of(server, key)
  local entry = server:entry(key, "string")
  return entry and entry.value or ""
end

local function read_offset(text)
  local fault = "ERR bit offset is not an integer or out of range"
  local offset = arguments.positive(text, fault)
  if offset >= LIMIT then arguments.fail(fault) end
  return offset
end

local function bit_at(value, offset)
  return (value:byte(offset // 8 + 1) or 0) >> 7 - offset % 8 & 1
end

bits.getbit = { 3, function(server, words)
  local offset = read_offset(words[3])
  return bit_at(value_of(server, words[2]), offset) + 0.0
end }

bits.setbit = { 4, function(server, words)
  local offset = read_offset(words[3])
  local fault = "ERR bit is not an integer or out of range"
  local bit = arguments.positive(words[4], fault)
  if bit > 1 then arguments.fail(fault) end
  local value = value_of(server, words[2])
  local at, before = offset // 8, bit_at(value, offset)
  value = value .. ("\0"):rep(at + 1 - #value)
  local mask = 1 << 7 - offset % 8
  local byte = value:byte(at + 1) & ~mask | bit * mask
  server:change(words[2], "string", "").value =
    value:sub(1, at) .. string.char(byte) .. value:sub(at + 2)
  return before + 0.0
end }

-- The range of BITCOUNT: the first bit and the last, from 0.
local function range_of(value, words)
  if not words[3] then return 0, #value * 8 - 1 end
  if not words[4] or words[6] then arguments.syntax() end
  ---@type any, any
  local first, last = arguments.integer(words[3]), arguments.integer(words[4])
  if first < 0 and last < 0 and first > last then return 0, -1 end
  local unit = words[5] and words[5]:lower() or "byte"
  if unit ~= "byte" and unit ~= "bit" then arguments.syntax() end
  local width = unit == "bit" and 1 or 8
  if last < 0 then last = math.max(last + #value * 8 // width, 0) end
  first, last = arguments.range(first, last, #value * 8 // width)
  return (first - 1) * width, last * width - 1
end

-- Versions differ in whether they look at the key or the range first.
bits.bitcount = { -2, function(server, words)
  local entry = server:entry(words[2])
  if not entry or entry.kind ~= "string" then
    if not pcall(range_of, "", words) then
      arguments.lacks "BITCOUNT of no string, with a malformed range"
    end
    server:entry(words[2], "string")     -- raises WRONGTYPE
    return 0.0
  end
  local value, n = entry.value, 0.0
  local first, last = range_of(value, words)
  for offset = first, last do n = n + bit_at(value, offset) end
  return n
end }

return bits
