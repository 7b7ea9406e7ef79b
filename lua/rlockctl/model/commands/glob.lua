--- Patterns of KEYS and SCAN: "*", "?", "[a-c]", "[^a-c]" and "\".

local glob = {}

--- A class from the byte after its "[".
---@return table # byte -> true; `is_negated`
---@return integer # where the pattern continues
local function class_at(pattern, i)
  local class = {}
  if pattern:sub(i, i) == "^" then class.is_negated, i = true, i + 1 end
  while i <= #pattern and pattern:sub(i, i) ~= "]" do
    local is_escaped = pattern:sub(i, i) == "\\" and i < #pattern
    if is_escaped then i = i + 1 end
    local low, high = pattern:byte(i), pattern:byte(i)
    if not is_escaped and pattern:find("^%-.", i + 1) then
      high, i = pattern:byte(i + 2), i + 2
    end
    for byte = math.min(low, high), math.max(low, high) do
      class[byte] = true
    end
    i = i + 1
  end
  return class, i + 1
end

-- The parts of a pattern: "*", "?", classes, and bytes.
local function parts_of(pattern)
  local parts, i = {}, 1
  while i <= #pattern do
    local sign = pattern:sub(i, i)
    if sign == "[" then
      parts[#parts + 1], i = class_at(pattern, i + 1)
    else
      if sign == "\\" and i < #pattern then i, sign = i + 1, nil end
      local is_wild = sign == "*" or sign == "?"
      parts[#parts + 1], i = is_wild and sign or pattern:byte(i), i + 1
    end
  end
  return parts
end

local function fits(part, byte)
  if part == "?" or part == byte then return true end
  return type(part) == "table" and (part[byte] or false) ~= (part.is_negated
    or false)
end

-- Does the text match? A "*" that turns out too short takes one byte more.
local function matches(parts, text)
  ---@type integer, integer, any, any
  local i, at, star, taken = 1, 1, nil, nil
  while at <= #text do
    if parts[i] == "*" then
      star, taken, i = i, at, i + 1
    elseif parts[i] and fits(parts[i], text:byte(at)) then
      i, at = i + 1, at + 1
    elseif star then
      taken = taken + 1
      i, at = star + 1, taken
    else
      return false
    end
  end
  while parts[i] == "*" do i = i + 1 end
  return parts[i] == nil
end

---@param pattern string
---@return function # called with a text; returns whether it matches
function glob.compile(pattern)
  local parts = parts_of(pattern)
  return function(text) return matches(parts, text) end
end

return glob
