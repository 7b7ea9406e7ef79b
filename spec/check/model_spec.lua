--- The model of Redis, compared with a real server and with lua5.1. RLOCK_SEED
--  chooses other random commands and functions.

local differential = require "spec.tools.differential"
local fixtures = require "spec.tools.fixtures"
local model = require "spec.tools.model"
local redis = require "rlock.check.redis"

local seed = tonumber(os.getenv "RLOCK_SEED") or 1

local COMMANDS, PART = 10000, 100
local FUNCTIONS = 2000
local LACKS = "the model of Redis has no "

-- What the model makes of a script: "ok RESULT" or "error"; nil if it lacks
-- what the script needs.
local function run(text)
  local words = differential.WORDS
  local done, reply = pcall(redis.eval, redis.new(), text,
    { words[1], words[2] }, { words[3], words[4] })
  if not done then
    assert(tostring(reply):find(LACKS, 1, true), reply)
    return nil
  end
  if type(reply) == "table" and reply.err then return "error" end
  return "ok " .. tostring(reply):gsub("\n", " ")
end

describe("the model of Redis, with seed " .. seed, function()
  after_each(fixtures.close)

  it("answers random commands as Redis does, and keeps the same keys",
    function()
      local pair = model.open(fixtures.server())
      for from = seed, seed + COMMANDS / PART - 1 do
        pair:commands(from, PART)
      end
      pair:close()
    end)

  it("runs random functions as Lua 5.1 does", function()
    local cases = differential.cases(seed, FUNCTIONS)
    local want, ran = differential.lua51(cases), 0
    for i, case in ipairs(cases) do
      local got = run(case.shipped)
      if got then
        ran = ran + 1
        assert.equal(want[i]:match("^error") or want[i], got, case.text)
      end
    end
    assert.is_true(ran > FUNCTIONS / 2)
  end)
end)
