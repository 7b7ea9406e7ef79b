--- Completion of Lua names at the prompt.

local complete = {}

local MAX_CHAIN = 100               -- of __index, which may be a cycle

-- The value that a path such as "rlock.redis" names, without calling anything.
local function value_of(path)
  local value = _G
  for name in path:gmatch "[%w_]+" do
    if type(value) ~= "table" then return nil end
    value = rawget(value, name)
  end
  return value
end

local function add_keys(names, value, stem, methods_only)
  for key, field in pairs(value) do
    if type(key) == "string" and key:find("^[%a_][%w_]*$")
        and key:sub(1, #stem) == stem
        and not (methods_only and type(field) ~= "function") then
      names[key] = true
    end
  end
end

-- The fields of a value and, by __index, of its classes.
local function fields_of(value, stem, methods_only)
  local names = {}
  for _ = 1, MAX_CHAIN do
    if type(value) == "table" then
      add_keys(names, value, stem, methods_only)
    end
    local meta = debug.getmetatable(value)
    value = type(meta) == "table" and rawget(meta, "__index")
    if type(value) ~= "table" then break end
  end
  return names
end

local function common_prefix(list)
  local first, last = list[1], list[#list]      -- of a sorted list
  local n = 0
  while n < #first and first:byte(n + 1) == last:byte(n + 1) do n = n + 1 end
  return first:sub(1, n)
end

--- The possible continuations of the text before the cursor.
---@param text string
---@return string # what to insert, perhaps ""
---@return table # the names that fit, sorted
function complete.names(text)
  local path, mark, stem = text:match "([%w_%.]-)([.:]?)([%w_]*)$"
  local value = value_of(path)
  local list = {}
  if mark == "" then value, stem = _G, path .. stem end
  for name in pairs(fields_of(value, stem, mark == ":")) do
    list[#list + 1] = name
  end
  table.sort(list)
  return list[1] and common_prefix(list):sub(#stem + 1) or "", list
end

return complete
