--- Decides what goes into a server script, and in which order.
--- Starts at the operation's function, follows its upvalues, and passes each
--- unit to rlock.script.emit after the units that it depends on, which are
--- sorted by name; rlock.script.placement decides where it goes. So the text
--- depends on the sources alone, not on the interpreter. Raises one line about
--- the first thing that cannot be shipped. Sends nothing, and is independent of
--- locks.
---
--- A unit is a piece of text under a key: "holds", or "naming.prefix".

local differences = require "rlock.script.differences"
local emit = require "rlock.script.emit"
local placement = require "rlock.script.placement"
local sandbox = require "rlock.script.sandbox"
local source = require "rlock.script.source"

local compiler = {}

---@class rlock.script.compiler.Compiler
---@field policy rlock.loaded_policy
---@field op integer
---@field root any
---@field read any
---@field units table
---@field order table
---@field names table
---@field globals table
---@field text any
local Compiler = {}
Compiler.__index = Compiler

-- The policy, line and function that a message is about.
function Compiler:where(fn, line)
  local who = fn.label == self.op and fn.label
    or string.format("%s (shipped with %s)", fn.label, self.op)
  return string.format("policy %q: %s:%d: %s", self.policy, fn.path, line, who)
end

-- Raises a fault of the policy: one line, about a line of `fn`, which is a
-- result of Compiler:find.
function Compiler:fault_at(line, fn, format, ...)
  error(self:where(fn, line) .. ": " .. string.format(format, ...), 0)
end

-- The same, about the whole function.
function Compiler:fault(fn, ...) self:fault_at(fn.line, fn, ...) end

-- The result of source.find, with `label`: the function's name in messages.
function Compiler:find(value, label)
  local fn, fault = source.find(value, self.read)
  fn.label = label
  if fault then self:fault(fn, "%s", fault) end
  return fn
end

-- checks ----------------------------------------------------------------------

function Compiler:check_syntax(fn)
  for _, newer in ipairs(fn.file.newer) do
    if newer.from >= fn.node.from and newer.from <= fn.node.to then
      self:fault_at(newer.line, fn, "Redis' Lua 5.1 does not have %s",
        newer.what)
    end
  end
end

local function path(use)
  return use.field and use.name .. "." .. use.field or use.name
end

-- Records the global that a piece of text begins with, if any.
function Compiler:reads(text, fn)
  local name = text:match("^%-?([%a_][%w_]*)")
  if name then self.globals[name] = self.globals[name] or fn end
end

-- `value` is from differences.of.
function Compiler:check_meaning(fn, use, value)
  local fault = differences.of(use, value)
  if fault then self:fault_at(use.line, fn, "%s", fault) end
end

function Compiler:check_global(fn, use)
  if use.write or use.field_write then
    self:fault_at(use.line, fn, "assigns the global %q; make it a local",
      use.name)
  elseif use.name == "KEYS" or use.name == "ARGV" then
    self:fault_at(use.line, fn, "reads %s; take it as a parameter", use.name)
  elseif sandbox.replaced(use, fn.globals) then
    self:fault_at(use.line, fn, "reads a global %q that differs from"
      .. " Lua's, which Redis would use; rename it", path(use))
  end
  self:check_library(fn, use)
end

-- `use` reads a global that must exist in Redis.
function Compiler:check_library(fn, use)
  local ok, missing = sandbox.has(use)
  if not ok then
    self:fault_at(use.line, fn,
      "reads the global %q, which Redis does not have; %s", missing,
      sandbox.advice(missing))
  end
  self:check_meaning(fn, use, path(use))
  self:reads(use.name, fn)
end

function Compiler:check_upvalue(fn, use)
  local variable = use.variable
  local last = variable.last
  local written = (use.write or use.field_write) and use.line
    or variable.written or last and last.from > fn.node.from and last.line
  if written then
    self:fault_at(use.line, fn, "upvalue %q is assigned at line %d; only what"
      .. " never changes can be shipped: keep the rest in Redis", use.name,
      written)
  end
  local captured = fn.captured[use.name]
  if captured then return captured.value end
  if variable.attribute == "const" then
    self:fault_at(use.line, fn, "upvalue %q is <const>, which leaves no value"
      .. " to ship; make it a plain local", use.name)
  end
  self:fault_at(use.line, fn, "upvalue %q is not captured: was the file changed"
    .. " since it was loaded? Start again", use.name)
end

-- units -----------------------------------------------------------------------

local function is_module(value)
  for name, loaded in pairs(package.loaded) do
    if rawequal(loaded, value) then return not sandbox.foreign[name] end
  end
  return false
end

local function same(a, b)
  return rawequal(a, b) and (a ~= 0 or 1 / a == 1 / b)
end

-- Adds a unit to `order` once, after the units that it depends on.
function Compiler:unit(fn, use, key, value)
  local unit = self.units[key]
  fn.needs[#fn.needs + 1] = unit
  self:check_meaning(fn, use, sandbox.written(value) or value)
  if unit and not same(unit.value, value) then
    self:fault_at(use.line, fn, "upvalue %q has another value in %s (%s:%d);"
      .. " rename one", key, unit.by.label, unit.by.path, unit.by.line)
  elseif unit then
    if unit.open and unit.fn ~= fn then
      self:fault_at(use.line, fn, "%s and %s call each other, which cannot be"
        .. " shipped; put one into the other", fn.label, key)
    end
    return
  elseif rawequal(value, self.root) then
    self:fault_at(use.line, fn, "upvalue %q is %s itself, which cannot be"
      .. " called; let it call a helper that calls itself", key, self.op)
  end
  unit = { key = key, value = value, by = fn, line = use.line, open = true }
  self.units[key], fn.needs[#fn.needs + 1] = unit, unit
  self:ship(unit, use)
  unit.open = false
  table.insert(self.order, unit)
end

-- A captured value of any kind.
function Compiler:ship(unit, use)
  local value, fn = unit.value, unit.by
  local native = sandbox.written(value)
  if native then
    self:reads(native, fn)
    unit.is_fixed, unit.written = true, native ~= unit.key and native
  elseif type(value) == "function" then
    self:ship_function(unit)
  elseif type(value) == "table" then
    if unit.key ~= use.name or not is_module(value) then
      self:fault_at(use.line, fn, "upvalue %q is a table that is not a"
        .. " required module; make the needed values locals", unit.key)
    end
    unit.is_fixed, unit.is_module = true, true
  else
    local literal, fault = emit.literal(value)
    if not literal then
      self:fault_at(use.line, fn, "upvalue %q %s", unit.key, fault)
    elseif unit.key == use.name then
      unit.is_fixed, unit.literal = true, literal    -- see Text:constants
    else
      unit.is_fixed, unit.written = true, literal
    end
  end
end

-- A function that is shipped under another name already.
function Compiler:alias(unit)
  local name = self.names[unit.value]
  self.units[name].is_fixed, unit.is_fixed = true, true
  unit.fn, unit.written = nil, name
end

function Compiler:ship_function(unit)
  if debug.getinfo(unit.value, "S") --[[@as table]].what == "C" then
    self:fault_at(unit.line, unit.by, "upvalue %q is a C function, which Redis"
      .. " does not have; call it outside of Redis", unit.key)
  end
  if self.names[unit.value] then return self:alias(unit) end
  local fn = self:find(unit.value, unit.key)
  unit.fn, unit.is_fixed = fn, unit.key:find(".", 1, true)
  if fn.node.method then
    self:fault(fn, "is declared with a colon; declare it with a dot")
  end
  self:needs(fn)
  if self.names[unit.value] then return self:alias(unit) end
  self.names[unit.value] = unit.key
end

-- `use` reads a captured table: a module, or a library that Redis has as well.
function Compiler:table_field(fn, use, module)
  local key = use.name .. "." .. (use.field or "")
  local library = sandbox.written(module)
  if library then
    local there = setmetatable({ name = library }, { __index = use })
    return self:check_library(fn, there)
  elseif module == package.loaded.rlock
      or module == package.loaded["resty.rlock"] then
    self:fault_at(use.line, fn, "uses %q; %s", key, sandbox.advice("rlock"))
  elseif not use.field then
    self:fault_at(use.line, fn, "of the module %q only fields that are named,"
      .. " as in %s.name, can be shipped", use.name, use.name)
  elseif module[use.field] == nil then
    self:fault_at(use.line, fn, "reads %q, but the module has no such field",
      key)
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
    elseif use.method then
      self:check_meaning(fn, use, path(use))
    else
      self:check_global(fn, use)
    end
  end
  table.sort(captured, by_name)
  fn.constants, fn.needs = {}, {}
  local last
  for _, use in ipairs(captured) do
    local value = fn.captured[use.name].value
    self:unit(fn, use, use.name, value)
    if type(value) == "table" then self:table_field(fn, use, value) end
    local literal = self.units[use.name].literal
    if literal and use.name ~= last then
      table.insert(fn.constants,
        { name = use.name, literal = literal, line = use.line })
    end
    last = use.name
  end
end

-- Adds a unit to the text.
function Compiler:emit(unit)
  if unit.home then return end             -- the helper that encloses it does
  if unit.fn then
    self.text:helper(unit)
  elseif unit.is_module then
    self.text:module(unit)
  elseif unit.written then
    self.text:constant(unit, unit.written)
  end
end

-- An upvalue of one function must not hide a global that another reads.
function Compiler:check_hidden()
  local hidden
  for name in pairs(self.globals) do
    local unit = self.units[name]
    if unit and sandbox.written(unit.value) ~= name
        and (not hidden or name < hidden) then
      hidden = name
    end
  end
  if not hidden then return end
  local unit = self.units[hidden]
  self:fault(self.globals[hidden], "upvalue %q of %s (%s:%d) hides the global"
    .. " of that name; rename it", hidden, unit.by.label, unit.by.path,
    unit.by.line)
end

--- See script.compile.
---@param policy_name string
---@param op string
---@param fn function
---@param read function chunkname -> text, or nil and a fault
function compiler.compile(policy_name, op, fn, read)
  local self = setmetatable({
    policy = policy_name, op = op, root = fn, read = read,
    units = {}, order = {}, names = {}, globals = {},
    text = emit.new(policy_name, op),
  }, Compiler)
  local found = self:find(fn, op)
  self.globals.KEYS, self.globals.ARGV = found, found
  if found.node.vararg or #found.node.params > 2 or found.node.method then
    self:fault(found, "must take (keys, args) and nothing else")
  end
  self:needs(found)
  self:check_hidden()
  placement.decide(found, self.order)
  for _, unit in ipairs(self.order) do self:emit(unit) end
  self.text:body(found)
  return self.text:finish(self:where(found, found.line))
end

return compiler
