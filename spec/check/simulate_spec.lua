--- The client on the simulated host: fixed seeds, fresh ones, and faults that
--  must be found with fresh ones. RLOCK_FRESH is for how many seconds of
--  processor time fresh seeds run; `make simulate` runs more.

local ctl = require "spec.cli.ctl"
local world = require "spec.simulate.world"

local FIXED = 20                        -- seeds 1 to this
local FRESH = tonumber(os.getenv "RLOCK_FRESH" or 5)
local MINUTE = 60                       -- within which a bug must be found

teardown(ctl.clean)

-- The faults of a run, with the command that repeats it.
local function faults_of(seed, options)
  local faults = {}
  for i, fault in ipairs(world.simulate(seed, options).oracle.faults) do
    faults[i] = ("make simulate SEED=%d  # %s"):format(seed, fault.text)
  end
  return faults
end

-- Fresh seeds, for some seconds of processor time.
local function fresh(seconds)
  local seed, start = os.time() * 1000, os.clock()
  return function()
    seed = seed + 1
    return os.clock() - start < seconds and seed or nil
  end
end

-- Runs until a fault of this sort is found.
local function finds(what, options)
  for seed in fresh(MINUTE) do
    for _, fault in ipairs(world.simulate(seed, options).oracle.faults) do
      if fault.what == what then return true end
    end
  end
  return false
end

-- Calls fn while another policy has the place of a built-in one.
local function with_policy(name, other, fn)
  local module = "rlock.policy." .. name
  local own = require(module)
  package.loaded[module] = other
  local ok, result = pcall(fn)
  package.loaded[module] = own
  return assert(ok and result, result)
end

describe("simulated clients", function()
  it("exclude each other", function()
    for seed = 1, FIXED do assert.same({}, faults_of(seed)) end
  end)

  it("exclude each other with fresh seeds", function()
    for seed in fresh(FRESH) do assert.same({}, faults_of(seed)) end
  end)

  it("exclude each other where requests expire by the server's clock",
    function()
      for seed = 1, FIXED / 2 do
        assert.same({}, faults_of(seed, { seal = "time" }))
      end
    end)

  it("follow failovers, though the Sentinels disagree for a while", function()
    for seed = 1, FIXED / 2 do
      assert.same({}, faults_of(seed, { only = { sentinel = true } }))
    end
  end)

  it("follow the slots of a cluster, and its failovers", function()
    for seed = 1, FIXED / 2 do
      assert.same({}, faults_of(seed, { only = { cluster = true } }))
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

  it("a late acquire of a permit that nobody knows of", function()
    assert.is_true(finds("orphan", { seal = "off", only = {
      counter = "permits", servers = 1 } }))
  end)

  -- A cycle must last long enough for a late request to find the next one.
  local latches = { counter = "latch", servers = 1, clients = 2, pause = 0.3,
    every = 1, faults = { "late", "slow" } }

  it("a late count_down or delete that hits the next latch", function()
    assert.is_true(finds("counted twice", { seal = "off", only = latches }))
  end)

  it("nothing in the same latches that are sealed", function()
    for seed = 1, FIXED do
      assert.same({}, faults_of(seed, { seal = "kill", only = latches }))
    end
  end)
end)

-- One client dies with many waiters, and the next one comes much later.
local dying = { seconds = 10, only = {
  kind = "fair_read_write_lock", owner = "none", style = "plain",
  servers = 1, clients = 1, tasks = 21, every = 2.5, faults = { "kill" },
} }

describe("twenty dead waiters of a fair read/write lock", function()
  it("block it one after the other by the first rule of liveness", function()
    assert.is_true(with_policy("fair_readwrite",
      require "spec.fixtures.dead_waiters",
      function() return finds("stuck", dying) end))
  end)

  it("do not by the present rule", function()
    for seed = 1, FIXED do assert.same({}, faults_of(seed, dying)) end
  end)
end)
