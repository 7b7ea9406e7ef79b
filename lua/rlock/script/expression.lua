--- Parses expressions, functions included.
--  The second layer of rlock.script.parser, which describes the records; the
--  third adds :block().
--  @module rlock.script.expression

local Scope = require "rlock.script.scope"
local differences = require "rlock.script.differences"

local Expression = setmetatable({}, { __index = Scope })
Expression.__index = Expression

local unary = { ["not"] = true, ["-"] = true, ["#"] = true, ["~"] = true }

local binary = {}
for sign in ([[+ - * / % ^ .. == ~= < <= > >= and or // & | ~ << >>]])
    :gmatch("%S+") do
  binary[sign] = true
end

local ends = {
  [")"] = true, ["}"] = true, ["]"] = true, [","] = true, [";"] = true,
  ["end of file"] = true,
}

local calls = { ["("] = true, ["string"] = true, ["{"] = true }

--- A list of expressions.
--  @treturn table the token of each, or false if it has several
function Expression:list()
  local alone = {}
  repeat
    local token, at = self.token, self.at
    self:expression()
    alone[#alone + 1] = self.at == at + 1 and token
  until not self:skip(",")
  return alone
end

--- A table constructor.
function Expression:table()
  self:expect("{")
  while self.token.kind ~= "}" do
    if self:skip("[") then
      self:expression()
      self:expect("]")
      self:expect("=")
    elseif self.token.kind == "name"
        and self.tokens[self.at + 1].kind == "=" then
      self:next()
      self:next()
    end
    self:expression()
    if not self:skip(",") and not self:skip(";") then break end
  end
  self:expect("}")
end

--- The arguments of a call.
--  @treturn table as :list()
function Expression:arguments()
  if self.token.kind == "string" then return { self:next() } end
  if self.token.kind == "{" then
    self:table()
    return { false }
  elseif self.token.line ~= self.last.line then
    self:newer(self.token, "a call whose ( begins a line")
  end
  self:expect("(")
  local list = self.token.kind ~= ")" and self:list() or {}
  self:expect(")")
  return list
end

--- A method call. It counts as a use of `string`: the methods of other values
--  are the policy's own.
function Expression:method()
  self:expect(":")
  local token = self:expect("name")
  local arguments = self:arguments()
  table.insert(arguments, 1, false)
  self.file.uses[#self.file.uses + 1] = {
    name = "string", field = token.text, method = true, line = token.line,
    from = token.from, arguments = arguments,
  }
end

--- One `.name`, `[key]`, `:name(...)` or `(...)`; false if there is none.
function Expression:suffix()
  local kind = self.token.kind
  if kind == "." then
    self:next()
    self:expect("name")
  elseif kind == "[" then
    self:next()
    self:expression()
    self:expect("]")
  elseif kind == ":" then
    self:method()
  elseif calls[kind] then
    self:arguments()
  else
    return false
  end
  return true
end

--- A name, with the field and the call that directly follow it.
--  @treturn table the use of the name
--  @treturn number how many suffixes it has
function Expression:named()
  local before, count = self.last.kind, 0
  local use = self:use(self:expect("name"))
  if self:skip(".") then
    use.field, count = self:expect("name").text, 1
  end
  use.before, use.after = before, self.token.kind
  if calls[use.after] then
    use.arguments, count = self:arguments(), count + 1
  end
  return use, count
end

--- A name or a parenthesized expression, with its suffixes.
--  @treturn table|nil the use of the name
--  @treturn number how many suffixes it has
function Expression:suffixed()
  local use, count = nil, 0
  if self:skip("(") then
    self:expression()
    self:expect(")")
  else
    use, count = self:named()
  end
  while self:suffix() do count = count + 1 end
  return use, count
end

--- A number.
function Expression:number()
  local before, token = self.last.kind, self:next()
  local value = tonumber(token.text)
  if value and (before == ".." or self.token.kind == "..")
      and not differences.prints_alike(value) then
    self:newer(token, ("the text %s for this number, but %.14g"):format(
      tostring(value), value))
  end
end

-- Does a zero follow, perhaps in parentheses?
function Expression:is_zero()
  local at = self.at
  while self.tokens[at].kind == "(" do at = at + 1 end
  return tonumber(self.tokens[at].text) == 0
    and (at == self.at or self.tokens[at + 1].kind == ")")
end

--- The unary operators before an operand.
function Expression:signs()
  while unary[self.token.kind] do
    local sign = self:next()
    if sign.kind == "-" and self:is_zero() then
      self:newer(sign, "the number -0")
    end
  end
end

--- An operand.
function Expression:simple()
  local kind = self.token.kind
  if kind == "function" then
    self:func(self:next())
  elseif kind == "{" then
    self:table()
  elseif kind == "name" or kind == "(" then
    self:suffixed()
  elseif kind == "number" then
    self:number()
  elseif ends[kind] or binary[kind] then
    self:expect("an expression")
  else
    self:next()
  end
end

--- One expression.
function Expression:expression()
  repeat
    self:signs()
    self:simple()
  until not (binary[self.token.kind] and self:next())
end

-- functions -----------------------------------------------------------------

function Expression:parameters(fn)
  fn.params_from = self:expect("(").from
  while self.token.kind ~= ")" do
    if self:skip("...") then
      fn.vararg, self.vararg = true, self.last.from
    else
      local token = self:expect("name")
      fn.params[#fn.params + 1] = token.text
      self:declare(token).parameter = #fn.params
    end
    if not self:skip(",") then break end
  end
  fn.body_from = self:expect(")").to + 1
end

--- A function from its "(" on.
--  @tparam table start its keyword
--  @tparam[opt] boolean method whether it was declared with a colon
function Expression:func(start, method)
  local fn = {
    from = start.from, first_line = start.line, params = {}, vararg = false,
    method = method or false, used = {},
  }
  self.file.functions[#self.file.functions + 1] = fn
  local outer, vararg = self.fn, self.vararg
  self.fn = fn
  self:open()
  if method then self:declare({ text = "self", from = self.token.from }) end
  self:parameters(fn)
  self:block()
  self:close()
  self.fn, self.vararg = outer, vararg
  local last = self:expect("end")
  fn.body_to, fn.to, fn.last_line = last.from - 1, last.to, last.line
end

return Expression
