--- Matches text against a pattern as Redis does: `*`, `?`, `[a-z]`, `[^a]`, and
--- a backslash before a character that stands for itself.

local glob = {}

local function literal(char) return (char:gsub("%W", "%%%0")) end

-- The Lua pattern for the inside of brackets; nil if nothing matches it.
local function class_of(body)
  local negation, inside = body:match("^(%^?)(.*)$")
  inside = inside:gsub("\\(.)", "%1"):gsub("[^%w%-]", "%%%0")
  if inside ~= "" then return "[" .. negation .. inside .. "]" end
  return negation ~= "" and "." or nil
end

-- The part of a pattern at `i`, as a Lua pattern; and where the next begins.
local function part_at(pattern, i)
  local char = pattern:sub(i, i)
  if char == "*" then return ".*", i + 1 end
  if char == "?" then return ".", i + 1 end
  if char == "\\" and i < #pattern then
    return literal(pattern:sub(i + 1, i + 1)), i + 2
  elseif char == "[" then
    local stop = pattern:find("]", i + 1, true) or #pattern + 1
    return class_of(pattern:sub(i + 1, stop - 1)), stop + 1
  end
  return literal(char), i + 1
end

--- Makes the test of a pattern.
---@param pattern? string default: "*"
---@return function # text -> boolean
function glob.matcher(pattern)
  local parts, i = { "^" }, 1
  while pattern and i <= #pattern do
    local part, following = part_at(pattern, i)
    if not part then return function() return false end end
    if part ~= ".*" or parts[#parts] ~= ".*" then parts[#parts + 1] = part end
    i = following
  end
  if not pattern then return function() return true end end
  local whole = table.concat(parts) .. "$"
  return function(text) return text:find(whole) ~= nil end
end

return glob
