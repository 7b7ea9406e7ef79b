--- The library `string` of Lua 5.1.

local values = require "rlockctl.model.lua51.values"

local floats, integer, int, text_of, to_text =
  values.floats, values.integer, values.int, values.text_of, values.text

local strings = { format = require "rlockctl.model.lua51.format" }

for _, name in ipairs { "len", "lower", "reverse", "upper" } do
  local fn = string[name]
  strings[name] = function(text)
    return values.float(fn(to_text(text, 1, name)))
  end
end

function strings.byte(text, from, to)
  text, from = to_text(text, 1, "byte"), integer(from, 2, "byte", 1)
  return floats(text:byte(from, integer(to, 3, "byte", from)))
end

function strings.sub(text, from, to)
  return to_text(text, 1, "sub"):sub(integer(from, 2, "sub"),
    integer(to, 3, "sub", -1))
end

function strings.rep(text, n)
  return to_text(text, 1, "rep"):rep(int(n, 2, "rep"))
end

function strings.char(...)
  ---@type any[]
  local bytes = { ... }
  for i = 1, select("#", ...) do
    bytes[i] = int(bytes[i], i, "char")
    if bytes[i] < 0 or bytes[i] > 255 then
      error(("bad argument #%d to 'char' (invalid value)"):format(i), 2)
    end
  end
  return string.char(table.unpack(bytes))
end

-- patterns --------------------------------------------------------------------

-- A pattern, if 5.4 reads it as 5.1 does.
local function to_pattern(pattern, i, name)
  pattern = to_text(pattern, i, name)
  if pattern:gsub("%%%%", ""):find("%g", 1, true) then
    values.lacks "%g in patterns, which 5.1 reads differently"
  elseif pattern:find("\0", 1, true) then
    values.lacks "zero bytes in patterns"
  end
  return pattern
end

-- The start position in a text; beyond its end, the end.
local function start_of(text, init, name)
  local at = integer(init, 3, name, 1)
  return at > #text + 1 and #text + 1 or at
end

function strings.find(text, pattern, init, plain)
  text = to_text(text, 1, "find")
  if plain then
    pattern = to_text(pattern, 2, "find")
    return floats(text:find(pattern, start_of(text, init, "find"), true))
  end
  pattern = to_pattern(pattern, 2, "find")
  return floats(text:find(pattern, start_of(text, init, "find")))
end

function strings.match(text, pattern, init)
  text = to_text(text, 1, "match")
  pattern = to_pattern(pattern, 2, "match")
  return floats(text:match(pattern, start_of(text, init, "match")))
end

-- The captures of a match, or the match itself.
local function captures(text, from, to, first, ...)
  if first == nil then return text:sub(from, to) end
  return floats(first, ...)
end

-- 5.1 also finds an empty match where the last one ended; 5.4 does not. So this
-- is done with string.find.
function strings.gmatch(text, pattern)
  text = to_text(text, 1, "gmatch")
  pattern = to_pattern(pattern, 2, "gmatch"):gsub("^%^", "%%^")
  ---@type any
  local at = 1
  local function found(from, to, ...)
    if not from then
      at = #text + 2
      return nil
    end
    at = math.max(to, from) + 1
    return captures(text, from, to, ...)
  end
  return function()
    if at > #text + 1 then return nil end
    return found(text:find(pattern, at))
  end
end

strings.gfind = strings.gmatch

-- Fills the captures into the replacement of gsub.
local function filled(with, whole, list)
  return (with:gsub("%%(.?)", function(char)
    if char == "" then return "\0" end
    if not char:find("%d") then return char end
    local value = char == "0" and whole or list[tonumber(char)]
    if value == nil then error("invalid capture index", 0) end
    return text_of(value)
  end))
end

-- The replacement that a function or table gives for a match.
local function checked(value, whole)
  if not value then return whole end
  if type(value) == "string" or type(value) == "number" then
    return text_of(value)
  end
  error(("invalid replacement value (a %s)"):format(type(value)), 0)
end

local function replacer(with)
  local kind = type(with)
  if kind == "function" then
    return function(whole, ...) return checked(with(...), whole) end
  elseif kind == "table" then
    return function(whole, first) return checked(with[first], whole) end
  elseif kind ~= "string" and kind ~= "number" then
    error("bad argument #3 to 'gsub' (string/function/table expected)", 3)
  end
  with = text_of(with)
  if not with:find("%", 1, true) then return function() return with end end
  return function(whole, ...) return filled(with, whole, { ... }) end
end

-- As string.find. 5.1 accepts an unfinished capture that is not used.
local function found_or_lacking(ok, ...)
  if ok then return ... end
  ---@diagnostic disable-next-line: undefined-field
  if (...):find("unfinished capture", 1, true) then
    values.lacks "patterns with an unfinished capture in gsub"
  end
  error((...), 0)
end

function strings.gsub(text, pattern, with, most)
  text = to_text(text, 1, "gsub")
  pattern = to_pattern(pattern, 2, "gsub")
  ---@type any, any, any, any
  local replace, n, at, out = replacer(with), 0, 1, {}
  most = int(most, 4, "gsub", #text + 1)
  local is_anchored = pattern:sub(1, 1) == "^"
  local function replaced(from, to, ...)
    if not from then return false end
    out[#out + 1] = text:sub(at, from - 1)
    out[#out + 1] = replace(text:sub(from, to), captures(text, from, to, ...))
    if to < from then out[#out + 1] = text:sub(from, from) end
    n, at = n + 1, math.max(to, from) + 1
    return true
  end
  while n < most and at <= #text + 1
      and replaced(found_or_lacking(pcall(string.find, text, pattern, at))) do
    if is_anchored then break end
  end
  return table.concat(out) .. text:sub(at), n + 0.0
end

strings.dump = function() values.lacks "string.dump" end

return strings
