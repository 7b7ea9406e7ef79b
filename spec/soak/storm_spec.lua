--- The storm of spec/redis/storm_spec.lua, for minutes, and for each way of
--- sealing. RLOCK_SEED repeats a run's choices (though not its timing).

local seed = require "spec.tools.seed"
local storms = require "spec.tools.storms"

describe("a long storm with seed " .. seed, function()
  for _, seal in ipairs { "kill", "time" } do
    it("gives no lock to two: sealed by " .. seal, function()
      assert.same({}, (storms {
        seed = seed, seconds = 300, least = 500, seal = seal,
      }))
    end)
  end
end)
