--- The client on the simulated host, and planted faults that are found. All
--- seeds are fixed, so only a change of the code causes a new failure; `make
--- simulate` runs fresh ones. RLOCK_MORE is the CPU time, in seconds, for more
--- seeds on servers without failover.

local ctl = require "spec.cli.ctl"
local plant = require "spec.tools.plant"
local rows = require "spec.rows.simulated"
local world = require "spec.simulate.world"

local FIXED = 10                        -- seeds 1 to this
local FIRST = 1000                      -- of the further seeds
local MORE = tonumber(os.getenv "RLOCK_MORE" or 5)
local MOST = 20                         -- runs within which a fault is found

local calm = { only = { calm = true } }

teardown(ctl.clean)

-- The faults of a run, with the command that repeats it.
local function faults_of(seed, options)
  local faults = {}
  for i, fault in ipairs(world.simulate(seed, options).oracle.faults) do
    faults[i] = ("make simulate SEED=%d  # %s"):format(seed, fault.text)
  end
  return faults
end

-- Further seeds, for some seconds of processor time.
local function more(seconds)
  local seed, start = FIRST, os.clock()
  return function()
    seed = seed + 1
    return os.clock() - start < seconds and seed or nil
  end
end

-- Finds a fault of this sort in one of a few runs.
local function finds(simulate, what, options, first, most)
  options = setmetatable({ wanted = what }, { __index = options })
  for seed = first, first + (most or MOST) - 1 do
    if simulate(seed, options).oracle.reported[what] then return true end
  end
  return false
end

-- The same from several seeds, so that it does not depend on a lucky one.
local function finds_always(simulate, what, options, most)
  for _, first in ipairs { 1001, 20001 } do
    if not finds(simulate, what, options, first, most) then return false end
  end
  return true
end

-- A test for each row of spec/rows/simulated.lua.
local function find(list)
  for _, row in ipairs(list) do
    local what, module, text, faulty, reported, options, most =
      table.unpack(row, 1, 7)
    it(what, function()
      local function search()
        return finds_always(require("spec.simulate.world").simulate, reported,
          options, most)
      end
      assert.is_true(module and plant.during(module, text, faulty, search)
        or not module and search())
    end)
  end
end

describe("the simulated host", function()
  it("raises a cancellation in wait, and returns it in pause", function()
    require("spec.simulate.stage").play(function(self)
      local results = {}
      for _, name in ipairs { "wait", "pause" } do
        local event = self.host.event()
        local task = self.spawn(function()
          results[name] = table.pack(pcall(event[name], event, 10))
        end)
        self.sleep(0.1)
        task:cancel "enough"
        self.sleep(0.1)
      end
      assert.is_false(results.wait[1])
      assert.equal("enough", results.wait[2].why)
      assert.is_true(results.pause[1])
      assert.same({ "cancelled", "enough" },
        { results.pause[3], results.pause[4].why })
    end)
  end)
end)

describe("simulated clients", function()
  it("exclude each other", function()
    for seed = 1, FIXED do assert.same({}, faults_of(seed)) end
  end)

  -- `make simulate` does so with failovers, clusters and replicas, too.
  it("exclude each other with more seeds, on servers that stay #long",
    function()
    for seed in more(MORE) do
      assert.same({}, faults_of(seed, { only = {} }))
    end
  end)

  it("exclude each other where requests expire by the server's clock",
    function()
      for seed = 1, FIXED / 2 do
        assert.same({}, faults_of(seed, { seal = "time" }))
      end
    end)

  it("pass on wakes that they do not use", function()
    for seed = 1, FIXED / 2 do assert.same({}, faults_of(seed, calm)) end
  end)

  it("lock on, though a server's clock steps forward", function()
    for seed = 1, FIXED / 2 do
      assert.same({}, faults_of(seed, { seal = "time", only = rows.stepping }))
    end
  end)

  it("release what a cancelled request has extended", function()
    for _, seed in ipairs { 8000324, 8000634, 1795472000157 } do
      assert.same({}, faults_of(seed, calm))
    end
  end)

  it("find nothing where seeds found faults that are mended", function()
    for seed, kind in pairs {
      [1795590300039] = "sentinel", [1795591308036] = "replicas",
      [1795592308658] = "replicas", [1795592220464] = "cluster",
      [1795594075457] = "calm", [1795801386455] = "replicas",
      [1795801387434] = "replicas", [1795815986242] = "sentinel",
      [1795825679548] = "sentinel", [1795820872333] = "zookeeper",
      [1795827594136] = "zookeeper", [1795823851073] = "zookeeper",
      [1795823852254] = "zookeeper", [1795835657061] = "zookeeper",
      [1795823851557] = "calm", [1795823851816] = "calm",
      [1795823852257] = "calm", [1795830481334] = "calm",
      [1795838937571] = "calm", [1795840447374] = "cluster",
      [1795842065182] = "sentinel", [1795848584682] = "cluster",
    } do
      assert.same({}, faults_of(seed, { only = { [kind] = true } }))
    end
    for _, seed in ipairs { 1795823429192, 1795825681077, 1795825681106,
      1795835660277, 1795844934649 } do
      assert.same({}, faults_of(seed, {}))
    end
  end)

  it("enter and leave double barriers together", function()
    for seed = 1, FIXED / 2 do
      assert.same({}, faults_of(seed, { only = rows.barriers }))
    end
  end)

  it("elect one leader at a time", function()
    for seed = 1, FIXED / 2 do
      for _, where in ipairs { "calm", "cluster", "servers" } do
        assert.same({}, faults_of(seed, { only = { kind = "election",
          [where] = where ~= "servers" or 1 } }))
      end
    end
  end)

  it("follow failovers, though the Sentinels disagree for a while", function()
    for seed = 1, FIXED / 2 do
      assert.same({}, faults_of(seed, { only = { sentinel = true } }))
    end
  end)

  it("follow the slots of a cluster, and its failovers #long", function()
    for seed = 1, FIXED / 2 do
      assert.same({}, faults_of(seed, { only = { cluster = true } }))
    end
  end)

  it("leave no hold, where requests expire by a clock that is never set back",
    function()
      for _, seed in ipairs { 1795592220329, 1795593221300 } do
        assert.same({}, faults_of(seed, { only = { cluster = true } }))
      end
    end)

  -- The log of a run, without the last line, which has its speed.
  local function log_of(seed)
    local out = ctl.run { "spec/simulate/run.lua", "LOG=1", "SHRINK=0",
      "SEED=" .. seed, limit = 120 }.out
    return out:match("^(.*)\n[^\n]+\n$")
  end

  it("do the same again in another process #long", function()
    local log = log_of(7)
    assert.is_true(#log > 100000)
    assert.is_true(log == log_of(7))
  end)
end)

describe("without sealing, a simulation finds #long", function()
  find(rows.unsealed)

  it("nothing in the same latches that are sealed", function()
    for seed = 1, FIXED do
      assert.same({}, faults_of(seed, { seal = "kill", only = rows.latches }))
    end
  end)
end)

describe("a simulation finds #long", function() find(rows.planted) end)

describe("a reader that also writes", function()
  it("is excused if its release as the writer was lost", function()
    assert.same({}, faults_of(1406325694, { only = { replicas = true } }))
  end)
end)

-- One client dies with many waiters, and the next one comes much later.
local dying = { seconds = 10, only = {
  kind = "fair_read_write_lock", owner = "none", style = "plain",
  servers = 1, clients = 1, tasks = 21, every = 2.5, faults = { "kill" },
} }

describe("twenty dead waiters of a fair read/write lock", function()
  it("block it one after the other by the first rule of liveness #long",
    function()
    local module = "rlock.policy.fair_readwrite"
    local own = require(module)
    package.loaded[module] = require "spec.fixtures.dead_waiters"
    local ok, found = pcall(finds, world.simulate, "stuck", dying, FIRST)
    package.loaded[module] = own
    assert.is_true(ok and found, found)
  end)

  it("do not by the present rule", function()
    for seed = 1, FIXED do assert.same({}, faults_of(seed, dying)) end
  end)
end)
