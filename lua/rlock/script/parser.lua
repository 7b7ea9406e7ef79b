--- Finds the functions of a Lua text, and the names that each of them uses.
--  A recursive-descent parser (scope.lua, expression.lua, this file) of the 5.4
--  grammar that tracks scopes only: values and precedence do not matter. An
--  interpreter has already compiled the text. The only fact about Redis that it
--  depends on is the Lua version, 5.1.
--
--  A function:  from, to (bytes, from "function" to "end"), first_line,
--               last_line, params (names), used (by index), vararg, method,
--               params_from (the "("), body_from, body_to
--  A use:       name, line, from (byte), variable (nil: a global), field (in
--               `name.field`), before and after (the kinds of the tokens around
--               those), write (the name is assigned), field_write (its field
--               is), arguments (of a call that directly follows: the token of
--               each, or false if it has several), method (it is a call
--               `x:field()`, where name is "string")
--  A variable:  name, from (byte), attribute ("const", "close"), owner (its
--               function, nil: the file), empty (it has no value yet), written
--               (the line where a function other than its owner assigns it),
--               last (the last use where its owner assigns another value)
--  A newer:     from (byte), line, what: something that 5.1 does not have
--  inside:      line -> true if it begins within a string
--  @module rlock.script.parser

local Expression = require "rlock.script.expression"
local lexer = require "rlock.script.lexer"

local parser = {}

local Parser = setmetatable({}, { __index = Expression })
Parser.__index = Parser

local block_ends = {
  ["end"] = true, ["else"] = true, ["elseif"] = true, ["until"] = true,
  ["end of file"] = true,
}

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

statements["function"] = function(self)
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
  local empty = not self:skip("=")
  if not empty then self:list() end
  for i, token in ipairs(names) do self:declare(token, attributes[i], empty) end
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
--  @treturn[2] string the syntax error
function parser.parse(text)
  local tokens, newer = lexer.tokens(text)
  local self = setmetatable({
    tokens = tokens, at = 1, token = tokens[1], last = tokens[1],
    file = {
      functions = {}, uses = {}, newer = newer, inside = lines_inside(tokens),
    },
  }, Parser)
  local ok, fault = pcall(function()
    self:inner_block()
    self:expect("end of file")
  end)
  if ok then
    table.sort(newer, function(a, b) return a.from < b.from end)
    return self.file
  end
  if type(fault) ~= "table" then error(fault, 0) end
  return nil, fault.line, fault.fault
end

return parser
