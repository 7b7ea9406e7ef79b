--- Finds the functions of a Lua text, and the names that each of them uses.
--- A recursive-descent parser of the 5.4 grammar that tracks scopes only;
--- values and precedence do not matter. An interpreter has already compiled the
--- text. The only fact about Redis that it depends on is the Lua version, 5.1.
---
--- A function:  from, to (bytes, from "function" to "end"), first_line,
---              last_line, params (names), used (by index), vararg, method,
---              params_from (the "("), body_from, body_to, first_use and
---              last_use (indices of the uses in it)
--- A use:       name, line, from (byte), variable (nil: a global), field (in
---              `name.field`), before and after (the kinds of the tokens around
---              those), is_modulus (it is the right operand of %), write (the
---              name is assigned), field_write (its field is), arguments (of a
---              call that directly follows: the token of each, or false if it
---              has several), method (it is a call `x:field()`, where name is
---              "string")
--- A variable:  name, from (byte), attribute ("const", "close"), owner (its
---              function, nil: the file), empty (it has no value yet), written
---              (the line where a function other than its owner assigns it),
---              last (the last use where its owner assigns another value),
---              first and final (the indices of the tokens of the expression
---              whose value a `local` gives it)
--- A newer:     from (byte), line, what: something that 5.1 does not have
--- inside:      line -> true if it begins within a string

local differences = require "rlock.script.differences"
local lexer = require "rlock.script.lexer"
local scope = require "rlock.script.scope"

local parser = {}

---@class rlock.script.parser.Parser
---@field tokens table
---@field at number
---@field token any
---@field last any
---@field scope any
---@field file table
---@field has_modulus? boolean
local Parser = {}
Parser.__index = Parser

local set = lexer.set
local unary = set "not - # ~"
local binary = set "+ - * / % ^ .. == ~= < <= > >= and or // & | ~ << >>"
local calls = set "( string {"
local expression_ends = set ") } ] , ;"
local block_ends = set "end else elseif until"
expression_ends["end of file"], block_ends["end of file"] = true, true

-- tokens ----------------------------------------------------------------------

-- Records something that Lua 5.1 does not have.
function Parser:newer(token, what)
  table.insert(self.file.newer,
    { from = token.from, line = token.line, what = what })
end

-- Consumes the current token, and returns it.
function Parser:next()
  local token = self.token
  self.last, self.at = token, self.at + 1
  self.token = self.tokens[self.at] or token
  return token
end

-- Consumes the current token if it is of this kind; otherwise returns nil.
function Parser:skip(kind)
  if self.token.kind == kind then return self:next() end
end

-- Consumes the current token; raises if it is of another kind.
function Parser:expect(kind)
  local token = self.token
  if token.kind == kind then return self:next() end
  error({ line = token.line, fault = string.format(
    "%s expected near %q", kind, token.text) })
end

-- names -----------------------------------------------------------------------

-- Opens a scope for the variables that are declared until :close().
function Parser:open(fn)
  self.scope = scope.new(self.scope, fn)
end

function Parser:close()
  self.scope = self.scope.outer
end

-- Consumes a name and records its use, which it returns.
function Parser:name()
  local token = self:expect("name")
  local use = self.scope:use(token)
  table.insert(self.file.uses, use)
  if self.scope:is_other_arg(use) then
    self:newer(token, "another arg in a function with ...")
  end
  return use
end

-- expressions -----------------------------------------------------------------

-- A list of expressions. Returns the token of each, or false if it has several;
-- and the index of the first token of each, and of one after the last.
function Parser:list()
  local alone, starts = {}, { self.at }
  repeat
    local token, at = self.token, self.at
    self:expression()
    alone[#alone + 1] = self.at == at + 1 and token
    starts[#starts + 1] = self.at + 1
  until not self:skip(",")
  return alone, starts
end

-- A table constructor.
function Parser:table()
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

-- The arguments of a call. Returns the same as :list().
function Parser:arguments()
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

-- The name and arguments of a method call. It counts as a use of `string`: the
-- methods of other values are the policy's own.
function Parser:method()
  local token = self:expect("name")
  local arguments = self:arguments()
  table.insert(arguments, 1, false)
  table.insert(self.file.uses, {
    name = "string", field = token.text, method = true, line = token.line,
    from = token.from, arguments = arguments,
  })
end

-- One `.name`, `[key]`, `:name(...)` or `(...)`; false if there is none.
function Parser:suffix()
  if self:skip(".") then
    self:expect("name")
  elseif self:skip("[") then
    self:expression()
    self:expect("]")
  elseif self:skip(":") then
    self:method()
  elseif calls[self.token.kind] then
    self:arguments()
  else
    return false
  end
  return true
end

-- Is the operand that was just read, from token `at`, the right operand of %?
-- It may have signs, or be in parentheses.
function Parser:is_modulus(at)
  local is_enclosed = false
  while at > 1 do
    at = at - 1
    local kind = self.tokens[at].kind
    if kind == "%" then
      self.has_modulus = true
      return not is_enclosed or self.token.kind == ")"
    end
    if kind ~= "-" and kind ~= "(" then return false end
    is_enclosed = is_enclosed or kind == "("
  end
  return false
end

-- A name, with the field and the call that directly follow it. Returns its use.
function Parser:named()
  local before, at = self.last.kind, self.at
  local use = self:name()
  if self:skip(".") then use.field = self:expect("name").text end
  use.before, use.after = before, self.token.kind
  use.is_modulus = self:is_modulus(at)
  if calls[use.after] then use.arguments = self:arguments() end
  return use
end

-- A name or a parenthesized expression, with its suffixes. Returns the use of
-- the name, and whether a suffix follows it.
function Parser:suffixed()
  local at, use = self.at, nil
  if self:skip("(") then
    self:expression()
    self:expect(")")
  else
    use = self:named()
  end
  repeat until not self:suffix()
  return use, self.at > at + 1
end

-- A number.
function Parser:number()
  local before, at, token = self.last.kind, self.at, self:next()
  local value = tonumber(token.text)
  if value and differences.of_modulo(value, self:is_modulus(at),
      self.token.kind == "%") then
    self:newer(token, "the same result of % beside the number " .. token.text)
  end
  if value and (before == ".." or self.token.kind == "..")
      and not differences.prints_alike(value) then
    self:newer(token, ("the text %s for this number, but %.14g"):format(
      tostring(value), value))
  end
end

-- Does a zero follow, perhaps in parentheses?
function Parser:is_zero()
  local at = self.at
  while self.tokens[at].kind == "(" do at = at + 1 end
  return tonumber(self.tokens[at].text) == 0
    and (at == self.at or self.tokens[at + 1].kind == ")")
end

-- The unary operators before an operand.
function Parser:signs()
  while unary[self.token.kind] do
    local sign = self:next()
    if sign.kind == "-" and self:is_zero() then
      self:newer(sign, "the number -0")
    end
  end
end

function Parser:operand()
  local kind = self.token.kind
  if kind == "function" then
    self:func(self:next())
  elseif kind == "{" then
    self:table()
  elseif kind == "name" or kind == "(" then
    self:suffixed()
  elseif kind == "number" then
    self:number()
  elseif expression_ends[kind] or binary[kind] then
    self:expect("an expression")
  else
    self:next()
  end
end

function Parser:expression()
  repeat
    self:signs()
    self:operand()
  until not (binary[self.token.kind] and self:next())
end

-- functions -------------------------------------------------------------------

function Parser:parameters(fn)
  fn.params_from = self:expect("(").from
  while self.token.kind ~= ")" do
    if self:skip("...") then
      fn.vararg, self.scope.vararg = true, self.last.from
    else
      local token = self:expect("name")
      fn.params[#fn.params + 1] = token.text
      self.scope:declare(token).parameter = #fn.params
    end
    if not self:skip(",") then break end
  end
  fn.body_from = self:expect(")").to + 1
end

-- A function from its "(" on. `start` is its keyword; `method` is set if it was
-- declared with a colon.
function Parser:func(start, method)
  local fn = {
    from = start.from, first_line = start.line, params = {}, vararg = false,
    method = method or false, used = {}, first_use = #self.file.uses + 1,
  }
  table.insert(self.file.functions, fn)
  self:open(fn)
  if method then
    self.scope:declare({ text = "self", from = self.token.from })
  end
  self:parameters(fn)
  self:block()
  self:close()
  local last = self:expect("end")
  fn.body_to, fn.to, fn.last_line = last.from - 1, last.to, last.line
  fn.last_use = #self.file.uses
end

-- statements ------------------------------------------------------------------

local statements = {}

statements["if"] = function(self)
  repeat
    self:next()
    self:expression()
    self:expect("then")
    self:inner_block()
  until self.token.kind ~= "elseif"
  if self:skip("else") then self:inner_block() end
  self:expect("end")
end

statements["while"] = function(self)
  self:next()
  self:expression()
  statements["do"](self)
end

statements["do"] = function(self, names)
  self:expect("do")
  self:inner_block(names)
  self:expect("end")
end

statements["for"] = function(self)
  self:next()
  local names = {}
  repeat names[#names + 1] = self:expect("name") until not self:skip(",")
  if not self:skip("=") then self:expect("in") end
  self:list()
  statements["do"](self, names)
end

statements["repeat"] = function(self)
  self:next()
  self:open()
  self:block()
  self:expect("until")
  self:expression()
  self:close()
end

statements["function"] = function(self)
  local start = self:next()
  local use, to_field, method = self:name(), false, false
  while not method and (self:skip(".") or self:skip(":")) do
    to_field, method = true, self.last.kind == ":"
    self:expect("name")
  end
  self.scope:assign(use, to_field)
  self:func(start, method)
end

statements["local"] = function(self)
  self:next()
  local start = self.token
  if self:skip("function") then
    self.scope:declare(self:expect("name"))
    return self:func(start)
  end
  local names, attributes = {}, {}
  repeat
    names[#names + 1] = self:expect("name")
    if self.token.kind == "<" then
      self:newer(self:next(), "<" .. self.token.text .. ">")
      attributes[#names] = self:expect("name").text
      self:expect(">")
    end
  until not self:skip(",")
  local empty = not self:skip("=")
  local starts = empty and {} or select(2, self:list())
  for i, token in ipairs(names) do
    local variable = self.scope:declare(token, attributes[i], empty)
    if starts[i + 1] then
      variable.first, variable.final = starts[i], starts[i + 1] - 2
    end
  end
end

statements["return"] = function(self)
  self:next()
  if not block_ends[self.token.kind] and self.token.kind ~= ";" then
    self:list()
  end
end

statements["break"] = function(self)
  local start = self:next()
  self:skip(";")
  if not block_ends[self.token.kind] then
    self:newer(start, "a break before the end of its block")
  end
end

statements["::"] = function(self)
  self:next()
  self:expect("name")
  self:expect("::")
end

statements[";"] = function(self)
  self:newer(self:next(), "an empty statement")
end

-- A call, an assignment, or a goto (a keyword only since 5.2).
function Parser:other_statement()
  if self.token.text == "goto" and self.tokens[self.at + 1].kind == "name" then
    self:newer(self:next(), "goto")
    return self:next()
  end
  local targets = {}
  repeat
    local use, to_field = self:suffixed()
    if use then targets[#targets + 1] = { use, to_field } end
  until not self:skip(",")
  if not self:skip("=") then return end
  for _, target in ipairs(targets) do
    self.scope:assign(target[1], target[2])
  end
  self:list()
end

function Parser:block()
  while not block_ends[self.token.kind] do
    local statement = statements[self.token.kind] or Parser.other_statement
    statement(self)
    if self.token.kind == ";" then self:next() end
  end
end

-- A block with a scope of its own, where the tokens of `names` are variables.
function Parser:inner_block(names)
  self:open()
  for _, token in ipairs(names or {}) do self.scope:declare(token) end
  self:block()
  self:close()
end

-- the text --------------------------------------------------------------------

-- Records each % whose right operand is a constant expression without a finite
-- value.
function Parser:check_moduli()
  local constants = require "rlock.script.constants"    -- on first use
  for _, token in ipairs(constants.endless(self.tokens, self.file.uses)) do
    self:newer(token, "the same result for % by infinity or NaN")
  end
end

---@param text string its line breaks are "\n"
---@return table? # { functions =, uses =, newer =, inside = }, lists in text
---  order
---@return number? # the line
---@return string? # the syntax error
function parser.parse(text)
  local tokens, newer, inside = lexer.tokens(text)
  local self = setmetatable({
    tokens = tokens, at = 1, token = tokens[1], last = tokens[1],
    scope = scope.new({}),
    file = { functions = {}, uses = {}, newer = newer, inside = inside },
  }, Parser)
  local ok, fault = pcall(function()
    self:block()
    self:expect("end of file")
  end)
  if ok then
    if self.has_modulus then self:check_moduli() end
    table.sort(newer, function(a, b) return a.from < b.from end)
    return self.file
  end
  if type(fault) ~= "table" then error(fault, 0) end
  return nil, fault.line, fault.fault
end

return parser
