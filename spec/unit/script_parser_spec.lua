local files = require "spec.tools.files"
local lexer = require "rlock.script.lexer"
local parser = require "rlock.script.parser"

local function kinds(text)
  local list = {}
  for i, token in ipairs(lexer.tokens(text)) do list[i] = token.kind end
  return table.concat(list, " ", 1, #list - 1)
end

local function newer(text)
  local list = {}
  for i, found in ipairs(assert(parser.parse(text)).newer) do
    list[i] = found.line .. ": " .. found.what
  end
  return table.concat(list, "; ")
end

-- The uses of a name: "global" or the byte where its variable is declared.
local function uses(text, name)
  local list = {}
  for _, use in ipairs(assert(parser.parse(text)).uses) do
    if use.name == name then
      local variable = use.variable
      list[#list + 1] = variable and variable.from or "global"
    end
  end
  return table.concat(list, ", ")
end

local function our_files()
  local list = {}
  local pipe = assert(io.popen(
    "find lua spec/fixtures -name '*.lua' | LC_ALL=C sort"))
  for path in pipe:lines() do list[#list + 1] = path end
  pipe:close()
  return list
end

describe("the lexer", function()
  it("distinguishes names, keywords, numbers, strings, operators", function()
    assert.equal("local name = number .. string ; return name . name ~= ...",
      kinds("local x1 = 1 .. 'a'; return _a.b ~= ..."))
    assert.equal("name ( number , number , number , number , number )",
      kinds("f(1, .5, 0xfF, 1e-9, 3.)"))
  end)

  it("skips comments of every length", function()
    assert.equal("name name name name", kinds(
      "a--x\nb--[[ y\n]]c--[==[ ]] ]==]d--[=\nx y"):sub(1, 19))
    assert.equal("name - - name", kinds("a - - b -- c"))
    assert.equal("", kinds("--"))
  end)

  it("is not misled inside strings", function()
    assert.equal("string string string string", kinds(
      [==['a"--' "b'\"--" [[--]] [=[ ]] "]=]]==]))
    assert.equal("string name", kinds("'\\\\' x"))
    assert.equal("string name", kinds("'a\\\nb' x"))
  end)

  it("counts lines", function()
    local tokens = lexer.tokens("#!x\na\n--[[\n\n]]b\n[[\n\n]] c 'a\\\nb' d")
    local list = {}
    for i, token in ipairs(tokens) do list[i] = token.line end
    assert.same({ 2, 5, 6, 8, 8, 9, 9 }, list)
  end)

  it("knows where each token is", function()
    local text = "local x = 'abc' .. [[d]]"
    for _, token in ipairs(lexer.tokens(text)) do
      assert.equal(token.text, text:sub(token.from, token.to))
    end
  end)
end)

describe("the parser", function()
  it("finds every function, with its parameters", function()
    local file = parser.parse("local function f(a, b)\n  return function(...)"
      .. "\n  end\nend\nfunction m.g:h(c) end")
    local list = {}
    for i, fn in ipairs(file.functions) do
      list[i] = ("%d-%d %s%s%s"):format(fn.first_line, fn.last_line,
        table.concat(fn.params, ","), fn.vararg and "..." or "",
        fn.method and "self" or "")
    end
    assert.same({ "1-4 a,b", "2-3 ...", "5-5 cself" }, list)
  end)

  it("ends a function at its own end", function()
    local text = "x = function() if a then while b do repeat for i = 1, 2 do"
      .. " end until c end elseif d then do end end return {function() end} end"
      .. " y = 1"
    local fn = parser.parse(text).functions[1]
    assert.equal("end} end", text:sub(fn.to - 7, fn.to))
  end)

  it("resolves names as Lua does", function()
    assert.equal("7, 18, 7", uses("local x do local x = x x = 2 end x = 3",
      "x"))
    assert.equal("global", uses("local x = x", "x"))
    assert.equal("16, 16", uses("local function x() x() end x()", "x"))
    assert.equal("global, 7", uses("local x = function() x() end x()", "x"))
    assert.equal("global, 5", uses("for x = x, 2 do x() end", "x"))
    assert.equal("global, 5", uses("for x in x do x() end", "x"))
    assert.equal("14, global", uses("repeat local x until x; x()", "x"))
    assert.equal("12, global", uses("f(function(x) x() end) x()", "x"))
    assert.equal("global", uses("return { x = 1, [x] = a.x, b:x() }", "x"))
    assert.equal("global", uses("goto x ::x:: x()", "x"))
    assert.equal("13", uses("function a:b() return self end", "self"))
  end)

  it("recognises assignments", function()
    local file = parser.parse("a = 1 b.c = 2 d[1], e = f, g h().i = 1"
      .. " function j() end function k.l() end m() ")
    local list = {}
    for _, use in ipairs(file.uses) do
      if use.write then list[#list + 1] = use.name .. "!" end
      if use.field_write then list[#list + 1] = use.name .. ".!" end
    end
    assert.equal("a! b.! d.! e! h.! j! k.!", table.concat(list, " "))
  end)

  it("finds the field that is read, and what follows it", function()
    local use = parser.parse("return table.unpack or x").uses[1]
    assert.same({ "table", "unpack", "or" }, { use.name, use.field, use.after })
    use = parser.parse("return a['b'].c").uses[1]
    assert.is_nil(use.field)
  end)

  it("marks what Lua 5.1 does not have", function()
    for _, case in ipairs {
      { "return 7 // 2", "1: the operator //" },
      { "return\n\n~a | b & c ~ d", "3: the operator ~; 3: the operator |; "
        .. "3: the operator &; 3: the operator ~" },
      { "return 1 << 2 >> 3", "1: the operator <<; 1: the operator >>" },
      { "local a <const>, b <close> = 1", "1: <const>; 1: <close>" },
      { "goto a ::a::", "1: goto; 1: the operator ::; 1: the operator ::" },
      { "return '\\x41'", "1: the escape \\x" },
      { "return \"\\u{41}\"", "1: the escape \\u" },
      { "return '\\z  \n  a'", "1: the escape \\z" },
      { "return [[ [[ ]]", "1: [[ inside [[ ]]" },
      { "return 0x1p4", "1: the number 0x1p4" },
      { "return 0x.1", "1: the number 0x.1" },
      { "return 1LL", "1: the number 1LL" },
      { "return 9007199254740993", "1: the number 9007199254740993" },
      { "f()\n(g)()", "2: a call whose ( begins a line" },
      { "while a do break f() end",
        "1: a break before the end of its block" },
      { "f();;g()", "1: an empty statement" },
      { "f()\n--[[ [[ ]]\ng()", "2: [[ inside [[ ]]" },
      { "return - 0.0, 1 - 0", "1: the number -0" },
      { "return 2 * -((0x0))", "1: the number -0" },
      { "local x = _ENV", "1: _ENV" },
      { "return { __len = f }", "1: the metamethod __len of a table" },
      { "local arg function f(...) return arg end",
        "1: another arg in a function with ..." },
      { "function f(arg, ...) return arg end",
        "1: another arg in a function with ..." },
      { "function f(...) return function() return arg end end",
        "1: another arg in a function with ..." },
    } do
      assert.equal(case[2], newer(case[1]), case[1])
    end
  end)

  it("marks nothing that Lua 5.1 has", function()
    for _, text in ipairs {
      "return '\\\\x41', '\\65', '\\n\\\n', \"//\", [[\\x]], [=[ [[ ]=]",
      "return a ~= b, a / b, 9007199254740991, 0xffffffff, 1e300, .5e+3",
      "-- goto a // b\nlocal a --[[ <const> ]] = 1",
      "while a do if b then break end; break; end f();",
      "f(a)(b){c}'d'[[e]].g:h()", "local goto_ = 1 return goto_",
      "return function(...) return ... end",
      "function f(...) local arg = 1 return arg end return arg",
      "return 1 - 0, -(0 + x), -1",
    } do
      assert.equal("", newer(text), text)
    end
  end)

  local function in_function(body)
    return newer("local most = math.huge\nfunction f(a) " .. body .. " end")
  end

  it("marks % before a constant expression that is not finite", function()
    for _, body in ipairs {
      "local h = math.huge return 5 % h",
      "local h, x = -math.huge, 1 return 5 % (-h) + x",
      "local m = math return 5 % m.huge", "return 5 % (1/0)",
      "local m = math local n = m local h = n.huge return a % h",
      "return 5 % (2^1024)", "return a % 2^1024 ^ 1", "return 5 % -2 ^ (1024)",
      "return 5 % (1 - math.huge)", "return 5 % (0/0)",
      "local h = 1e200 * 1e200 return function() return 5 % h end",
      "local h = 1 / 0 local h = -h for i = 1, 2 do a = i % h end",
      "local a = 1e300 local b = a * a local c = b - b return 5 % c",
    } do
      assert.equal("2: the same result for % by infinity or NaN",
        in_function(body), body)
    end
  end)

  it("does not mark % before what may be finite", function()
    for _, body in ipairs {
      "local h = math.huge h = 5 return a % h", "return 5 % (1/2)",
      "local h = math.huge return 5 % h.x, 5 % h[1], 5 % h(1), 5 % h:x()",
      "local h = math.huge for h = 1, 2 do a = a % h end",
      "local h = math.huge return (function() h = 1 end)() or 5 % h",
      "return 5 % a, 5 % (1 / a), 5 % f(1/0), 5 % (a or 1/0), 5 % #a, 5 % 0",
      "local math = { huge = 1 } return 5 % math.huge",
      "local h = math return 5 % h, 5 % h.pi", "local h return 5 % h",
      "local b, h = f() return 5 % h", "return 5 % (1/0)(a), 5 % (1/0).x",
      "return a % 2 / 0, a % (2) * (1/0), -(1/0)",
      "return ('%d'):format(5 % 7), 5 % ('x'):len(), 5 % 'x' ^ 2",
    } do
      assert.equal("", in_function(body), body)
    end
    assert.equal("", in_function "return 5 % most")   -- by differences.lua
  end)

  it("reads every file of ours", function()
    local count = 0
    for _, path in ipairs(our_files()) do
      local text = files.read(path)
      local file, line, fault = parser.parse(text)
      assert.is_table(file, ("%s:%s: %s"):format(path, line, fault))
      local functions = 0
      for _, token in ipairs(lexer.tokens(text)) do
        if token.kind == "function" then functions = functions + 1 end
      end
      assert.equal(functions, #file.functions, path)
      for _, fn in ipairs(file.functions) do
        assert.equal("function(", text:sub(fn.from, fn.from + 7)
          .. text:sub(fn.params_from, fn.params_from))
        assert.equal("end", text:sub(fn.to - 2, fn.to))
      end
      count = count + 1
    end
    assert.is_true(count > 20)
  end)

  it("says where it fails, and never hangs, on text that is not Lua",
    function()
      local text = files.read("spec/unit/fixtures/shop.lua")
      local given_up = 0
      for cut = 1, #text, 7 do
        for _, broken in ipairs {
          text:sub(1, cut), text:sub(1, cut) .. text:sub(cut + 7),
        } do
          local file, line, fault = parser.parse(broken)
          if not file then
            given_up = given_up + 1
            assert.is_number(line)
            assert.matches(" expected near ", fault)
          end
        end
      end
      assert.is_true(given_up > 100)
    end)
end)
