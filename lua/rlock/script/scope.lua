--- Steps through tokens and tracks which variables are in scope.
--  The first layer of rlock.script.parser, which describes the records.
--  @module rlock.script.scope

local Scope = {}
Scope.__index = Scope

-- tokens --------------------------------------------------------------------

--- Records something that Lua 5.1 does not have.
function Scope:newer(token, what)
  local list = self.file.newer
  list[#list + 1] = { from = token.from, line = token.line, what = what }
end

--- Consumes the current token.
--  @return the token
function Scope:next()
  local token = self.token
  self.last, self.at = token, self.at + 1
  self.token = self.tokens[self.at] or token
  return token
end

--- Consumes the current token if it is of this kind.
--  @return the token, or nil
function Scope:skip(kind)
  if self.token.kind == kind then return self:next() end
end

--- Consumes the current token, which must be of this kind: raises otherwise.
--  @return the token
function Scope:expect(kind)
  local token = self.token
  if token.kind ~= kind then
    error({ line = token.line, fault = string.format(
      "%s expected near %q", kind, token.text) })
  end
  return self:next()
end

-- variables -----------------------------------------------------------------

--- Opens a scope for the variables that are declared until :close().
function Scope:open()
  self.scope = { outer = self.scope, variables = {} }
end

function Scope:close()
  self.scope = self.scope.outer
end

--- Declares a variable, visible from now on.
--  @tparam table token
--  @tparam[opt] string attribute
--  @tparam[opt] boolean empty whether it has no value yet
--  @return the variable
function Scope:declare(token, attribute, empty)
  local variable = {
    name = token.text, from = token.from, attribute = attribute,
    owner = self.fn, empty = empty,
  }
  self.scope.variables[token.text] = variable
  return variable
end

--- Records the use of a name, with the variable that it resolves to.
--  @return the use
function Scope:use(token)
  local scope, variable = self.scope, nil
  while scope and not variable do
    variable, scope = scope.variables[token.text], scope.outer
  end
  local use = {
    name = token.text, line = token.line, from = token.from,
    variable = variable,
  }
  self.file.uses[#self.file.uses + 1] = use
  if variable and variable.parameter then
    variable.owner.used[variable.parameter] = true
  end
  -- In 5.1 a function with "..." has an implicit local "arg", its first.
  if token.text == "arg" and self.vararg
      and not (variable and variable.from > self.vararg) then
    self:newer(token, "another arg in a function with ...")
  end
  return use
end

--- Records that a use is an assignment.
function Scope:write(use)
  use.write = true
  local variable = use.variable
  if not variable then return end
  if variable.owner ~= self.fn then
    variable.written = variable.written or use.line
  elseif not variable.empty then
    variable.last = use
  end
  variable.empty = false
end

return Scope
