--- Random functions, run natively and as server scripts: under lua5.1, and some
--- in a real server. spec/soak/differential_spec.lua runs more. RLOCK_SEED
--- repeats a run; set to the seed of a failure, it starts with that function.
--- #long

local differential = require "spec.tools.differential"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local seed = require "spec.tools.seed"

local COUNT, IN_REDIS = 1000, 300

-- Differences of Lua 5.1 that the README documents.
local DOCUMENTED = {
  "6 / 2 .. ''", "tostring(#keys * 50000000000000)",
  "9007199254740991 + #keys - 2 == 9007199254740991",
  "math.ceil(-0.5) .. ''", "1 % 0.1", "5 % math.abs(math.huge)",
  "2^60 % (#keys + 5)", "pcall(string.format, '%d', #keys + 0.5)",
  "pcall(math.fmod, #keys, 0)", "pcall(math.max, '5', #keys)",
  "('%c'):format(#keys - 2)", "pcall(function(x) return x + 1 end, 'inf')",
  "tonumber('0x10', 16)", "pcall(tonumber, #keys, 16)",
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

describe("a random function, natively and shipped, with seed " .. seed,
  function()
    it("gives the same under Lua 5.1, or is refused", function()
      local ran, ended = differential.compare_lua51(seed, COUNT)
      -- Most functions work: how they fail is not the point.
      assert.is_true(ran > COUNT / 2 and ended > ran / 2)
    end)

    it("gives the same in Redis, or is refused", function()
      local server = redis.start()
      finally(function() server:stop() end)
      local client <close> = assert(rlock.open(server.url))
      local cases, results = differential.cases(seed, IN_REDIS), {}
      for i, case in ipairs(cases) do
        local reply, _, detail = client:call("EVAL", case.shipped, 2,
          table.unpack(differential.WORDS))
        results[i] = reply and "ok " .. reply or "error " .. tostring(detail)
      end
      differential.compare(cases, results)
    end)
  end)

describe("what the policy README says of Lua 5.1", function()
  for _, expression in ipairs(DOCUMENTED) do
    it("is so: " .. expression, function()
      local case = differential.case([[
        local unpack = table.unpack or unpack
        local show = require "spec.tools.show"
        return function(keys)
          return show.text({ ]] .. expression .. [[ })
        end]])
      assert.is_string(case.shipped)
      local result = differential.lua51({ case })[1]
      assert.matches("^ok ", result)
      assert.not_equal(case.native, result)
    end)
  end
end)
