--- The comparison of spec/redis/differential_spec.lua, of 100 000 functions.
--- RLOCK_SEED repeats a run.

local differential = require "spec.tools.differential"
local seed = require "spec.tools.seed"

local COUNT = 100000

describe("100 000 random functions, with seed " .. seed, function()
  it("give the same under Lua 5.1, or are refused", function()
    local ran, ended = differential.compare_lua51(seed, COUNT)
    assert.is_true(ran > COUNT / 2 and ended > ran / 2)
  end)
end)
