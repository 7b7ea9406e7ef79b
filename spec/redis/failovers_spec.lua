--- Processes increment a number under a lock whose master fails over, in a
--- cluster and behind Sentinels. The number's store is another server, which
--- issues fencing tokens and so detects two holders at the same time. With
--- confirmation by replicas there are never two; otherwise, a loss is reported.
---
--- RLOCK_FAILOVERS is the number of failovers: 5; make soak has 100.
--- #long

local clusters = require "spec.tools.cluster"
local eventually = require "spec.tools.eventually"
local failovers = require "spec.tools.failovers"
local fixtures = require "spec.tools.fixtures"
local nodes = require "spec.tools.servers"
local program = require "spec.tools.program"
local rlock = require "rlock"
local sentinel = require "spec.tools.sentinel"
local slow = require "spec.tools.slow"

local FAILOVERS = tonumber(os.getenv("RLOCK_FAILOVERS") or 5)
local GRANTS = 1000                     -- between failovers
local TASKS, PROCESSES = 4, 2
local LEASE = 10 * slow
local NAME = "failovers:counter"
local SOON = 60 * slow

local cluster, set, store, processes

local function counter()
  return tonumber(store:ask(store[1], "GET", "counter")) or 0
end

local function start(replicas, url)
  for i = 1, PROCESSES do
    processes[i] = program.start(store[1], "spec/tools/count_fenced.lua",
      tostring(TASKS), tostring(LEASE), NAME, replicas, store[1].url,
      url)
  end
end

-- Stops the processes; returns the sums of what they have counted.
local function finish()
  store:ask(store[1], "SET", "stop", "1")
  local sum = { added = 0, stale = 0, overlaps = 0, late = 0 }
  for _, process in ipairs(processes) do
    assert.equal(0, process:wait(SOON), process:output())
    local result = process:output():match "added .*"
    for what, count in result:gmatch "(%a+) (%d+)" do
      sum[what] = sum[what] + tonumber(count)
    end
  end
  return sum
end

local function goes_on(grants)
  local before = counter()
  eventually(function() return counter() >= before + grants end, SOON,
    "the counting goes on")
end

-- Kills the lock's master. Its replica, frozen and disconnected during fn(),
-- takes over without what fn() has written.
local function forget_what(fn)
  local master = cluster:owner(NAME)
  local replica = failovers.replica_of(cluster, master)
  replica:pause()
  master:cli("CLIENT", "KILL", "TYPE", "replica")
  local result = fn()
  master:kill()
  replica:resume()
  failovers.is_owner(cluster, NAME, replica)
  return result
end

local function open(options)
  options.url, options.watchdog = cluster.url, 30 * slow
  return fixtures.open(options)
end

describe("a lock that the new master does not have", function()
  before_each(function()
    cluster = fixtures.cluster { masters = 3, replicas = 3 }
  end)
  after_each(fixtures.close)

  it("is reported to its holder long before a renewal", function()
    local mine = open { timeout = 1 * slow }:lock(NAME)
    local told
    forget_what(function()
      assert.is_true(mine:lock())
      mine:on_lost(function() told = rlock.now() end)
    end)
    assert.is_true(open({}):lock(NAME):lock { wait = SOON })
    local granted = rlock.now()
    eventually(function() return told end, 5 * slow, "the loss is told")
    print(("two holders for %.3f s"):format(math.max(0, told - granted)))
    assert.equal("lost", mine:state())
    assert.equal("lost", select(2, mine:unlock()))
  end)

  it("was not granted if replicas must confirm it", function()
    local mine = open { timeout = 1 * slow, replicas = "majority",
      replica_timeout = 0.2 }:lock(NAME)
    assert.is_true(mine:lock())
    assert.is_true(mine:unlock())
    local code = forget_what(function()
      return select(2, mine:try_lock())
    end)
    assert.equal("replicas", code)
  end)
end)

describe("a counter under a lock", function()
  before_each(function() store, processes = nodes.start(1), {} end)

  after_each(function()
    for _, process in ipairs(processes) do process:kill(9) end
    if cluster then cluster:stop() end
    if set then set:stop() end
    cluster, set = nil, nil
    store:stop()
  end)

  local function misses_nothing(url, fail)
    start("majority", url)
    for i = 1, FAILOVERS do
      goes_on(GRANTS)
      fail(i)
    end
    goes_on(GRANTS)
    local sum = finish()
    assert.equal(sum.added, counter())
    assert.equal(0, sum.overlaps)
    assert.equal(0, sum.stale)
  end

  it("misses no addition in a cluster if replicas confirm", function()
    cluster = clusters.start { masters = 3, replicas = 3 }
    misses_nothing(cluster.url, failovers.of_cluster(cluster, NAME))
  end)

  it("misses no addition behind Sentinels if replicas confirm", function()
    set = sentinel.start { sleep = rlock.sleep, can_split = true }
    misses_nothing(set.url, failovers.of_set(set))
  end)
end)
