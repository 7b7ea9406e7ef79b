--- Encodes JSON: strings, numbers, booleans, arrays ({ ... }), objects. Sorts
--- keys. In text that is not UTF-8, bytes beyond ASCII become U+FFFD.

local sorted = require "rlock.util.sorted"

---@type function
local json

local function quote(text)
  if not utf8.len(text) then
    text = text:gsub("[\128-\255]", "\u{FFFD}")
  end
  return '"' .. text:gsub('[%c"\\]', function(char)
    return ("\\u%04x"):format(char:byte())
  end) .. '"'
end

local function array(value)
  local parts = {}
  for i, item in ipairs(value) do parts[i] = json(item) end
  return "[" .. table.concat(parts, ",") .. "]"
end

local function object(value)
  local parts = {}
  for i, key in ipairs(sorted(value)) do
    parts[i] = quote(key) .. ":" .. json(value[key])
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

---@param value any an empty table is an empty array; infinity is null
---@return string
function json(value)
  if type(value) == "string" then return quote(value) end
  if value == math.huge then return "null" end
  if type(value) ~= "table" then return tostring(value) end
  if #value > 0 or next(value) == nil then return array(value) end
  return object(value)
end

return json
