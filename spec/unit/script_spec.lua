local policy = require "rlock.policy"
local script = require "rlock.script"

local FIXTURE = "spec.unit.fixtures.shop"
local NEW = _VERSION == "Lua 5.4"

-- Runs a text as the file "p.lua", and gives what it returns.
local function run(text)
  script.sources["@p.lua"] = text
  return assert(load(text, "@p.lua"))()
end

local function compile(text)
  return script.compile("p", "acquire", run(text))
end

local function fault(text)
  local fn = run(text)
  local ok, message = pcall(script.compile, "p", "acquire", fn)
  assert.is_false(ok, "was shipped")
  return message
end

local function lines(...)
  return table.concat({ ... }, "\n") .. "\n"
end

local function op(name)
  return policy.load(FIXTURE).ops[name]
end

local function line_of(path, words)
  local number, found = 0, nil
  for line in io.lines(path) do
    number = number + 1
    if line:find(words, 1, true) then found = number end
  end
  return assert(found, words)
end

describe("a compiled operation", function()
  after_each(function() script.sources["@p.lua"] = nil end)

  it("is the function's body, with what it captures before it", function()
    assert.equal(lines(
      "-- rlock shop.acquire",
      "local function holds(lock, owner)",
      "  local function count(lock, owner)             -- an ordinary helper",
      "    return tonumber(redis.call(\"hget\", lock, owner) or 0)",
      "  end",
      "  return count(lock, owner) > 0",
      "end",
      "local naming = {}",
      "function naming.prefix(prefix, name)",
      "  if name:find(\"{\", 1, true) then return prefix .. \":\" .. name end",
      "  return prefix .. \":{\" .. name .. \"}\"",
      "end",
      "local floor = math.floor",
      "local function sum(n, ...)",
      "  local function rest(...) return sum(n - 1, ...) end",
      "  if n == 0 then return 0 end",
      "  return floor((...)) + rest(select(2, ...))",
      "end",
      "local LIMIT = 1099511627776",
      "local keys, args = KEYS, ARGV",
      "local lock, owner, lease, want ="
        .. " keys[1], args[1], args[2], tonumber(args[3])",
      "",
      "-- Everything is checked before the first write.",
      "if redis.call(\"exists\", lock) == 1 and not holds(lock, owner) then",
      "  return { \"busy\", redis.call(\"pttl\", lock) }",
      "end",
      "redis.call(\"hset\", lock, owner, want)",
      "redis.call(\"pexpire\", lock, lease)",
      "return { \"held\", LIMIT, sum(3, 1, 2.5, 3),"
        .. " naming.prefix(\"p\", lock) }"
    ), op("acquire").text)
  end)

  it("has of a module only what is used, and what that uses", function()
    local text = op("release").text
    assert.matches("\nfunction naming.suffix%(name, suffix%)\n", text)
    assert.has_no.matches("naming.prefix", text)
    assert.matches("\nlocal words = {}\nwords.channel = \"channel\"\n"
      .. "function words.mark%(text%)\n  local MARK = \"!\"\n", text)
    assert.matches("\nfunction words.shout%(text%)\n"
      .. "  local function twice%(text%)\n    return text .. text\n  end\n"
      .. "  return twice%(words.mark%(text%)%)\nend\n", text)
    assert.has_no.matches("unused", text)
  end)

  it("keeps long strings as they are", function()
    assert.matches("\nlocal text = %[%[\n    a long\n      string%]%]\n",
      op("release").text)
  end)

  it("writes constants so that Lua 5.1 reads them back", function()
    assert.equal(lines(
      "-- rlock shop.constants",
      "local fmt = string.format",
      "local HALF = 0.5",
      "local HUGE = 1e999",
      "local QUOTES = \"a \\\"quoted\\\" \\\\ text,\\n"
        .. "\\009tab, \\000 zero and \\195\\169\"",
      "local STRICT = true",
      "local TINY = -1e-09",
      "return {",
      "  fmt(\"%.17g %.17g\", HALF, TINY), tostring(STRICT), QUOTES,",
      "  tostring(HUGE == math.huge),",
      "}"
    ), op("constants").text)
  end)

  it("declares in each function the constants that it uses", function()
    local compiled = compile(lines(
      "local A, B = 1, 2",
      "local function short(n) return n + A end",
      "local function long(n)  -- of some lines",
      "",
      "  if n == B then",
      "    return short(n) .. [[",
      "  ]]",
      "  end",
      "  return A * n",
      "end",
      "return function(keys)",
      "  return { long(2), long(3), short(B), A }",
      "end"))
    local text = lines("-- rlock p.acquire",
      "local function short(n)", "  local A = 1", "  return n + A end",
      "local function long(n)", "  local A = 1", "  local B = 2",
      "  -- of some lines", "", "  if n == B then", "    return short(n) .. [[",
      "  ]]", "  end", "  return A * n", "end",
      "local A = 1", "local B = 2", "return { long(2), long(3), short(B), A }")
    assert.equal(text, compiled.text)
    assert.same({ "3  ", 3, 3, 1 }, assert(load(text))())
    local from = {}
    for i = 2, 18 do from[i - 1] = compiled.lines[i][2] end
    assert.same({ 2, 2, 2, 3, 9, 5, 3, 4, 5, 6, 7, 8, 9, 10, 12, 12, 12 }, from)
  end)

  -- Names the helpers of an operation, the enclosed ones in parentheses.
  local function helpers_of(head, body)
    local compiled = compile(lines(head,
      "return function(keys, args) return " .. body .. " end"))
    local names = {}
    for indent, name in compiled.text:gmatch "\n( *)local function (%w+)" do
      names[#names + 1] = indent == "" and name or "(" .. name .. ")"
    end
    return table.concat(names, " "), compiled
  end

  it("declares a helper in the only one that needs it", function()
    local one = "local function one(n) return n + 1 end\n"
    local two = one .. "local function two(n) return one(one(n)) end\n"
    local three = two .. "local function three(n) return two(n) + one(n) end\n"
    local names, compiled = helpers_of(three, "three(5)")
    assert.equal("three (one) (two)", names)
    assert.equal(13, load(compiled.text)())
    local from = {}
    for i = 2, 5 do from[i - 1] = compiled.lines[i][2] end
    assert.same({ 3, 1, 2, 3 }, from)
    assert.equal("one two three", (helpers_of(three, "three(5) + two(1)")))
    assert.equal("one two three",
      (helpers_of(three, "three(5) + one(1) + two(1)")))
  end)

  it("declares a helper before all that need it, and where it keeps its names",
    function()
      local one = "local function one(n) return tonumber(n) end\n"
      for title, helper in pairs {
        ["a parameter of its name"] = "local function two(n) return one(n) end"
          .. "\nlocal function three(one) return two(one) end",
        ["a parameter of the name of a global"] =
          "local function three(tonumber) return one(tonumber) end",
        ["a call of itself"] = "local function three(n)\n"
          .. "  return n == 0 and 0 or three(n - 1) * 0 + one(n)\nend",
        ["three dots"] = "local function three(...) return one(...) end",
        ["another name"] = "local same = one\n"
          .. "local function three(n) return same(n) + one(n) - n end",
      } do
        local names, compiled = helpers_of(one .. helper, "three(3)")
        assert.has_no.matches("%(", names, title)
        assert.equal(3, load(compiled.text)(), title)
      end
    end)

  it("keeps long strings in an enclosed helper as they are", function()
    local _, compiled = helpers_of(lines(
      "local function text() return [[",
      "  a", "b]] end",
      "local function both() return text() .. text() end"), "both()")
    assert.equal("  a\nb  a\nb", load(compiled.text)())
  end)

  it("declares only the parameters that are used", function()
    assert.equal("-- rlock shop.peek\nlocal keys = KEYS\n"
      .. "return { redis.call(\"exists\", keys[1]) }\n", op("peek").text)
    assert.equal("-- rlock p.acquire\nlocal args = ARGV\nreturn args[1]\n",
      compile("return function(keys, args) return args[1] end").text)
    assert.equal("-- rlock p.acquire\n",
      compile("return function(keys, args) end").text)
  end)

  it("is at the left margin, whatever its function's place", function()
    assert.equal(lines(
      "-- rlock p.acquire", "local k = KEYS", "-- said here", "if k then",
      "  return 1", "end"
    ), compile(lines("if true then", "  return function(k)  -- said here",
      "    if k then", "      return 1", "    end", "  end", "end")).text)
  end)

  it("does not care how its file breaks lines", function()
    local text = lines("local A = 1", "return function(k)", "  -- x",
      "  return k, A", "end")
    local unix = compile(text)
    local dos = compile((text:gsub("\n", "\r\n")))
    assert.same(unix, dos)
    assert.same({ "p.lua", 4 }, dos.lines[5])
  end)

  it("is found behind a #! line and a byte order mark", function()
    local text = "#!/usr/bin/env rlockctl\nreturn function() return 1 end"
    local value = assert(load("\nreturn function() return 1 end", "@p.lua"))()
    script.sources["@p.lua"] = "\239\187\191" .. text
    local compiled = script.compile("p", "acquire", value)
    assert.equal("-- rlock p.acquire\nreturn 1\n", compiled.text)
    assert.same({ "p.lua", 2 }, compiled.lines[2])
  end)

  it("is found among functions on one line by what it captures", function()
    local one, two = run([[
      local a, b = 1, 2
      return function() return a end, function() return b end]])
    assert.matches("local a = 1\nreturn a\n",
      script.compile("p", "x", one).text)
    assert.matches("local b = 2\nreturn b\n",
      script.compile("p", "x", two).text)
  end)

  it("may come from a string", function()
    local value = assert(load("local A = 1 return function() return A end"))()
    local ok, result = pcall(script.compile, "p", "x", value)
    if ok then
      assert.matches("local A = 1\nreturn A\n", result.text)
    else
      assert.matches("source is not known", result)
    end
  end)

  it("may come from a factory, each time with other constants", function()
    local make = run([[
      return function(limit)
        return function() return limit end
      end]])
    assert.matches("local limit = 1\n", script.compile("p", "x", make(1)).text)
    assert.matches("local limit = \"a\"\n",
      script.compile("p", "x", make("a")).text)
  end)

  it("ships a function that was declared first and defined later", function()
    assert.matches("local function late%(%)\n  return 1\nend\nreturn late%(%)",
      compile(lines("local late", "local function acquire()",
        "  return late()", "end", "function late()", "  return 1", "end",
        "return acquire")).text)
  end)

  it("ships what Redis has under the name that it has there", function()
    assert.equal(lines(
      "-- rlock p.acquire", "local find = string.find", "local s = string",
      "local spread = unpack", "return s.find, find, spread, tostring"
    ), compile(lines("local s, find = string, string.find",
      "local spread, tostring = table.unpack or unpack, tostring",
      "return function()", "  return s.find, find, spread, tostring",
      "end")).text)
  end)

  it("has a function of two names once", function()
    assert.equal(lines(
      "-- rlock p.acquire", "local function down(n)",
      "  return n > 0 and down(n - 1) or 0", "end", "local to_zero = down",
      "return to_zero(3), down == to_zero"
    ), compile(lines("local function down(n)",
      "  return n > 0 and down(n - 1) or 0", "end", "local to_zero = down",
      "return function() return to_zero(3), down == to_zero end")).text)
    assert.equal(lines(
      "-- rlock p.acquire", "local function down(n)",
      "  return n > 0 and down(n - 1) or 0", "end", "local zero = down",
      "return zero(3), down == zero"
    ), compile(lines("local zero", "local function down(n)",
      "  return n > 0 and down(n - 1) or 0", "end", "zero = down",
      "return function() return zero(3), down == zero end")).text)
  end)

  it("may have what Lua 5.1 has too, however odd", function()
    for _, body in ipairs {
      "local function f(...) local arg = { ... } return #arg end return f()",
      "return ('%g'):format(1), keys[1]:match('%%g'), keys[1]:rep(2)",
      "return keys[1]:gsub('^%s*', ''), keys[1]:find('\\0', 1, true)",
      "return 5 - 0, 0 - 5, 'n' .. 5, 5 % 3, xpcall(error, tostring)",
      "--[==[ a [[ b ]==] --[=[ [=[ ]=] return 1",
    } do
      local text = "return function(keys) " .. body .. " end"
      assert.truthy(compile(text).text:find(body, 1, true), body)
    end
  end)

  it("remembers where each line came from", function()
    local compiled, path = op("release"), "spec/unit/fixtures/shop.lua"
    local text, number = compiled.text, 0
    local checked = 0
    for line in text:gmatch("([^\n]*)\n") do
      number = number + 1
      local from = compiled.lines[number]
      if line:find("redis.call(\"del\"", 1, true) then
        assert.matches(path .. "$", from[1])
        assert.equal(line_of(path, line), from[2])
        checked = checked + 1
      elseif line:find("twice(words.mark", 1, true) then
        assert.matches("spec/unit/fixtures/words.lua$", from[1])
        assert.equal(line_of("spec/unit/fixtures/words.lua", line), from[2])
        checked = checked + 1
      end
    end
    assert.equal(2, checked)
    for i = 2, number do assert.is_table(compiled.lines[i]) end
  end)

  it("has a name", function()
    assert.equal("shop.acquire", op("acquire").name)
  end)
end)

describe("the text of a script", function()
  local function printed(interpreter)
    local pipe = assert(io.popen(interpreter
      .. " spec/unit/fixtures/print_scripts.lua " .. FIXTURE
      .. " $(ls lua/rlock/policy | sed -n 's/[.]lua$//p') 2>&1"))
    local text = pipe:read("*a")
    pipe:close()
    return text
  end

  local function exists(interpreter)
    local pipe = assert(io.popen(interpreter .. " -v 2>/dev/null"))
    local text = pipe:read("*a")
    pipe:close()
    return text ~= ""
  end

  it("is the same from every interpreter, line numbers too", function()
    local first = printed("lua5.4")
    assert.matches("%-%- rlock shop.acquire\n", first)
    local others = 0
    for _, interpreter in ipairs { "luajit", "lua5.1" } do
      if exists(interpreter) then
        assert.equal(first, printed(interpreter))
        others = others + 1
      end
    end
    if others == 0 then pending("needs luajit or lua5.1") end
  end)
end)

describe("what cannot be shipped", function()
  after_each(function() script.sources["@p.lua"] = nil end)

  local cases = {
    { "a table", "local state = {}", "return function() return state end",
      [[p.lua:2: acquire: upvalue "state" is a table that is not a required]]
        .. " module; make the needed values locals" },
    { "a table of functions", "local server = {}",
      "return function() return server.x() end",
      [[p.lua:2: acquire: upvalue "server" is a table that is not a required]]
        .. " module; make the needed values locals" },
    { "nil", "local never", "return function() return never end",
      [[p.lua:2: acquire: upvalue "never" is nil; assign it first]] },
    { "NaN", "local odd = 0 / 0", "return function() return odd end",
      [[p.lua:2: acquire: upvalue "odd" is NaN, which is no number]] },
    { "a userdata", "local out = io.stdout", "return function() return out end",
      [[p.lua:2: acquire: upvalue "out" is a userdata; only functions,]]
        .. " strings, numbers and booleans can be shipped" },
    { "a coroutine", "local co = coroutine.create(print)",
      "return function() return co end",
      [[p.lua:2: acquire: upvalue "co" is a thread; only functions, strings,]]
        .. " numbers and booleans can be shipped" },
    { "a C function", "local open = io.open",
      "return function() return open end",
      [[p.lua:2: acquire: upvalue "open" is a C function, which Redis does not]]
        .. " have; call it outside of Redis" },
    { "a library that Redis lacks", "local os = os",
      "return function() return os.time() end",
      [[p.lua:2: acquire: upvalue "os" is a table that is not a required]]
        .. " module; make the needed values locals" },
    { "a captured library's function that Redis lacks", "local m = math",
      "return function() return m.ult(1, 2) end",
      [[p.lua:2: acquire: reads the global "math.ult", which Redis does not]]
        .. " have; is it the name of a local?" },
    { "a global that Redis lacks", "return function()", "  print(1)", "end",
      [[p.lua:2: acquire: reads the global "print", which Redis does not have]]
        .. "; redis.log(redis.LOG_NOTICE, text) writes to its log" },
    { "require", "return function() return require 'x' end",
      [[p.lua:1: acquire: reads the global "require", which Redis does not]]
        .. " have; require it outside of the function" },
    { "os, which only some servers have",
      "return function() return os.clock() end",
      [[p.lua:1: acquire: reads the global "os", which Redis does not have;]]
        .. ' redis.call("time") returns the time' },
    { "a library function of a newer Lua",
      "return function(keys) return table.unpack(keys) end",
      [[p.lua:1: acquire: reads the global "table.unpack", which Redis does]]
        .. " not have; it is unpack there" },
    { "a name that nobody knows", "return function()", "  return limt", "end",
      [[p.lua:2: acquire: reads the global "limt", which Redis does not have;]]
        .. " is it the name of a local?" },
    { "KEYS", "return function() return KEYS[1] end",
      "p.lua:1: acquire: reads KEYS; take it as a parameter" },
    { "assigning a global", "return function() x = 1 end",
      [[p.lua:1: acquire: assigns the global "x"; make it a local]] },
    { "a global function", "return function()", "  function x() end", "end",
      [[p.lua:2: acquire: assigns the global "x"; make it a local]] },
    { "assigning into a global", "return function() math.x = 1 end",
      [[p.lua:1: acquire: assigns the global "math"; make it a local]] },
    { "assigning an upvalue", "local n = 0", "return function()",
      "  n = n + 1", "end",
      [[p.lua:3: acquire: upvalue "n" is assigned at line 3; only what never]]
        .. " changes can be shipped: keep the rest in Redis" },
    { "an upvalue that another function assigns", "local n = 0",
      "local function set() n = 1 end",
      "return function() return n, 1 end, set",
      [[p.lua:3: acquire: upvalue "n" is assigned at line 2; only what never]]
        .. " changes can be shipped: keep the rest in Redis" },
    { "a module as a value", "local naming = require 'rlock.naming'",
      "return function() return naming end",
      [[p.lua:2: acquire: of the module "naming" only fields that are named,]]
        .. " as in naming.name, can be shipped" },
    { "a module's field by a computed name",
      "local naming = require 'rlock.naming'",
      "return function(k) return naming[k[1]] end",
      [[p.lua:2: acquire: of the module "naming" only fields that are named,]]
        .. " as in naming.name, can be shipped" },
    { "a field that the module lacks", "local naming = require 'rlock.naming'",
      "return function() return naming.prefxi() end",
      [[p.lua:2: acquire: reads "naming.prefxi", but the module has no such]]
        .. " field" },
    { "a module's table", "local e = require 'rlock.redis.errors'",
      "return function() return e.transport end",
      [[p.lua:2: acquire: upvalue "e.transport" is a table that is not a]]
        .. " required module; make the needed values locals" },
    { "assigning into a module", "local naming = require 'rlock.naming'",
      "return function() naming.x = 1 end",
      [[p.lua:2: acquire: upvalue "naming" is assigned at line 2; only what]]
        .. " never changes can be shipped: keep the rest in Redis" },
    { "what a helper captures", "local state = {}",
      "local function helper() return state end",
      "return function() return helper() end",
      [[p.lua:2: helper (shipped with acquire): upvalue "state" is a table]]
        .. " that is not a required module; make the needed values"
        .. " locals" },
    { "two values of one name", "local helper", "do", "  local limit = 1",
      "  helper = function() return limit end", "end", "local limit = 2",
      "return function() return helper() + limit end",
      [[p.lua:7: acquire: upvalue "limit" has another value in helper]]
        .. " (p.lua:4); rename one" },
    { "a constant that hides a global", "local helper", "do",
      "  local type = 'hash'", "  helper = function() return type end", "end",
      "return function(k) return helper(type(k)) end",
      [[p.lua:6: acquire: upvalue "type" of helper (p.lua:4) hides the global]]
        .. " of that name; rename it" },
    { "functions that call each other", "local odd",
      "local function even(n) return n == 0 or odd(n - 1) end",
      "function odd(n) return n ~= 0 and even(n - 1) end",
      "return function() return even(4) end",
      "p.lua:3: odd (shipped with acquire): odd and even call each other,"
        .. " which cannot be shipped; put one into the other" },
    { "an operation that calls itself", "local function acquire(k)",
      "  return acquire(k)", "end", "return acquire",
      [[p.lua:2: acquire: upvalue "acquire" is acquire itself, which cannot be]]
        .. " called; let it call a helper that calls itself" },
    { "more than two parameters", "return function(keys, args, more) end",
      "p.lua:1: acquire: must take (keys, args) and nothing else" },
    { "a variable number of parameters", "return function(...) end",
      "p.lua:1: acquire: must take (keys, args) and nothing else" },
    { "a method", "local t = {}", "function t:acquire() end",
      "return t.acquire",
      "p.lua:2: acquire: must take (keys, args) and nothing else" },
    { "a method as a helper", "local t = {}", "function t:x() return self end",
      "local x = t.x", "return function() return x() end",
      "p.lua:2: x (shipped with acquire): is declared with a colon; declare it"
        .. " with a dot" },
    { "one of several functions that look the same",
      "return function() return 1 end, function() return 2 end",
      "p.lua:1: acquire: is not the only function on its line; give it one of"
        .. " its own" },
    { "what Lua 5.1 does not read", "return function(keys)",
      "  return '\\x41'", "end",
      "p.lua:2: acquire: Redis' Lua 5.1 does not have the escape \\x" },
    { "goto", "return function()", "  goto done", "  ::done::", "end",
      "p.lua:2: acquire: Redis' Lua 5.1 does not have goto" },
    { "a constant named KEYS", "local KEYS = 'mine'",
      "return function(keys) return keys[1] .. KEYS end",
      [[p.lua:2: acquire: upvalue "KEYS" of acquire (p.lua:2) hides the]]
        .. " global of that name; rename it" },
    { "a helper's constant named ARGV", "local ARGV = 'mine'",
      "local function mine() return ARGV end",
      "return function(_, args) return args[1] .. mine() end",
      [[p.lua:3: acquire: upvalue "ARGV" of mine (p.lua:2) hides the global]]
        .. " of that name; rename it" },
    { "arg in a function with ...", "local arg = 7",
      "local function seven(...) return arg, ... end",
      "return function() return seven() end",
      "p.lua:2: seven (shipped with acquire): Redis' Lua 5.1 does not have"
        .. " another arg in a function with ..." },
    { "_ENV", "return function()", "  local _ENV = { x = 1 }", "  return x",
      "end", "p.lua:2: acquire: Redis' Lua 5.1 does not have _ENV" },
    { "[[ in a comment", "return function()", "  --[[ a [[ b ]]",
      "  return 1", "end",
      "p.lua:2: acquire: Redis' Lua 5.1 does not have [[ inside [[ ]]" },
    { "-0.0", "local zero = -1 / math.huge",
      "return function() return zero end",
      [[p.lua:2: acquire: upvalue "zero" is -0.0, which Redis' Lua 5.1 mixes]]
        .. " up with 0; make it 0" },
    { "-0.0 beside 0", "local helper", "do", "  local n = 0",
      "  helper = function() return n end", "end", "local n = -1 / math.huge",
      "return function() return helper(), n end",
      [[p.lua:7: acquire: upvalue "n" has another value in helper (p.lua:4);]]
        .. " rename one" },
    { "-0", "return function() return -0 end",
      "p.lua:1: acquire: Redis' Lua 5.1 does not have the number -0" },
    { "what is assigned after the function", "local n = 1",
      "local function x()", "  return n", "end", "n = 2", "return x",
      [[p.lua:3: acquire: upvalue "n" is assigned at line 5; only what never]]
        .. " changes can be shipped: keep the rest in Redis" },
    { "string.rep with a separator",
      "return function(keys) return string.rep(keys[1], 3, ',') end",
      "p.lua:1: acquire: calls string.rep with 3 arguments, of which Redis'"
        .. " Lua 5.1 takes 2; drop the others" },
    { "the method rep with a separator",
      "return function(keys)", "  return keys[1]:rep(3, ',')", "end",
      "p.lua:2: acquire: calls string.rep with 3 arguments, of which Redis'"
        .. " Lua 5.1 takes 2; drop the others" },
    { "a captured function with too many arguments", "local log = math.log",
      "return function() return log(8, 2) end",
      "p.lua:2: acquire: calls math.log with 2 arguments, of which Redis' Lua"
        .. " 5.1 takes 1; drop the others" },
    { "a captured library's one with too many arguments", "local s = string",
      "return function(k) return s.gmatch(k[1], '.', 2) end",
      "p.lua:2: acquire: calls string.gmatch with 3 arguments, of which Redis'"
        .. " Lua 5.1 takes 2; drop the others" },
    { "xpcall with arguments",
      "return function() return xpcall(error, tostring, 'x') end",
      "p.lua:1: acquire: calls xpcall with 3 arguments, of which Redis' Lua"
        .. " 5.1 takes 2; drop the others" },
    { "the class %g", "return function(keys)",
      "  return keys[1]:match('^[%g]+$')", "end",
      "p.lua:2: acquire: has the class %g in a pattern, which Redis' Lua 5.1"
        .. " reads as the letter g; write [%w%p]" },
    { "a zero byte in a pattern",
      "return function(keys) return string.find(keys[1], 'a\\0b') end",
      "p.lua:1: acquire: has a zero byte in a pattern, which ends there in"
        .. " Redis' Lua 5.1; write %z" },
    { "a repeated pattern that matches the empty string",
      "return function(keys) return (keys[1]:gsub('%s*', '')) end",
      "p.lua:1: acquire: has a pattern that matches the empty string, which"
        .. " Redis' Lua 5.1 finds more often; write + for *" },
    { "% math.huge", "return function() return 5 % math.huge end",
      "p.lua:1: acquire: has math.huge after %, which makes NaN in Redis' Lua"
        .. " 5.1; compare instead" },
    { "% with a sign", "return function() return 5 % -math.huge end",
      "p.lua:1: acquire: has math.huge after %, which makes NaN in Redis' Lua"
        .. " 5.1; compare instead" },
    { "% in parentheses", "return function() return 5 % (-(math.huge)) end",
      "p.lua:1: acquire: has math.huge after %, which makes NaN in Redis' Lua"
        .. " 5.1; compare instead" },
    { "% a captured module's constant", "local m, least = math, -math.huge",
      "return function() return 5 % -m.huge end",
      "p.lua:2: acquire: has math.huge after %, which makes NaN in Redis' Lua"
        .. " 5.1; compare instead" },
    { "% what is not finite", "return function()", "  local h = 2^1024",
      "  return 5 % h", "end",
      "p.lua:3: acquire: Redis' Lua 5.1 does not have the same result for %"
        .. " by infinity or NaN" },
    { "% a number that is infinite", "return function() return 5 % -1e309 end",
      "p.lua:1: acquire: Redis' Lua 5.1 does not have the same result of %"
        .. " beside the number 1e309" },
    { "% of a big number", "return function() return 1e100 % 7 end",
      "p.lua:1: acquire: Redis' Lua 5.1 does not have the same result of %"
        .. " beside the number 1e100" },
    { "% of a big constant", "local big = 2^60",
      "return function() return big % 7 end",
      "p.lua:2: acquire: has a number beyond 2^53 before %, where Redis' Lua"
        .. " 5.1 is inexact" },
    { "% a constant that is infinite", "local most = math.huge",
      "return function() return 5 % most end",
      "p.lua:2: acquire: has math.huge after %, which makes NaN in Redis' Lua"
        .. " 5.1; compare instead" },
  }
  if NEW then
    local newer = {
      { "integer division", "return function()", "  return 7 // 2", "end",
        "p.lua:2: acquire: Redis' Lua 5.1 does not have the operator //" },
      { "a constant variable", "return function()", "  local x <const> = 1",
        "  return x", "end",
        "p.lua:2: acquire: Redis' Lua 5.1 does not have <const>" },
      { "a captured <const>", "local LIMIT <const> = 5",
        "return function() return LIMIT end",
        [[p.lua:2: acquire: upvalue "LIMIT" is <const>, which leaves no value]]
          .. " to ship; make it a plain local" },
      { "a global that is not Lua's",
        "local _ENV = { tonumber = function() return 7 end }",
        "return function(keys) return tonumber(keys[1]) end",
        [[p.lua:2: acquire: reads a global "tonumber" that differs from]]
          .. " Lua's, which Redis would use; rename it" },
      { "a library's function that is not Lua's",
        "local _ENV = { string = setmetatable({ rep = error },"
          .. " { __index = string }) }",
        "return function(keys) return string.rep(keys[1], 2) end",
        [[p.lua:2: acquire: reads a global "string.rep" that differs from]]
          .. " Lua's, which Redis would use; rename it" },
      { "a long number in a text", "local BIG = 100000000000000",
        "return function() return 'n' .. BIG end",
        [[p.lua:2: acquire: writes the number "BIG" as 100000000000000,]]
          .. " Redis' Lua 5.1 as 1e+14; use string.format" },
      { "a number with a point in a text", "return function() return 3.0 .. ''"
          .. " end", "p.lua:1: acquire: Redis' Lua 5.1 does not have the text"
          .. " 3.0 for this number, but 3" },
      { "the smallest integer", "local big = math.mininteger",
        "return function() return big end",
        [[p.lua:2: acquire: upvalue "big" is beyond 2^53, which Redis cannot]]
          .. " count to; make it a string" },
      { "an integer that no double holds", "local big = 2^53 | 1",
        "return function() return big end",
        [[p.lua:2: acquire: upvalue "big" is beyond 2^53, which Redis cannot]]
          .. " count to; make it a string" },
    }
    for _, case in ipairs(newer) do cases[#cases + 1] = case end
  end

  for _, case in ipairs(cases) do
    it("is " .. case[1], function()
      assert.equal('policy "p": ' .. case[#case],
        fault(table.concat(case, "\n", 2, #case - 1)))
    end)
  end

  it("is a function whose source has changed", function()
    local value = run("local a = 1\nreturn function() return a end")
    script.sources["@p.lua"] = "local b = 1\nreturn function() return b end"
    local _, message = pcall(script.compile, "p", "acquire", value)
    assert.equal('policy "p": p.lua:2: acquire: is not in its source: was the'
      .. " file changed since it was loaded? Start again", message)
  end)

  it("is a function whose source is gone", function()
    local value = assert(load("return function() end", "@gone.lua"))()
    local _, message = pcall(script.compile, "p", "acquire", value)
    assert.matches('^policy "p": gone.lua:1: acquire: cannot read its source: '
      .. "gone.lua: [^\n]*$", message)
    value = assert(load("return function() end", "=stdin"))()
    _, message = pcall(script.compile, "p", "acquire", value)
    assert.equal('policy "p": stdin:1: acquire: its source is not known; load'
      .. " it from a file", message)
  end)

  it("is not a function", function()
    local _, message = pcall(function()
      local compiled = script.compile("p", "acquire", {})
      return compiled
    end)
    assert.matches("script_spec.lua:%d+: bad fn: must be a function", message)
  end)

  local it_54 = NEW and it or function() end

  it_54("may be in the same file, if it is not shipped", function()
    assert.equal("-- rlock p.acquire\nreturn 1\n", compile(lines(
      "local a <close>, b <const> = nil, 7 // 2 & 3 << 1",
      "local t = { a, \"\\x41\", function() return ~b end }",
      "goto done", "do ; end", "::done::",
      "return function() return 1 end, t")).text)
  end)
end)

describe("script.translate", function()
  local fail, path, where

  before_each(function()
    fail, path = op("fail"), "spec/unit/fixtures/shop.lua"
    where = function(words) return path .. ":" .. line_of(path, words) end
    for _, from in pairs(fail.lines) do
      from[1] = from[1]:gsub("^.*(spec/unit)", "%1")
    end
  end)

  local function emitted(words)
    local number = 0
    for line in fail.text:gmatch("([^\n]*)\n") do
      number = number + 1
      if line:find(words, 1, true) then return number end
    end
  end

  local function translated(format, words)
    return script.translate(fail, (format:gsub("<N>", emitted(words))))
  end

  it("puts file and line for Redis' own, and cuts the tail", function()
    assert.equal("ERR " .. where("-- raises") .. ": attempt to index field "
      .. "'missing' (a nil value)", translated("ERR user_script:<N>: attempt "
      .. "to index field 'missing' (a nil value) script: 2d3c, on "
      .. "@user_script:<N>.", "-- raises"))
  end)

  it("adds the place to a failed command", function()
    local message = "WRONGTYPE Operation against a key holding the wrong kind "
      .. "of value"
    assert.equal(message .. " (" .. where("hget\", keys[1]") .. ")",
      translated(message .. " script: 2d3c, on @user_script:<N>.",
        "hget\", keys[1]"))
  end)

  it("knows the forms of Redis before 7.0", function()
    local old = "ERR Error running script (call to f_2d3c): @user_script:<N>: "
    assert.equal("ERR " .. where("-- raises") .. ": attempt to index x",
      translated(old .. "user_script:<N>: attempt to index x", "-- raises"))
    assert.equal("ERR " .. where("no-such") .. ": Unknown Redis command",
      translated(old .. "@user_script: <N>: Unknown Redis command",
        "no-such"))
    assert.equal("WRONGTYPE Operation (" .. where("hget\", keys[1]") .. ")",
      translated(old .. "WRONGTYPE Operation", "hget\", keys[1]"))
  end)

  it("names the module's file for its helpers", function()
    local file = "spec/unit/fixtures/words.lua"
    local at, raise = "ERR user_script:<N>: raised deep", "error(\"raised"
    assert.equal(("ERR %s:%d: raised deep"):format(file, line_of(file, raise)),
      translated(at .. " script: 2d3c, on @user_script:<N>.", raise))
  end)

  it("leaves alone what is not about the script", function()
    for _, message in ipairs {
      "NOSCRIPT No matching script. Please use EVAL.", "RLOCK_PLAIN word",
      "BUSY Redis is busy running a script. You can only call SCRIPT KILL",
      "ERR user_script:999: no such line", "",
    } do
      assert.equal(message, script.translate(fail, message))
    end
  end)
end)

describe("an operation for many owners", function()
  local OWNERS = {}
  for i = 1, 9 do OWNERS[i] = "owner" .. i end

  local TEXT = lines("return function(keys, args)",
    "  local owner = table.remove(args, 1)",
    "  tell(owner, keys[1], keys[2], #keys, args[1], args[2], #args)",
    "  return { 'held' }", "end")

  local function gives(body)
    return (TEXT:gsub("  tell[^\n]*", body))
  end

  -- Runs it for these owners with the shared arguments "30000" and "1", in an
  -- environment as Redis has it.
  local function run_for(owners, text, more)
    local keys, args = {}, { "2", "2", "30000", "1" }
    for i, owner in ipairs(owners) do
      keys[2 * i - 1], keys[2 * i] = "key" .. i, "other" .. i
      args[i + 4] = owner
    end
    local env = {
      KEYS = keys, ARGV = args, error = error, pcall = pcall, rawget = rawget,
      table = table, tonumber = tonumber, type = type,
      unpack = table.unpack or unpack,
    }
    for name, value in pairs(more or {}) do env[name] = value end
    env._G = env
    local its = script.batched(compile(text)).text
    return assert(load(its, "=script", "t", env))()
  end

  after_each(function() script.sources["@p.lua"] = nil end)

  it("gives each its keys and the shared arguments", function()
    local calls = {}
    local reply = run_for({ "a", "b" }, gives "  redis.call(owner, keys, args)",
      { redis = { call = function(owner, keys, args)
        calls[#calls + 1] = { owner, keys, args }
      end } })
    assert.same({ 2 }, reply)
    assert.same({
      { "a", { "key1", "other1" }, { "30000", "1" } },
      { "b", { "key2", "other2" }, { "30000", "1" } },
    }, calls)
  end)

  it("lists those with another reply, and those that raise", function()
    assert.same({ 9, 2, 3, 5, 7 }, run_for(OWNERS, gives(lines(
      "  if owner == 'owner2' then return { 'lost' } end",
      "  if owner == 'owner3' then error('no') end",
      "  if owner == 'owner4' then return 'held' end",
      "  if owner == 'owner5' then return 'lost' end",
      "  if owner == 'owner7' then return nil end"))))
  end)

  it("ends after a millisecond where scripts have a clock", function()
    local now = 5
    local os = { clock = function()
      now = now + 0.0006
      return now
    end }
    assert.same({ 8, 1 }, run_for(OWNERS,
      gives "  if owner == 'owner1' then return {} end", { os = os }))
  end)

  it("is marked in its first line, and is given deadlines like others",
    function()
      local its = script.batched(compile(gives ""))
      assert.match("^%-%- rlock p.acquire batched\n", its.text)
      assert.match("^%-%- rlock p.acquire batched\ndo\n  local time",
        script.with_deadline(its).text)
    end)
end)
