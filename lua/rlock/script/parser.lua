--- Which functions a Lua text has, and which names each of them uses.
--  A recursive descent over the grammar of 5.4, for scopes only: values and
--  precedence do not matter here. The text is one that an interpreter has
--  compiled. Knows nothing of Redis beyond its Lua version, 5.1, and of what
--  is shipped.
--
--  A function:  from, to (bytes, from "function" to "end"), first_line,
--               last_line, params (names), used (by index), vararg, method,
--               params_from (the "("), body_from, body_to
--  A use:       name, line, from (byte), variable (nil: a global), field (in
--               `name.field`), after (the token after those), write (the name
--               is assigned), field_write (its field is)
--  A variable:  name, from (byte), attribute ("const", "close"), owner (its
--               function, nil: the file), written (the line where a function
--               other than its owner assigns it)
--  A newer:     from (byte), line, what: something that 5.1 does not have
--  inside:      line -> true if it begins within a string
--  @module rlock.script.parser

local lexer = require "rlock.script.lexer"

local parser = {}

local unary = { ["not"] = true, ["-"] = true, ["#"] = true, ["~"] = true }

local binary = {}
for sign in ([[+ - * / % ^ .. == ~= < <= > >= and or // & | ~ << >>]])
    :gmatch("%S+") do
  binary[sign] = true
end

local block_ends = {
  ["end"] = true, ["else"] = true, ["elseif"] = true, ["until"] = true,
  ["end of file"] = true,
}

local Parser = {}
Parser.__index = Parser

--- The tokens ------------------------------------------------------------

function Parser:newer(token, what)
  local list = self.file.newer
  list[#list + 1] = { from = token.from, line = token.line, what = what }
end

function Parser:next()
  local token = self.token
  if token.newer then self:newer(token, token.newer) end
  self.last, self.at = token, self.at + 1
  self.token = self.tokens[self.at] or token
  return token
end

function Parser:skip(kind)
  if self.token.kind == kind then return self:next() end
end

function Parser:expect(kind)
  local token = self.token
  if token.kind ~= kind then
    error({ line = token.line, fault = string.format(
      "%s expected near %q", kind, token.text) })
  end
  return self:next()
end

--- Scopes ----------------------------------------------------------------

function Parser:open()
  self.scope = { outer = self.scope, variables = {} }
end

function Parser:close()
  self.scope = self.scope.outer
end

function Parser:declare(token, attribute)
  local variable = {
    name = token.text, from = token.from, attribute = attribute,
    owner = self.fn,
  }
  self.scope.variables[token.text] = variable
  return variable
end

function Parser:use(token)
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
  return use
end

function Parser:write(use)
  use.write = true
  local variable = use.variable
  if variable and variable.owner ~= self.fn then
    variable.written = variable.written or use.line
  end
end

--- Expressions -----------------------------------------------------------

function Parser:list()
  repeat self:expression() until not self:skip(",")
end

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

function Parser:arguments()
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

-- One `.name`, `[key]`, `:name(...)` or `(...)`; false if there is none.
function Parser:suffix()
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

-- A name or a bracket with its suffixes. Gives the use of the name, and how
-- many suffixes it had.
function Parser:suffixed()
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

function Parser:simple()
  local kind = self.token.kind
  if kind == "function" then
    self:func(self:next())
  elseif kind == "{" then
    self:table()
  elseif kind == "name" or kind == "(" then
    self:suffixed()
  elseif block_ends[kind] or binary[kind] then
    self:expect("an expression")
  else
    self:next()
  end
end

function Parser:expression()
  repeat
    while unary[self.token.kind] do self:next() end
    self:simple()
  until not (binary[self.token.kind] and self:next())
end

--- Functions -------------------------------------------------------------

function Parser:parameters(fn)
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

-- From the "(" of a function whose keyword was `start`.
function Parser:func(start, method)
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

function Parser:function_statement()
  local start = self:next()
  local use, method = self:use(self:expect("name")), false
  local fields = 0
  while self:skip(".") do
    self:expect("name")
    fields = fields + 1
  end
  if self:skip(":") then
    self:expect("name")
    method, fields = true, fields + 1
  end
  if fields == 0 then self:write(use) else use.field_write = true end
  self:func(start, method)
end

--- Statements ------------------------------------------------------------

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

statements["do"] = function(self)
  self:expect("do")
  self:inner_block()
  self:expect("end")
end

statements["for"] = function(self)
  self:next()
  local names = {}
  repeat names[#names + 1] = self:expect("name") until not self:skip(",")
  if not self:skip("=") then self:expect("in") end
  self:list()
  self:open()
  for _, token in ipairs(names) do self:declare(token) end
  statements["do"](self)
  self:close()
end

statements["repeat"] = function(self)
  self:next()
  self:open()
  self:block()
  self:expect("until")
  self:expression()
  self:close()
end

statements["function"] = Parser.function_statement

statements["local"] = function(self)
  self:next()
  local start = self.token
  if self:skip("function") then
    self:declare(self:expect("name"))
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
  if self:skip("=") then self:list() end
  for i, token in ipairs(names) do self:declare(token, attributes[i]) end
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
  self:newer(self.token, "an empty statement")
  self:next()
end

-- A call, an assignment, or a goto (a keyword only since 5.2).
function Parser:other_statement()
  local start = self.token
  if start.text == "goto" and self.tokens[self.at + 1].kind == "name" then
    self:newer(start, "goto")
    self:next()
    return self:next()
  end
  local targets = {}
  repeat
    local use, suffixes = self:suffixed()
    targets[#targets + 1] = { use = use, suffixes = suffixes }
  until not self:skip(",")
  if not self:skip("=") then return end
  for _, target in ipairs(targets) do
    if target.use and target.suffixes == 0 then
      self:write(target.use)
    elseif target.use then
      target.use.field_write = true
    end
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

function Parser:inner_block()
  self:open()
  self:block()
  self:close()
end

local function lines_inside(tokens)
  local inside = {}
  for _, token in ipairs(tokens) do
    if token.kind == "string" then
      local _, breaks = token.text:gsub("\n", "")
      for line = token.line + 1, token.line + breaks do inside[line] = true end
    end
  end
  return inside
end

--- @tparam string text its line breaks are "\n"
--  @treturn[1] table { functions =, uses =, newer =, inside = }, lists in text
--    order
--  @treturn[2] nil
--  @treturn[2] number the line
--  @treturn[2] string what this file does not understand there
function parser.parse(text)
  local tokens = lexer.tokens(text)
  local self = setmetatable({
    tokens = tokens, at = 1, token = tokens[1], last = tokens[1],
    file = {
      functions = {}, uses = {}, newer = {}, inside = lines_inside(tokens),
    },
  }, Parser)
  local ok, fault = pcall(function()
    self:inner_block()
    self:expect("end of file")
  end)
  if ok then return self.file end
  if type(fault) ~= "table" then error(fault, 0) end
  return nil, fault.line, fault.fault
end

return parser
