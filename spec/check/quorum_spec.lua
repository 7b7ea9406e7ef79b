--- Red locks on a simulated host: which replies decide what, and when.

local quorum = require "rlock.several.quorum"
local stage = require "spec.simulate.stage"

local NAME = "lock"

-- Adds servers 2 to `n`, and opens a client of each.
local function clients_of(self, n, options)
  local clients = { self:client(options) }
  for i = 2, n do
    clients[i] = self:client(options, self:add_server("redis" .. i))
  end
  return clients
end

-- A test on a stage: fn(stage, red lock, clients, servers).
local function on_stage(name, fn, options)
  it(name, function()
    stage.play(function(self)
      local clients = clients_of(self, 3, { watchdog = 30 })
      fn(self, quorum.new(clients, NAME, options), clients,
        self.network.servers)
    end)
  end)
end

-- On how many servers the lock is held.
local function holders(servers)
  local n = 0
  for _, server in ipairs(servers) do
    server.redis.now = math.floor(server:clock() * 1000000)
    if server.redis:entry(NAME) then n = n + 1 end
  end
  return n
end

-- How many servers are skipped.
local function away(clients)
  local n = 0
  for _, client in ipairs(clients) do
    if client.session.server.node.away then n = n + 1 end
  end
  return n
end

local function delete(client) assert(client:call("DEL", NAME)) end

describe("a red lock", function()
  on_stage("is held on all servers, less an allowance for drift",
    function(self, red, _, servers)
      assert.is_true(red:lock())
      assert.near(29.698, red:valid_for(), 0.001)
      assert.equal("held", red:state())
      self.sleep(0)                       -- two are enough for lock()
      assert.equal(3, holders(servers))
      assert.is_true(red:unlock())
      self.sleep(0)
      assert.equal(0, holders(servers))
      assert.equal("free", red:state())
      assert.is_true(red:lock { lease = 10 })
      assert.near(9.898, red:valid_for(), 0.001)
      self.sleep(5)
      assert.near(4.898, red:valid_for(), 0.001)
    end)

  on_stage("needs no task but the caller's, once it is connected",
    function(self, red)
      assert.is_true(red:lock() and red:unlock())
      self.sleep(0)                       -- two are enough
      local started, host = 0, self.host
      for _, name in ipairs { "daemon", "service", "spawn" } do
        local start = host[name]
        host[name] = function(...)
          started = started + 1
          return start(...)
        end
      end
      assert.is_true(red:lock() and red:unlock())
      self.sleep(0)
      assert.equal(0, started)
    end)

  on_stage("takes another drift", function(_, red)
    assert.is_true(red:lock())
    assert.near(22.498, red:valid_for(), 0.001)
  end, { drift = 0.25 })

  on_stage("is renewed by each watchdog", function(self, red, _, servers)
    assert.is_true(red:lock())
    self.sleep(60)
    assert.equal(3, holders(servers))
    assert.is_true(red:valid_for() > 19)
    assert.is_true(red:unlock())
  end)

  on_stage("is held without a minority of the servers", function(self, red, _,
      servers)
    servers[1]:restart(5, "data")
    self.sleep(0.01)
    assert.is_true(red:lock())
    assert.equal("held", red:state())
    assert.is_true(red:valid_for() > 29)
  end)

  on_stage("is not held without a majority", function(self, red, _, servers)
    servers[1]:restart(100, "data")
    servers[3]:restart(100, "data")
    self.sleep(0.01)
    local ok, code, detail = red:try_lock()
    assert.is_nil(ok)
    assert.equal("quorum", code)
    assert.match("1 of 3 servers, 2 are needed", detail)
    self.sleep(0.1)
    assert.equal(0, holders(servers))
    local took
    took, ok, code = self:timed(red.lock, red, { wait = 1 })
    assert.is_nil(ok)
    assert.equal("quorum", code)
    assert.near(1, took, 0.06)
  end)

  on_stage("waits no longer than its time limit for a server", function(self,
      red, _, servers)
    assert.is_true(red:lock())
    assert.is_true(red:unlock())
    self.sleep(1)
    servers[1]:freeze(2)
    local took = self:timed(red.lock, red)
    assert.near(0, took, 0.001)
    assert.is_true(red:unlock())
    self.sleep(3)
    for i = 1, 2 do servers[i]:freeze(2) end
    took = self:timed(red.try_lock, red)
    assert.near(0.05, took, 0.001)
    self.sleep(3)
    for i = 1, 2 do servers[i]:freeze(2) end
    took = self:timed(red.try_lock, red, { lease = 0.1 })
    assert.near(0.025, took, 0.001)
    self.sleep(3)
    assert.equal(0, holders(servers))
  end)

  on_stage("does not skip a server whose part nobody waits for", function(self,
      red, clients, servers)
    assert.is_true(red:lock())
    assert.is_true(red:unlock())
    self.network:route(self.host, servers[3]).delay = 0.01
    for _ = 1, 20 do
      assert.is_true(red:lock())
      assert.is_true(red:unlock())
      assert.equal(0, away(clients))
    end
    self.sleep(1)
    assert.equal(0, away(clients))
    assert.equal(0, holders(servers))
  end)

  on_stage("skips a server that does not answer to a release", function(self,
      red, clients, servers)
    assert.is_true(red:lock())
    self.sleep(1)
    for i = 1, 2 do servers[i]:freeze(2) end
    assert.equal("quorum", select(2, red:unlock()))
    assert.near(0.05, (self:timed(red.try_lock, red)), 0.001)
    assert.equal(2, away(clients))
    self.sleep(0.02)
    assert.near(0, (self:timed(red.try_lock, red)), 0.001)
    self.sleep(10)
    assert.equal(0, away(clients))
    assert.equal(0, holders(servers))
  end)

  -- The reply comes from a server that has forgotten all grants.
  on_stage("does not count a server that restarts during the request",
    function(self, red, _, servers)
      assert.is_true(red:lock())
      assert.is_true(red:unlock())
      self.sleep(1)
      servers[2]:freeze(5)
      self.network:route(self.host, servers[1]).delay = 0.1
      self.spawn(function()
        self.sleep(0.05)
        servers[1]:restart(0.001, "nothing")
      end)
      local ok, code, detail = red:try_lock()
      assert.same({ nil, "quorum" }, { ok, code })
      assert.match("restarted or replaced", detail)
      self.sleep(10)
      assert.equal(0, holders(servers))
    end, { node_timeout = 3 })

  on_stage("takes another time limit", function(self, red, _, servers)
    assert.is_true(red:lock())
    assert.is_true(red:unlock())
    for i = 1, 2 do servers[i]:freeze(2) end
    assert.near(0.5, (self:timed(red.try_lock, red)), 0.001)
  end, { node_timeout = 0.5 })

  on_stage("counts its lease from before the requests", function(self, red, _,
      servers)
    assert.is_true(red:lock())
    assert.is_true(red:unlock())
    for _, server in ipairs(servers) do
      self.network:route(self.host, server).delay = 0.5
    end
    assert.is_true(red:lock { lease = 100 })
    assert.near(98, red:valid_for(), 0.01)
    local ok, code = red:try_lock { lease = 0.9 }
    assert.same({ nil, "quorum" }, { ok, code })
  end, { node_timeout = 5 })

  on_stage("is held while a function runs, also if it raises", function(self,
      red, _, servers)
    assert.same({ 1, 2 }, { red:with(function(its, a)
      assert.is_true(its:is_held())
      return a, 2
    end, 1) })
    assert.has_error(function()
      red:with({ wait = 1 }, function() error("mine", 0) end)
    end, "mine")
    local inner
    assert.is_true(red:with(function(its)
      inner = assert(its:hold())
      return true
    end))
    assert.equal("held", inner:state())
    assert.is_true(inner:unlock())
    self.sleep(0)
    assert.equal(0, holders(servers))
  end)

  on_stage("is busy as soon as most servers say so", function(self, red, _,
      servers)
    assert.is_true(red:lock())
    servers[1]:freeze(5)
    self.spawn(function()
      local took, ok, code = self:timed(red.try_lock, red)
      assert.same({ nil, "busy" }, { ok, code })
      assert.near(0, took, 0.001)
    end):join()
  end)

  on_stage("is busy while another owner has it", function(self, red)
    assert.is_true(red:lock())
    self.spawn(function()
      local ok, code, detail = red:try_lock()
      assert.is_nil(ok)
      assert.equal("busy", code)
      assert.match("0 of 3 servers, 2 are needed", detail)
      local took
      took, ok, code = self:timed(red.lock, red, { wait = 1 })
      assert.is_nil(ok)
      assert.equal("timeout", code)
      assert.near(1, took, 0.001)
    end):join()
  end)

  on_stage("is retried with pauses that grow to 0.128 s", function(self, red)
    assert.is_true(red:lock())
    self:calls()
    self.spawn(function() red:lock { wait = 10 } end):join()
    local n = #self:calls "acquire" / 3
    assert.is_true(n > 10 / 0.128 and n < 10 / 0.064 + 8, n)
    self.spawn(function()
      self.spawn(function() self.sleep(1) end)
      assert.is_nil(red:lock { wait = 0.02 })
    end):join()
    n = #self:calls "acquire" / 3
    assert.is_true(n >= 3 and n <= 7, n)
  end)

  on_stage("is acquired as soon as it is free", function(self, red)
    assert.is_true(red:lock())
    local task = self.spawn(function()
      local took = self:timed(red.lock, red)
      assert.is_true(took >= 3 and took < 3.2)
      return red:unlock()
    end)
    self.sleep(3)
    assert.is_true(red:unlock())
    assert.is_true(task:join())
  end)

  on_stage("is reentrant, and released as often", function(self, red, _,
      servers)
    assert.is_true(red:lock())
    assert.is_true(red:lock { lease = 5 })
    self.sleep(1)
    self:calls()
    for i = 1, 3 do self.network:route(self.host, servers[i]).delay = 0.01 end
    assert.is_true(red:unlock())
    self.sleep(1)
    assert.equal(3, holders(servers))
    local calls = self:calls()
    assert.equal(3, #calls)
    for i = 1, 3 do assert.match("release 30000 1 ", calls[i]) end
    assert.near(27.66, red:valid_for(), 0.01)
    assert.is_true(red:unlock())
    self.sleep(1)
    assert.equal(0, holders(servers))
    calls = self:calls()
    assert.equal(3, #calls)
    for i = 1, 3 do assert.match("release 1 0 ", calls[i]) end
    assert.equal("not_held", select(2, red:unlock()))
  end)

  on_stage("is refused to its holder if it is not reentrant",
    function(_, red)
      assert.is_true(red:lock())
      local ok, code, detail = red:lock()
      assert.is_nil(ok)
      assert.equal("refused", code)
      assert.match("cannot be entered twice", detail)
      assert.is_true(red:unlock())
      assert.is_true(red:lock())
    end, { policy = "mutex" })

  on_stage("does not delay the closing of a client after an error",
    function(self, red, clients)
      assert.is_true(red:lock() and red:unlock())
      self.server:flush_scripts()       -- it will reply NOSCRIPT
      assert.is_true(red:lock() and red:unlock())
      self.sleep(1)
      assert.near(0, (self:timed(clients[1].close, clients[1])), 0.001)
    end)

  on_stage("has the state that most servers report", function(_, red, clients)
    assert.is_false(red:is_held())
    assert.is_true(red:lock())
    assert.is_true(red:is_held())
    delete(clients[1])
    assert.is_true(red:is_held())
    delete(clients[2])
    assert.is_false(red:is_held())
  end)

  on_stage("has no state without most servers", function(self, red, _, servers)
    assert.is_true(red:lock())
    for i = 1, 2 do servers[i]:freeze(2) end
    local took, ok, code = self:timed(red.is_held, red)
    assert.is_nil(ok)
    assert.equal("quorum", code)
    assert.near(0.05, took, 0.001)
  end)
end)

describe("a red lock that others have", function()
  -- Another process takes it on these servers, for so many seconds.
  local function rivals_on(self, policy, seconds)
    local host = self:add_host "client2"
    for i, time in pairs(seconds) do
      local its = self:client({ lazy = true }, self.network.servers[i], host)
        :policy(policy, NAME)
      host.spawn(function()
        assert.is_true(its:lock())
        host.sleep(time)
        assert.is_true(its:unlock())
      end)
    end
    self.sleep(0.01)
  end

  on_stage("is waited for although one of its servers refuses",
    function(self, red, clients)
      assert.is_true(clients[1]:simple_lock(NAME):lock())
      rivals_on(self, "simple", { [2] = 3, [3] = 5 })
      assert.equal("busy", select(2, red:try_lock()))
      assert.near(5, (self:timed(red.lock, red)), 0.13)
    end, { policy = "simple" })

  -- One server replies to both attempts, in order, and both need its reply.
  for _, policy in ipairs { "simple", "mutex", "reentrant" } do
    on_stage("may be requested again before a server replies, policy "
      .. policy, function(self, red, _, servers)
        assert.is_true(red:lock() and red:unlock())
        rivals_on(self, policy, { [2] = 1, [3] = 60 })
        self.network:route(self.host, servers[1]).delay = 0.5
        assert.equal("busy", select(2, red:try_lock()))
        self.sleep(1)
        assert.near(2, (self:timed(red.lock, red)), 1)
        assert.is_true(red:unlock())
        self.sleep(5)
        assert.equal(1, holders(servers))      -- a rival's
      end, { policy = policy, node_timeout = 10 })
  end

  on_stage("leaves nothing when its waiter is cancelled", function(self, red,
      _, servers)
    rivals_on(self, "reentrant", { 1, 1, 1 })
    local waiting = self.spawn(function() red:lock() end)
    self.sleep(0.3)
    waiting:cancel()
    self.sleep(2)
    assert.equal(0, holders(servers))
  end)

  on_stage("fails for a waiter when a client is closed", function(self, red,
      clients, servers)
    rivals_on(self, "reentrant", { 1, 1, 1 })
    local code
    self.spawn(function() code = select(2, red:lock()) end)
    self.sleep(0.3)
    for i = 1, 2 do clients[i]:close() end
    self.sleep(2)
    assert.equal("closed", code)
    assert.equal(0, holders(servers))
  end)

  on_stage("returns the last verdict if the wait ends first", function(self,
      red, _, servers)
    rivals_on(self, "reentrant", { 1, 1, 1 })
    self.spawn(function()
      self.sleep(0.2)
      for i = 1, 3 do servers[i]:freeze(9) end
    end)
    local took, ok, code, detail = self:timed(red.lock, red, { wait = 0.4 })
    assert.same({ nil, "timeout" }, { ok, code })
    assert.match("held by another owner for", detail)
    assert.near(0.4, took, 0.001)
  end, { node_timeout = 10 })
end)

describe("unlocking a red lock", function()
  local function gone_on(...)
    local gone = { ... }
    return function(clients)
      for _, i in ipairs(gone) do delete(clients[i]) end
    end
  end

  on_stage("succeeds if one server has lost it", function(_, red, clients)
    assert.is_true(red:lock())
    gone_on(2)(clients)
    assert.is_true(red:unlock())
  end)

  on_stage("finds it lost if most have", function(_, red, clients)
    assert.is_true(red:lock())
    gone_on(1, 3)(clients)
    local ok, code, detail = red:unlock()
    assert.is_nil(ok)
    assert.equal("lost", code)
    assert.equal("only 1 of 3 servers still had it", detail)
  end)

  on_stage("succeeds if one has lost it, and one does not answer",
    function(self, red, clients, servers)
      assert.is_true(red:lock())
      gone_on(1)(clients)
      servers[3]:freeze(2)
      local took, ok = self:timed(red.unlock, red)
      assert.is_true(ok)
      assert.near(0.05, took, 0.001)
    end)

  on_stage("does not wait for a minority", function(self, red, _, servers)
    assert.is_true(red:lock())
    self.sleep(0)                       -- all three have it
    servers[3]:freeze(2)
    local took, ok = self:timed(red.unlock, red)
    assert.is_true(ok)
    assert.near(0, took, 0.001)
    self.sleep(3)
    assert.equal(0, holders(servers))
  end)

  on_stage("is not confirmed without a majority", function(self, red, _,
      servers)
    assert.is_true(red:lock { lease = 20 })
    self.sleep(4)
    for i = 1, 2 do servers[i]:freeze(30) end
    local took, ok, code, detail = self:timed(red.unlock, red)
    assert.is_nil(ok)
    assert.equal("quorum", code)
    assert.match("^only 1 of 3 servers confirmed it; the leases end it in 15.8",
      detail)
    assert.near(0.05, took, 0.001)
  end)

  on_stage("finds it lost when its lease has ended", function(self, red, _,
      servers)
    assert.is_true(red:lock { lease = 20 })
    self.sleep(19.9)
    for i = 1, 3 do servers[i]:freeze(2) end
    local ok, code, detail = red:unlock()
    assert.is_nil(ok)
    assert.equal("lost", code)
    assert.equal("its lease has ended", detail)
  end)

  on_stage("goes on although its task is cancelled", function(self, red, _,
      servers)
    local hold = assert(red:hold())
    local releasing = self.spawn(function() hold:unlock() end)
    self.sleep(0)
    releasing:cancel()
    self.sleep(1)
    assert.equal(0, holders(servers))
  end)

  on_stage("releases a part after any wait for its turn", function(self, red,
      clients, servers)
    local one, hold = assert(clients[1]:lock(NAME):hold()), assert(red:hold())
    self.sleep(0)
    servers[1]:freeze(2)
    self.spawn(function() one:unlock() end)
    assert.is_true(hold:unlock())
    self.sleep(5)
    assert.equal(0, holders(servers))
  end)

  on_stage("works for an object in another task", function(self, red, _,
      servers)
    local hold = assert(red:hold())
    self.spawn(function() assert.is_true(hold:unlock()) end):join()
    self.sleep(0)
    assert.equal(0, holders(servers))
  end)
end)

describe("a red lock that loses parts", function()
  on_stage("takes them again", function(self, red, clients, servers)
    assert.is_true(red:lock())
    delete(clients[2])
    assert.equal(2, holders(servers))
    self.sleep(9)
    assert.equal(2, holders(servers))
    self.sleep(1.3)
    assert.equal(3, holders(servers))
    assert.equal("held", red:state())
    self.sleep(30)
    assert.equal(3, holders(servers))
    assert.is_true(red:unlock())
    self.sleep(0)
    assert.equal(0, holders(servers))
  end)

  on_stage("takes a part that it never had", function(self, red, _, servers)
    servers[1]:restart(5, "data")
    self.sleep(0.01)
    assert.is_true(red:lock())
    self.sleep(4)
    assert.equal(2, holders(servers))
    self.sleep(11)
    assert.equal(3, holders(servers))
    assert.is_true(red:unlock())
  end)

  on_stage("does not take it with a lease of its own", function(self, red, _,
      servers)
    servers[1]:restart(1, "data")
    self.sleep(0.01)
    assert.is_true(red:lock { lease = 20 })
    assert.is_true(red:on_lost(function() end))        -- so it is watched
    self.sleep(15)
    assert.equal(2, holders(servers))
  end)

  on_stage("does not take it any more once it is unlocked", function(self, red,
      clients, servers)
    assert.is_true(red:lock())
    servers[2]:freeze(8)
    delete(clients[3])
    self.sleep(10.05)
    assert.is_true(red:unlock())
    self.sleep(20)
    assert.equal(0, holders(servers))
  end)

  on_stage("is lost without a majority, once", function(self, red, clients)
    local told = {}
    assert.is_true(red:lock())
    red:on_lost(function(_, why) told[#told + 1] = why end)
    delete(clients[1])
    self.sleep(5)
    assert.equal("held", red:state())
    for i = 2, 3 do delete(clients[i]) end
    self.sleep(6)
    assert.equal(1, #told)
    assert.match("^no majority of 3 servers has it now; the last to lose it "
      .. "was redis%d.*expired or broken", told[1])
    assert.equal("lost", red:state())
    assert.equal(0, red:valid_for())
    assert.equal("lost", select(2, red:lock()))
    assert.equal("lost", select(2, red:unlock()))
    assert.is_true(red:lock())
  end)

  on_stage("is at risk without connections to a majority", function(self, red,
      _, servers)
    assert.is_true(red:lock())
    servers[1]:restart(3, "data")
    self.sleep(1)
    assert.equal("held", red:state())
    servers[2]:restart(3, "data")
    self.sleep(1)
    assert.equal("at_risk", red:state())
    assert.is_true(red:valid_for() > 20)
  end)

  on_stage("is lost at the end of its lease", function(self, red)
    local lost_at
    assert.is_true(red:lock { lease = 10 })
    red:on_lost(function() lost_at = self.now() end)
    self.sleep(9.8)
    assert.equal("held", red:state())
    self.sleep(1)
    assert.near(9.898, lost_at, 0.001)
    assert.equal("lost", red:state())
    assert.equal("lost", select(2, red:try_lock()))
  end)

  on_stage("does not take them for a task that has ended", function(self, red,
      clients, servers)
    self.spawn(function()
      assert.is_true(red:lock())
      self.sleep(1)
    end):join()
    delete(clients[1])
    self.sleep(12)
    assert.equal(2, holders(servers))
    self.sleep(20)
    assert.equal(0, holders(servers))
  end)
end)

describe("the arguments of a red lock", function()
  local function red_lock(...)
    local red = quorum.new(...)
    return red
  end

  -- Misuse is reported where red_lock was called: in this file.
  local function refuses(text, ...)
    local arguments = table.pack(...)
    local ok, why = pcall(function()
      local red = red_lock(table.unpack(arguments, 1, arguments.n))
      return red
    end)
    assert.is_false(ok)
    local here = debug.getinfo(1, "l").currentline - 4
    assert.equal(("spec/check/quorum_spec.lua:%d: "):format(here)
      .. text, (why:gsub("^%./", "")):sub(1, #text + #tostring(here) + 29))
  end

  on_stage("are checked", function(_, _, clients)
    refuses("bad clients of red_lock: must be an array", {}, NAME)
    refuses("bad client 2 of red_lock: must be from rlock.open",
      { clients[1], {} }, NAME)
    refuses("bad client 2 of red_lock: must be from rlock.open",
      { clients[1], 7 }, NAME)
    refuses("bad client 3 of red_lock: it is client 1",
      { clients[1], clients[2], clients[1] }, NAME)
    refuses("bad policy fair", { clients[1] }, NAME, { policy = "fair" })
    refuses('policy "nothing"', clients, NAME, { policy = "nothing" })
    refuses("bad options", clients, NAME, 7)
    refuses("bad drift", clients, NAME, { drift = 0.6 })
    assert.is_table(red_lock(clients, NAME, { node_timeout = 0.001 }))
    refuses("bad drift", clients, NAME, { drift = -0.1 })
    refuses("bad node_timeout", clients, NAME, { node_timeout = 0 })
    refuses("bad name", clients, "")
    assert.is_table(red_lock(clients, NAME, { drift = 0 }))
    assert.is_table(red_lock(clients, NAME, { drift = 0.5 }))
    assert.equal('red lock "a?b"', tostring(red_lock(clients, "a\nb")))
    assert.equal(75, #tostring(red_lock(clients, ("x"):rep(99))))
  end)
end)

describe("the log callback of a red lock", function()
  it("may wait", function()
    stage.play(function(self)
      local told = {}
      local clients = clients_of(self, 3, { log = function(_, event)
        self.sleep(0.001)
        told[#told + 1] = event
      end })
      local red = quorum.new(clients, NAME)
      for _ = 1, 2 do
        assert.is_true(red:lock())
        for i = 1, 3 do delete(clients[i]) end
        assert.equal("lost", select(2, red:unlock()))
      end
      self.sleep(1)
      local lost = 0
      for _, event in ipairs(told) do
        if event == "lost" then lost = lost + 1 end
      end
      assert.equal(6, lost)
    end)
  end)
end)

describe("a red lock on five servers", function()
  it("needs three of them", function()
    stage.play(function(self)
      local red = quorum.new(clients_of(self, 5), NAME)
      local servers = self.network.servers
      for i = 1, 2 do servers[i]:restart(100, "data") end
      self.sleep(0.1)
      assert.is_true(red:lock())
      self.sleep(1)
      assert.equal(3, holders(servers))
      assert.is_true(red:unlock())
      servers[3]:restart(100, "data")
      self.sleep(0.1)
      assert.equal("quorum", select(2, red:try_lock()))
    end)
  end)
end)

describe("a red lock on servers with other leases", function()
  it("keeps the shortest", function()
    stage.play(function(self)
      local clients = { self:client { watchdog = 30 },
        self:client({ watchdog = 0.12 }, self:add_server "redis2"),
        self:client({ watchdog = 40 }, self:add_server "redis3") }
      local red = quorum.new(clients, NAME)
      assert.is_true(red:lock())
      assert.is_true(red:unlock())
      for i = 1, 2 do self.network.servers[i]:freeze(2) end
      assert.near(0.03, (self:timed(red.try_lock, red)), 0.001)
    end)
  end)
end)
