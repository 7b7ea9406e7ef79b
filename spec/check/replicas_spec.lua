--- Confirmation by replicas ends within the deadline of the request. WAIT is
--- simulated: it returns at once if the replica is there, otherwise when the
--- replica comes back or the time of WAIT is over. Redis looks for the latter
--- ten times a second, so it ends late, here as late as possible.

local rlock_client = require "rlock.client"
local sentinels = require "rlockctl.simulate.sentinels"
local stage = require "spec.simulate.stage"

local LATE = 0.1

-- Adds WAIT to a server whose only replica is away between two times.
local function add_replica(self)
  local execute = self.server.execute
  self.leaves, self.returns = math.huge, 0
  function self.server.execute(its, link, words)
    if words[1] ~= "WAIT" then return execute(its, link, words) end
    local now, ms = self.now(), assert(tonumber(words[3]))
    assert(ms >= 1, "0 is forever")
    if now < self.leaves or now >= self.returns then return 1 end
    local ends = now + ms / 1000 + LATE
    local silence = self.wait_is_silent and math.huge or ends
    link:hold("back", math.min(silence, self.returns, 1000) - now)
    return ends < self.returns and 0 or 1
  end
end

local function replica_is_away(self, from, to)
  self.leaves, self.returns = from, to
end

-- What the server replies to INFO replication from now on.
local function describe_replicas(self, reply)
  local execute = self.server.execute
  function self.server.execute(its, link, words)
    if words[1] == "INFO" and words[2] == "replication" then return reply end
    return execute(its, link, words)
  end
end

local play = stage.tests(it)

local function on_stage(name, fn, options)
  play(name, function(self)
    add_replica(self)
    fn(self, self:client(options))
  end)
end

-- What fails with "replicas", and takes no longer than this.
local function fails_within(self, seconds, fn, ...)
  local began = self.now()
  local ok, code, detail = fn(...)
  assert.is_nil(ok)
  assert.equal("replicas", code)
  assert.match("^0 of 1 replicas in [%d.]+ s$", detail)
  assert.is_true(self.now() - began <= seconds, self.now() - began)
end

on_stage("a guarded command that was refused is not reported as executed",
  function(self, client)
    local lock = client:lock "lock"
    assert(lock:lock())
    assert.equal(0, lock:call("DEL", "value"))
    replica_is_away(self, self.now(), math.huge)
    self.server.redis.entries.lock = nil
    local ok, code = lock:call("DEL", "value")
    assert.same({ nil, "lost" }, { ok, code })
  end, { replicas = 1, replica_timeout = 1, timeout = 4 })

for _, seconds in ipairs { 1, 1.5, 2 } do
  local options = { replicas = 1, replica_timeout = seconds, timeout = 4 }

  on_stage(("a wait is not exceeded by %g s for replicas"):format(seconds),
    function(self, client)
      local lock, fair = client:lock "lock", client:fair_lock "fair"
      local permits = client:permits "permits"
      local semaphore = client:semaphore "semaphore"
      local brief = { wait = 0.5 }
      assert.is_true(permits:set(1))
      assert.is_true(semaphore:set(1))
      replica_is_away(self, 0, math.huge)
      fails_within(self, 0.5, lock.lock, lock, brief)
      fails_within(self, 0.5, lock.try_lock, lock, brief)
      fails_within(self, 0.5, lock.hold, lock, brief)
      fails_within(self, 0.5, fair.lock, fair, brief)
      fails_within(self, 0.5, permits.acquire, permits, brief)
      fails_within(self, 0.5, semaphore.acquire, semaphore, brief)
    end, options)

  on_stage(("a single attempt is not extended by %g s for replicas"):format(
    seconds), function(self, client)
      local lock, latch = client:lock "lock", client:latch "latch"
      replica_is_away(self, 0, math.huge)
      fails_within(self, 4, lock.try_lock, lock)
      fails_within(self, 4, latch.set, latch, 1)
    end, options)
end

for _, wanted in ipairs { "all", "majority" } do
  on_stage(wanted .. " grants nothing if the replicas cannot be counted",
    function(self, client)
      describe_replicas(self,
        { err = "NOPERM this user has no permissions to run INFO" })
      local ok, code, detail = client:lock("lock"):lock { wait = 0.5 }
      assert.same({ nil, "redis" }, { ok, code })
      assert.match("NOPERM.*give a number instead", detail)
    end, { replicas = wanted })

  on_stage(wanted .. " grants nothing until the replicas have been counted",
    function(self, client)
      local lock = client:lock "lock"
      describe_replicas(self, { err = "LOADING it loads" })
      for _ = 1, 3 do
        assert.is_nil((lock:lock { wait = 0.3 }))
        self.sleep(1)
      end
      describe_replicas(self, "role:master\r\nconnected_slaves:2\r\n")
      local ok, code = lock:lock { wait = 0.3 }
      if wanted == "majority" then return assert.is_true(ok) end
      assert.same({ nil, "replicas" }, { ok, code })    -- one of two
    end, { replicas = wanted })
end

for _, wanted in ipairs { "all", "majority" } do
  on_stage(wanted .. " takes no absurd number of replicas for their count",
    function(self, client)
      describe_replicas(self, "connected_slaves:99999999999999999999999\r\n")
      local ok, code, detail = client:lock("lock"):lock { wait = 0.5 }
      assert.same({ nil, "redis" }, { ok, code })
      assert.match("no connected_slaves in INFO", detail)
    end, { replicas = wanted })
end

for _, reply in ipairs { "0.5", "1e999", false, { 1.0 } } do
  on_stage("a reply to WAIT that is a " .. type(reply) .. " (" ..
    tostring(reply):match "^[^:]*" .. ") is no confirmation",
    function(self, client)
      local execute = self.server.execute
      function self.server.execute(its, link, words)
        if words[1] == "WAIT" then return reply end
        return execute(its, link, words)
      end
      local ok, code, detail = client:lock("lock"):lock { wait = 0.5 }
      assert.same({ nil, "replicas" }, { ok, code })
      assert.equal("none: the reply to WAIT is no number", detail)
    end, { replicas = 1 })
end

on_stage("a short wait does not cut the others short", function(self, client)
  local results, name = {}, { owner = "me" }
  local locks = { client:lock("lock1", name), client:lock("lock2", name) }
  assert.is_true(locks[1]:lock())
  assert.is_true(locks[1]:unlock())
  replica_is_away(self, 0, 0.8)
  for i, wait in ipairs { 0.5, 5 } do     -- in one pipeline, with one WAIT
    self.spawn(function()
      local ok, code = locks[i]:lock { wait = wait }
      results[i] = ("%s %.1f"):format(ok or code, self.now())
    end)
  end
  self.sleep(2)
  assert.same({ "replicas 0.5", "true 0.8" }, results)
end, { replicas = 1, timeout = 4 })

on_stage("a silent WAIT is not taken for a script that runs too long",
  function(self, client)
    local lock = client:lock "lock"
    replica_is_away(self, 0, math.huge)
    self.wait_is_silent = true
    local ok, code, detail = lock:lock { wait = 0.5 }
    assert.same({ nil, "replicas" }, { ok, code })
    assert.equal("fewer than 1 replicas confirmed it in time", detail)
    assert.near(0.5, self.now(), 0.001)
  end, { replicas = 1, timeout = 4 })

on_stage("a request behind others that replicas do not confirm says so",
  function(self, client)
    local results, name = {}, { owner = "me" }
    local locks = { client:lock("lock1", name), client:lock("lock2", name) }
    replica_is_away(self, 0, math.huge)
    for i, wait in ipairs { 3, 0.5 } do
      self.spawn(function()
        local _, code = locks[i]:lock { wait = wait }
        results[i] = code
      end)
      self.sleep(0.1)
    end
    self.sleep(4)
    assert.same({ "replicas", "replicas" }, results)
  end, { replicas = 1, timeout = 4 })

-- Two locks of one owner, so of one dedicated connection. Their scripts are
-- loaded.
local function of_one_owner(client)
  local name = { owner = "me" }
  local locks = { client:lock("lock1", name), client:lock("lock2", name) }
  assert.is_true(locks[1]:lock() and locks[1]:unlock())
  local _, dedicated = next(client.session.server.node.dedicated)
  return locks[1], locks[2], dedicated
end

-- From now on, the server cannot be reached, and the node knows it.
local function fail_to_connect(self, client)
  self:route().refuses_until = math.huge
  client.session.server.node.connection.link:lose "connection reset"
  assert.equal("connect", select(2, client:call("PING")))
end

on_stage("a request that waits for a connection is told why there is none",
  function(self, client)
    local first, second, dedicated = of_one_owner(client)
    dedicated:leave()
    self.server:freeze(10)
    local failures = {}
    for i, lock in ipairs { first, second } do
      self.spawn(function()
        local _, code, detail = lock:lock { wait = 1 }
        failures[i] = ("%s %s"):format(code, detail)
      end)
    end
    self.sleep(0.1)
    fail_to_connect(self, client)
    self.sleep(2)
    local refused = "connect redis1: connection refused"
    assert.same({ refused, refused }, failures)
  end, { replicas = 1, timeout = 4 })

on_stage("a dedicated connection that is left is sealed before the next one",
  function(self, client)
    local lock, _, dedicated = of_one_owner(client)
    local seals = client.session.server.node.seals
    local left = dedicated.connection.identity
    dedicated:leave()
    assert.same({ left }, seals.pending)
    assert.is_true(lock:lock())
    assert.same({}, seals.pending)
  end, { replicas = 1, timeout = 4 })

on_stage("a request that was sent may be executed, whatever has failed since",
  function(self, client)
    local first, second = of_one_owner(client)
    local codes = {}
    self.server:freeze(10)
    for i, lock in ipairs { first, second } do     -- in one pipeline
      self.spawn(function()
        codes[i] = select(2, lock:lock { wait = i == 1 and 0.5 or 3 })
      end)
    end
    self.sleep(0.1)
    fail_to_connect(self, client)
    self.sleep(1)
    assert.same({ "timeout" }, codes)
  end, { replicas = 1, timeout = 4 })

on_stage("a request whose time ends before there is a connection is not sent",
  function(self, client)
    local lock, _, dedicated = of_one_owner(client)
    dedicated:leave()
    self:calls()
    self.server:freeze(1)
    assert.is_nil((lock:lock { wait = 0.5 }))
    self.sleep(2)
    assert.is_not_nil(dedicated.connection)
    assert.same({}, self:calls "acquire")
  end, { replicas = 1, timeout = 4 })

on_stage("a server that does not answer is not taken for missing replicas",
  function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    self.server:freeze(10)
    local _, code = lock:lock { wait = 0.5 }
    assert.equal("timeout", code)
  end, { replicas = 1, timeout = 4 })

on_stage("a command is not known to be executed if its connection is lost",
  function(self, client)
    local lock, _, dedicated = of_one_owner(client)
    assert.is_true(lock:lock())
    replica_is_away(self, self.now(), math.huge)
    self.spawn(function()
      self.sleep(0.5)
      dedicated.connection.link:lose "connection reset"
    end)
    local ok, code, detail = lock:call("SET", "value", "1")
    assert.same({ nil, "timeout" }, { ok, code })
    assert.match("^connection reset.*its outcome is unknown", detail)
  end, { replicas = 1, timeout = 4 })

on_stage("a renewal is confirmed within its period, or retried in time",
  function(self, client)
    local lock, lost = client:lock "lock", nil
    assert.is_true(lock:lock())
    lock:on_lost(function(_, why) lost = why end)
    replica_is_away(self, 1, 5)
    self.sleep(3.9)
    assert.equal("at_risk", lock:state())
    self.sleep(3)
    assert.is_nil(lost)
    assert.equal("held", lock:state())
  end, { replicas = 1, replica_timeout = 2, watchdog = 6, timeout = 4 })

on_stage("a renewal that is not confirmed in time is lost in time",
  function(self, client)
    local lock, lost_at = client:lock "lock", nil
    assert.is_true(lock:lock())
    lock:on_lost(function() lost_at = self.now() end)
    replica_is_away(self, 1, math.huge)
    self.sleep(10)
    assert.near(6 * 0.999, lost_at, 0.01)
  end, { replicas = 1, replica_timeout = 2, watchdog = 6, timeout = 4 })

-- Two requests of one dedicated connection: the first is in flight, with a
-- pipeline of `fn`. Both must succeed within a second.
local function survives(self, fn)
  local client = self:client { replicas = 1 }
  local name, took = { owner = "me" }, {}
  local locks = { client:lock("lock1", name), client:lock("lock2", name) }
  assert.is_true(locks[1]:lock())
  assert.is_true(locks[1]:unlock())
  local _, dedicated = next(client.session.server.node.dedicated)
  local connection = dedicated.connection
  function connection.pipeline()
    connection.pipeline = nil
    self.sleep(0.1)
    fn(dedicated)
  end
  for i, lock in ipairs(locks) do      -- the second one is queued meanwhile
    self.spawn(function()
      local began = self.now()
      assert.is_true(lock:lock { wait = 3 })
      took[i] = self.now() - began
    end)
    self.sleep(0.05)
  end
  self.sleep(5)
  assert.is_true(took[1] and took[1] < 1, took[1])
  assert.is_true(took[2] and took[2] < 1, took[2])
end

on_stage("a dedicated connection goes on after an error in its task",
  function(self)
  survives(self, function() error "a fault" end)
  assert.match("a fault", table.remove(self.host.faults))
end)

on_stage("a dedicated connection goes on after its task was killed",
  function(self)
  local client = self:client { replicas = 1 }
  local lock = client:lock "lock"
  assert.is_true(lock:lock())
  assert.is_true(lock:unlock())
  for _, dedicated in pairs(client.session.server.node.dedicated) do
    dedicated.is_serving, dedicated.task = true, { over = true }
  end
  assert.is_true(lock:lock())
end)

on_stage("keeps no dedicated connection that is lost while it is opened",
  function(self, client)
    local lock = client:lock "lock"
    assert.is_false(lock:is_locked())    -- needs no dedicated connection
    local node, opened = client.session.server.node, 0
    local open = node.open
    function node.open(its, lost, ...)
      local connection = open(its, lost, ...)
      opened = opened + 1
      if opened == 1 then
        connection:close()
        lost "connection reset"
      end
      return connection
    end
    assert.is_true(lock:lock { wait = 5 })
    assert.equal(2, opened)
  end, { replicas = 1 })

play("leaves dedicated connections when the master moves, also if the node's "
  .. "own connection is lost", function(self)
    local master, asked = self.server, 0
    master.execute, master.replicas = nil, 1
    sentinels.add(self.network, { master })
    local client = assert(rlock_client.open(self.host, assert(
      rlock_client.complete({ replicas = 1, timeout = 1 },
        sentinels.url(master)))))
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    client.session.server.node.connection.link:lose "connection reset"
    sentinels.fail_over(self.network, master, false, 0, function() return 0 end)
    local old = self.network.servers[master.name]
    function old.execute(_, _, words)            -- it is cut off, and silent
      if words[1] == "EVALSHA" then asked = asked + 1 end
    end
    self.sleep(1)
    assert.is_true(lock:lock { wait = 5 })
    assert.equal(0, asked)
  end)

on_stage("keeps no dedicated connection that is opened while the client closes",
  function(self, client)
    local lock = client:lock "lock"
    assert.is_false(lock:is_locked())
    local node, opened = client.session.server.node, nil
    local open = node.open
    function node.open(...)
      opened = opened or open(...)
      node:close()                       -- close has a deadline
      return opened
    end
    self:calls()
    assert.is_nil((lock:lock { wait = 5 }))
    assert.is_true(opened.link.is_closed)
    assert.same({}, self:calls())
  end, { replicas = 1 })

on_stage("a heartbeat does not wait for replicas", function(self, client)
  local held, ends = self:client():fair_lock "fair", self.now() + 6
  assert.is_true(held:lock { lease = 60 })
  self.spawn(function() client:fair_lock("fair"):lock { wait = 60 } end)
  self.sleep(1)
  replica_is_away(self, self.now(), ends)
  for i = 1, 40 do       -- each connection has a WAIT in flight
    self.spawn(function()
      while self.now() < ends do client:lock("lock" .. i):lock { wait = 1 } end
    end)
  end
  self:calls()
  self.sleep(5)
  local last, beats = 1, self:calls "refresh"
  for _, text in ipairs(beats) do
    local at = assert(tonumber(text:match "%S+"))
    assert.is_true(at - last <= 0.41, at - last)
    last = at
  end
  assert.is_true(#beats >= 12)
end, { replicas = 1, timeout = 4 })
