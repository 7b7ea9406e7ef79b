--- Builds the text of a server script, and maps its lines back to the sources.
--- Records for each line where it came from, and puts that into error messages.
--- The compiler decides what is shipped.

local emit = {}

local MAX_INTEGER = 9007199254740992 -- 2^53: doubles count up to it

---@class rlock.script.emit.Text
---@field text any
---@field lines any
---@field name string
---@field op integer
local Text = {}
Text.__index = Text

---@param policy string "reentrant"
---@param op string "acquire"
---@return rlock.script.emit.Text
function emit.new(policy, op)
  local name = policy .. "." .. op
  local self = { name = name, op = op, text = {}, lines = {}, indent = "" }
  self.text[1] = "-- rlock " .. name:gsub("%c", " ")
  return setmetatable(self, Text)
end

local readable = { ["\n"] = "\\n", ['"'] = '\\"', ["\\"] = "\\\\" }

local function quote(value)
  return '"' .. value:gsub('[%c"\\\128-\255]', function(char)
    return readable[char] or string.format("\\%03d", char:byte())
  end) .. '"'
end

local function number(value)
  if value ~= value then return nil, "is NaN, which is no number" end
  if value == math.huge then return "1e999" end
  if value == -math.huge then return "-1e999" end
  if value == 0 and 1 / value < 0 then
    return nil, "is -0.0, which Redis' Lua 5.1 mixes up with 0; make it 0"
  elseif value == math.floor(value)
      and value <= MAX_INTEGER and value >= -MAX_INTEGER then
    return string.format("%.0f", value)
  elseif math.type and math.type(value) == "integer" then -- luacheck: ignore
    return nil, "is beyond 2^53, which Redis cannot count to; make it a string"
  end
  for digits = 14, 17 do
    local text = string.format("%." .. digits .. "g", value)
    if tonumber(text) == value then return text end
  end
end

--- A constant in Lua 5.1.
---@return string?
---@return string? code # why it is not a constant
function emit.literal(value)
  local kind = type(value)
  if kind == "string" then return quote(value) end
  if kind == "number" then return number(value) end
  if kind == "boolean" then return tostring(value) end
  if value == nil then return nil, "is nil; assign it first" end
  return nil, "is a " .. kind .. "; only functions, strings, numbers and"
    .. " booleans can be shipped"
end

-- Adds a line; `is_inside`: it begins within a long string.
function Text:add(line, path, number_, is_inside)
  local indent = not is_inside and line ~= "" and self.indent or ""
  self.text[#self.text + 1] = indent .. line
  self.lines[#self.text] = { path, number_ }
end

--- Adds `local NAME = literal`, or `module.field = literal`.
function Text:constant(unit, literal)
  local start = unit.key:find(".", 1, true) and "" or "local "
  self:add(start .. unit.key .. " = " .. literal, unit.by.path, unit.line)
end

--- Adds the table of a module, whose fields follow.
function Text:module(unit)
  self:add("local " .. unit.key .. " = {}", unit.by.path, unit.line)
end

-- The lines of a piece of source, as { text, line, inside }: `inside` is set if
-- the line begins within a long string, so its indentation must stay.
local function split(file, from, to)
  local result = {}
  local line = 1 + select(2, file.text:sub(1, from - 1):gsub("\n", ""))
  local at = from
  while at <= to + 1 do
    local stop = file.text:find("\n", at, true) or #file.text + 1
    stop = math.min(stop, to + 1)
    result[#result + 1] = {
      text = file.text:sub(at, stop - 1), line = line,
      inside = file.inside[line],
    }
    line, at = line + 1, stop + 1
  end
  return result
end

local function indentation(lines, first)
  local least
  for i = first, #lines do
    local line = lines[i]
    if not line.inside and line.text:find("%S") then
      local width = #line.text:match("^ *")
      least = math.min(least or width, width)
    end
  end
  return least or 0
end

-- Adds source lines; those from `first` on lose their common indentation.
function Text:source(lines, first, path)
  local width = indentation(lines, first)
  for i, line in ipairs(lines) do
    local text = line.text
    if i >= first and not line.inside then text = text:sub(width + 1) end
    self:add(text, path, line.line, line.inside)
  end
end

local function blank(line)
  return line and not line.inside and not line.text:find("%S")
end

-- Declares the constants that a function uses. As upvalues of all functions,
-- they would cost about 500 instructions each time that the script runs.
function Text:constants(fn)
  for _, each in ipairs(fn.constants) do
    self:add(("local %s = %s"):format(each.name, each.literal), fn.path,
      each.line)
  end
end

--- Adds a function, and those that it encloses: `local function name(...)` or
--- `function module.field(...)`.
function Text:helper(unit)
  local start = unit.key:find(".", 1, true) and "function " or "local function "
  local fn, node, inner = unit.fn, unit.fn.node, unit.inner or {}
  local is_whole = not (fn.constants[1] or inner[1])
  local lines = split(fn.file, node.params_from,
    is_whole and node.to or node.body_from - 1)
  lines[1].text = start .. unit.key .. lines[1].text
  self:source(lines, 2, fn.path)
  if is_whole then return end
  local indent = self.indent
  self.indent = indent .. "  "
  self:constants(fn)
  for _, each in ipairs(inner) do self:helper(each) end
  self.indent = indent
  lines = split(fn.file, node.body_from, node.to)
  if blank(lines[1]) then
    table.remove(lines, 1)
    return self:source(lines, 1, fn.path)
  end
  lines[1].text = lines[1].text:gsub("^ +", "  ")
  self:source(lines, 2, fn.path)
end

-- Declares the parameters that are used as locals.
function Text:parameters(fn)
  local names, values = {}, {}
  for i, name in ipairs(fn.node.params) do
    if fn.node.used[i] then
      names[#names + 1], values[#values + 1] = name, i == 1 and "KEYS" or "ARGV"
    end
  end
  if #names == 0 then return end
  self:add("local " .. table.concat(names, ", ") .. " = "
    .. table.concat(values, ", "), fn.path, fn.node.first_line)
end

--- Adds the body of the operation, its parameters first.
function Text:body(fn)
  self:constants(fn)
  self:parameters(fn)
  local lines = split(fn.file, fn.node.body_from, fn.node.body_to)
  lines[1].text = lines[1].text:gsub("^ +", "")
  while blank(lines[1]) do table.remove(lines, 1) end
  while blank(lines[#lines]) do table.remove(lines) end
  local last = lines[#lines]
  if last then last.text = last.text:gsub(" +$", "") end
  local on_header = lines[1] and lines[1].line == fn.node.first_line
  self:source(lines, on_header and 2 or 1, fn.path)
end

---@param where string for messages: the policy, file, line and operation
---@return table # see script.compile
function Text:finish(where)
  local text = table.concat(self.text, "\n") .. "\n"
  return { name = self.name, op = self.op, where = where, text = text,
    lines = self.lines }
end

-- error messages ------------------------------------------------------------

local function place(lines, number_)
  local from = lines[tonumber(number_)]
  return from and string.format("%s:%d", from[1], from[2])
end

-- Before 7.0: "ERR Error running script (call to f_<sha>): @user_script:1:
-- WRONGTYPE ..." or "... @user_script:1: @user_script: 1: Wrong ...".
local function old_form(lines, message)
  local number_, rest = message:match(
    "^ERR Error running script %(call to f_%x+%): @user_script:(%d+): (.-)%s*$")
  if not number_ then return end
  local inner, bare = rest:match("^@?user_script: ?(%d+): (.*)$")
  number_, rest = inner or number_, bare or rest
  local where = place(lines, number_)
  if not where then return message end
  if rest:find("^%u%u+ ") then
    return string.format("%s (%s)", rest, where)
  end
  return string.format("ERR %s: %s", where, rest)
end

--- See script.translate.
function emit.translate(lines, message)
  local old = old_form(lines, message)
  if old then return old end
  local head, tail = message:match(
    "^(.-) script: %S+, on @?user_script:(%d+)%.?%s*$")
  local result, count = (head or message):gsub("@?user_script: ?(%d+)",
    function(number_) return place(lines, number_) end)
  local where = tail and count == 0 and place(lines, tail)
  if where then return string.format("%s (%s)", result, where) end
  return result
end

return emit
