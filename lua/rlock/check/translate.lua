--- Translates Lua 5.1 to text that Lua 5.4 runs with the results of 5.1.
--  Numbers become floats. What depends on the version becomes a call of a
--  helper, which lua51.lua passes in: `..`, `%`, `#` and method calls. Lines
--  stay where they are, so errors name the right one.

local lexer = require "rlock.script.lexer"

local Parser = {}
Parser.__index = Parser

local HEAD = "local __concat, __mod, __len, __method = ...; "

-- Operator -> left and right priority; what Lua 5.1 has.
local BINARY = {
  ["or"] = { 1, 1 }, ["and"] = { 2, 2 },
  ["<"] = { 3, 3 }, [">"] = { 3, 3 }, ["<="] = { 3, 3 }, [">="] = { 3, 3 },
  ["~="] = { 3, 3 }, ["=="] = { 3, 3 }, [".."] = { 5, 4 },
  ["+"] = { 6, 6 }, ["-"] = { 6, 6 },
  ["*"] = { 7, 7 }, ["/"] = { 7, 7 }, ["%"] = { 7, 7 }, ["^"] = { 10, 9 },
}
local UNARY = 8
local CALLS = { [".."] = "__concat(", ["%"] = "__mod(" }

function Parser:fail(what)
  error(("user_script:%d: %s near '%s'"):format(self.token.line, what,
    self.token.text), 0)
end

function Parser:advance()
  self.at = self.at + 1
  self.token = self.tokens[self.at]
end

-- Writes text; a line break first, if the token begins a new line.
function Parser:put(text)
  local out, line = self.out, self.token.line
  if line > self.line then
    text = ("\n"):rep(line - self.line) .. text
    self.line = line
  end
  out[#out + 1] = text
end

-- Writes the token, and advances.
function Parser:copy()
  self:put(self.token.text)
  if self.token.kind == "string" then
    self.line = self.line + select(2, self.token.text:gsub("\n", ""))
  end
  self:advance()
end

function Parser:is(kind) return self.token.kind == kind end

function Parser:want(kind)
  if not self:is(kind) then self:fail("'" .. kind .. "' expected") end
  self:copy()
end

function Parser:copy_if(kind)
  if not self:is(kind) then return false end
  self:copy()
  return true
end

-- Puts text before the piece at this place of the output.
function Parser:before(place, text)
  local piece = self.out[place]
  local breaks, rest = piece:match("^(\n*)(.*)$")
  self.out[place] = breaks .. text .. rest
end

-- expressions -----------------------------------------------------------------

function Parser:list()
  repeat self:expression(0) until not self:copy_if(",")
end

function Parser:number()
  local value = tonumber(self.token.text)
  if not value then self:fail("malformed number") end
  local text = ("%.17g"):format(value)
  if text:find("^%d+$") then text = text .. ".0" end
  if value == math.huge then text = "1e999" end
  self:put(text)
  self:advance()
end

function Parser:table()
  self:want "{"
  while not self:is "}" do
    local after = self.tokens[self.at + 1]
    if self:copy_if "[" then
      self:expression(0)
      self:want "]"
      self:want "="
    elseif self:is "name" and after.kind == "=" then
      self:copy()
      self:copy()
    end
    self:expression(0)
    if not self:copy_if "," and not self:copy_if ";" then break end
  end
  self:want "}"
end

function Parser:body()
  self:want "("
  while not self:is ")" do
    if not self:copy_if "..." then self:want "name" end
    if not self:copy_if "," then break end
  end
  self:want ")"
  self:block()
  self:want "end"
end

function Parser:arguments()
  if self:is "string" then return self:copy() end
  if self:is "{" then return self:table() end
  self:want "("
  if not self:is ")" then self:list() end
  self:want ")"
end

-- x:name(...) becomes __method(x, "name", ...)
function Parser:method(start)
  self:advance()
  if not self:is "name" then self:fail("name expected") end
  self:before(start, "__method(")
  self:put((', "%s"'):format(self.token.text))
  self:advance()
  if self:is "(" then
    self:advance()
    if not self:is ")" then
      self:put ","
      self:list()
    end
    self:want ")"
  else
    self:put ", "
    self:arguments()
    self:put ")"
  end
end

function Parser:suffixed()
  local start = #self.out + 1
  if self:copy_if "(" then
    self:expression(0)
    self:want ")"
  else
    self:want "name"
  end
  while true do
    local kind = self.token.kind
    if kind == "." then
      self:copy()
      self:want "name"
    elseif kind == "[" then
      self:copy()
      self:expression(0)
      self:want "]"
    elseif kind == ":" then
      self:method(start)
    elseif kind == "(" or kind == "string" or kind == "{" then
      self:arguments()
    else
      return
    end
  end
end

local ATOMS = {
  ["nil"] = true, ["true"] = true, ["false"] = true, ["..."] = true,
  string = true,
}

function Parser:simple()
  local kind = self.token.kind
  if kind == "number" then return self:number() end
  if ATOMS[kind] then return self:copy() end
  if kind == "{" then return self:table() end
  if kind ~= "function" then return self:suffixed() end
  self:copy()
  self:body()
end

function Parser:unary()
  if self:is "#" then
    self:put "__len("
    self:advance()
    self:expression(UNARY)
    self:put ")"
  else
    self:put(" " .. self.token.text .. " ")
    self:advance()
    self:expression(UNARY)
  end
end

function Parser:expression(limit)
  local start = #self.out + 1
  if self:is "not" or self:is "-" or self:is "#" then
    self:unary()
  else
    self:simple()
  end
  while true do
    local kind = self.token.kind
    local priority = BINARY[kind]
    if not priority or priority[1] <= limit then return end
    local call = CALLS[kind]
    if call then self:before(start, call) end
    self:put(call and "," or " " .. kind .. " ")
    self:advance()
    self:expression(priority[2])
    if call then self:put ")" end
  end
end

-- statements ------------------------------------------------------------------

local ENDS = {
  ["end"] = true, ["else"] = true, ["elseif"] = true, ["until"] = true,
  ["end of file"] = true,
}

local statements = {}

function Parser:block()
  while not ENDS[self.token.kind] do
    local kind = self.token.kind
    local statement = statements[kind]
    if statement then
      self:copy()
      statement(self)
    else
      self:assignment()
    end
    self:copy_if ";"
    if kind == "return" or kind == "break" then return end
  end
end

function Parser:assignment()
  self:suffixed()
  while self:copy_if "," do self:suffixed() end
  if self:copy_if "=" then self:list() end
end

statements["do"] = function(self)
  self:block()
  self:want "end"
end

statements["while"] = function(self)
  self:expression(0)
  self:want "do"
  self:block()
  self:want "end"
end

statements["repeat"] = function(self)
  self:block()
  self:want "until"
  self:expression(0)
end

statements["if"] = function(self)
  repeat
    self:expression(0)
    self:want "then"
    self:block()
  until not self:copy_if "elseif"
  if self:copy_if "else" then self:block() end
  self:want "end"
end

statements["for"] = function(self)
  repeat self:want "name" until not self:copy_if ","
  if not self:copy_if "=" then self:want "in" end
  self:list()
  self:want "do"
  self:block()
  self:want "end"
end

statements["function"] = function(self)
  self:want "name"
  while self:copy_if "." do self:want "name" end
  if self:copy_if ":" then self:want "name" end
  self:body()
end

statements["local"] = function(self)
  if self:copy_if "function" then
    self:want "name"
    return self:body()
  end
  repeat self:want "name" until not self:copy_if ","
  if self:copy_if "=" then self:list() end
end

statements["return"] = function(self)
  if not ENDS[self.token.kind] and not self:is ";" then self:list() end
end

statements["break"] = function() end

--- @tparam string text a Lua 5.1 chunk
--  @treturn[1] string for load; the chunk takes the helpers as arguments
--  @treturn[2] nil
--  @treturn[2] string the syntax error
return function(text)
  local tokens, newer = lexer.tokens(text)
  for _, use in ipairs(newer) do
    if not use.what:find("^the number") then
      return nil, ("user_script:%d: Lua 5.1 has no %s"):format(use.line,
        use.what)
    end
  end
  local self = setmetatable({
    tokens = tokens, at = 1, token = tokens[1], out = { HEAD }, line = 1,
  }, Parser)
  local ok, fault = pcall(function()
    self:block()
    if not self:is "end of file" then self:fail("'<eof>' expected") end
  end)
  if not ok then return nil, fault end
  return table.concat(self.out, " ")
end
