--- The client on the simulated host: fixed seeds, and faults it must find.
--  `make simulate` runs fresh seeds.

local ctl = require "spec.cli.ctl"
local world = require "spec.simulate.world"

local FIXED = 20                        -- seeds 1 to this
local TRIES = 60                        -- seeds in which a bug must be found

teardown(ctl.clean)

-- The faults of a run, with the seed that repeats it.
local function faults_of(seed, options)
  local faults = {}
  for i, fault in ipairs(world.simulate(seed, options).oracle.faults) do
    faults[i] = ("SEED=%d %s"):format(seed, fault.text)
  end
  return faults
end

-- Runs until a fault of this sort is found.
local function finds(what, options)
  for seed = 1, TRIES do
    for _, fault in ipairs(world.simulate(seed, options).oracle.faults) do
      if fault.what == what then return true end
    end
  end
  return false
end

describe("simulated clients", function()
  it("exclude each other", function()
    for seed = 1, FIXED do assert.same({}, faults_of(seed)) end
  end)

  it("exclude each other where requests expire by the server's clock",
    function()
      for seed = 1, FIXED / 2 do
        assert.same({}, faults_of(seed, { seal = "time" }))
      end
    end)

  -- The log of a run, without the last line, which has its speed.
  local function log_of(seed)
    local out = ctl.run { "spec/simulate/run.lua", "LOG=1", "SHRINK=0",
      "SEED=" .. seed, limit = 120 }.out
    return out:match("^(.*)\n[^\n]+\n$")
  end

  it("do the same again in another process", function()
    local log = log_of(7)
    assert.is_true(#log > 100000)
    assert.is_true(log == log_of(7))
  end)
end)

describe("without sealing, a simulation finds", function()
  it("a named owner whose late release frees its next hold", function()
    assert.is_true(finds("two holders", { seal = "off", only = {
      kind = "lock", owner = "task", style = "plain", servers = 1 } }))
  end)

  it("a late partial release that shortens a lease", function()
    assert.is_true(finds("two holders", { seal = "off", only = {
      kind = "lock", owner = "none", style = "nested", servers = 1,
      leases = 0.7, faults = { "late", "reset", "slow" } } }))
  end)

  it("a late acquire that nobody knows of", function()
    assert.is_true(finds("orphan", { seal = "off", only = {
      kind = "lock", owner = "none", style = "plain", servers = 1 } }))
  end)
end)
