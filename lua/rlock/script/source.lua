--- Finds a function in the text that it was compiled from.
--- The interpreter reveals only the lines and the upvalues of a function; the
--- rest is read from the text. Opens no file: the caller supplies the text of
--- a chunk. Independent of Redis.

local parser = require "rlock.script.parser"

local getfenv = rawget(_G, "getfenv") -- before 5.2

local source = {}

-- Parsed texts, by text; collected when unused.
local parsed = setmetatable({}, { __mode = "v" })

local function parse(text)
  if parsed[text] then return parsed[text] end
  local plain = text:gsub("^\239\187\191", ""):gsub("\r\n?", "\n")
  local file, line, fault = parser.parse(plain)
  if not file then return nil, string.format("line %d: %s", line, fault) end
  file.text, parsed[text] = plain, file
  return file
end

-- The upvalues of a function, and the table of its globals.
local function upvalues(value)
  local result, globals, i = {}, getfenv and getfenv(value), 1
  while true do
    local name, captured = debug.getupvalue(value, i)
    if not name then return result, globals or _G end
    if name == "_ENV" then
      globals = type(captured) == "table" and captured or {}
    else
      result[name] = { value = captured }
    end
    i = i + 1
  end
end

-- The uses in a function of names that it does not declare itself.
local function free_uses(file, node)
  local result = {}
  for i = node.first_use, node.last_use do
    local use = file.uses[i]
    local own = use.variable and use.variable.from >= node.params_from
    if not own then result[#result + 1] = use end
  end
  return result
end

local function captures_all(uses, captured)
  local names = {}
  for _, use in ipairs(uses) do
    if use.variable then names[use.name] = true end
  end
  for name in pairs(captured) do
    if not names[name] then return false end
  end
  return true
end

-- The functions in the file that may be this one.
local function candidates(file, info, captured)
  local result = {}
  for _, node in ipairs(file.functions) do
    if node.first_line == info.linedefined
        and node.last_line == info.lastlinedefined
        and (not info.nparams
          or info.nparams == #node.params + (node.method and 1 or 0)) then
      local uses = free_uses(file, node)
      if captures_all(uses, captured) then
        result[#result + 1] = { node = node, uses = uses }
      end
    end
  end
  return result
end

--- Describes a function.
---@param value function
---@param read function chunkname -> text, or nil and a fault
---@return table # `path` and `line`; `captured`: name -> { value = } of each
---  upvalue; `globals`, the table of them; `file` (see rlock.script.parser),
---  `node` (the function there) and `uses` (of names that it does not declare)
---@return string? # why `file`, `node` and `uses` are missing
function source.find(value, read)
  local info = debug.getinfo(value, "Su")
  ---@cast info -nil
  local path = info.source:match("^@(.*)") or info.short_src
  ---@cast info -nil
  local fn = { path = path, line = info.linedefined }
  fn.captured, fn.globals = upvalues(value)
  ---@cast info -nil
  local text, fault = read(info.source)
  if text then fn.file, fault = parse(text) end
  if not fn.file then return fn, fault end
  local found = candidates(fn.file, info, fn.captured)
  if #found == 0 then
    return fn, "is not in its source: was the file changed since it was"
      .. " loaded? Start again"
  elseif #found > 1 then
    return fn, "is not the only function on its line; give it one of its own"
  end
  fn.node, fn.uses = found[1].node, found[1].uses
  return fn
end

return source
