--- The simulator itself: what its servers do, and what its oracles report.

local clusters = require "rlockctl.simulate.cluster"
local faults = require "spec.simulate.faults"
local network = require "rlockctl.simulate.network"
local oracle = require "spec.simulate.oracle"
local sentinels = require "rlockctl.simulate.sentinels"
local shrink = require "rlockctl.simulate.shrink"
local sim = require "rlockctl.model.host"
local world = require "spec.simulate.world"

-- A network with servers, and a process.
local function scene(count)
  local universe = sim.new(1)
  local self = { universe = universe, network = network.new(universe),
    servers = {} }
  for i = 1, count do
    self.servers[i] = self.network:server("redis" .. i)
  end
  self.host = universe:host { name = "client1" }
  return self
end

-- A connection to a server at an address.
local function connect(self, address)
  return assert(self.host.connect { host = address, port = 6379,
    timeout = 1000, handshake = {} })
end

-- Sends SET key `value` as a task; the reply is added to `replies`.
local function set(self, connection, value, replies)
  self.host.daemon(function()
    local reply, _, detail = connection:send(0, { "SET", "key", value }, 3)
    replies[#replies + 1] = value .. " " .. tostring(reply or detail)
  end)
end

--- Sends commands one after the other.
---@return table # the replies, or what was wrong
local function replies_to(self, commands)
  local replies = {}
  self.host.daemon(function()
    local connection = connect(self, "redis1")
    for _, words in ipairs(commands) do
      local reply, _, detail = connection:send(0, words, #words)
      replies[#replies + 1] = reply == nil and detail or reply
    end
  end)
  self.universe:run(self.universe.now + 10)
  return replies
end

describe("what a program calls", function()
  it("has the same replies as with a real server", function()
    local self = scene(1)
    assert.same({ "OK", math.maxinteger, math.mininteger, -1, "0.5",
      { false, { err = "MY fault" } } },
      replies_to(self, { { "SET", "n", math.maxinteger - 1 }, { "INCR", "n" },
        { "EVAL", "return math.pow(-2, 63)", 0 },
        { "DECRBY", "m", 1 }, { "ECHO", 0.5 },
        { "EVAL", "return { false, redis.error_reply('MY fault') }", 0 } }))
    assert.equal("9223372036854775807",
      self.servers[1].redis:entry("n").value)
  end)

  it("is random, but the same with the same seed", function()
    local function choices()
      local commands = { { "SADD", "t", "a", "b", "c", "d", "e", "f", "g" } }
      for i = 2, 9 do commands[i] = { "SRANDMEMBER", "t" } end
      return replies_to(scene(1), commands)
    end
    local first = choices()
    assert.same(first, choices())
    assert.is_true(#table.concat(first, "", 2):gsub(first[2], "") > 0)
  end)

  it("may be a script, which the server remembers", function()
    local self = scene(1)
    local sha = replies_to(self, { { "SCRIPT", "LOAD", "return ARGV[1]" } })[1]
    assert.same({ "a", { 1, 0 }, "OK", "NOSCRIPT No matching script.",
      "ERR Number of keys can't be greater than number of args",
      "ERR value is not an integer or out of range",
      "ERR wrong number of arguments for 'evalsha' command",
      "ERR wrong number of arguments for 'script|load' command" },
      replies_to(self, { { "EVALSHA", sha, 0, "a" },
        { "SCRIPT", "EXISTS", sha, "0" }, { "SCRIPT", "FLUSH" },
        { "EVALSHA", sha, 0 }, { "EVAL", "return 1", 1 },
        { "EVAL", "return 1", "x" }, { "EVALSHA", sha },
        { "SCRIPT", "LOAD" } }))
    assert.same({ sha, "ERR value is not an integer or out of range",
      "ERR Number of keys can't be negative" },
      replies_to(self, { { "SCRIPT", "LOAD", "return ARGV[1]" },
        { "EVALSHA", sha, "x" }, { "EVALSHA", sha, -1 } }))
  end)

  for what, words in pairs {
    ["command GEOADD"] = { "GEOADD", "g", 1, 1, "x" },
    ["command CLIENT LIST"] = { "client", "list" },
    ["command SCRIPT KILL"] = { "SCRIPT", "KILL" },
    ["command INFO memory"] = { "INFO", "memory" },
    ["command COMMAND COUNT"] = { "COMMAND", "COUNT", "x" },
    ["XREAD with BLOCK"] = { "XREAD", "BLOCK", 1, "STREAMS", "x", "$" },
    ["redis.sha1hex"] = { "EVAL", "return redis.sha1hex('x')", 0 },
  } do
    it("is named if the model lacks it: " .. what, function()
      local self, lacked = scene(1), nil
      function self.network.on_lack(link, its)
        lacked = link.host.label .. ": " .. its
      end
      assert.same({ "PONG" }, replies_to(self, { { "PING" }, words }))
      assert.equal("client1: " .. what, lacked)
      self.network.on_lack = nil
      assert.has_error(function() replies_to(self, { words }) end,
        "the model of Redis has no " .. what)
    end)
  end
end)

describe("a frozen server", function()
  it("executes in order what it gets, also after a failover", function()
    local self, replies = scene(2), {}
    local cluster = clusters.new(self.network, self.servers)
    local master = self.servers[1]
    self.host.daemon(function()
      local connection = connect(self, "redis1")
      cluster:fail_over(master, { is_new = true, freezes = 0, splits = 0 })
      master.spare:freeze(5)
      set(self, connection, "1", replies)
      self.host.sleep(1)
      cluster:fail_over(master, { freezes = 0, splits = 0 })
      set(self, connection, "2", replies)
    end)
    self.universe:run(10)
    assert.same({ "1 OK", "2 OK" }, replies)
    assert.equal("2", master.redis:entry("key").value)
  end)

  it("goes on as a replica at once, if a failover does not freeze it",
    function()
      local self, replies = scene(1), {}
      sentinels.add(self.network, self.servers)
      local master = self.servers[1]
      self.host.daemon(function()
        local connection = connect(self, "redis1")
        master:freeze(5)
        set(self, connection, "1", replies)
        self.host.sleep(1)
        sentinels.fail_over(self.network, master, false, -1,
          self.universe.random)
      end)
      self.universe:run(2)
      assert.match("^1 READONLY", replies[1])
    end)
end)

describe("a connection that is half open for a moment", function()
  it("ends all its requests, also if a reply was lost meanwhile", function()
    local self, replies = scene(1), {}
    self.host.daemon(function()
      local connection = connect(self, "redis1")
      for i = 1, 2 do                   -- whose replies come after 1 s and 2 s
        connection.link:hold("back", i)
        set(self, connection, tostring(i), replies)
        self.host.sleep(0.01)
      end
      self.host.sleep(0.5)
      connection.link:half_open(1)
    end)
    self.universe:run(5)
    assert.same({ "1 connection reset", "2 connection reset" }, replies)
  end)
end)

describe("the end of a split", function()
  it("is not brought forward by somebody who breaks the lock", function()
    local universe = sim.new(1)
    local self = setmetatable({ universe = universe, lease = 2,
      oracle = oracle.new(universe) }, world)
    local thing, link = { key = "name", holders = {} }, { host = {} }
    local server = { heard = {}, back = {} }
    self.things, self.by_key, self.waited = { thing }, {}, {}
    oracle.doubt(thing, 3)
    universe:run(1)
    self:executed(server, link, "-- rlock reentrant.break_", { "name" }, {},
      { "freed" })
    assert.equal(3, thing.lost_at)
    universe:run(4)
    self:executed(server, link, "-- rlock reentrant.break_", { "name" }, {},
      { "freed" })
    assert.equal(4, thing.lost_at)
  end)
end)

-- Runs seeds with these faults, and finds nothing.
local function finds_nothing(seeds, only, seconds, plan)
  for _, seed in ipairs(seeds) do
    local found = world.simulate(seed, { only = only, seconds = seconds,
      plan = plan }).oracle.faults[1]
    assert.is_nil(found, found and ("seed %d: %s"):format(seed, found.text))
  end
end

-- The number b of a failover in a cluster, see faults.lua: two masters for
-- three seconds; an older copy that is promoted.
local SPLITS, LAGS = 0.07211, 0.00013

describe("the oracles", function()
  it("count the permits of killed tasks", function()
    local kills = {}
    for i = 1, 9 do kills[i] = { i / 2, "kill", 0.4, 0, 0.05 } end
    finds_nothing({ 2, 3 }, { counter = "semaphore", clients = 2,
      servers = 1 }, 5, kills)
  end)

  it("know that two masters count the same latch down", function()
    local plan = { { 1, "failover in the cluster", 0, SPLITS, 0 } }
    for i = 1, 9 do                     -- so that it gets other names
      plan[i + 1] = { 1 + i * 0.3, "restart, empty", i % 2 * 0.25 + 0.3, 0,
        0.1 }
    end
    finds_nothing({ 9, 10 }, { cluster = true, counter = "latch", clients = 3,
      servers = 1 }, 4, plan)
  end)

  it("see no loss of data after the faults", function()
    finds_nothing({ 3, 6 }, { cluster = true, kind = "lock", servers = 1 }, 5,
      { { 1, "save", 0, 0, 0 },
        { 4.9, "failover in the cluster", 0, LAGS, 0.475 } })
  end)

  it("set back no clock by which requests expire", function()
    local function is_set_back(seal, fields)
      local self = scene(1)
      local server = self.servers[1]
      for name, value in pairs(fields or {}) do server[name] = value end
      local before = server:clock()
      faults.inject({ seal = seal, network = self.network, things = {},
        servers = self.servers }, { 0, "server's clock, back", 0, 0, 0.5 })
      return server:clock() < before
    end
    assert.is_true(is_set_back("kill"))
    assert.is_false(is_set_back("time"))
    assert.is_false(is_set_back("kill", { refuses_kill = true }))
    assert.is_false(is_set_back("kill", { hides_run_id = true }))
  end)

  it("excuse places that a client out of reach could not leave", function()
    finds_nothing({ 19, 25, 36 }, { kind = "fair_read_write_lock", clients = 1,
      servers = 1, style = "plain", leases = 0 }, 4,
      { { 1.2, "partition", 0, 0, 0.93 }, { 3.8, "stall", 0, 0, 0.5 } })
  end)

  it("know that a replica has again what was evicted", function()
    local self = scene(1)
    sentinels.add(self.network, self.servers)
    local server = self.servers[1]
    local thing = { use = "lock", key = "name", servers = self.servers,
      holders = {}, users = {}, generations = {} }
    local found = setmetatable({ universe = self.universe, lease = 2,
      servers = self.servers, things = { thing }, network = self.network,
      oracle = oracle.new(self.universe) }, world)
    self.host.process = {}
    local holder = { thing = thing, label = "A", host = self.host, n = 1,
      owner = "A", tells_time = true, valid_for = function() return 1 end }
    server.redis:call { "SET", "name", "A" }
    found.oracle:granted(holder)
    for _, kind in ipairs { "replica lags", "evict",
      "failover to a replica" } do
      faults.inject(found, { 0, kind, 0, 0, 0.5 })
      assert.equal(kind == "evict", server.redis.entries.name == nil)
    end
    self.universe:run(5)                -- when it should know of a loss
    found.oracle:ending(holder)
    found.oracle:ended(holder, true, 0)
    assert.same({}, found.oracle.faults)
  end)
end)

describe("a connection that is lost", function()
  -- What is reported if further operations follow on another connection, while
  -- the first one, of this owner, has no answer. "release 2" has another lock.
  local function reported(replicas, operations)
    local self, reports = scene(1), {}
    local server, seals = self.servers[1], { mode = "kill" }
    server.replicas = replicas
    function self.universe.report(_, what) table.insert(reports, what) end
    self.host.daemon(function()
      local connections = {}
      for i = 1, 2 do
        connections[i] = assert(self.host.connect { host = "redis1",
          port = 6379, timeout = 1000, handshake = {}, seals = seals })
      end
      for i, operation in ipairs(operations) do
        self.network.texts[operation] = "-- rlock fair." .. operation
          .. "\nreturn 1"
        self.host.daemon(function()
          connections[i > 1 and 2 or 1]:send(0,
            { "EVALSHA", operation, "1", "lock" .. operation:match "%d*$",
              "owner" }, 5)
        end)
        self.host.sleep(0)
        if i == 1 then connections[1]:close() end
      end
    end)
    self.universe:run(1)
    return reports
  end

  it("must be sealed before its owner's next operation", function()
    assert.same({ "unsealed" }, reported(1, { "acquire", "release" }))
  end)

  it("need not be sealed before another lock's operation, if it was dedicated",
    function()
      assert.same({}, reported(1, { "acquire", "release 2" }))
      assert.same({ "unsealed" }, reported(nil, { "acquire", "release 2" }))
    end)

  it("need not be sealed if it only read, and was dedicated", function()
    assert.same({}, reported(1, { "peek", "release" }))
  end)

  it("need not be sealed before what only reads, if dedicated", function()
    assert.same({}, reported(1, { "acquire", "peek", "count" }))
    assert.same({ "unsealed" }, reported(nil, { "acquire", "peek" }))
  end)
end)

describe("a loss of data", function()
  -- Has a holder lost it for certain?
  local function is_gone(split)
    local self = scene(2)
    local thing = { key = "name", holders = { { tells_time = true,
      owner = "owner" } } }
    self.servers[2].redis:call { "HSET", "name", "owner", "1" }
    oracle.new(self.universe):lost(thing, 2, split and self.servers[2])
    return thing.holders[1].is_gone == true
  end

  it("ends a hold, unless the old master in a split has it", function()
    assert.is_true(is_gone(false))
    assert.is_false(is_gone(true))
  end)
end)

describe("the order of fencing tokens", function()
  -- The faults if these owners are given these tokens, one after the other. The
  -- servers give the first two at 1 s and 2 s.
  local function faults_of(lost_at, ...)
    local judge = oracle.new(sim.new(1))
    local thing = { name = "name", holders = {}, users = {}, lost_at = lost_at,
      tokens = { [10] = { owner = "a", at = 1 }, [11] = { owner = "b", at = 2 },
    } }
    for i, pair in ipairs { ... } do
      local holder = { thing = thing, party = pair[1], owner = pair[1],
        token = pair[2], executed = i + 1, host = {},
        valid_for = function() return 1 end }
      judge:granted(holder)
      judge:ending(holder)
    end
    return #judge.faults
  end

  it("may be broken only by what an owner had before a loss", function()
    local a, b = { "a", 10 }, { "b", 11 }
    assert.equal(0, faults_of(nil, a, a, b, b))
    assert.equal(1, faults_of(nil, a, b, a))
    assert.equal(0, faults_of(1.5, a, b, a))    -- the release of a was lost
    assert.equal(1, faults_of(1.5, a, b, { "c", 10 }))
    assert.equal(1, faults_of(1.5, a, b, { "c", 9 }))
  end)
end)

describe("shrinking a plan", function()
  -- Shrinks the events 1 to 16. The fault needs 3 and 11.
  local function shrunk(most)
    local ran, plan = 0, {}
    for i = 1, 16 do plan[i] = i end
    local function fails(part)
      local has = {}
      for _, event in ipairs(part) do has[event] = true end
      ran = ran + 1
      return has[3] and has[11]
    end
    local few, runs, is_early = shrink.plan(plan, fails, most)
    assert.equal(ran, runs)
    return few, runs, is_early
  end

  it("ends with the few events that are needed", function()
    local few, _, is_early = shrunk()
    assert.same({ 3, 11 }, few)
    assert.is_false(is_early)
  end)

  it("ends early after some runs or seconds, and says so", function()
    local few, runs, is_early = shrunk { runs = 5 }
    assert.equal(5, runs)
    assert.is_true(is_early)
    assert.is_true(#few > 2 and #few < 16)
    few, runs, is_early = shrunk { seconds = 0 }
    assert.same({ 16, 0, true }, { #few, runs, is_early })
  end)
end)
