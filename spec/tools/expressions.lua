--- Generates scripts of Lua 5.1 that use its operators and libraries with odd
--- arguments, where versions of Lua differ. A script returns a text with the
--- result of each expression. The same seed gives the same script.
---
--- A template is text in which <kind> is an expression: of a kind of argument,
--- or occasionally of any. Errors are part of the results, without their text.

local commands = require "spec.tools.commands"

local expressions = {}

local HEAD = [[
local function show(value)
  local kind = type(value)
  if kind == "number" then return ("%.17g"):format(value) end
  if kind == "string" then
    value = value:gsub("0x%x%x%x%x%x%x%x%x+", "0x")
      :gsub("bad argument.*", "bad argument")
    return "'" .. (value:gsub("[^%w ]", function(char)
      return "\\" .. char:byte()
    end)) .. "'"
  elseif kind ~= "table" then
    return kind == "function" and kind or tostring(value)
  end
  local parts = {}
  for i = 1, 12 do
    local item = rawget(value, i)
    if item ~= nil then parts[#parts + 1] = i .. "=" .. show(item) end
  end
  return "{" .. table.concat(parts, " ") .. "}"
end
local function shown(ok, ...)
  if not ok then return "error" end
  local parts = {}
  for i = 1, select("#", ...) do parts[i] = show((select(i, ...))) end
  return table.concat(parts, ",")
end
local all = {}
local function try(fn, ...) all[#all + 1] = shown(pcall(fn, ...)) end
]]

-- Kind -> expressions of it.
local kinds = {
  any = { "nil", "true", "false", "<num>", "<text>", "<list>", "{}", "select",
    "<odd>", "<digits>" },
  int = { "0", "1", "2", "3", "4", "5", "10", "-1", "-2", "-3", "7", "255",
    "1.5", "-1.5", "2.999", "'2'", "'0x3'", "' 4 '" },
  num = { "<int>", "<int>", "0.1", "1e15", "1e14", "123456789012", "2^53",
    "1e300", "-1e300", "1/3", "100", "1e100", "0.5", "-0.5", "2^31", "2^32",
    "-2^31", "2^63", "1e-5", "99999999999999", "0xff", "1e2", ".5", "5." },
  odd = { "1/0", "-1/0", "0/0", "2^53+1", "2^64", "-2^63", "1e308*10",
    "4294967297", "0x7fffffff", "-2147483649", "0xffffffffff",
    "0xffffffffffffffffff", "9223372036854775807", "9223372036854775808" },
  digits = { "'10'", "'0x10'", "' 5 '", "'1e2'", "'inf'", "'-inf'", "'nan'",
    "'infinity'", "'-0x1'", "'0x'", "'1e'", "''", "' '", "'1 2'", "'0x1p4'",
    "'1e400'", "'-0'", "'7\\0x'", "'.5'", "'5.'", "'0x.8'", "'1_0'", "'+3'",
    "'0xffffffffffffffffff'", "'9007199254740993'", "'-9223372036854775808'",
    "'9223372036854775808'", "'\\t8\\n'", "'1e+2'", "'0b1'", "'1,5'" },
  text = { "''", "'a'", "'abc'", "'hello world'", "'a,b,,c'", "'x=1, y=2'",
    "'a\\0b'", "'%d'", "'ABC def 123'", "<digits>", "'(a(b)c)'", "'\\n\\t\\\\'",
    "'THE (quick) fox'", "'   pad  '", "('ab'):rep(60)", "'\\255\\128z'",
    "'1a2b3c'", "[[long\n]]", "'aXb'", "'\\q\\x41\\z'", "'\\65\\066\\0067'" },
  pattern = { "'%d+'", "'%a*'", "'.'", "''", "'.-'", "'b*'", "'^a'", "'^'",
    "'(%w)(%w)'", "'()'", "'%w*'", "'[^,]*'", "'%s*$'", "'%f[%w]%w*'", "'.*'",
    "'%b()'", "'[a-c]?'", "'(a)(b)?'", "'%'", "'['", "'%z'", "'x*$'", "'c$'",
    "'(%a+)%s*=?'", "'%l%u'", "'%p'", "'%c'", "'[]]'", "'[%a_]-'", "'(.)%1'",
    "'%D'", "'^%s*(.-)%s*$'", "'%g'", "'a-'", "'()b()'", "'%x+'", "'(()'" },
  repl = { "'x'", "'%0'", "'<%1>'", "'%%'", "'%2'", "''", "'%a'", "'%'",
    "{ a = 'A', b = 1, c = false }", "string.upper", "7", "1.5",
    "function() return nil end", "function(a) return a .. '!' end",
    "function() return false end", "function() return {} end", "nil",
    "function(a, b) return b end", "{ 5, 6 }", "true", "'%9'" },
  format = { "'%d'", "'%5d'", "'%-5d|'", "'%05d'", "'%+d'", "'%i'", "'%u'",
    "'%x'", "'%X'", "'%#x'", "'%o'", "'%c'", "'%e'", "'%.3f'", "'%g'",
    "'%10.2f'", "'%s'", "'%5s'", "'%-5s|'", "'%.2s'", "'%q'", "'%%'", "'%d %s'",
    "'%5.1s'", "'%.14g'", "'%.0f'", "'%a'", "'%'", "'%y'", "'% d'", "'%05s'",
    "'%#5o'", "'%.3d'", "'%100d'", "'%-+ #05d'", "'%G'", "'%.20s'", "'%5c'",
    "'%.99f'", "'%+x'", "'% u'", "'%E'", "'%5q'" },
  list = { "{}", "{ 1, 2, 3 }", "{ 'a', 'b', 'c' }", "{ 3, 1, 2 }",
    "{ 1, 'x', 2.5 }", "{ n = 2 }", "{ 5, 4, 3, 2, 1, 9, 8, 7, 6 }",
    "{ 'b', 'a', '10', '9' }", "{ 1, 2, x = 3 }", "{ 0.1, 1e20, 7 }",
    "{ {}, {} }", "setmetatable({ 1 }, { __index = { 1, 2, 3 } })",
    "{ true, false }", "{ 2, 2, 1, 1, 3, 3 }" },
  fn = { "function(a, b) return a > b end", "tostring", "type",
    "function() return true end", "function(a, b) return b end",
    "function(...) return ... end", "function(...) return arg end",
    "function() error('x') end", "function() error() end",
    "function() error(5) end", "function() error(5, 0) end",
    "function(...) return select('#', ...) end" },
  short = { "1", "-5", "0", "2.5", "1e15", "123456789012", "0.25", "1/0",
    "-1/0", "2^53" },
  place = { "1", "2", "3", "7", "0", "-2", "1.5", "'2'", "nil", "{}" },
  op = { "+", "-", "*", "/", "%", "^", "..", "==", "~=", "<", "<=", ">", ">=",
    "and", "or" },
  numbers = { "<num>", "<digits>", "<odd>", "<int>" },
  name = { "len", "upper", "rep", "sub", "byte", "format", "reverse", "lower" },
  radix = { "10", "16", "2", "36", "8", "1", "37", "'16'", "0", "2.5" },
  word = { "'ff'", "'FF'", "'0xff'", "'-ff'", "'zz'", "'101'", "'102'", "' 7 '",
    "'+7'", "''", "'-0'", "'ffffffffffffffff'", "'fffffffffffffffff'", "7",
    "'0x'", "'1.5'", "'7\\0'", "10" },
}

local templates = {
  "<numbers> <op> <numbers>", "<numbers> <op> <numbers>", "<any> <op> <any>",
  "-(<numbers>)", "#<text>", "#<list>", "not <any>", "<text> .. <num>",
  "<num> .. <num> .. <text>", "2 ^ -(<int>) % 7", "-2 ^ 2 .. ''",
  "#<text> .. ''",
  "<int> + <int> * <int> % 5", "(<num>) % <num>", "<digits> % <digits>",
  "<num> .. ''", "<odd> .. ''", "<digits> * 1 .. ''", "<digits> + <digits>",
  "tostring(<any>)", "tonumber(<digits>)", "tonumber(<any>)",
  "tonumber(<word>, <radix>)", "tonumber(<any>, <radix>)", "type(<any>)",
  "tostring()", "tonumber()", "type()", "select(<int>, <any>, <any>, <any>)",
  "select('#', <any>, nil)", "select('#x', 1)", "unpack(<list>)",
  "unpack(<list>, <int>, <int>)", "select('#', unpack({}, 1, 7990))",
  "unpack({}, 1, 9000)",
  "assert(<any>, <text>)", "assert(false, {})", "assert(nil)", "assert()",
  "pcall(<fn>, <any>)", "pcall(<any>)", "xpcall(<fn>, <fn>)", "error(<any>)",
  "pcall(pcall, error, <text>)", "(loadstring(<text>))",
  "rawequal(<any>, <any>)", "rawget(<list>, <int>)", "next(<list>)", "next({})",
  "rawset({}, <int>, <any>)", "ipairs(<any>)", "pairs(<any>)", "ipairs()",
  "(<text>):<name>(<int>, <int>)", "(<text>).<name>(<text>, <int>)",
  "(<text>):<name>()", "string.<name>(<any>, <any>)",
  "string.byte(<text>, <int>, <int>)", "string.char(<int>, <int>)",
  "string.find(<text>, <pattern>)", "string.find(<text>, <pattern>, <int>)",
  "string.find(<text>, <text>, <int>, true)", "string.find(<text>, <any>)",
  "string.match(<text>, <pattern>)", "string.match(<text>, <pattern>, <int>)",
  "string.gsub(<text>, <pattern>, <repl>)", "string.len(<any>)",
  "string.gsub(<text>, <pattern>, <repl>, <int>)", "string.lower(<text>)",
  "string.rep(<text>, <int>)", "string.rep()", "string.reverse(<text>)",
  "string.sub(<text>, <int>, <int>)", "string.sub(<text>, <numbers>)",
  "string.sub(<any>, <any>, <any>)", "string.upper(<any>)",
  "string.format(<format>, <numbers>, <any>)", "string.foo", "table.foo",
  "string.format(<format>, <any>, <any>)", "string.format(<format>, <text>)",
  "string.format('%s %s', <any>)", "string.format(<any>)",
  "table.concat(<list>)", "table.concat(<list>, <text>, <int>, <int>)",
  "table.concat(<list>, <any>)", "table.getn(<list>)", "table.maxn(<list>)",
  "table.remove(<list>)", "table.remove(<list>, <int>)", "table.setn({}, 1)",
  "table.foreach(<list>, function(k, v) return v end)",
  "table.foreachi(<list>, function(k, v) if k == 2 then return v end end)",
  "math.abs(<numbers>)", "math.ceil(<numbers>)", "math.floor(<numbers>)",
  "math.fmod(<numbers>, <numbers>)", "math.mod(<int>, <int>)",
  "math.max(<numbers>, <numbers>)", "math.min(<numbers>, <any>)", "math.max()",
  "math.modf(<numbers>)", "math.sqrt(<num>)", "math.pow(<num>, <num>)",
  "math.log(<num>, 2)", "math.log10(<num>)", "math.exp(<int>)",
  "math.ldexp(<num>, <int>)", "math.frexp(<num>)", "math.atan2(<num>, <num>)",
  "math.sin(<num>)", "math.huge", "math.pi", "math.foo",
  "getmetatable(setmetatable({}, { __metatable = 5 }))",
  "(function(...) return arg and arg.n or arg end)(<any>, nil)",
  "(function(arg, ...) return arg end)(<any>, 1)",
  "(function(...) local x = ... return arg, x end)(<any>)",
  "({ ['a'] = 1, b = 2, 3; 4 }).b", "#{ <int>, <int> }", "({ f = 1 }).f",
  "(<list>)[<int>]", "(<text>)[<int>]", "(<any>).x", "(<any>):foo()",
  "setmetatable({}, { __tostring = function() return 5 end }) .. ''",
  "tostring(setmetatable({}, { __tostring = function() return 'T' end }))",
  "setmetatable({}, { __concat = function(a, b) return 7 end }) .. <any>",
  "<any> .. setmetatable({}, { __concat = function(a, b) return 7 end })",
  "<num> + setmetatable({}, { __add = function(a, b) return 7 end })",
  "setmetatable({}, { __mod = function() return 8 end }) % <any>",
  "setmetatable({}, { __call = function(_, a) return a end })(<any>)",
  "-setmetatable({}, { __unm = function() return 9 end })",
  "#setmetatable({}, { __len = function() return 3 end })",
  "<digits> * setmetatable({}, { __mul = function() return 4 end })",
  "loadstring([=[return <int> + 1]=])()", "(loadstring(5))",
  "loadstring('return ...')(<any>)", "_VERSION", "'a' < 'B'", "'a\\0a' < 'a'",
}

-- Statements; they put their results in `list`.
local loops = {
  "for i = <bound>, <bound> do list[#list + 1] = i end",
  "for i = <bound>, <bound>, <step> do list[#list + 1] = i end",
  "for i = 3, <bound> do list[#list + 1] = i .. '' end",
  "for w in (<text>):gmatch(<pattern>) do list[#list + 1] = w end",
  "for w, v in string.gmatch(<text>, <pattern>) do list[#list + 1] = v end",
  "list = <list> table.sort(list)", "list = <list> table.sort(list, <fn>)",
  "list = <list> table.insert(list, <any>)",
  "list = <list> table.insert(list, <place>, <any>)",
  "for i, v in ipairs(<list>) do list[i] = v end",
  "local a, b = <any>, <any> list = { a == b }",
  "local t = { x = <text> } t.len = 5 t.x, t.rep = 1, 2 list = { t.len, t.x }",
  "local s = <text> list = { s.len, s.foo }",
  "repeat local x = <int> list[1] = x until x ~= 55",
  "while #list < 3 do list[#list + 1] = 5 if #list == 2 then break end end",
  "list[<int>] = <any> list[<digits>] = 1",
  "local goods, e = loadstring(<text>) list = { goods }",
  "local f = function(...) list = { ... } end f(<any>, 1)",
}

local loops_in_redis = {
  "x = 1", "string.x = 1", "tostring = 2", "list = { undefined_global }",
  "list = { rawget(_G, 'undefined_global'), rawget(_G, 'pcall') }",
  "rawset(_G, 'x', 1)", "setmetatable(_G, {})", "redis.call = 1", "KEYS = {}",
  "KEYS[1] = 'x' list = KEYS", "print(1)", "list = { _G.undefined_global }",
}

kinds.bound = { "1", "3", "-2", "5", "1.5", "0.1", "'2'", "2.5", "nil", "{}",
  "10", "'x'" }
kinds.step = { "1", "2", "-1", "0.5", "-0.25", "0.1", "'2'", "nil", "100", "3" }

-- What only Redis has.
local in_redis = {
  "bit.band(<numbers>, <int>)", "bit.bor(<int>, <num>)", "bit.bxor(<num>, 5)",
  "bit.bnot(<num>)", "bit.lshift(<num>, <int>)", "bit.rshift(<num>, <int>)",
  "bit.arshift(<num>, <int>)", "bit.rol(<num>, <int>)", "bit.ror(<num>, 5)",
  "bit.tobit(<numbers>)", "bit.tohex(<num>)", "bit.tohex(<num>, <int>)",
  "bit.bswap(<num>)", "bit.band()", "bit.bor(<any>)",
  "redis.error_reply(<text>).err",
  "redis.error_reply(<any>).err", "redis.status_reply(<text>).ok",
  "redis.error_reply('-A b c').err", "redis.error_reply('A b\\n').err",
  "redis.status_reply(<any>).ok", "redis.foo", "redis.LOG_WARNING",
  "redis.replicate_commands()", "redis.call('set', 'x', <short>)",
  "pcall(error, { err = <text> })", "pcall(error, { err = <int> })",
  "pcall(function() error { err = <any> } end)", "pcall(error, {})",
  "xpcall(function() error { err = 'x' } end, type)",
  "redis.call('get', 'x')", "redis.pcall('echo', <text>)", "redis.call()",
  "redis.pcall('get').err", "pcall(redis.call, 'incr', <text>)",
  "redis.call('echo', <short>)", "type(redis.pcall('incr', 'y'))",
  "redis.call('echo', <num>)", "redis.call('set', 'x', <odd>)",
  "redis.pcall('echo', <any>)", "redis.call('echo', -(<num>))",
}

-- choosing --------------------------------------------------------------------

-- Kinds for which nothing else is put. A list may not be filled up to -2^31.
local FIXED = { op = true, name = true, bound = true, step = true, any = true,
  place = true, short = true }

local function expand(gen, template)
  return (template:gsub("<(%a+)>", function(kind)
    if not FIXED[kind] and gen:chance(4) then kind = "any" end
    return expand(gen, gen:pick(kinds[kind]))
  end))
end

local function line(gen, list, is_in_redis)
  if gen:chance(20) then
    local from = is_in_redis and gen:chance(20) and loops_in_redis or loops
    return ("try(function() local list = {} %s\n return list end)"):format(
      expand(gen, gen:pick(from)))
  end
  return ("try(function() return %s end)"):format(expand(gen, gen:pick(list)))
end

local function append(list, more)
  return table.move(more, 1, #more, #list + 1, list)
end

local all = append(append({}, templates), in_redis)

--- Generates the script of a seed.
---@param seed integer
---@param count integer how many expressions
---@param is_in_redis? boolean also with what only Redis has
---@return string
function expressions.script(seed, count, is_in_redis)
  local gen, lines = commands.new(seed), { HEAD }
  local list = is_in_redis and all or templates
  for i = 1, count do lines[i + 1] = line(gen, list, is_in_redis) end
  lines[#lines + 1] = "return table.concat(all, '\\n')"
  return table.concat(lines, "\n")
end

return expressions
