--- Expressions, and functions as the largest of them.
--  The second layer of rlock.script.parser, which describes its records; the
--  third gives it :block().
--  @module rlock.script.expression

local Scope = require "rlock.script.scope"

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

--- One expression or more, between commas.
function Expression:list()
  repeat self:expression() until not self:skip(",")
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
function Expression:arguments()
  if self.token.kind == "string" then
    self:next()
  elseif self.token.kind == "{" then
    self:table()
  else
    if self.token.line ~= self.last.line then
      self:newer(self.token, "a call whose ( begins a line")
    end
    self:expect("(")
    if self.token.kind ~= ")" then self:list() end
    self:expect(")")
  end
end

--- One `.name`, `[key]`, `:name(...)` or `(...)`; false if there is none.
function Expression:suffix()
  local kind = self.token.kind
  if kind == "." then
    self:next()
    return self:expect("name")
  elseif kind == "[" then
    self:next()
    self:expression()
    return self:expect("]")
  elseif kind == ":" then
    self:next()
    self:expect("name")
    self:arguments()
    return self.last
  elseif kind == "(" or kind == "string" or kind == "{" then
    self:arguments()
    return self.last
  end
  return false
end

--- A name or a bracket with its suffixes.
--  @treturn table|nil the use of the name
--  @treturn number how many suffixes it has
function Expression:suffixed()
  local use, count = nil, 0
  if self:skip("(") then
    self:expression()
    self:expect(")")
  else
    use = self:use(self:expect("name"))
  end
  local dotted = self.token.kind == "."
  while true do
    local token = self:suffix()
    if not token then break end
    count = count + 1
    if count == 1 and dotted and use then
      use.field, use.after = token.text, self.token.kind
    end
  end
  return use, count
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
  elseif ends[kind] or binary[kind] then
    self:expect("an expression")
  else
    self:next()
  end
end

--- One expression.
function Expression:expression()
  repeat
    while unary[self.token.kind] do self:next() end
    self:simple()
  until not (binary[self.token.kind] and self:next())
end

-- functions -----------------------------------------------------------------

function Expression:parameters(fn)
  fn.params_from = self:expect("(").from
  while self.token.kind ~= ")" do
    if self:skip("...") then
      fn.vararg = true
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
  local outer = self.fn
  self.fn = fn
  self:open()
  if method then self:declare({ text = "self", from = self.token.from }) end
  self:parameters(fn)
  self:block()
  self:close()
  self.fn = outer
  local last = self:expect("end")
  fn.body_to, fn.to, fn.last_line = last.from - 1, last.to, last.line
end

return Expression
