--- The watchdog on a simulated host, where time is exact: when it renews, when
--- it retries, and when it reports a loss.

local batched = require "rlockctl.simulate.batched"
local stage = require "spec.simulate.stage"

local on_stage = stage.tests(it)

local function take(client, options, name)
  local lock = client:lock(name or "lock")
  assert.is_true(lock:lock(options))
  return lock
end

-- Takes `n` locks.
local function take_many(client, n)
  local locks = {}
  for i = 1, n do locks[i] = take(client, nil, "lock" .. i) end
  return locks
end

local function count(locks, state)
  local n = 0
  for _, lock in ipairs(locks) do
    if lock:state() == state then n = n + 1 end
  end
  return n
end

-- The times of calls, as text.
local function times(calls)
  for i, call in ipairs(calls) do calls[i] = call:match "^%S+" end
  return table.concat(calls, " ")
end

-- Calls fn each time the state changes, until a moment.
local function states(self, lock, till)
  local seen, last = {}, nil
  while self.now() < till do
    if lock:state() ~= last then
      last = lock:state()
      seen[#seen + 1] = ("%.1f %s"):format(self.now(), last)
    end
    self.sleep(0.1)
  end
  return seen
end

describe("an expired lease", function()
  on_stage("of a named owner is not watched forever", function(self, client)
    local lock = client:lock("lock", { owner = "it" })
    assert.is_true(lock:lock { lease = 1 })
    assert.is_true(client.session.watchdog:is_needed())
    self.sleep(25)
    assert.is_false(client.session.watchdog:is_needed())
    assert.equal("lost", select(2, lock:unlock()))
  end)

  on_stage("stays lost, though an inner unlock succeeds later", function(self,
      client)
    local lock = take(client, { lease = 1 })
    assert.is_true(lock:lock { lease = 1 })
    assert.is_true(lock:on_lost(function() end))
    self.sleep(0.6)
    self:calls()
    self:route().delay = 0.15
    assert.is_true(lock:unlock())
    assert.is_true(self.now() > 1 and tonumber(times(self:calls())) < 1)
    assert.equal("lost", lock:state())
    assert.is_false(client.session.watchdog:is_needed())
    assert.equal("lost", select(2, lock:unlock()))
    assert.equal("free", lock:state())
  end)
end)

describe("a renewal", function()
  on_stage("is sent a third of the lease after the last one", function(self,
      client)
    local lock = take(client)
    self.sleep(35)
    assert.same({ "0.000 acquire 30000 1", "10.000 renew 30000 1",
      "20.000 renew 30000 1", "30.000 renew 30000 1" }, self:calls())
    assert.is_true(lock:unlock())
    self.sleep(60)
    assert.same({ "35.000 release 1 0 hand over" }, self:calls())
  end)

  -- Replicas do not confirm a release. So a new primary may have the expiry of
  -- the last confirmed request.
  on_stage("is not postponed by an inner unlock",
    function(self, client)
      local lock = take(client)
      assert.is_true(lock:lock())
      self:calls()
      self.sleep(9)
      local valid = lock:valid_for()
      assert.is_true(lock:unlock())
      assert.is_true(lock:valid_for() <= valid)
      self.sleep(2)
      assert.same({ "9.000 release 30000 1 hand over",
        "10.000 renew 30000 1" }, self:calls())
      assert.is_true(lock:valid_for() > valid)
    end)

  on_stage("is not postponed by it to that of another lock", function(self,
      client)
    local lock = take(client, nil, "one")
    self.sleep(5)
    take(client, nil, "other")
    assert.is_true(lock:lock { lease = 1 })
    assert.is_true(lock:unlock())
    self.sleep(11)
    assert.equal("10.000 15.000", times(self:calls "renew"))
  end)

  on_stage("has its own schedule for each hold", function(self, client)
    take(client, nil, "one")
    self.sleep(3)
    take(client, nil, "other")
    self.sleep(18)
    assert.equal("10.000 13.000 20.000", times(self:calls "renew"))
  end)

  on_stage("states all holds, and the lease that ends last", function(self,
      client)
    local lock = take(client)
    take(client, { lease = 100 })
    self:calls()
    self.sleep(11)
    assert.same({ "10.000 renew 89898 2" }, self:calls())
    assert.near(88.898, lock:valid_for(), 0.002)
  end)

  on_stage("prolongs what is valid", function(self, client)
    local lock = take(client)
    self.sleep(10.001)
    assert.near(29.967, lock:valid_for(), 1e-4)
    assert.equal("held", lock:state())
  end)

  on_stage("loads a script that the server forgot", function(self, client)
    local lock = take(client)
    self.sleep(11)
    self:calls()
    self.server:flush_scripts()
    self.sleep(10)
    assert.same({ "20.000 unknown 30000 1", "20.000 renew 30000 1" },
      self:calls())
    assert.equal("held", lock:state())
    assert.same({}, self:logged())
  end)
end)

describe("a failed renewal", function()
  on_stage("is retried every twelfth of the lease, then more often",
    function(self, client)
      local lock = take(client)
      self.server:ail(100, "OOM command not allowed")
      self.sleep(27)
      assert.equal("at_risk", lock:state())
      assert.equal("0.000 10.000 12.500 15.000 17.500 20.000 22.500 25.000",
        times(self:calls()))
      self.sleep(2)
      assert.equal("27.484 28.726", times(self:calls()))
      self.sleep(2)
      assert.equal("29.347 29.658 29.813 29.890 29.929 29.949 29.958",
        times(self:calls()))
      assert.equal("lost", lock:state())
      local log = self:logged()
      assert.equal(2, #log)
      assert.match("is at risk, valid for 20.0 s more: OOM", log[1])
      assert.match("^lost reentrant lock \"lock\": not renewed in time: OOM",
        log[2])
    end)

  on_stage("is forgotten once one succeeds", function(self, client)
    local lock = take(client)
    self.server:ail(11, "OOM command not allowed")
    assert.same({ "0.0 held", "10.0 at_risk", "12.5 held" },
      states(self, lock, 30))
    assert.equal("0.000 10.000 12.500 22.500", times(self:calls()))
    assert.equal(1, #self:logged())
  end)

  on_stage("ends the hold at the end of its validity, to the moment",
    function(self, client)
      local lock, lost_at = take(client), nil
      lock:on_lost(function(_, why) lost_at = { self.now(), why } end)
      self.server:ail(100, "OOM command not allowed")
      self.sleep(60)
      assert.near(29.968, lost_at[1], 1e-3)
      assert.match("^not renewed in time: OOM", lost_at[2])
      assert.equal("lost", select(2, lock:unlock()))
    end)

  on_stage("leaves the hold valid if the server does not answer", function(self,
      client)
    local lock, lost_at = take(client), nil
    lock:on_lost(function() lost_at = self.now() end)
    self.server:freeze(60)
    assert.same({ "0.0 held", "13.0 at_risk", "30.0 lost" },
      states(self, lock, 35))
    assert.near(29.968, lost_at, 1e-3)
  end)

  on_stage("reports a hold that the server does not have", function(self,
      client)
    local lock, told = take(client), {}
    for i = 1, 2 do lock:on_lost(function(_, why) told[i] = why end) end
    client:call("DEL", "lock")
    self.sleep(11)
    assert.match("^expired or broken", told[1])
    assert.equal(told[1], told[2])
    assert.equal("lost", lock:state())
    self.sleep(30)
    assert.equal("0.000 10.000", times(self:calls()))
    assert.equal(1, #self:logged())
  end)

  on_stage("reports one whose key is something else at once", function(self,
      client)
    local lock = take(client)
    client:call("SET", "lock", "x")
    self.sleep(11)
    assert.equal("lost", lock:state())
    assert.match("WRONGTYPE", self:logged()[1])
  end)

  on_stage("is one with a reply that is no verdict", function(self, client)
    local lock, execute = take(client), self.server.execute
    function self.server.execute(its, link, words)
      if words[1] == "EVALSHA" then return "odd" end
      return execute(its, link, words)
    end
    self.sleep(11)
    assert.equal("at_risk", lock:state())
    assert.match("odd", self:logged()[1])
  end)

  on_stage("is one that needs its script a second time", function(self, client)
    local lock = take(client)
    self.server:ail(1e3, "NOSCRIPT No matching script.")
    self.sleep(11)
    assert.equal("at_risk", lock:state())
    assert.equal("0.000 10.000 10.000", times(self:calls()))
  end)
end)

describe("many holds", function()
  on_stage("are renewed in 4 batches of 256 at a time", function(self, client)
    take(client)
    take(client, nil, "other")
    self.sleep(11)
    local locks = take_many(client, 1100)
    self.sleep(8)
    self:calls()
    self.sleep(1)
    self.server:freeze(2)
    self.sleep(1.5)
    local n = #self.server.inbox        -- of up to 64 locks
    assert.is_true(n > 3 * 4 and n <= 4 * 4)
    self.sleep(1)
    assert.equal(1102, #self:calls "renew")
    assert.equal(1100, count(locks, "held"))
    assert.same({}, self:logged())
    self.sleep(10)
    assert.equal(1102, #self:calls "renew")
  end)

  on_stage("do not delay the report of a loss", function(self, client, session)
    take_many(client, 1100)
    local lock, lost_at = take(client, { lease = 10.5 }), nil
    lock:on_lost(function(_, why) lost_at = { self.now(), why } end)
    self.sleep(9)
    self.server:freeze(2.5)
    self.sleep(1.2)
    assert.equal(4, session.watchdog.batches)
    self.sleep(1)
    assert.near(10.487, lost_at[1], 0.002)
    assert.equal("its lease has ended", lost_at[2])
    self.sleep(1)
    assert.equal(0, session.watchdog.batches)
  end)

  on_stage("are all lost in time when the server is silent", function(self,
      client)
    local locks = take_many(client, 1100)
    self.server:ail(1e3, "OOM command not allowed")
    self.sleep(29.9)
    assert.equal(1100, count(locks, "at_risk"))
    self.sleep(0.2)
    assert.equal(1100, count(locks, "lost"))
  end)
end)

describe("locks that are renewed in one request", function()
  --- Sleeps past the next renewals.
  ---@return integer # the requests sent meanwhile
  local function requests_of_next(self)
    local before = self.requests
    self.sleep(10)
    return self.requests - before
  end

  -- Takes `n` locks, and waits until both scripts of a renewal are loaded.
  local function take_ready(self, client, n)
    local locks = take_many(client, n)
    self.sleep(10.5)
    assert.equal(n, count(locks, "held"))
    self:calls()
    return locks
  end

  -- Lets the server answer requests for many locks with `reply`, once.
  local function answer_with(self, reply)
    local execute, left = self.server.execute, 1
    function self.server.execute(its, link, words)
      if words[1] == "EVALSHA" and left > 0
          and batched.is(its.scripts[words[2]]) then
        left = left - 1
        return reply
      end
      return execute(its, link, words)
    end
  end

  on_stage("are 64 at most", function(self, client)
    local locks = take_ready(self, client, 100)
    assert.equal(2, requests_of_next(self))
    assert.equal(100, #self:calls "renew")
    assert.equal(100, count(locks, "held"))
    assert.near(29.468, locks[100]:valid_for(), 0.001)
  end)

  on_stage("are fewer if each takes the server more time", function(self,
      client)
    for i = 1, 40 do
      assert.is_true(client:read_write_lock("lock" .. i):read_lock():lock())
    end
    self.sleep(10.5)
    assert.equal(3, requests_of_next(self))
  end)

  on_stage("may be reasserted in one, too", function(self, client)
    for i = 1, 2 do
      assert.is_true(client:read_write_lock("lock" .. i):read_lock():lock {
        lease = 40 })
    end
    self.sleep(10.5)
    self:calls()
    assert.equal(1, requests_of_next(self))
    assert.same({ "20.000 renew 19958 1 1", "20.000 renew 19958 1 1" },
      self:calls())
  end)

  on_stage("have the same kind, count and lease", function(self, client)
    for i = 1, 4 do
      take(client, nil, "once" .. i)
      assert(client:lock("object" .. i):hold())
      assert.is_true(take(client, nil, "twice" .. i):lock())
      assert.is_true(client:simple_lock("simple" .. i):lock())
    end
    self.sleep(10.5)
    assert.equal(3, requests_of_next(self))
  end)

  on_stage("include those that are soon due", function(self, client)
    take(client, nil, "lock1")
    self.sleep(0.19)
    take(client, nil, "lock2")
    self.sleep(0.02)
    take(client, nil, "lock3")
    self.sleep(10.5)
    assert.same({ "10.000 renew 30000 1", "10.000 renew 30000 1",
      "10.210 renew 30000 1" }, self:calls "renew")
  end)

  on_stage("are lost alone", function(self, client)
    local locks = take_ready(self, client, 3)
    self.server.redis:call { "DEL", "lock2" }
    self.sleep(10)
    assert.equal("lost", locks[2]:state())
    assert.equal(2, count(locks, "held"))
    assert.match('lost reentrant lock "lock2": expired or broken',
      self:logged()[1])
    assert.is_true(locks[3]:unlock())
  end)

  on_stage("fail alone", function(self, client)
    local locks = take_ready(self, client, 3)
    self.server.redis:call { "SET", "lock2", "x" }
    self.sleep(10)
    assert.equal(2, count(locks, "held"))
    assert.match('lost reentrant lock "lock2": WRONGTYPE', self:logged()[1])
  end)

  for _, reply in ipairs { "odd", {}, { "held" }, { 4.0 }, { 3.0, "n" },
      { 3.0, 4.0 }, { err = "NOPERM no permission for a key" },
      { err = "CROSSSLOT Keys in request don't hash to the same slot" },
      { err = "ERR Error compiling script: too many" } } do
    on_stage("are asked for alone after an odd reply", function(self, client)
      local locks = take_ready(self, client, 3)
      answer_with(self, reply)
      assert.equal(3, requests_of_next(self))
      assert.equal(3, count(locks, "held"))
      assert.near(29.468, locks[3]:valid_for(), 0.001)
      assert.same({}, self:logged())
    end)
  end

  on_stage("are asked for alone if the script stops early", function(self,
      client)
    local locks = take_ready(self, client, 5)
    answer_with(self, { 4.0, 2.0 })
    assert.equal(2, requests_of_next(self))
    assert.equal(5, count(locks, "held"))
  end)

  on_stage("load both scripts that the server forgot", function(self, client)
    local locks = take_ready(self, client, 3)
    self.server:flush_scripts()
    assert.equal(4, requests_of_next(self))
    assert.equal(3, count(locks, "held"))
    assert.equal(1, requests_of_next(self))
    self.server:flush_scripts()
    assert.equal(4, requests_of_next(self))
    assert.equal(3, count(locks, "held"))
  end)

  on_stage("are asked for alone if the server refuses the script", function(
      self, client)
    local execute = self.server.execute
    function self.server.execute(its, link, words)
      if words[1] == "SCRIPT" and batched.is(words[3]) then
        return { err = "ERR Error compiling script: too many" }
      end
      return execute(its, link, words)
    end
    local locks = take_ready(self, client, 3)
    assert.equal(3, requests_of_next(self))
    assert.equal(3, count(locks, "held"))
    assert.same({}, self:logged())
  end)

  on_stage("are at risk if the server is of no use", function(self, client)
    local locks = take_ready(self, client, 3)
    self.server:ail(1e3, "LOADING Redis is loading the dataset in memory")
    self.sleep(9.6)
    assert.equal(3, count(locks, "at_risk"))
    assert.match("LOADING", self:logged()[1])
  end)

  on_stage("do not revive one that is released meanwhile", function(self,
      client)
    local locks = take_ready(self, client, 3)
    self:route().back = self.now() + 11
    self.sleep(9.6)                     -- the replies are on their way
    assert.is_true(locks[2]:unlock())
    assert.equal("21.500", ("%.3f"):format(self.now() - self.began))
    assert.equal("free", locks[2]:state())
    assert.equal(2, count(locks, "held"))
    assert.equal(0, client:call("EXISTS", "lock2"))
    assert.is_true(take(client, nil, "lock2"):unlock())
  end)

  on_stage("do not concern one whose hold ends meanwhile", function(self,
      client, session)
    local locks, inner = {}, {}
    assert.is_true(take(client):unlock())       -- loads the script
    for i = 1, 2 do
      locks[i] = take(client, nil, "lock" .. i)
      inner[i] = assert(client:lock("lock" .. i):hold { lease = 60 })
    end
    self.sleep(10.5)
    self:route().back = self.now() + 11
    self.sleep(9.6)                     -- the replies are on their way
    assert.is_true(inner[1]:unlock())
    assert.near(28.6, locks[1]:valid_for(), 0.1)
    assert.is_true(inner[2]:unlock())
    for i = 1, 2 do assert.is_true(locks[i]:unlock()) end
    assert.is_false(session.watchdog:is_needed())
  end)

  on_stage("are released when the client is closed meanwhile", function(self,
      client)
    take_ready(self, client, 3)
    self:route().back = self.now() + 12
    self.sleep(9.6)
    client:close()
    local other = self:client()
    assert.equal(0, other:call("EXISTS", "lock1", "lock2", "lock3"))
  end)
end)

describe("a hold with a lease", function()
  on_stage("is not renewed, and ends when its lease does", function(self,
      client)
    local lock, lost_at = take(client, { lease = 40 }), nil
    lock:on_lost(function(_, why) lost_at = { self.now(), why } end)
    self.sleep(60)
    assert.near(39.958, lost_at[1], 1e-3)
    assert.equal("its lease has ended", lost_at[2])
    assert.equal("0.000", times(self:calls()))
  end)

  on_stage("has its on_lost callback called in time, if added late",
    function(self, client)
    local lock, lost_at = take(client, { lease = 40 }), nil
    self.sleep(33)
    lock:on_lost(function() lost_at = self.now() end)
    self.sleep(60)
    assert.near(39.958, lost_at, 1e-3)
  end)

  on_stage("of a read lock is reasserted every third of the watchdog's lease",
    function(self, client)
      local lock = client:read_write_lock("lock"):read_lock()
      assert.is_true(lock:lock { lease = 32 })
      self.sleep(60)
      assert.same({ "0.000 acquire 32000 1", "10.000 renew 21966 1 1",
        "20.000 renew 11966 1 1", "30.000 renew 1966 1 1" }, self:calls())
    end)

  on_stage("of a read lock is still lost when its lease ends", function(self,
      client)
    local lock, lost_at = client:read_write_lock("lock"):read_lock(), nil
    assert.is_true(lock:lock { lease = 25 })
    lock:on_lost(function() lost_at = self.now() end)
    self.sleep(60)
    assert.equal("0.000 10.000 20.000", times(self:calls()))
    assert.near(24.973, lost_at, 1e-3)
  end)

  on_stage("is forgotten within a period of its end, if its task has ended",
    function(self, client)
      self.spawn(function() take(client, { lease = 12 }) end):join()
      self.sleep(11)
      assert.same({}, self:logged())
      self.sleep(10)
      assert.match("its lease has ended", self:logged()[1])
      assert.is_nil(next(client:lock("lock").record.grants))
    end)

  on_stage("is kept while its task lives", function(self, client)
    local lock = take(client, { lease = 12 })
    self.sleep(40)
    assert.same({}, self:logged())
    assert.equal("lost", select(2, lock:unlock()))
  end)

  on_stage("is checked once in a period, and not more often", function(self,
      client)
    take(client, { lease = 1000 })
    local timers, at = 0, self.universe.at
    function self.universe.at(...)
      timers = timers + 1
      return at(...)
    end
    self.sleep(100)
    assert.is_true(timers < 50, timers)
  end)

  on_stage("that has expired is checked once in a period",
    function(self, client)
      local over, looks = take(client, { lease = 1 }, "over"):mine(), 0
      function over.is_abandoned()
        looks = looks + 1
        return false
      end
      for i = 1, 9 do
        take(client, nil, "lock" .. i)
        self.sleep(1)
      end
      self.sleep(91)
      assert.is_true(looks >= 9 and looks <= 11, looks)
    end)

  on_stage("does not delay the renewal of another", function(self, client)
    local lock = take(client, { lease = 40 }, "one")
    lock:on_lost(function() end)
    take(client, nil, "other")
    self.sleep(11)
    assert.equal("10.000", times(self:calls "renew"))
  end)

  on_stage("of a read lock is reasserted after its task has ended",
    function(self, client)
    self.spawn(function()
      assert(client:read_write_lock("lock"):read_lock():lock { lease = 25 })
    end):join()
    self.sleep(60)
    assert.equal("0.000 10.000 20.000", times(self:calls()))
    local log = self:logged()
    assert.equal(1, #log)
    assert.match("its lease has ended", log[1])
  end)
end)

describe("a hold whose task has ended", function()
  on_stage("is renewed no more, and ends with its lease", function(self, client)
    self.spawn(function() take(client) end):join()
    self.sleep(31)
    assert.equal("0.000", times(self:calls()))
    local log = self:logged()
    assert.match("is not renewed any more: its task ended", log[1])
    assert.match("^lost reentrant lock \"lock\": its lease has ended", log[2])
    assert.equal(2, #log)
    assert.is_true(client:lock("lock"):try_lock())
  end)

  on_stage("is renewed while its object is referenced", function(self, client)
    local hold = self.spawn(function()
      return assert(client:lock("lock"):hold())
    end):join()
    self.sleep(35)
    assert.equal("0.000 10.000 20.000 30.000", times(self:calls()))
    assert.is_true(hold:unlock())
  end)

  on_stage("is renewed until its object is garbage", function(self, client)
    self.spawn(function() assert(client:lock("lock"):hold()) end):join()
    self.sleep(5)
    for _ = 1, 2 do collectgarbage() end
    self.sleep(20)
    assert.equal("0.000", times(self:calls()))
    assert.match("is not renewed any more", self:logged()[1])
  end)
end)

describe("a hold of a named owner", function()
  on_stage("is renewed after its task has ended", function(self, client)
    local lock = client:lock("lock", { owner = "me" })
    self.spawn(function() assert(lock:lock()) end):join()
    self.sleep(35)
    assert.equal("10.000 20.000 30.000", times(self:calls "renew"))
    assert.is_true(lock:unlock())
  end)
end)

describe("holds on a server that was replaced", function()
  on_stage("are at risk until it has renewed them", function(self, client)
    local one, other = take(client, nil, "one"), take(client, { lease = 20 })
    self.sleep(5)
    self:calls()
    self:route().delay = 0.1
    self.server:restart(1, "data")
    assert.same({ "5.0 held", "6.4 at_risk", "6.8 held" },
      states(self, one, 8))
    assert.match("2 holds are at risk", table.concat(self:logged(), "\n"))
    assert.equal("held", other:state())
    self.sleep(5)
    assert.same({ "6.649 renew 30000 1", "6.649 renew 13613 1 1" },
      self:calls())
  end)

  on_stage("are held again after a request that renews them all",
    function(self, client)
      local locks = take_many(client, 3)
      self.sleep(5)
      self.server:restart(1, "data")
      self.sleep(3)
      assert.match("3 holds are at risk", table.concat(self:logged(), "\n"))
      assert.equal(3, count(locks, "held"))
      assert.equal(3, #self:calls "renew")
    end)

  on_stage("that are permits are not extended beyond their leases",
    function(self, client)
      local permits, lost_at = client:permits "permits", nil
      assert.is_true(permits:set(1))
      local id = assert(permits:acquire { lease = 6 })
      permits:on_lost(id, function() lost_at = self.now() end)
      self.sleep(2)
      self.server:restart(0.5, "data")
      self.sleep(2)
      assert.same({ "2.716 renew 3277 1 1" }, self:calls "renew")
      self.sleep(2.01)
      assert.near(5.992, lost_at, 0.001)
      assert.equal(1, permits:available())
    end)

  on_stage("are distinguished from those on others, and lost ones",
    function(self, client, session)
      local one, other = take(client, nil, "one"), take(client, nil, "other")
      local lost = take(client, nil, "lost")
      lost:on_lost(function() end)
      client:call("DEL", "lost")
      self.sleep(11)
      self:logged()
      session.watchdog:suspect("why", function(granted)
        return granted.lock.record.name ~= "other"
      end)
      assert.equal("at_risk held lost",
        table.concat({ one:state(), other:state(), lost:state() }, " "))
      assert.same({ "1 hold is at risk: why" }, self:logged())
      session.watchdog:suspect("why", function() return false end)
      assert.same({}, self:logged())
      self.sleep(0.001)
      assert.equal("held", one:state())
      assert.equal("11.000", times(self:calls()):match "%S+$")
    end)

  on_stage("are lost if it does not have them", function(self, client)
    local one, other = take(client, nil, "one"), take(client, { lease = 20 })
    self.sleep(5)
    self.server:restart(1, "nothing")
    self.sleep(2)
    assert.equal("lost lost", one:state() .. " " .. other:state())
  end)
end)

describe("the watchdog's task", function()
  on_stage("ends half a period after it found nothing to do", function(self,
      client, session)
    local lock = take(client)
    self.sleep(1)
    assert.is_true(lock:unlock())
    self.sleep(13.9)
    assert.is_truthy(session.watchdog.change)
    self.sleep(0.2)
    assert.is_nil(session.watchdog.change)
  end)

  on_stage("goes on if there is a hold again", function(self, client, session)
    local lock = take(client)
    self.sleep(1)
    assert.is_true(lock:unlock())
    self.sleep(12)
    lock = take(client)
    self.sleep(3)
    assert.is_true(lock:unlock())
    self.sleep(2)
    assert.is_truthy(session.watchdog.change)
    assert.is_false(session.watchdog:is_needed())
  end)

  on_stage("ends at once when the client is closed", function(self, client,
      session)
    take(client)
    client:close()
    self.sleep(0)
    assert.is_nil(session.watchdog.change)
    assert.equal("0.000 0.000", times(self:calls()))
  end)

  on_stage("ends when it is idle, once retired", function(self, client, session)
    local lock = take(client)
    session.watchdog:retire()
    self.sleep(1)
    assert.is_truthy(session.watchdog.change)
    assert.is_true(lock:unlock())
    session.watchdog:retire()
    self.sleep(0)
    assert.is_nil(session.watchdog.change)
    session.watchdog:retire()
    take(client)
    self.sleep(11)
    assert.equal(1, #self:calls "renew")
  end)
end)

describe("a lost hold", function()
  on_stage("is not renewed once an unlock has found it lost", function(self,
      client, session)
    local lock, told = take(client), 0
    take(client)
    lock:on_lost(function() told = told + 1 end)
    client:call("DEL", "lock")
    assert.equal("lost", select(2, lock:unlock()))
    assert.is_false(session.watchdog:is_needed())
    self.sleep(30)
    assert.equal("0.000 0.000 0.000", times(self:calls()))
    assert.equal("lost", select(2, lock:unlock()))
    assert.equal("not_held", select(2, lock:unlock()))
    self.sleep(1)
    assert.equal(1, told)
  end)

  on_stage("may be locked again by on_lost", function(self, client)
    local lock, results = take(client), nil
    lock:on_lost(function(its)
      self.sleep(0.01)
      results = { its:lock(), its:unlock() }
    end)
    client:call("DEL", "lock")
    self.sleep(11)
    assert.same({ true, true }, results)
    assert.equal("lost", select(2, lock:unlock()))
  end)

  on_stage("is not told to on_lost of a hold before it", function(self, client)
    local lock, told = take(client), 0
    lock:on_lost(function() told = told + 1 end)
    assert.is_true(lock:unlock())
    take(client, { lease = 5 })
    self.sleep(11)
    assert.equal("lost", select(2, lock:unlock()))
    assert.equal(0, told)
  end)

  on_stage("is remembered, even if nothing refers to the lock", function(self,
      client)
    take(client)
    client:call("DEL", "lock")
    self.sleep(11)
    for _ = 1, 2 do collectgarbage() end
    assert.equal("lost", select(2, client:lock("lock"):unlock()))
  end)
end)

describe("a lost hold whose last renewal was executed", function()
  on_stage("is released by its unlock", function(self, client)
    local lock = take(client)
    self.sleep(19.9)
    self:route().back = self.now() + 20.6       -- no reply to any renewal
    self.sleep(21)
    assert.equal("lost", lock:state())
    assert.equal("lost", select(2, lock:unlock()))
    self.sleep(0.1)
    assert.is_nil(self.server.redis:entry "lock")
  end)
end)

describe("a server that cannot be reached", function()
  on_stage("puts holds at risk until it can", function(self, client)
    local lock = take(client)
    self.sleep(9)
    self.server:restart(5, "data")
    assert.same({ "9.0 held", "10.2 at_risk" }, states(self, lock, 13))
    assert.match("at risk, valid for .*refused",
      table.concat(self:logged(), "\n"))
    self.sleep(5)
    assert.equal("held", lock:state())
  end)

  for why, expected in pairs { ["OOM command not allowed"] = 0,
      ["LOADING Redis is loading"] = 2,      -- the connection is left, too
      ["CLUSTERDOWN Hash slot not served"] = 1 } do
    on_stage(("is suspected, or not: %s"):format(why),
      function(self, client, session)
        local suspected = 0
        function session.server.node.suspect(_, node)
          assert.equal(session.server.node, node)
          suspected = suspected + 1
        end
        local lock = take(client)
        self.sleep(9)
        self.server:ail(3, why)
        self.sleep(3)
        assert.equal("at_risk", lock:state())
        assert.equal(expected, suspected)
      end)
  end

  on_stage("leaves nothing behind when the client is closed", function(self,
      client)
    take(client)
    self.server:freeze(40)
    self.sleep(11)
    client:close()
    self.sleep(40)
    assert.equal(0, #self:calls "renew")
  end)
end)

describe("an inner hold that is released", function()
  on_stage("is no reason to renew late if the release fails", function(self,
      client)
    local lock = take(client)
    self.sleep(7)
    take(client, { lease = 100 })
    self.server:ail(3, "ERR odd")
    assert.equal("redis", select(2, lock:unlock()))
    assert.near(29.968, lock:valid_for(), 0.002)
    self:calls()
    self.sleep(11)
    assert.same({ "17.000 renew 30000 1" }, self:calls())
  end)

  on_stage("leaves one with a lease as that is", function(self, client)
    local lock = take(client, { lease = 20 })
    take(client)
    self:calls()
    assert.is_true(lock:unlock())
    self.sleep(30)
    assert.same({ "0.000 release 19978 1 hand over" }, self:calls())
    assert.equal("lost", lock:state())
  end)

  on_stage("on one side of a pair leaves the other renewed", function(self,
      client)
    local pair = client:read_write_lock "lock"
    local reader, writer = pair:read_lock(), pair:write_lock()
    assert.is_true(writer:lock())
    assert.is_true(reader:lock())
    assert.is_true(reader:unlock())
    self.sleep(60)
    assert.equal("held", writer:state())
    assert.is_true(reader:lock())
    assert.is_true(writer:unlock())
    self.sleep(60)
    assert.equal("held", reader:state())
    assert.is_true(reader:unlock())
    assert.equal(0, client:call("EXISTS", "lock"))
  end)

  on_stage("is all that was kept beyond the lease of the outer one", function(
      self, client)
    local lock, told = take(client, { lease = 15 }), 0
    take(client)
    lock:on_lost(function() told = told + 1 end)
    self.sleep(40)
    assert.equal("held", lock:state())
    assert.is_true(lock:unlock())
    assert.near(0, lock:valid_for(), 0.002)
    self.sleep(1)
    assert.equal("lost", select(2, lock:unlock()))
    assert.equal(1, told)
    assert.equal(0, client:call("EXISTS", "lock"))
  end)

  on_stage("is not relied on from the request that releases it", function(self,
      client)
    local lock = client:lock "lock"
    local outer = assert(lock:hold { lease = 5 })
    take(client, { lease = 60 })
    assert.near(59.938, outer:valid_for(), 0.001)
    self:route().delay = 1
    local valid
    self.spawn(function()
      self.sleep(0.5)
      valid = outer:valid_for()
    end)
    assert.is_true(lock:unlock())
    assert.near(4.49, valid, 0.01)
  end)
end)

-- Lets the server redirect the first request after 9 s, and the node follow
-- that.
local function redirect(self, session)
  local execute, left, followed = self.server.execute, 1, {}
  function self.server.execute(its, link, words)
    local reply = execute(its, link, words)
    if words[1] == "EVALSHA" and words[6] and left > 0
        and self.now() > 9 then
      left = left - 1
      return { err = "MOVED 1 other:6379" }
    end
    return reply
  end
  function session.server.node.redirect(_, detail, node)
    assert.equal(session.server.node, node)
    followed[#followed + 1] = detail
  end
  return followed
end

describe("a release by a client that is closed", function()
  on_stage("follows a redirection", function(self, client, session)
    local followed = redirect(self, session)
    take(client)
    self.sleep(9.5)
    client:close()
    assert.same({ "MOVED 1 other:6379" }, followed)
    assert.equal(2, #self:calls "release")
  end)
end)

describe("a renewal on its way", function()
  on_stage("is not sent for what is released meanwhile", function(self, client)
    local locks = take_many(client, 3)
    self.sleep(9.9)
    self.server:freeze(1)                 -- also delays SCRIPT LOAD
    self.sleep(0.3)
    assert.is_true(locks[2]:unlock())
    self.sleep(1)
    assert.equal(2, #self:calls "renew")
    assert.equal(2, count(locks, "held"))
  end)

  on_stage("in flight outlives a hold whose unlock is cancelled", function(self,
      client)
    local ending
    local unlocking = self.spawn(function()
      local lock = take(client)
      self.sleep(19.9)
      ending = true
      self:route().back = self.now() + 1
      self.sleep(0.2)
      lock:unlock()
    end)
    self.sleep(20.5)
    assert.is_true(ending)
    unlocking:cancel()
    self.sleep(1)
    assert.equal("21.500", ("%.3f"):format(self.now() - self.began))
    assert.is_true(take(client):unlock())
  end)

  on_stage("is sent again where it is redirected to", function(self, client,
      session)
    local followed, lock = redirect(self, session), take(client)
    self.sleep(10.5)
    assert.same({ "MOVED 1 other:6379" }, followed)
    assert.equal("held", lock:state())
    self.sleep(10)
    assert.same({ "0.000 acquire 30000 1", "10.000 renew 30000 1",
      "10.000 renew 30000 1", "20.000 renew 30000 1" }, self:calls())
    assert.near(29.468, lock:valid_for(), 0.001)
  end)

  on_stage("is redirected as a restatement, too", function(self, client,
      session)
    local followed = redirect(self, session)
    local lock = client:read_write_lock("lock"):read_lock()
    assert.is_true(lock:lock { lease = 15 })
    self.sleep(11)
    assert.equal(1, #followed)
    assert.same({ "10.000 renew 4983 1 1", "10.000 renew 4983 1 1" },
      self:calls "renew")
  end)

  on_stage("is void if the hold is released while it is redirected",
    function(self, client, session)
      redirect(self, session)
      local lock = take(client)
      local follow = session.server.node.redirect
      function session.server.node.redirect(...)
        self.server:freeze(1)
        return follow(...)
      end
      self.sleep(10.5)
      assert.is_true(lock:unlock())
      self.sleep(1)
      assert.equal("free", lock:state())
      assert.is_false(session.watchdog:is_needed())
    end)

  on_stage("fails if it is redirected without a cluster", function(self, client,
      session)
    redirect(self, session)
    session.server.node.redirect = nil
    local lock = take(client)
    self.sleep(10.5)
    assert.equal("at_risk", lock:state())
  end)
end)

describe("a slow node", function()
  -- Splits the client's node in two, of which one answers after 3 s.
  local function split(self, session)
    local node = session.server.node
    local fast = {
      node = node, pipeline = function(_, ...) return node:pipeline(...) end,
    }
    local slow = { node = node, sizes = {} }
    function slow.pipeline(its, deadline, commands)
      table.insert(its.sizes, #commands)
      self.sleep(3)
      return node:pipeline(deadline + 3, commands)
    end
    function session.route_of(granted)
      return granted.lock.record.name == "fast" and fast or slow
    end
    return slow
  end

  local function check(self, client, session, slow)
    local locks = take_many(client, 1100)
    self.sleep(1)
    local fast = take(client, nil, "fast")
    self:calls()
    self.sleep(9.5)
    assert.equal(4, session.watchdog.batches)
    self.sleep(1)
    assert.equal("11.000", times(self:calls "renew"))
    self.sleep(5)
    assert.equal(1100, count(locks, "held"))
    assert.equal("held", fast:state())
    assert.equal(256 / 64, math.max(table.unpack(slow.sizes)))
    self.sleep(13)
    assert.equal(1100, count(locks, "held"))
    assert.is_true(#slow.sizes <= 12)
    assert.match("21.000", times(self:calls "renew"), 1, true)
    self.sleep(2)
    assert.match("31.000", times(self:calls "renew"), 1, true)
  end

  on_stage("does not delay another", function(self, client, session)
    function session.server.node.size() return 2 end
    check(self, client, session, split(self, session))
  end)

  on_stage("or connection does not delay another", function(self, client,
    session)
    session.server.node.dedicated = { {} }
    check(self, client, session, split(self, session))
  end)
end)

describe("what is held in any way", function()
  on_stage("is known, and released when the client is closed", function(self,
      client, session)
    local watchdog = session.watchdog
    assert.is_false(watchdog:is_needed())
    for i, options in ipairs { {}, { lease = 50 } } do
      local lock = take(client, options, "kind" .. i)
      assert.is_true(watchdog:is_needed())
      if i == 2 then lock:on_lost(function() end) end
      assert.is_true(watchdog:is_needed())
      assert.is_true(lock:unlock())
      assert.is_false(watchdog:is_needed())
    end
    take_many(client, 3)
    take(client, { lease = 50 })
    self.server:ail(1, "OOM command not allowed")
    self.sleep(11)
    take(client, { lease = 60 }, "told"):on_lost(function() end)
    self:calls()
    client:close()
    assert.equal(5, #self:calls "release")
    assert.is_nil(next(self.server.redis.entries))
  end)
end)

describe("a renewal that raises an error", function()
  -- The next pipelines fail in these ways: "raise", or an error of the server.
  local function fail(node, ...)
    local faults, pipeline = { ... }, node.pipeline
    function node.pipeline(...)
      local fault = table.remove(faults, 1)
      if not fault then return pipeline(...) end
      if fault == "raise" then error "a fault" end
      return {}, { "redis" }, { fault }, node.host.now()
    end
  end

  for _, faults in ipairs { { "raise" }, { "NOSCRIPT gone", "raise" } } do
    on_stage(("is retried in time: %s"):format(table.concat(faults, ", ")),
      function(self, client, session)
        local lock = take(client)
        fail(session.server.node, table.unpack(faults))
        self.sleep(10.1)
        assert.equal("at_risk", lock:state())
        assert.match("a fault", table.remove(self.host.faults))
        self.sleep(2.5)
        assert.equal("held", lock:state())
        self.sleep(60)
        assert.equal("held", lock:state())
      end)
  end

  on_stage("is retried in time, if its slot has moved", function(self, client,
      session)
    local lock = take(client)
    local granted = lock:mine()
    fail(session.server.node, "MOVED 1 elsewhere:6379")
    function session.server.node.redirect()
      session.server.node.redirect = nil
      function granted.renewal()
        granted.renewal = nil
        error "a fault"
      end
    end
    self.sleep(10.1)
    assert.equal("at_risk", lock:state())
    assert.match("a fault", table.remove(self.host.faults))
    self.sleep(2.5)
    assert.equal("held", lock:state())
  end)
end)

-- In nginx, ngx.exit in a `log` callback ends the task, and its host starts it
-- again.
describe("a watchdog that dies while it collects a batch", function()
  on_stage("retries in time what it has collected", function(self, client)
    local host, died = self.host, 0
    function host.service(...)
      local work = table.pack(...)
      host.daemon(function()
        while died < 3 and not pcall(table.unpack(work, 1, work.n)) do
          died = died + 1
        end
      end)
    end
    local lock, log = take(client), host.log
    self.spawn(take, client, nil, "left"):join()
    function host.log()                 -- that "left" is not renewed any more
      host.log = log
      error "exit"
    end
    self.sleep(25)
    assert.equal(1, died)
    assert.equal("held", lock:state())
    assert.equal(0, #client.session.watchdog.flights)
    assert.equal("12.500 22.500", times(self:calls "renew"))
  end)
end)

describe("a daemon that the host refuses", function()
  -- Refuses daemons from now on, until `accept` is called.
  local function refuse(host)
    local accepts = host.daemon
    function host.daemon() return nil, "refused", "no timer" end
    return function() host.daemon = accepts end
  end

  on_stage("is a failed batch, which is retried", function(self, client)
    local lock = take(client)
    self.sleep(9)
    local accept = refuse(self.host)
    self.sleep(2)
    assert.equal("at_risk", lock:state())
    accept()
    self.sleep(3)
    assert.equal("held", lock:state())
    self.sleep(60)
    assert.equal("held", lock:state())
  end)

  on_stage("is a failed batch, however many are refused", function(self, client)
    local lock = take(client)
    self.sleep(9)
    local accept = refuse(self.host)
    self.sleep(18)                    -- more retries than batches in flight
    accept()
    self.sleep(3)
    assert.equal("held", lock:state())
  end)

  on_stage("ends holds at their time, and on_lost is told", function(self,
      client)
    local lock, reasons = take(client), {}
    lock:on_lost(function(_, reason)
      reasons[#reasons + 1] = ("%.0f %s"):format(self.now(), reason)
    end)
    self.sleep(9)
    refuse(self.host)
    self.sleep(25)
    assert.equal("lost", lock:state())
    assert.same({ "30 not renewed in time: no timer" }, reasons)
  end)

  on_stage("is not run by its caller, if `close` waits for it", function(self,
      _, session)
    local down, service, runs = {}, self.host.service, 0
    function self.host.service(...) down[#down + 1] = table.pack(...) end
    refuse(self.host)
    session:background(function() runs = runs + 1 end)
    assert.same({ 0, 1 }, { runs, session.pending })
    for _ = 1, 2 do                   -- a service may be started again
      service(table.unpack(down[1], 1, down[1].n))
      self.sleep(0.1)
    end
    assert.same({ 1, 0 }, { runs, session.pending })
  end)

  on_stage("fails the requests of a connection at once", function(self, client)
    local lock = client:lock("replicated", { replicas = 1 })
    take(client)                      -- there is a connection
    refuse(self.host)
    local began = self.now()
    assert.same({ nil, "refused", "no timer" }, { lock:try_lock() })
    assert.equal(began, self.now())
  end)
end)
