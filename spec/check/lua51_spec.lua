--- The Lua 5.1 of the model of Redis: compares random functions and expressions
--- with lua5.1, and tests the translator. RLOCK_SEED chooses others.

local differential = require "spec.tools.differential"
local expressions = require "spec.tools.expressions"
local lua51 = require "rlockctl.model.lua51"
local translate = require "rlockctl.model.translate"
local values = require "rlockctl.model.lua51.values"

local seed = tonumber(os.getenv "RLOCK_SEED") or 1

local FUNCTIONS, SCRIPTS = 2000, 500

local seen, globals = lua51.environment {}

--- Runs a script in the model.
---@return boolean
---@return any # the result or error
local function run(text, words)
  globals.KEYS, globals.ARGV = { words[1], words[2] }, { words[3], words[4] }
  local script, fault = lua51.load(text, seen)
  if not script then return false, fault end
  return lua51.run(script)
end

-- "ok RESULT" or "error", as differential.lua has it; nil if the model lacks
-- something.
local function result_of(text)
  local is_translated, ok, value = pcall(run, text, differential.WORDS)
  if not is_translated then value = ok end
  if values.is_lack(value) then return end
  assert(is_translated, value)
  return ok and "ok " .. tostring(value):gsub("\n", " ") or "error"
end

--- Runs the scripts of cases in the model and under lua5.1.
---@return number # of how many the model lacks nothing
local function compare(cases)
  local compared = 0
  for i, want in ipairs(differential.lua51(cases)) do
    local case = cases[i]
    local got = result_of(case.shipped)
    if got then
      compared = compared + 1
      assert(got == (want:match("^error") or want),
        ("RLOCK_SEED=%d\n%s\nmodel:  %s\nlua5.1: %s"):format(case.seed,
          case.shipped, got, want))
    end
  end
  return compared
end

describe("Lua 5.1 in the model of Redis, with seed " .. seed, function()
  it("runs random functions as lua5.1 does", function()
    local cases = differential.cases(seed, FUNCTIONS)
    assert.is_true(compare(cases) > 0.9 * #cases)
  end)

  it("evaluates odd expressions as lua5.1 does", function()
    local cases = {}
    for i = seed, seed + SCRIPTS - 1 do
      cases[#cases + 1] = { seed = i, shipped = expressions.script(i, 5) }
    end
    assert.is_true(compare(cases) > 0.8 * SCRIPTS)
  end)
end)

local function value_of(text)
  local ok, value = run(text, { "key", "key", "7", "x" })
  assert(ok, value)
  return value
end

describe("Lua 5.1 in the model of Redis", function()
  for _, row in ipairs {
    { "return 6 / 2 .. ''", "3" },
    { "return 1e14 .. ''", "1e+14" },
    { "return 10 % 3 .. ''", "1" },
    { "return -7 % 3", 2.0 },
    { "return 5 % (1/0) ~= 5", true },
    { "return '10' + '5' .. ''", "15" },
    { "return '0x10' * 1", 16.0 },
    { "return 'inf' - 1", 1 / 0 },
    { "return #ARGV .. ''", "2" },
    { "return ARGV[1] + 1", 8.0 },
    { "return tostring(2^53)", "9.007199254741e+15" },
    { "return ('%d'):format(2^53)", "9007199254740992" },
    { "return ('%5.1f|'):format('2')", "  2.0|" },
    { "return ('x').rep", "function" },
    { "return ('abc').len('four')", 4.0 },
    { "return '\\q\\x41\\65'", "qx41A" },
    { "return ('abc'):gsub('%w*', 'x')", "xx" },
    { "return ('x'):gsub('x', '%%')", "%" },
    { "local t = {} for k in pairs({ b = 1, a = 2, 7, 8 }) do t[#t + 1] = k end"
      .. " return table.concat(t, ' ')", "1 2 a b" },
    { "for i = '2', '3' do return i end", 2.0 },
    { "local s = '' for i = 0.1, 1, 0.3 do s = s .. i .. ' ' end return s",
      "0.1 0.4 0.7 1 " },
    { "local function f(...) return arg.n end return f(1, nil)", 2.0 },
    { "local function f(...) local a = ... return arg end return f(1)", nil },
    { "local function f(arg, ...) return arg end return f(1).n", 0.0 },
    { "return select(2, pcall(error, { err = 'E x' }))", "E x" },
    { "return select(2, pcall(function() redis = 1 end))",
      "user_script:1: Attempt to modify a readonly table" },
    { "return select(2, pcall(function() return nothing end))", "user_script:1:"
      .. " Script attempted to access nonexistent global variable 'nothing'" },
    { "return rawget(_G, 'nothing')", nil },
    { "-- a comment\r\nreturn 'crlf'", "crlf" },
    { "return loadstring('return 1 + 1')()", 2.0 },
    { "return bit.tohex(255)", "000000ff" },
    { "return (pcall(bit.tohex, 255, nil))", false },
    { "local n = 0 repeat local x = n n = n + 1 until x > 2 return n", 4.0 },
  } do
    it("gives the result of 5.1: " .. row[1], function()
      local value = value_of(row[1])
      if row[2] == "function" then value = type(value) end
      assert.equal(row[2], value)
      assert.not_equal("integer", math.type(value))
    end)
  end

  for _, text in ipairs { "return 7 // 2", "return 1 & 2", "::x::",
      "local a <const> = 1", "f\n(1)", "return [[ [[ ]]", "break", ";", "x",
      "return 0x", "return 1e", "local a = = 1", "if x then", "return 0x.8p1",
      "return 'x", "for i in 1", "f() = 1", "return (1" } do
    it("refuses what 5.1 does not read: " .. text, function()
      local script, fault = lua51.load(text, lua51.environment {})
      assert.is_nil(script)
      assert.is_string(fault)
    end)
  end

  local function fault_of(text)
    local is_compiled, ok, fault = pcall(run, text, differential.WORDS)
    return is_compiled and not ok and fault or ok
  end

  for what, text in pairs {
    ["-0, which 5.1 confuses with 0"] = "return -0",
    ["%g in patterns, which 5.1 reads differently"] = "return ('a'):find('%g')",
    ["cjson.encode"] = "return cjson.encode({})",
    ["coroutine.create"] = "return coroutine.create(type)",
    ["math.random"] = "return math.random()",
    ["%c for numbers beyond 2^31"] = "return ('%c'):format(-2^31 - 1)",
    ["__gc in a metatable, which 5.1 treats differently"] =
      "return setmetatable({}, { __gc = 1 })",
    ["getmetatable of a string or library"] = "return getmetatable('')",
    ["pairs of a library"] = "return pairs(string)",
    ["next of a library"] = "return next(math)",
    ["variables called goto"] = "local goto = 1",
    ["scripts that begin with #"] = "#!lua name=x\nreturn 1",
    ["global os"] = "return os.clock()",
  } do
    it("names what it lacks: " .. what, function()
      assert.equal(lua51.LACKS .. what, fault_of(text))
    end)
  end

  it("names the line of an error", function()
    local text = "local a = 1\n\nlocal b = [[\n\n]]\nlocal c = {\n  a,\n}\n"
      .. "if a then\n  return a + c\nend"
    local ok, fault = run(text, { "", "", "", "" })
    assert.is_false(ok)
    assert.matches("^user_script:10: attempt to perform arithmetic", fault)
  end)

  it("is translated without moving lines", function()
    local text = "local t = { a = 1,\n  b = 2 }\nlocal s = t.a .. t.b ..\n  'x'"
      .. "\nreturn s:upper(\n):len()"
    local _, breaks = translate(text):gsub("\n", "")
    assert.equal(5, breaks)
    assert.equal(3.0, value_of(text))
  end)
end)
