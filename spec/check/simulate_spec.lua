--- The client on the simulated host, and faults that it must find. All seeds
--  are fixed, so a change of the code is the only reason for a new failure;
--  `make simulate` runs fresh ones. RLOCK_MORE is for how many seconds of
--  processor time more seeds run on servers that stay.

local ctl = require "spec.cli.ctl"
local plant = require "spec.tools.plant"
local world = require "spec.simulate.world"

local FIXED = 20                        -- seeds 1 to this
local FIRST = 1000                      -- of the further seeds
local MORE = tonumber(os.getenv "RLOCK_MORE" or 5)
local MINUTE = 60                       -- within which a bug must be found

local calm = { only = { calm = true } }

-- Steps of clocks end leases, but delay no waiter.
local stepping = { calm = true, every = 1,
  faults = { "cancel", "server's clock", "server's clock, forward", "slow" } }

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
local function more(seconds, first)
  local seed, start = first or FIRST, os.clock()
  return function()
    seed = seed + 1
    return os.clock() - start < seconds and seed or nil
  end
end

-- Runs until a fault of this sort is found.
local function finds(what, options, first)
  for seed in more(MINUTE, first) do
    for _, fault in ipairs(world.simulate(seed, options).oracle.faults) do
      if fault.what == what then return true end
    end
  end
  return false
end

-- The same from several seeds, so that it does not depend on a lucky one.
local function finds_always(what, options)
  for _, first in ipairs { 1000, 20000, 300000 } do
    if not finds(what, options, first) then return false end
  end
  return true
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
      assert.same({}, faults_of(seed, { seal = "time", only = stepping }))
    end
  end)

  it("release what a cancelled request has extended", function()
    for _, seed in ipairs { 8000324, 8000634, 1795472000157 } do
      assert.same({}, faults_of(seed, calm))
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

-- Calls fn while a module has another function.
local function with_function(module, name, other, fn)
  local its = require(module)
  local own = its[name]
  its[name] = other(own)
  local ok, result = pcall(fn)
  its[name] = own
  return assert(ok and result, result)
end

-- Calls fn while a module has another text.
local function with_text(module, text, faulty, fn)
  local its, own = require(module), {}
  for name, value in pairs(plant.module(module, text, faulty)) do
    own[name], its[name] = its[name], value
  end
  local ok, result = pcall(fn)
  for name, value in pairs(own) do its[name] = value end
  return assert(ok and result, result)
end

describe("a simulation finds #long", function()
  it("renewals that come too late to be retried", function()
    assert.is_true(with_function("rlock.lock.watchdog", "new", function(new)
      return function(session)
        local self = new(session)
        self.period = session.lease * 0.9
        return self
      end
    end, function() return finds("late renewal", calm) end))
  end)

  it("a place in a queue that is not given up", function()
    assert.is_true(with_function("rlock.lock.grant", "leave", function()
      return function() end
    end, function()
      return finds("delayed", { only = { calm = true, kind = "fair_lock" } })
    end))
  end)

  it("a wake that a waiter who gives up does not pass on", function()
    assert.is_true(with_text("rlock.lock.wakeup",
      "if waiter.is_woken and not got_it then wake_one(channel) end", "",
      function() return finds_always("delayed", calm) end))
  end)

  it("a Sentinel's older answer that is believed", function()
    assert.is_true(with_text("rlock.redis.sentinel",
      "if is < 0 then return false end", "", function()
        return finds_always("older master", { only = { sentinel = true } })
      end))
  end)

  it("a clock's offset that is used after requests have expired", function()
    assert.is_true(with_text("rlock.redis.remote",
      'if what == "clock" then expiry.forget(node) end', "", function()
        return finds_always("delayed", { seal = "time", only = stepping })
      end))
  end)

  it("an owner that a client remembers after its last request", function()
    assert.is_true(with_text("rlock.lock.requests",
      "      site.undone[name] = nil\n", "", function()
        return finds_always("leaked", calm)
      end))
  end)

  it("a drain that is executed twice", function()
    local drain = plant.module("rlock.policy.semaphore",
      'if is_done(slot, number) then\n    return { "held", tonumber('
        .. 'redis.call("get", drained) or 0) }\n  end', "")
    assert.is_true(with_policy("semaphore", drain, function()
      return finds_always("miscounted", { only = { counter = "semaphore",
        servers = 1, drains = 0.5 } })
    end))
  end)

  it("a hold without its end", function()
    assert.is_true(with_function("rlock.session", "valid_until", function()
      return function(sent, seconds) return sent + seconds * 1.1 end
    end, function() return finds("believed", calm) end))
  end)

  it("a connection that is used before its predecessor is sealed", function()
    assert.is_true(with_function("rlock.redis.seal", "lost", function()
      return function() end
    end, function()
      return finds("unsealed", { seal = "kill", only = { servers = 1 } })
    end))
  end)

  it("an operation that no replica has confirmed", function()
    assert.is_true(with_function("rlock.redis.replicas", "must_confirm",
      function() return function() return false end end,
      function() return finds("believed", { only = { replicas = true } }) end))
  end)
end)

-- A read/write lock that lets a reader write.
local function with_upgrades()
  local file <close> = assert(io.open("lua/rlock/policy/readwrite.lua"))
  local text, count = file:read("a"):gsub('return { "refused", UPGRADE }',
    'redis.call("hset", lock, "mode", "write", field, want)\n'
      .. '    return { "held" }')
  assert.equal(1, count)
  return assert(load(text))()
end

describe("a reader that also writes", function()
  local only = { replicas = true, kind = "read_write_lock", style = "both" }

  it("is found, though servers fail over", function()
    assert.is_true(with_policy("readwrite", with_upgrades(), function()
      return finds("upgraded", { only = only })
    end))
  end)

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
    assert.is_true(with_policy("fair_readwrite",
      require "spec.fixtures.dead_waiters",
      function() return finds("stuck", dying) end))
  end)

  it("do not by the present rule", function()
    for seed = 1, FIXED do assert.same({}, faults_of(seed, dying)) end
  end)
end)
