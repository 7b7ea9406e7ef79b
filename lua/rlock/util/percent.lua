--- Percent encoding: %XX stands for a byte.

local percent = {}

--- Encodes the bytes that match a pattern, which must include "%".
---@param text any a text
---@param pattern string of Lua, for one byte
---@return string
function percent.encode(text, pattern)
  return (text:gsub(pattern, function(char)
    return ("%%%02X"):format(char:byte())
  end))
end

--- Decodes every %XX; other text is kept.
---@param text any a text
---@return string
function percent.decode(text)
  return (text:gsub("%%(%x%x)", function(hex)
    return string.char(tonumber(hex, 16) --[[@as integer]])
  end))
end

return percent
