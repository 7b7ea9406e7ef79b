--- Generates random functions like those that policies ship: the text of a file
--- that returns one, with the constants, helpers and modules that it captures.
--- The same seed gives the same text.
---
--- The grammar consists of templates. In them
---   <int>   is an expression: int, num, str, bool, list
---   <.int>  is a variable in scope; <=int> one that may be assigned
---   <+int>  declares a variable: for the next <block>, else for what follows
---   <1>     is the template's first variable again, <#> a fresh number
---   <block> is statements
--- There are few names, some of them odd, so that variables shadow each other.
---
--- The generator avoids silent differences of Lua 5.1, which the README of
--- policies lists. So integers stay small and are never -0, numbers joined to
--- strings have no fractions, strings have no zero bytes and are not compared
--- by "<", and patterns of repeated matches never match the empty string.

local functions = {}

local Gen = {}
Gen.__index = Gen

-- chance ----------------------------------------------------------------------

-- A number from 0 to n - 1.
function Gen:below(n)
  self.random = (self.random * 1103515245 + 12345) % 2147483648
  return self.random // 65536 % n
end

function Gen:pick(list) return list[self:below(#list) + 1] end

function Gen:chance(percent) return self:below(100) < percent end

local function words(text)
  local list = {}
  for word in text:gmatch("%S+") do list[#list + 1] = word end
  return list
end

local NAMES = words [[a b c d e n p q s t x y z from to count left name part
  size step]]
local ODD = words [[KEYS ARGV keys args arg redis self rlock cjson bit _ _x
  show1 goto1 user_script result]]

local CHARS = "abcdexyzABCXYZ0123456789 _,.:;-+*/%^$#@!?(){}[]<>=~&|'\"\\`\t\n"

function Gen:name()
  return self:chance(6) and self:pick(ODD) or self:pick(NAMES)
end

-- literals --------------------------------------------------------------------

local made = {}

function made.tiny(self) return ("%d"):format(self:below(5)) end

function made.index(self) return ("%d"):format(self:below(12) - 4) end

function made.whole(self)
  local value = self:below(3) == 0 and self:below(30000) or self:below(12)
  local form = self:pick { "%d", "%d", "%d", "0x%x" }
  if value > 0 and self:chance(20) then return ("-%d"):format(value) end
  return form:format(value)
end

function made.fraction(self)
  return self:pick { ".5", "0.25", "1e3", "1.5e-3", "3.", "-2.75", "1e+2",
    "0.1", "123.456", "5E-1", "1e300", "1e14" }
end

local ESCAPES = { ["\n"] = { "\\n", "\\\n", "\\010" }, ["\t"] = { "\\t", "\t" },
  ["\\"] = { "\\\\", "\\092" }, ['"'] = { '\\"' } }

function made.quoted(self, value)
  return '"' .. value:gsub(".", function(char)
    if ESCAPES[char] then return self:pick(ESCAPES[char]) end
    return self:chance(3) and ("\\%03d"):format(char:byte()) or char
  end) .. '"'
end

function made.string(self)
  local chars = {}
  for i = 1, self:pick { 0, 1, 3, 5, 8, 20 } do
    local at = self:below(#CHARS) + 1
    chars[i] = CHARS:sub(at, at)
  end
  local value = table.concat(chars)
  if self:chance(85) then return made.quoted(self, value) end
  local level = self:pick { "", "=", "==" }
  value = value:gsub("%]", "")
  if level == "" then value = value:gsub("%[%[", "") end
  return "[" .. level .. "[" .. value .. "x]" .. level .. "]"
end

function made.pattern(self)
  return self:pick { '"%d+"', '"%a"', '"[%w_]+"', '"(%a)(%d)"', '".-,"', "'%s'",
    '"^[a-e]+"', '"[xyz]$"', '"%f[%w]%w+"', '"[^,]+"', "[[%p]]", '"%%."',
    '"%b()"', '"\\\\"', '"[%]%[]"', '"(.)%1"', '"()%u"', '"[%w%p]+"' }
end

function made.comment(self)
  return self:pick { "-- said here", "--[[ over\n  lines ]]", "--[==[ ]] ]==]",
    "--", '-- "quoted [[', "--[=[ [=[ ]=]", "--[ [ ]" }
end

-- Expressions that must be refused or else mean the same.
function made.trap(self)
  return self:pick { "('x'):rep(3, ',')", "('abc'):gsub('%w*', 'x')",
    "('agb'):match('%g+')", "tostring(-0.0)", "(5 % math.huge)",
    "(5 % -math.huge)", "(1e100 % 7)",
    "('x' .. 100000000000000)", "('x' .. 3.0)", "math.log(8, 2)",
    "(select(2, xpcall(tostring, tostring, 'x')))", "--[[ [[ ]] 1\n",
    "(function(...) return arg end)(1)", "math.type(1)", "('\\x41')",
    "(7 // 2)", "math.atan(1, 2)", "('a\\0b'):find('a\\0x')",
    "(function(arg, ...) return arg end)(1, 2)", "_ENV.x",
    "#setmetatable({}, { __len = function() return 3 end })" }
end

-- grammar ---------------------------------------------------------------------

local leaves = {
  int = { "<.int>", "<.int>", "<.int>", "<.index>", "<whole>" },
  num = { "<.num>", "<.num>", "<fraction>", "<whole>" },
  str = { "<.str>", "<.str>", "<string>", "<.strs>[<tiny>] or 'none'" },
  bool = { "<.bool>", "true", "false" },
  list = { "<.list>", "{}", "{ <whole>, <whole> }" },
}

local inner = {
  int = {
    "<int> + <int>", "<int> - <int>", "<int> * #<str> % 997", "<int> % 7",
    "<int> % -5", "-#<str> + 0", "#<str>", "#<list>",
    "<str>:byte(<index>) or 3",
    "math.floor(math.max(-999, math.min(999, <num>))) + 0",
    "math.abs(<int>)", "math.max(<int>, <int>)", "math.fmod(<int>, 7) + 0",
    "<bool> and <int> or <int>", "<str>:find(<pattern>) or 0",
    "string.find(<str>, <str>, 1, true) or -1", "<list>[<index>] or <int>",
    "select('#', <int>, <str>, nil)", "select(2, <str>, <int>)",
    "select(2, <str>:gsub(<pattern>, ''))", "<.tally>(<int>)",
    "<.object>:add(<int>)", "<.spread>(<int>, <str>)",
    "select(2, <.spread>(<int>, <int>))",
    "select(2, pcall(error, { <int> }))[1]",
    "tonumber(('%d'):format(<int>))", "tonumber('ff', 16) + <int>",
    "(function(x) return x * 2 end)(<int>)", "<.bytes>:byte(<index>) or 0",
    "#<.bytes>", "(<list>).n or <int>", "math.ceil(<int>)", "<=int>",
  },
  num = {
    "<int>", "<num> + <num>", "<num> - <num>", "<.num> * <num> * 0.5",
    "<num> / 4", "<num> / (#<str> + 1)", "-<.num>", "(<int> % 50) ^ 2",
    "math.sqrt(math.abs(<num>))", "<bool> and <num> or <num>",
    "tonumber(<str>:sub(1, 8)) or <num>", "'0x10' + <num>", "'8' * <num> / 2",
    "math.max(<num>, <num>)", "select(2, math.modf(<int> / 8))",
  },
  str = {
    "<str> .. <str>", "<str> .. (<int> + 0)", "<str>:sub(<index>, <index>)",
    "<str>:upper()", "<str>:lower()", "<str>:reverse()", "<str>:rep(<tiny>)",
    "('%5d|%-6s|%s'):format(<int>, <str>, <str>)", "fmt('%03d', <int>)",
    "('%.6g'):format(math.max(-1e9, math.min(1e9, <num>)) + 0)",
    "('%x'):format(math.abs(<int>))",
    "(<str>:gsub(<pattern>, '<%0>'))", "(<str>:gsub(<pattern>, '%%'))",
    "(<str>:gsub(<pattern>, string.upper))", "tostring(<bool>)",
    "(<str>:gsub('%a', { a = 'A', b = <str>, c = false }))",
    "(<str>:gsub(<pattern>, function(match) return match .. <str> end, 2))",
    "<str>:match(<pattern>) or 'none'", "table.concat(<list>, ',')",
    "table.concat({ <str>, <str>, <int> + 0 }, <str>)", "tostring(<int> + 0)",
    "string.char(65 + <int> % 26)", "<bool> and <str> or <str>", "type(<num>)",
    "select(2, pcall(error, <str>, 0))", "words.shout(<str>)", "words.channel",
    "type(<list>)", "('a,b'):gsub(',', <str>:gsub('%%', ''))", "shout(<str>)",
    "<=str>",
  },
  bool = {
    "<int> < <int>", "<int> <= <int>", "<num> > <num>", "<num> ~= <num>",
    "<str> == <str>", "<str> ~= <str>", "not <bool>", "<bool> and <bool>",
    "<bool> or <bool>", "<list>[<index>] == nil", "pcall(error, <str>)",
    "type(<int>) == 'number'", "next(<list>) == nil", "#<str> >= #<str>",
    "rawequal(<list>, <list>)", "<.helper> == <.helper>", "<str> == <int>",
    "<num> < <.huge>", "-<.huge> < <int>", "tonumber(<str>) == nil",
    "not not <str>:find(<str>, 1, true)",
  },
  list = {
    "{ <int>, <int>, <int> }", "{ <int>, n = <int> }", "{ unpack(<list>) }",
    "<bool> and <list> or {}", "{ <int>, unpack(<list>) }",
    "{ [1] = <int>, [2] = <int>, ['n'] = <int> }", "{ <str>:byte(1, 3) }",
  },
}

local statements = {
  "local <+int> = (<int>) % 997", "local <+int> = (<int>) % 997",
  "local <+num> = <num>", "local <+str> = (<str>):sub(1, 40)",
  "local <+bool> = <bool>", "local <+list> = <list>",
  "local <+int>, <+str> = (<int>) % 997, <str>", "do <block> end",
  "<=int> = (<int>) % 997", "<=int> = (<int>) % 997", "<=num> = <num> / 3",
  "<=str> = (<str>):sub(1, 40)", "<=bool> = <bool>", "<=list> = <list>",
  "<=list>[#<1> + 1] = (<int>) % 997", "table.insert(<=list>, (<int>) % 997)",
  "table.insert(<=list>, 1, (<int>) % 997)", "table.remove(<=list>)",
  "table.sort(<=list>)", "table.sort(<=list>, function(a, b) return a > b end)",
  "if <bool> then <block> end", "if <bool> then <block> else <block> end",
  "if <bool> then <block> elseif <bool> then <block> end",
  "for <+index> = <tiny>, <tiny> do <block> end",
  "for <+index> = 5, <tiny>, -2 do <block> end",
  "for i<#>, <+int> in ipairs({ <int>, <int> }) do <block> end",
  "for <+str> in (<str>):sub(1, 9):gmatch(<pattern>) do <block> end",
  "local i<#> = 0 while i<#> < 3 do i<#> = i<#> + 1 <block> end",
  "local i<#> = 0 repeat i<#> = i<#> + 1 <block> until i<#> >= 2",
  "repeat local <+int> = (<int>) % 3 until <1> < 9",
  "local t<#> = 0 local function <+tally>(v) t<#> = (t<#> + v) % 97"
    .. " return t<#> end",
  "local <+object> = { sum = 1 } function <1>:add(v) self.sum = (self.sum + v)"
    .. " % 97 return self.sum end",
  "local function <+spread>(...) return select('#', ...), ... end",
  "local function <+spread>(...) local arg = { ... } return #arg, ... end",
}

local in_loops = { "if <bool> then break end" }

-- variables -------------------------------------------------------------------

function Gen:declare(variable)
  self.variables[#self.variables + 1] = variable
end

-- Ends the scope of all variables but the first `mark`.
function Gen:forget(mark)
  for i = #self.variables, mark + 1, -1 do self.variables[i] = nil end
end

-- The variables of a kind that are not shadowed.
function Gen:visible(kind, assignable)
  local list, hidden = {}, {}
  for i = #self.variables, 1, -1 do
    local variable = self.variables[i]
    if not hidden[variable.name] and variable.kind == kind
        and not (assignable and variable.fixed) then
      list[#list + 1] = variable
    end
    hidden[variable.name] = true
  end
  return list
end

function Gen:possible(template, depth)
  if depth <= 0 and template:find("<block>", 1, true) then return false end
  for sign, kind in template:gmatch("<([.=])(%a+)>") do
    if #self:visible(kind, sign == "=") == 0 then return false end
  end
  return true
end

-- Picks a template whose variables are all in scope.
function Gen:choose(templates, depth)
  local template
  repeat
    template = self:pick(templates)
  until self:possible(template, depth)
  return template
end

-- templates -------------------------------------------------------------------

-- A call of a helper that returns a `kind`, or nil.
function Gen:call(kind, depth)
  local helpers = self:visible("helper")
  local helper = #helpers > 0 and self:pick(helpers)
  if not helper or helper.gives ~= kind then return end
  local arguments = {}
  for i, parameter in ipairs(helper.takes) do
    arguments[i] = self:expression(parameter, depth - 1)
  end
  return helper.name .. "(" .. table.concat(arguments, ", ") .. ")"
end

function Gen:expression(kind, depth)
  if made[kind] then return made[kind](self) end
  if self:chance(self.traps) then
    return "(" .. made.trap(self) .. ")"
  end
  local call = depth > 0 and self:chance(25) and self:call(kind, depth)
  if call then return call end
  local from = (depth <= 0 or self:chance(25)) and leaves or inner
  local text = self:expand(self:choose(from[kind], depth), depth - 1)
  return text:find("^[%a_][%w_]*$") and text or "(" .. text .. ")"
end

function Gen:block(begun, depth)
  local mark = #self.variables
  for _, variable in ipairs(begun) do self:declare(variable) end
  local text = self:statements(self:below(3) + 1, depth)
  self:forget(mark)
  return "\n" .. text .. "\n"
end

-- The variable for <+what>, <.what> or <=what>.
function Gen:variable(sign, what, begun)
  if sign ~= "+" then return self:pick(self:visible(what, sign == "=")) end
  local variable = { name = self:name(), kind = what, fixed = what == "index" }
  begun[#begun + 1] = variable
  return variable
end

-- Fills in a template. Also returns the variables in scope after it.
function Gen:expand(template, depth)
  local used, begun, number = {}, {}, self.number
  if template:find("<#>", 1, true) then self.number = number + 1 end
  local text = template:gsub("<([.+=]?)([%a%d#]+)>", function(sign, what)
    if what == "#" then return number end
    if what == "block" then
      local inside = begun
      begun = {}
      return self:block(inside, depth)
    elseif sign == "" then
      local again = used[tonumber(what)]
      return again and again.name or self:expression(what, depth)
    end
    used[#used + 1] = self:variable(sign, what, begun)
    return used[#used].name
  end)
  return text, begun
end

function Gen:statement(depth)
  local list = self.loops > 0 and self:chance(20) and in_loops or statements
  local template = self:choose(list, depth)
  local loop = template:find("%f[%w]for.*<bl") or template:find("i<#>")
  self.loops = self.loops + (loop and 1 or 0)
  local text, begun = self:expand(template, depth - 1)
  self.loops = self.loops - (loop and 1 or 0)
  for _, variable in ipairs(begun) do
    if not template:find("until", 1, true) then self:declare(variable) end
  end
  if self:chance(5) then text = text .. ";" end
  return self:chance(6) and text .. " " .. made.comment(self) or text
end

function Gen:statements(count, depth)
  local lines = {}
  for i = 1, count do lines[i] = self:statement(depth) end
  return table.concat(lines, "\n")
end

-- the file --------------------------------------------------------------------

local constants = {
  { "int", "<whole>" }, { "num", "<fraction>" }, { "str", "<string>" },
  { "bool", "true" }, { "bool", "false" }, { "num", "2^40" },
  { "num", "1 / 3" }, { "int", "0" },
  { "bytes", "'\\0\\r\\n\\t\\\"\\\\\\255\\1'" },
  { "huge", "math.huge" }, { "num", "-0.0" },
}

function Gen:constant()
  local kind, value = table.unpack(self:pick(constants))
  if value == "-0.0" and self:chance(70) then kind, value = "int", "3" end
  local name = self:name()
  local text = "local " .. name .. " = " .. self:expand(value, 0)
  self:declare { name = name, kind = kind, fixed = true }
  return text
end

-- A function's text from "(" on. Outer variables are constants in it.
function Gen:body(parameters, gives, count)
  local mark, names = #self.variables, {}
  for i, parameter in ipairs(parameters) do
    names[i] = parameter.vararg and "..." or parameter.name
    if not parameter.vararg then self:declare(parameter) end
  end
  local text = self:statements(count, 2)
  local result = type(gives) == "function" and gives()
    or self:expression(gives, 3)
  if gives == "int" then result = "(" .. result .. ") % 997" end
  self:forget(mark)
  return "(" .. table.concat(names, ", ") .. ")\n" .. text .. "\nreturn "
    .. result .. "\nend"
end

local KINDS = { "int", "str", "num", "bool" }

-- The parameters of a helper, and their kinds for its callers.
function Gen:parameters()
  local parameters, kinds = {}, {}
  for i = 1, self:below(4) do
    kinds[i] = self:pick(KINDS)
    parameters[i] = { name = self:name() .. i, kind = kinds[i] }
  end
  if self:chance(15) then
    parameters[#parameters + 1] = { vararg = true }
    kinds[#kinds + 1] = "int"
  end
  return parameters, kinds
end

function Gen:helper()
  local parameters, kinds = self:parameters()
  local name, gives = self:name(), self:pick(KINDS)
  local mark, late = #self.variables, self:chance(30)
  if not late then self:declare { name = name, kind = "itself" } end
  local text = self:body(parameters, gives, self:below(3))
  self:forget(mark)
  self:declare { name = name, kind = "helper", fixed = true, takes = kinds,
    gives = gives }
  return late and "local " .. name .. " = function" .. text
    or "local function " .. name .. text
end

-- A helper that recurses, at most as often as its first argument.
function Gen:recursion()
  local name, mark = self:name(), #self.variables
  self:declare { name = name, kind = "itself" }
  local value = self:expression("int", 2)
  self:forget(mark)
  self:declare { name = name, kind = "helper", fixed = true, gives = "int",
    takes = { "tiny", "int" } }
  return ("local function %s(i, sum)\n  if i < 1 then return sum %% 97 end\n"
    .. "  return (%s(i - 1, sum + %s) + i) %% 97\nend"):format(name, name,
    value)
end

-- An alias of a helper.
function Gen:alias()
  local helpers = self:visible("helper")
  if #helpers == 0 then return self:constant() end
  local helper = self:pick(helpers)
  local name = self:name()
  self:declare { name = name, kind = "helper", fixed = true,
    takes = helper.takes, gives = helper.gives }
  return "local " .. name .. " = " .. helper.name
end

-- A helper with constants of its own.
function Gen:hidden()
  local mark, name = #self.variables, self:name() .. 0
  self:declare { name = name, kind = "itself" }
  local text = self:constant() .. "\n" .. self:helper()
  local helper = self.variables[#self.variables]
  self:forget(mark)
  self:declare { name = name, kind = "helper", fixed = true,
    takes = helper.takes, gives = helper.gives }
  return ("local %s\ndo\n%s\n%s = %s\nend"):format(name, text, name,
    helper.name)
end

local HEAD = [[
local fmt, tonumber = string.format, tonumber
local unpack = table.unpack or unpack
local show = require "spec.tools.show"
local words = require "spec.unit.fixtures.words"
local shout = words.shout
]]

function Gen:result()
  local parts = {}
  for i = 1, self:below(4) + 2 do
    local kind = self:pick { "int", "str", "num", "list", "bool" }
    parts[i] = self:expression(kind, 3)
  end
  for _, variable in ipairs(self:visible("int")) do
    parts[#parts + 1] = variable.name
  end
  return "show.text({ " .. table.concat(parts, ", ") .. " })"
end

function Gen:file()
  local lines = { HEAD }
  local makers = { "constant", "constant", "constant", "helper", "helper",
    "recursion", "alias", "hidden" }
  for _ = 1, self:below(8) + 1 do
    lines[#lines + 1] = self[self:pick(makers)](self)
  end
  local names = self:pick { { "keys", "args" }, { "keys", "args" },
    { "k", "a" }, { "KEYS", "ARGV" }, { "ARGV", "KEYS" }, { "keys" } }
  local parameters = {}
  for i, name in ipairs(names) do
    parameters[i] = { name = name, kind = "strs", fixed = true }
  end
  lines[#lines + 1] = "return function" .. self:body(parameters,
    function() return self:result() end, self:below(9) + 1) .. "\n"
  local text = table.concat(lines, "\n")
  return self:chance(5) and text:gsub("\n", "\r\n") or text
end

--- Generates the file of a seed.
---@param seed number
---@return string
function functions.file(seed)
  local self = setmetatable({
    random = seed % 2147483648, variables = {}, loops = 0, number = 0,
    traps = 0,
  }, Gen)
  for _ = 1, 3 do self:below(2) end
  if self:chance(10) then self.traps = 2 end
  return (self:file())
end

return functions
