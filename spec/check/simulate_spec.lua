--- The whole client on the simulated host, with fixed seeds. `make simulate`
--  runs new ones.

local ctl = require "spec.cli.ctl"

teardown(ctl.clean)

-- What a simulation prints, without its speed.
local function simulate(...)
  local result = ctl.start { limit = 280, "spec/simulate/run.lua", "SHRINK=0",
    "MINUTES=4", ... }:wait()
  return result.out:gsub(", %d+ a second", ""), result
end

describe("a simulation", function()
  it("finds no fault", function()
    local out, result = simulate("SEED=1", "RUNS=20")
    assert.equal("", result.err)
    assert.matches("20 runs, %d%d%d%d+ grants, .*, 0 faults found\n$", out)
    assert.equal(0, result.status)
  end)

  it("finds no fault where requests expire by the server's clock", function()
    assert.matches(", 0 faults found\n$",
      (simulate("SEED=1", "RUNS=10", "SEAL=time")))
  end)

  it("finds what late requests do where nothing seals", function()
    local out, result = simulate("SEED=1", "RUNS=20", "SEAL=off")
    assert.matches("SEED=%d+ [%d.]+ s: orphan: ", out)
    assert.equal(1, result.status)
  end)

  it("is the same for the same seed", function()
    local out = simulate("SEED=7", "LOG=1")
    assert.is_true(#out > 100000)
    assert.equal(out, (simulate("SEED=7", "LOG=1")))
  end)
end)
