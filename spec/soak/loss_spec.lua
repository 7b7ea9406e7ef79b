--- A storm, as in storm_spec.lua, over real networks that lose all packets of
--- one way or of both for seconds. RLOCK_SEED repeats a run's choices.

local link = require "spec.tools.link"
local seed = require "spec.tools.seed"
local storms = require "spec.tools.storms"

describe("a storm over networks that lose packets, with seed " .. seed,
  function()
    if not link.is_possible() then
      pending "needs network namespaces"
      return
    end

    it("gives no lock to two", function()
      assert.same({}, (storms {
        seed = seed, seconds = 300, least = 500, seal = "kill", is_real = true,
      }))
    end)
  end)
