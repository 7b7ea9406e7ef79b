--- Random functions, run as they are and as what is shipped of them: under
--- lua5.1, and some in a real server. Each gives the same, or is refused.
--
--  RLOCK_FUNCTIONS is how many: 1000 by default, 100000 in `make soak`.
--  RLOCK_SEED repeats a run; with RLOCK_FUNCTIONS=1, the function of a failure.

local functions = require "spec.support.functions"
local redis = require "spec.support.redis"
local rlock = require "rlock"
local script = require "rlock.script"
local shell = require "spec.support.shell"

local count = tonumber(os.getenv("RLOCK_FUNCTIONS") or 1000)
local seed = tonumber(os.getenv("RLOCK_SEED") or os.time())

local BATCH, IN_REDIS, STEPS = 1000, 300, 1e6

local WORDS = { "key:1", "{key}2", "37", "an argument" }

-- What the README tells of Lua 5.1: there these give something else.
local DOCUMENTED = {
  "6 / 2 .. ''", "tostring(#keys * 50000000000000)",
  "9007199254740991 + #keys - 2 == 9007199254740991",
  "math.ceil(-0.5) .. ''", "1 % 0.1", "5 % math.abs(math.huge)",
  "('%s'):format('a\\0b')",
  "('%q'):format('\\r')", "tonumber('inf')", "tonumber('nan')",
  "tonumber('-ff', 16)", "('abc'):find('', 10)",
  "(function(class) return ('ag'):find(class) end)('%g')",
  "#{ unpack(setmetatable({}, { __index = { 1 } }), 1, 1) }",
  "(function(f, t) return f(t, 0) end)(ipairs(setmetatable({},"
    .. " { __index = { 1 } })))",
  "setmetatable({}, { __eq = function() return true end }) == {}",
  "coroutine.running() == nil", "pcall(function(n) return 5 % n end, 0)",
  "pcall(keys[1].sub, 'x', 1.5)", "pcall(table.insert, {}, 5, 1)",
  "pcall(string.gsub, 'x', 'x', '%y')", "select(2, pcall(string.rep))",
}

-- The result of a function, or nil for one that has no end.
local function run(fn)
  local thread = coroutine.create(fn)
  debug.sethook(thread, function() error(WORDS) end, "", STEPS)
  local ok, result = coroutine.resume(thread, { WORDS[1], WORDS[2] },
    { WORDS[3], WORDS[4] })
  return ok and "ok " .. result or result ~= WORDS and "error" or nil
end

-- What a function gives natively, and what is shipped of it (nil: refused).
local function make(text, number)
  script.sources["@p.lua"] = text
  local fn = assert(load(text, "@p.lua"))()
  local case = { seed = number, text = text }
  case.native = run(fn)
  local shipped, compiled = pcall(script.compile, "p", "acquire", fn)
  if shipped then
    case.shipped = compiled.text
  else
    assert.matches('^policy "p": p.lua:%d+: [^\n]*$', compiled)
  end
  return case
end

local function batch(from, size)
  local cases = {}
  for number = from, from + size - 1 do
    local case = make(functions.file(number), number)
    if case.native and case.shipped then cases[#cases + 1] = case end
  end
  return cases
end

-- Each of `results` is "ok RESULT" or "error WHY".
local function compare(cases, results)
  assert.equal(#cases, #results)
  for i, case in ipairs(cases) do
    local got = results[i]:match("^error") or results[i]
    if got ~= case.native then
      error(("RLOCK_SEED=%d RLOCK_FUNCTIONS=1\n%s\nnative:  %s\nshipped: %s")
        :format(case.seed, case.text, case.native, results[i]), 0)
    end
  end
end

local function under_lua51(cases)
  local path = os.tmpname()
  local file = assert(io.open(path, "wb"))
  for _, case in ipairs(cases) do
    file:write(#case.shipped, "\n", case.shipped)
  end
  file:close()
  local command = "lua5.1 spec/support/lua51.lua " .. path
  for _, word in ipairs(WORDS) do
    command = command .. " " .. shell.quote(word)
  end
  local pipe, results = assert(io.popen(command)), {}
  for line in pipe:lines() do results[#results + 1] = line end
  pipe:close()
  os.remove(path)
  return results
end

describe("a random function, natively and shipped", function()
  setup(function() print("\nRLOCK_SEED=" .. seed) end)
  teardown(function() script.sources["@p.lua"] = nil end)

  it("gives the same under Lua 5.1, or is refused", function()
    if not shell.run("command -v lua5.1"):find("lua") then
      return pending("needs lua5.1")
    end
    local ran, ended = 0, 0
    for from = seed, seed + count - 1, BATCH do
      local cases = batch(from, math.min(BATCH, seed + count - from))
      compare(cases, under_lua51(cases))
      ran = ran + #cases
      for _, case in ipairs(cases) do
        ended = ended + (case.native ~= "error" and 1 or 0)
      end
    end
    -- It is about functions that work, and not about how they fail.
    assert.is_true(count < 100 or ran > count / 2 and ended > ran / 2)
  end)

  it("differs where the README says so", function()
    local cases = {}
    for i, expression in ipairs(DOCUMENTED) do
      cases[i] = make([[
        local unpack = table.unpack or unpack
        local show = require "spec.support.show"
        return function(keys)
          return show.text({ ]] .. expression .. [[ })
        end]])
      assert.is_string(cases[i].shipped, expression)
    end
    for i, result in ipairs(under_lua51(cases)) do
      assert.not_equal(cases[i].native, result, DOCUMENTED[i])
      assert.matches("^ok ", result, DOCUMENTED[i])
    end
  end)

  it("gives the same in Redis, or is refused", function()
    local server = redis.start()
    finally(function() server:stop() end)
    local client <close> = assert(rlock.open(server.url))
    local cases, results = batch(seed, math.min(count, IN_REDIS)), {}
    for i, case in ipairs(cases) do
      local reply, _, detail = client:call("EVAL", case.shipped, 2,
        table.unpack(WORDS))
      results[i] = reply and "ok " .. reply or "error " .. tostring(detail)
    end
    compare(cases, results)
  end)
end)
