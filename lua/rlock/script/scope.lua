--- Resolves names to variables.
--- A scope holds the variables that a block declares, and knows the scope that
--- encloses it. rlock.script.parser describes variables and uses.

local scope = {}

---@class rlock.script.scope.Scope
---@field outer any
---@field fn any
---@field vararg any
---@field variables table
local Scope = {}
Scope.__index = Scope

---@param outer table the enclosing scope; {} for none
---@param fn? table the function whose parameters it holds
---@return rlock.script.scope.Scope
function scope.new(outer, fn)
  return setmetatable({
    outer = outer, fn = fn or outer.fn, vararg = outer.vararg, variables = {},
  }, Scope)
end

--- Declares a variable, visible from now on.
---@param token table
---@param attribute? string
---@param empty? boolean whether it has no value yet
---@return any # the variable
function Scope:declare(token, attribute, empty)
  local variable = {
    name = token.text, from = token.from, attribute = attribute,
    owner = self.fn, empty = empty,
  }
  self.variables[token.text] = variable
  return variable
end

--- Resolves a name.
---@return any # the use
function Scope:use(token)
  local at, variable = self, nil
  while at.variables and not variable do
    variable, at = at.variables[token.text], at.outer
  end
  if variable and variable.parameter then
    variable.owner.used[variable.parameter] = true
  end
  return {
    name = token.text, line = token.line, from = token.from,
    variable = variable,
  }
end

--- Whether a use refers to a variable other than 5.1's implicit local "arg",
--- which a function with "..." declares first.
function Scope:is_other_arg(use)
  local variable = use.variable
  return use.name == "arg" and self.vararg
    and not (variable and variable.from > self.vararg)
end

--- Records that a use is an assignment, to the name or to a field of it.
function Scope:assign(use, to_field)
  local variable = use.variable
  if to_field then
    use.field_write = true
    return
  end
  use.write = true
  if not variable then return end
  if variable.owner ~= self.fn then
    variable.written = variable.written or use.line
  elseif not variable.empty then
    variable.last = use
  end
  variable.empty = false
end

return scope
