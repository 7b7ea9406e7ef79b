--- Translates Lua 5.1 to text that Lua 5.4 runs with the results of 5.1.
--- Numbers become floats. What depends on the version becomes a call of a
--- helper, which lua51.lua passes in: `..`, `%`, `#` and method calls. Lines
--- stay where they are, so errors name the right one.

local lexer = require "rlock.script.lexer"
local values = require "rlockctl.model.lua51.values"

local lacks = values.lacks

---@class rlockctl.model.translate.Parser
---@field tokens any
---@field at number
---@field token any
---@field out table
---@field line integer
---@field last_line number
local Parser = {}
Parser.__index = Parser

-- The helpers, in the order in which lua51.lua passes them.
local HEAD = "local __l51_concat, __l51_mod, __l51_len, __l51_method, "
  .. "__l51_index, __l51_bound, __l51_first, __l51_by, __l51_arg = ...; "
  .. "return function(...)"

-- The operators of Lua 5.1 -> left and right priority.
local BINARY = {
  ["or"] = { 1, 1 }, ["and"] = { 2, 2 },
  ["<"] = { 3, 3 }, [">"] = { 3, 3 }, ["<="] = { 3, 3 }, [">="] = { 3, 3 },
  ["~="] = { 3, 3 }, ["=="] = { 3, 3 }, [".."] = { 5, 4 },
  ["+"] = { 6, 6 }, ["-"] = { 6, 6 },
  ["*"] = { 7, 7 }, ["/"] = { 7, 7 }, ["%"] = { 7, 7 }, ["^"] = { 10, 9 },
}
local UNARY = 8
local CALLS = { [".."] = "__l51_concat(", ["%"] = "__l51_mod(" }

-- Fields of strings: 5.4 would find its own functions.
local TEXT_FIELDS = {}
for name in ([[byte char dump find format gfind gmatch gsub len lower match rep
    reverse sub upper]]):gmatch("%a+") do
  TEXT_FIELDS[name] = true
end

function Parser:fail(what)
  error(("user_script:%d: %s near '%s'"):format(self.token.line, what,
    self.token.text), 0)
end

function Parser:advance()
  self.last_line = self.token.line
    + select(2, self.token.text:gsub("\n", ""))
  self.at = self.at + 1
  self.token = self.tokens[self.at]
end

-- Writes text; a line break first, if the token begins a new line.
function Parser:put(text)
  local out, line = self.out, self.token.line
  if line > self.line then
    ---@diagnostic disable-next-line: param-type-mismatch
    text = ("\n"):rep(line - self.line) .. text
    self.line = line
  end
  out[#out + 1] = text
end

-- A quoted text with the escapes of 5.4: 5.1 drops a backslash before any other
-- character.
local function with_known_escapes(text)
  if not text:find("\\", 1, true) or text:sub(1, 1) == "[" then return text end
  return (text:gsub("\\(.)", function(char)
    return not char:find("[abfnrtv\\\"'\n%d]") and char or nil
  end))
end

-- Writes the token, and advances.
function Parser:copy()
  local text = self.token.text
  if self.token.kind == "string" then
    self:put(with_known_escapes(text))
    self.line = self.line + select(2, text:gsub("\n", ""))
  else
    if self.token.kind == "name" and (text == "goto" or text == "_ENV"
        or text:find("^__l51_")) then
      lacks("variables called " .. text)
    end
    self:put(text)
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

-- Inserts text before the piece at this index of the output.
function Parser:before(index, text)
  local piece = self.out[index]
  local breaks, rest = piece:match("^(\n*)(.*)$")
  self.out[index] = breaks .. text .. rest
end

-- expressions -----------------------------------------------------------------

function Parser:list()
  repeat self:expression(0) until not self:copy_if(",")
end

function Parser:number()
  local text = self.token.text
  if text:find("^0[xX]%x+$") then text = text .. "p0" end
  local value = tonumber(text)
  if not value or text:find("^0[xX].*[.+-]") then
    self:fail("malformed number")
  end
  local shown = ("%.17g"):format(value):gsub("^%d+$", "%0.0")
  self:put(value == math.huge and "1e999" or shown)
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

-- Does the function whose parameters end here use the name `arg`?
function Parser:uses_arg()
  local depth, at = 1, self.at
  local opens = { ["function"] = 1, ["do"] = 1, ["if"] = 1, ["repeat"] = 1,
    ["end"] = -1, ["until"] = -1 }
  while depth > 0 and self.tokens[at] do
    local token = self.tokens[at]
    if token.kind == "name" and token.text == "arg" then return true end
    depth, at = depth + (opens[token.kind] or 0), at + 1
  end
  return false
end

function Parser:parameters()
  self:want "("
  local is_vararg = false
  while not self:is ")" do
    is_vararg = self:copy_if "..."
    if is_vararg then break end
    self:want "name"
    if not self:copy_if "," then break end
  end
  self:want ")"
  return is_vararg
end

-- A vararg function of 5.1 has a variable `arg`: a table of the arguments, or
-- nil if the function says `...`
function Parser:body()
  local has_arg = self:parameters() and self:uses_arg()
  local index, says_dots = #self.out, self.says_dots
  self.says_dots = false
  self:block()
  if has_arg then
    self.out[index] = self.out[index] .. (self.says_dots and " local arg; "
      or " local arg = __l51_arg(...) ")
  end
  self.says_dots = says_dots
  self:want "end"
end

function Parser:arguments()
  if self:is "string" then return self:copy() end
  if self:is "{" then return self:table() end
  if self:is "(" and self.token.line ~= self.last_line then
    self:fail("ambiguous syntax (function call x new statement)")
  end
  self:want "("
  if not self:is ")" then self:list() end
  self:want ")"
end

-- x:name(...) becomes __method(x, "name", ...)
function Parser:method(start)
  self:advance()
  if not self:is "name" then self:fail("'<name>' expected") end
  self:before(start, "__l51_method(")
  self:put((', "%s"'):format(self.token.text))
  self:advance()
  if self:is "(" then
    if self.token.line ~= self.last_line then
      self:fail("ambiguous syntax (function call x new statement)")
    end
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

-- .name, and for texts' functions a call: __l51_index(x, "len"). `is_target`:
-- this may be where an assignment goes.
function Parser:field(start, is_target)
  local name, after = self.tokens[self.at + 1], self.tokens[self.at + 2]
  local is_assigned = is_target and (after.kind == "=" or after.kind == ",")
  if name.kind == "name" and (TEXT_FIELDS[name.text] or name.text == "goto")
      and not self.out[start]:find("^%s*string$") and not is_assigned then
    self:before(start, "__l51_index(")
    self:advance()
    self:put((', "%s")'):format(name.text))
    return self:advance()
  end
  self:copy()
  self:want "name"
end

function Parser:suffixed(is_target)
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
      self:field(start, is_target)
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
  if kind == "..." then self.says_dots = true end
  if ATOMS[kind] then return self:copy() end
  if kind == "{" then return self:table() end
  if kind ~= "function" then return self:suffixed() end
  self:copy()
  self:body()
end

function Parser:is_zero(at)
  return self.tokens[at].kind == "number"
    and tonumber(self.tokens[at].text) == 0
end

function Parser:unary()
  if self:is "#" then
    self:put "__l51_len("
    self:advance()
    self:expression(UNARY)
    self:put ")"
  elseif self:is "-" and self:is_zero(self.at + 1) then
    lacks "-0, which 5.1 confuses with 0"
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
  self:suffixed(true)
  while self:copy_if "," do self:suffixed(true) end
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

-- The current number token, perhaps with a minus, as text.
function Parser:literal()
  local minus = self:is "-" and 1 or 0
  local number = self.tokens[self.at + minus]
  local after = self.tokens[self.at + minus + 1].kind
  if number.kind ~= "number" or after ~= "," and after ~= "do" then return end
  return (minus == 1 and "-" or "") .. number.text
end

-- Wraps the output between two indexes in a call.
function Parser:wrap(from, to, helper, more)
  self:before(from, helper)
  self.out[to] = self.out[to] .. more
end

--- One of the numbers of a `for`.
---@return any ... # its text, if it is a plain number, and its indexes in the
---  output
function Parser:bound()
  local text, from = self:literal(), #self.out + 1
  self:expression(0)
  return text, from, #self.out
end

local function is_whole(text)
  return text and tonumber(text) --[[@as number]] % 1 == 0
end

function Parser:numbers()
  local init, from, to = self:bound()
  self:want ","
  local limit, limit_from, limit_to = self:bound()
  if not limit then
    self:wrap(limit_from, limit_to, "__l51_bound(", ', "limit")')
  end
  local step = "1"
  if self:copy_if "," then
    local step_from, step_to
    step, step_from, step_to = self:bound()
    if not step then self:wrap(step_from, step_to, "__l51_by(", ")") end
  end
  if not is_whole(init) or not is_whole(step) then
    self:wrap(from, to, "__l51_first(", (", %s)"):format(step or "nil"))
  end
end

statements["for"] = function(self)
  repeat self:want "name" until not self:copy_if ","
  if self:copy_if "=" then
    self:numbers()
  else
    self:want "in"
    self:list()
  end
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

local function is_fault(what)
  return what:find("^the operator") or what:find("^the name")
    or what:find("^%[%[")
end

-- Syntax that 5.1 does not have.
local function fault_of(newer)
  for _, use in ipairs(newer) do
    if is_fault(use.what) then
      return ("user_script:%d: Lua 5.1 has no %s"):format(use.line, use.what)
    end
  end
end

local function normal(text)
  if text:find("^#") then lacks "scripts that begin with #" end
  if not text:find("\r", 1, true) then return text end
  return (text:gsub("\r\n", "\n"):gsub("\n\r", "\n"):gsub("\r", "\n"))
end

---@param text string a Lua 5.1 chunk
---@return string? # for `load`; the chunk takes the helpers as arguments, and
---  returns the script as a function
---@return string? # the syntax error
return function(text)
  local tokens, newer = lexer.tokens(normal(text))
  local self = setmetatable({
    tokens = tokens, at = 1, token = tokens[1], out = { HEAD }, line = 1,
    last_line = 1,
  }, Parser)
  local refused = fault_of(newer)
  if refused then return nil, refused end
  local ok, fault = pcall(function()
    self:block()
    if not self:is "end of file" then self:fail("'<eof>' expected") end
  end)
  if values.is_lack(fault) then error(fault, 0) end
  if not ok then return nil, fault end
  self.out[#self.out + 1] = "end"
  return table.concat(self.out, " ")
end
