--- Turns a function into the text of a server script.
--  The text is the function's own source: its body becomes the body of the
--  script, and what it captures goes before: helper functions (recursively),
--  constants, and of required modules the fields that are named. What cannot
--  go along is an error that names policy, function and place, when the
--  policy is loaded. The text depends on the sources alone, not on the
--  interpreter. Sends nothing, and does not know what a lock is.
--  @module rlock.script

local emit = require "rlock.script.emit"
local parser = require "rlock.script.parser"
local sandbox = require "rlock.script.sandbox"

local script = {}

--- Sources that are not files: chunkname ("@rlock/policy/reentrant.lua",
--  "=(command line)") -> text. Looked at before a file is opened.
script.sources = {}

-- Parsed sources by their text; collected when nobody uses them.
local parsed = setmetatable({}, { __mode = "v" })

local Compiler = {}
Compiler.__index = Compiler

-- Every fault of a policy: one line, about `fn` (see Compiler:find).
function Compiler:fault(fn, format, ...)
  local what = string.format(format, ...)
  local who = fn.label == self.op and fn.label
    or string.format("%s (shipped with %s)", fn.label, self.op)
  error(string.format("policy %q: %s: %s: %s", self.policy, fn.place, who,
    what), 0)
end

--- Finding a function in its source ----------------------------------------

local function read_source(source)
  local text = script.sources[source]
  if text then return text end
  local kind, name = source:sub(1, 1), source:sub(2)
  if kind == "=" then return nil, "its source is not known" end
  if kind ~= "@" then return source end
  local file, why = io.open(name, "rb")
  if not file then return nil, "cannot read its source: " .. why end
  text = file:read("*a")
  file:close()
  return text
end

local function parse(text)
  text = text:gsub("^\239\187\191", ""):gsub("\r\n?", "\n")
  local file = parsed[text]
  if file then return file end
  local fault, line
  file, line, fault = parser.parse(text)
  if not file then return nil, string.format("line %d: %s", line, fault) end
  file.text = text
  parsed[text] = file
  return file
end

local function upvalues(value)
  local result, i = {}, 1
  while true do
    local name, captured = debug.getupvalue(value, i)
    if not name then return result end
    if name ~= "_ENV" then result[name] = { value = captured } end
    i = i + 1
  end
end

-- The uses inside a function of names that it does not declare itself.
local function free_uses(file, node)
  local result, from = {}, node.params_from
  for _, use in ipairs(file.uses) do
    local inside = use.from > from and use.from < node.to
    local own = use.variable and use.variable.from >= from
    if inside and not own then result[#result + 1] = use end
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

-- The functions of the file that may be this one.
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

-- What we know of a function value: { label, place, file, node, uses,
-- captured, path }.
function Compiler:find(value, label)
  local info = debug.getinfo(value, "Su")
  local path = info.source:match("^@(.*)") or info.short_src
  local fn = {
    label = label, path = path, captured = upvalues(value),
    place = string.format("%s:%d", path, info.linedefined),
  }
  if info.what == "C" then
    fn.place = "[C]"
    self:fault(fn, "is a C function, which Redis does not have")
  end
  local text, fault = read_source(info.source)
  if text then fn.file, fault = parse(text) end
  if not fn.file then self:fault(fn, "%s", fault) end
  local found = candidates(fn.file, info, fn.captured)
  if #found == 0 then
    self:fault(fn, "is not in its source: changed since it was loaded?")
  elseif #found > 1 then
    self:fault(fn, "several functions begin on this line; give each its own")
  end
  fn.node, fn.uses = found[1].node, found[1].uses
  return fn
end

--- Checks of one function --------------------------------------------------

function Compiler:check_syntax(fn)
  for _, newer in ipairs(fn.file.newer) do
    if newer.from >= fn.node.from and newer.from <= fn.node.to then
      self:fault(fn, "line %d: Redis' Lua 5.1 does not have %s", newer.line,
        newer.what)
    end
  end
end

function Compiler:check_global(fn, use)
  if use.write or use.field_write then
    self:fault(fn, "line %d: assigns the global %q", use.line, use.name)
  elseif use.name == "KEYS" or use.name == "ARGV" then
    self:fault(fn, "line %d: reads %s; take it as a parameter", use.line,
      use.name)
  end
  local ok, missing = sandbox.has(use)
  if not ok then
    self:fault(fn, "line %d: reads the global %q, which Redis does not have",
      use.line, missing)
  end
  self.globals[use.name] = self.globals[use.name] or fn
end

function Compiler:check_upvalue(fn, use)
  local variable = use.variable
  if use.write or use.field_write or variable.written then
    self:fault(fn, "upvalue %q is assigned at line %d; only what never"
      .. " changes can be shipped", use.name,
      (use.write or use.field_write) and use.line or variable.written)
  end
  local captured = fn.captured[use.name]
  if captured then return captured.value end
  if variable.attribute == "const" then
    self:fault(fn, "upvalue %q is <const>, which leaves no value to ship;"
      .. " make it a plain local", use.name)
  end
  self:fault(fn, "upvalue %q is not captured: changed since it was loaded?",
    use.name)
end

--- What a function needs before it ------------------------------------------

local function is_module(value)
  for name, loaded in pairs(package.loaded) do
    if rawequal(loaded, value) then return not sandbox.foreign[name] end
  end
  return false
end

-- Puts a unit of text under a key ("holds", "naming.prefix") once, after all
-- that it needs itself.
function Compiler:unit(fn, use, key, value)
  local unit = self.units[key]
  if unit and not rawequal(unit.value, value) then
    self:fault(fn, "upvalue %q has another value in %s (%s)", key,
      unit.by.label, unit.by.place)
  elseif unit then
    if unit.open and unit.fn ~= fn then
      self:fault(fn, "%s and %s call each other; Redis cannot be sent both",
        fn.label, key)
    end
    return
  elseif rawequal(value, self.root) then
    self:fault(fn, "upvalue %q is %s itself, which cannot be called", key,
      self.op)
  end
  unit = { key = key, value = value, by = fn, line = use.line, open = true }
  self.units[key] = unit
  self:ship(unit, use)
  unit.open = false
end

-- A captured value of any kind.
function Compiler:ship(unit, use)
  local value, fn = unit.value, unit.by
  local native = sandbox.written(value)
  if native then
    if native ~= unit.key then self.text:constant(unit, native) end
  elseif type(value) == "function" then
    self:ship_function(unit)
  elseif type(value) == "table" then
    if unit.key ~= use.name or not is_module(value) then
      self:fault(fn, "upvalue %q is a table that is not a required module",
        unit.key)
    end
    self.text:module(unit)
  else
    local literal, fault = emit.literal(value)
    if not literal then
      self:fault(fn, "upvalue %q %s", unit.key, fault)
    end
    self.text:constant(unit, literal)
  end
end

function Compiler:ship_function(unit)
  local fn = self:find(unit.value, unit.key)
  unit.fn = fn
  if fn.node.method then
    self:fault(fn, "is declared with a colon; declare it with a dot")
  end
  self:needs(fn)
  self.text:helper(unit, fn)
end

-- `use` reads a captured table: a module, or a library that Redis has too.
function Compiler:table_field(fn, use, module)
  local key = use.name .. "." .. (use.field or "")
  local library = sandbox.written(module)
  if library then
    return self:check_global(fn, {
      name = library, field = use.field, after = use.after, line = use.line,
    })
  elseif not use.field then
    self:fault(fn, "line %d: only %s.name of the module %q can be shipped",
      use.line, use.name, use.name)
  elseif module[use.field] == nil then
    self:fault(fn, "line %d: upvalue %q: the module has no such field",
      use.line, key)
  end
  self:unit(fn, use, key, module[use.field])
end

local function by_name(a, b)
  if a.name ~= b.name then return a.name < b.name end
  if a.field ~= b.field then return (a.field or "") < (b.field or "") end
  return a.from < b.from
end

function Compiler:needs(fn)
  self:check_syntax(fn)
  local captured = {}
  for _, use in ipairs(fn.uses) do
    if use.variable then
      self:check_upvalue(fn, use)
      captured[#captured + 1] = use
    else
      self:check_global(fn, use)
    end
  end
  table.sort(captured, by_name)
  for _, use in ipairs(captured) do
    local value = fn.captured[use.name].value
    self:unit(fn, use, use.name, value)
    if type(value) == "table" then self:table_field(fn, use, value) end
  end
end

-- A helper's constant must not hide a global from another function.
function Compiler:check_hidden()
  for name, fn in pairs(self.globals) do
    local unit = self.units[name]
    if unit and sandbox.written(unit.value) ~= name then
      self:fault(fn, "upvalue %q of %s (%s) hides the global of that name",
        name, unit.by.label, unit.by.place)
    end
  end
end

--- The face ------------------------------------------------------------------

--- Compiles one operation of a policy.
--  Raises one line that names the policy, the function with its file and line,
--  and the upvalue, for what cannot be shipped.
--  @tparam string policy_name
--  @tparam string op "acquire"
--  @tparam function fn takes (keys, args), or fewer
--  @treturn table `name` "reentrant.acquire", `text` for SCRIPT LOAD, `lines`:
--    line of the text -> { file, line }
function script.compile(policy_name, op, fn)
  if type(fn) ~= "function" then error("bad fn: must be a function", 2) end
  local self = setmetatable({
    policy = policy_name, op = op, root = fn, units = {}, globals = {},
    text = emit.new(policy_name .. "." .. op),
  }, Compiler)
  local found = self:find(fn, op)
  if found.node.vararg or #found.node.params > 2 or found.node.method then
    self:fault(found, "must take (keys, args) and nothing else")
  end
  self:needs(found)
  self:check_hidden()
  self.text:body(found)
  return self.text:finish()
end

--- Puts file and line of the source into an error message of a script.
--  @tparam table compiled what script.compile gave
--  @tparam string message as Redis sent it
--  @treturn string its first word is the same, unless Redis before 7.0 hid
--    the class of a failed command behind "ERR"
function script.translate(compiled, message)
  return emit.translate(compiled.lines, message)
end

return script
