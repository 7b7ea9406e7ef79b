--- The hash slot of a key in a Redis Cluster: CRC-16 (XMODEM) modulo 16384, of
--- the hash tag if the key has one.

local slot = { count = 16384 }

local bit = rawget(_G, "bit")                         -- of LuaJIT
local xor = bit and bit.bxor or load "local a, b = ... return a ~ b"

local POLYNOMIAL = 0x1021

local remainders = {}
for byte = 0, 255 do
  local crc = byte * 256
  for _ = 1, 8 do
    local is_over = crc >= 0x8000
    crc = crc * 2 % 0x10000
    if is_over then crc = xor(crc, POLYNOMIAL) end
  end
  remainders[byte] = crc
end

local function crc16(text)
  local crc = 0
  for i = 1, #text do
    local low = crc % 256
    crc = xor(low * 256, remainders[xor((crc - low) / 256, text:byte(i))])
  end
  return crc
end

--- The part of a key that is hashed: what is between the first "{" and the next
--- "}", unless that is empty; else the whole key.
---@param key string
---@return string
function slot.tag(key)
  local tag = key:match("^[^{]*{([^}]*)}")
  return tag and tag ~= "" and tag or key
end

---@param key string
---@return integer # from 0 to 16383
function slot.of(key)
  return crc16(slot.tag(key)) % slot.count
end

return slot
