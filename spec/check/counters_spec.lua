--- Semaphores, permits and latches on virtual time: when waiters continue, and
--- what becomes of requests whose replies are lost, late or not awaited. Titles
--- have the names of Redisson's tests.

local remote = require "rlock.redis.remote"
local stage = require "spec.simulate.stage"

local on_stage = stage.tests(it)

local NAME = "counter"
local SERVED = 0.01        -- seconds until a message has its effect
local POLLS = 7            -- seconds until a lost one does not matter

-- A test of an object of this kind: fn(stage, object, client).
local function row(title, factory, fn)
  on_stage(title, function(self, client)
    fn(self, client[factory](client, NAME), client)
  end)
end

-- Starts n tasks that wait in `fn`; returns the times at which they continued.
local function waiting(self, n, fn, ...)
  local args, times = table.pack(...), {}
  for _ = 1, n do
    self.spawn(function()
      assert.truthy((fn(table.unpack(args, 1, args.n))))
      times[#times + 1] = self.now()
    end)
  end
  self.sleep(1)
  assert.same({}, times)
  return times
end

-- Asserts that n continue within so many seconds from now.
local function continue(self, times, n, seconds)
  local began = self.now()
  self.sleep(seconds or SERVED)
  assert.equal(n, #times)
  for i = 1, n do assert.is_true(times[i] >= began) end
end

-- Runs fn(client) in another process; returns a function that tells whether it
-- has ended.
local function elsewhere(self, fn)
  local host, ok, why = self:add_host "client2", nil, nil
  local client = self:client({ lazy = true }, nil, host)
  host.spawn(function() ok, why = pcall(fn, client) end)
  self.sleep(0.001)
  if ok == false then error(why, 0) end
  return function() return ok end
end

-- Runs fn in a task that is cancelled when its request has been carried out.
local function cancel_during(self, fn, ...)
  self:route().delay = 0.01
  local task = self.spawn(fn, ...)
  self.sleep(0.015)
  task:cancel()
  self:route().delay = 0
end

local function is_silent(code) return code == "closed" or code == "timeout" end

-- How each kind is taken and given back, and what Redisson does for the latter.
local kinds = {
  semaphore = {
    title = { "testTryNAcquire", "testBlockingAcquire, testBlockingNAcquire",
      "testAcquireAfterAddPermits" },
    give = function(its) return its:release() end,
    add = function(its, n) return its:add(n) end,
    later = "in the background", none = "counter.* fewer than 1",
  },
  permits = {
    title = { "testTryAcquire", "testBlockingAcquire", "testAddPermits" },
    give = function(its, id) return its:release(id) end,
    add = function(its, n) return its:set(2 + n) end,
    later = "redis1", none = "no permit",
  },
}

for name, kind in pairs(kinds) do
  describe("rows of " .. name .. ":", function()
    local function taken(its)
      assert.is_true(its:set(2))
      return its:acquire(), its:acquire()
    end

    row(kind.title[1] .. ": waits as long as requested", name,
      function(self, its)
        taken(its)
        local took, ok, code, detail = self:timed(its.try_acquire, its,
          { wait = 3 })
        assert.same({ nil, "timeout" }, { ok, code })
        assert.match(kind.none, detail)
        assert.near(3, took, 0.001)
      end)

    row(kind.title[2] .. ": what is released goes to the next", name,
      function(self, its)
        local id = taken(its)
        local times = waiting(self, 2, its.acquire, its)
        assert.is_true(kind.give(its, id))
        continue(self, times, 1)
      end)

    row(kind.title[3] .. ": those added are given at once", name,
      function(self, its)
        taken(its)
        local times = waiting(self, 5, its.acquire, its)
        assert.is_true(kind.add(its, 3))
        continue(self, times, 3)
        assert.equal(0, its:available())
      end)

    row("is woken by Redisson", name, function(self, its, client)
      assert.is_true(its:set(0))
      local times = waiting(self, 1, its.acquire, its)
      client:call("INCRBY", NAME, 1)
      client:call("PUBLISH", "redisson_sc:{" .. NAME .. "}", "1")
      continue(self, times, 1)
    end)

    row("notices a release without a message", name, function(self, its, client)
      assert.is_true(its:set(0))
      local times = waiting(self, 1, its.acquire, its)
      client:call("INCRBY", NAME, 1)
      continue(self, times, 1, POLLS)
    end)

    row("sends no request while no message comes", name, function(self, its)
      assert.is_true(its:set(0))
      waiting(self, 9, its.acquire, its)
      self:calls()
      self.sleep(2)
      assert.is_true(#self:calls() <= 1)            -- a poll
    end)

    row("passes on a wake that its waiter no longer needs", name,
      function(self, its)
        local id = taken(its)
        local first = self.spawn(function() its:acquire() end)
        local times = waiting(self, 1, its.acquire, its)
        self:route().delay = 0.01
        assert.is_true(kind.give(its, id))
        self.sleep(0.012)
        first:cancel()
        continue(self, times, 1, 0.1)
      end)

    row("ends its wait when the client is closed", name,
      function(self, its, client)
        assert.is_true(its:set(0))
        local code
        self.spawn(function() code = select(2, its:acquire()) end)
        self.sleep(1)
        client:close()
        self.sleep(0)
        assert.equal("closed", code)
        for _, method in ipairs { "try_acquire", "available" } do
          assert.equal("closed", select(2, its[method](its)))
        end
      end)

    row("is taken and given once although the replies are lost", name,
      function(self, its)
        taken(its)
        assert.is_true(kind.add(its, 2))
        local id = self:lose_reply(its.acquire, its)
        assert.equal(1, its:available())
        assert.is_true(self:lose_reply(kind.give, its, id))
        assert.equal(2, its:available())
      end)

    row("gets back what a request without a reply took", name,
      function(self, its)
        assert.is_true(its:set(3))
        self.server:freeze(3.5)
        local ok, code = its:try_acquire()
        assert.is_nil(ok)
        assert.is_true(is_silent(code), code)
        self.sleep(5)
        assert.equal(3, its:available())
      end)

    row("gets back what a cancelled request took", name, function(self, its)
      taken(its)
      assert.is_true(kind.add(its, 3))
      cancel_during(self, its.acquire, its)
      assert.equal("2", self.server.redis:entry(NAME).value)
      self.sleep(2)
      assert.equal(3, its:available())
    end)

    row("is released later if the server is away", name, function(self, its)
      local id = taken(its)
      self.server:restart(9, "data")
      local ok, code, detail = kind.give(its, id)
      assert.same({ nil, "connect" }, { ok, code })
      assert.match(kind.later, detail)
      self.sleep(12)
      assert.equal("1", self.server.redis:entry(NAME).value)
    end)

    row("misses no release while it reconnects", name, function(self, its)
      local id = taken(its)
      local times = waiting(self, 1, its.acquire, its)
      for _, link in ipairs(self:route().links) do link:close_server() end
      elsewhere(self, function(client)
        assert.is_true(kind.give(client[name](client, NAME), id))
      end)
      continue(self, times, 1, 2)
    end)
  end)
end

describe("rows of semaphore:", function()
  local function of(title, fn) row(title, "semaphore", fn) end

  of("serves small requests while a large one waits", function(self, its)
    assert.is_true(its:set(0))
    local much = waiting(self, 1, its.acquire, its, 5)
    local less = waiting(self, 1, its.acquire, its, 2)
    local little = waiting(self, 1, its.acquire, its, 1)
    assert.is_true(its:release(3))
    continue(self, less, 1)
    assert.same({ 1, 0 }, { #little, #much })
    assert.is_true(its:release(5))
    continue(self, much, 1)
  end)

  of("returns what a cancelled drain took", function(self, its)
    assert.equal(0, its:drain())
    assert.is_true(its:set(7))
    cancel_during(self, its.drain, its)
    assert.equal("0", self.server.redis:entry(NAME).value)
    self.sleep(2)
    assert.equal(7, its:available())
  end)

  of("undoes nothing if the server refused", function(self, its)
    assert.is_true(its:set(0))
    self:calls()
    assert.equal("busy", select(2, its:try_acquire()))
    assert.equal("timeout", select(2, its:try_acquire { wait = 1 }))
    self.sleep(1)
    assert.same({}, self:calls "undo")
  end)

  of("does not retry what the server will never do",
    function(self, its, client)
      client:call("HSET", NAME, "a", "b")
      self:calls()
      local ok, code, detail = its:release()
      assert.same({ nil, "redis" }, { ok, code })
      assert.match("WRONGTYPE", detail)
      assert.not_match("in the background", detail)
      self.sleep(1)
      assert.equal(1, #self:calls "release")
    end)

  of("retries a release for much less than the server remembers it",
    function(self, its)
      assert.is_true(its:set(1))
      local run, most = remote.run, 0
      function remote.run(node, op, deadline, now, ...)
        most = math.max(most, deadline - now)
        return run(node, op, deadline, now, ...)
      end
      self.server:restart(9, "data")
      local _, code, detail = its:release()
      self.sleep(12)
      remote.run = run
      assert.equal("connect", code)
      assert.match("in the background", detail)
      assert.near(300, most, 0.001)
      assert.equal(2, its:available())
    end)

  of("counts the requests that got permits", function(self, its, client)
    assert.is_true(its:set(2) and its:acquire())      -- loads the scripts
    self:route().delay = 0.25
    assert.is_true(its:acquire())
    self:route().delay = 0
    assert.equal("busy", select(2, its:try_acquire()))
    local stats = client:stats()
    assert.same({ 2, 2 }, { stats.acquired, stats.round_trip.count })
    assert.is_true(stats.round_trip.sum > 0)
  end)

  -- The number of slots that the server remembers.
  local function slots(self)
    local n = 0
    for key, entry in pairs(self.server.redis.entries) do
      if key:find("^rlock_request:") then
        n = n + 1
        assert.truthy(entry.expires)
      end
    end
    return n
  end

  of("needs no more slots than concurrent requests", function(self, its)
    assert.is_true(its:set(9))
    for _ = 1, 50 do assert.is_true(its:acquire() and its:release()) end
    for _ = 1, 3 do self.spawn(its.acquire, its) end
    self.sleep(1)
    local n = slots(self)
    assert.is_true(n >= 3 and n <= 4, n)
  end)

  of("uses a slot again only when the outcome of its request is known",
    function(self, its)
      assert.is_true(its:set(9))
      self.server:restart(9, "data")
      assert.equal("connect", select(2, its:release()))
      self.sleep(12)
      assert.equal(10, its:available())
      self:route().delay = 0.1
      for _ = 1, 2 do self.spawn(its.acquire, its) end
      self.sleep(1)
      assert.equal(2, slots(self))
    end)

  of("reports a release that the server does not confirm",
    function(self, its)
      assert.is_true(its:set(9))
      self.server:restart(9, "data")
      assert.equal("connect", select(2, its:release()))
      self.server:ail(60, "ERR nonsense")
      self:logged()
      self.sleep(12)
      assert.match("did not confirm release%(1%) of semaphore \"?" .. NAME
        .. "\"?: .*nonsense", table.concat(self:logged(), "\n"))
    end)

  of("shows its state", function(_, its)
    assert.is_true(its:set(2))
    assert.same({ state = "free", available = 2, holders = {} }, its:peek())
    assert.is_true(its:acquire(2))
    assert.same({ state = "held", available = 0, holders = {} }, its:peek())
  end)

  of("uses the slot of an undone request again", function(self, its)
    assert.is_true(its:set(9))
    for _ = 1, 9 do
      cancel_during(self, its.acquire, its)
      self.sleep(1)
    end
    assert.equal(1, slots(self))
  end)

  of("is set and drained once although the replies are lost",
    function(self, its)
      assert.is_true(self:lose_reply(its.set, its, 2))
      assert.equal(2, self:lose_reply(its.drain, its))
      assert.equal(0, its:available())
    end)
end)

describe("a task that acquires without waiting", function()
  on_stage("wakes a waiter for the permits that it leaves",
    function(self, client)
      local semaphore = client:semaphore(NAME)
      assert.is_true(semaphore:set(0))
      local times = waiting(self, 1, semaphore.acquire, semaphore)
      assert(client:call("SET", NAME, 2))       -- publishes nothing
      assert.is_true(semaphore:try_acquire())
      continue(self, times, 1)
    end)
end)

describe("rows of permits:", function()
  local function of(title, fn) row(title, "permits", fn) end

  of("measures how long each was held", function(self, its, client)
    assert.is_true(its:set(2))
    local long, short = its:acquire(), its:acquire { lease = 9 }
    self.sleep(1)
    assert.is_true(its:release(short))
    self.sleep(2)
    assert.is_true(its:release(long))
    local hold = client:stats().hold
    assert.equal(2, hold.count)
    assert.near(4, hold.sum, 0.001)
  end)

  of("testExpire, testExpireTryAcquire: the next has it when a lease ends",
    function(self, its)
      assert.is_true(its:set(1))
      local first = assert(its:acquire { lease = 10 })
      local took, id = self:timed(its.acquire, its)
      assert.near(10, took, 0.01)
      assert.equal("lost", select(2, its:release(first)))
      assert.same({ 0, 1 }, { its:available(), its:acquired() })
      assert.is_true(its:release(id))
    end)

  of("are kept alive without a lease, and not with one", function(self, its)
    assert.is_true(its:set(2))
    local id, other = assert(its:acquire()), assert(its:acquire { lease = 40 })
    self.sleep(100)
    assert.same({ 1, 1 }, { its:available(), its:acquired() })
    assert.equal("lost", select(2, its:release(other)))
    assert.is_true(its:release(id))
    self:calls()
    self.sleep(60)
    assert.same({}, self:calls())
  end)

  of("show who has them, and until when", function(_, its)
    assert.is_true(its:set(2))
    assert.same({ state = "free", available = 2, in_use = 0, holders = {} },
      its:peek())
    local short = assert(its:acquire { lease = 10 })
    local long = assert(its:acquire { lease = 20 })
    assert.same({ state = "held", available = 0, in_use = 2, holders = {
      { owner = short, ttl = 10 }, { owner = long, ttl = 20 },
    } }, its:peek())
  end)

  of("can be renewed beyond it", function(self, its)
    assert.is_true(its:set(1))
    local id = assert(its:acquire { lease = 10 })
    assert.is_true(its:renew(id, 60))
    assert.near(59.938, its:valid_for(id), 0.001)
    assert.is_true(its:renew(id, 5))            -- never shortened
    self.sleep(50)
    assert.is_true(its:release(id))
  end)

  of("are reported when they are lost, once", function(self, its, client)
    assert.is_true(its:set(2))
    local told = {}
    local function note(lost, reason) told[#told + 1] = { lost, reason } end
    local id, short = assert(its:acquire()), assert(its:acquire { lease = 5 })
    elsewhere(self, function(other)
      assert.equal(0, other:permits(NAME):valid_for(id))
    end)
    assert.is_true(its:on_lost(id, note) and its:on_lost(short, note))
    self.sleep(5)
    assert.equal(short, told[1][1])
    client:call("DEL", "{" .. NAME .. "}:timeout")
    self.sleep(10)
    assert.equal(id, told[2][1])
    assert.is_string(told[2][2])
    assert.equal(0, its:valid_for(id))
    assert.equal("lost", select(2, its:release(id)))
    assert.equal("not_held", select(2, its:on_lost(id, note)))
    assert.equal(2, #told)
  end)

  of("are released when the client is closed", function(self, its, client)
    assert.is_true(its:set(2))
    assert(its:acquire() and its:acquire { lease = 60 })
    client:close()
    elsewhere(self, function(other)
      local theirs = other:permits(NAME)
      assert.same({ 2, 0 }, { theirs:available(), theirs:acquired() })
    end)
    assert.equal("closed", select(2, its:acquire()))
    assert.equal("closed", select(2, its:release(("0"):rep(32))))
  end)

  of("leave nothing behind here when their leases end", function(self, its,
      client)
    assert.is_true(its:set(50))
    for _ = 1, 50 do assert(its:acquire { lease = 2 }) end
    self.sleep(40)
    assert.equal(50, its:available())
    collectgarbage()
    assert.is_nil((next(its.record.taken)))
    assert.equal(0, #client.session.watchdog:all())
  end)
end)

describe("rows of latch:", function()
  local function of(title, fn)
    row(title, "latch", function(self, latch, client)
      assert.is_true(latch:set(2))
      fn(self, latch, client)
    end)
  end

  of("testAwaitTimeout, testMultiAwait: all continue at once", function(self,
      latch)
    local here = waiting(self, 50, latch.wait, latch)
    local is_open = elsewhere(self, function(other)
      assert.is_true(other:latch(NAME):wait())
    end)
    latch:count_down()
    self.sleep(1)
    assert.same({}, here)
    assert.is_nil(is_open())
    latch:count_down()
    continue(self, here, 50)
    assert.is_true(is_open())
  end)

  of("shows its state", function(_, latch)
    assert.same({ state = "held", count = 2, holders = {} }, latch:peek())
    assert.is_true(latch:delete())
    assert.same({ state = "free", count = 0, holders = {} }, latch:peek())
  end)

  of("testAwaitTimeoutFail: waits as long as requested", function(self, latch)
    local took, ok, code, detail = self:timed(latch.wait, latch, { wait = 3 })
    assert.same({ nil, "timeout" }, { ok, code })
    assert.match("not open in time", detail)
    assert.near(3, took, 0.001)
    assert.equal("timeout", select(2, latch:wait { wait = 0 }))
  end)

  for message, what in pairs { ["0"] = "opened", ["1"] = "deleted" } do
    of("is " .. what .. " by Redisson", function(self, latch, client)
      local times = waiting(self, 3, latch.wait, latch)
      client:call("DEL", NAME)
      client:call("PUBLISH",
        "redisson_countdownlatch__channel__{" .. NAME .. "}", message)
      continue(self, times, 3)
    end)
  end

  of("keeps waiting after a message that does not open it", function(self,
      latch, client)
    local times = waiting(self, 2, latch.wait, latch)
    for _, message in ipairs { "0", "1", "nonsense" } do
      client:call("PUBLISH",
        "redisson_countdownlatch__channel__{" .. NAME .. "}", message)
    end
    self.sleep(1)
    assert.same({}, times)
    latch:delete()
    continue(self, times, 2)
  end)

  of("frees all waiters if it is deleted without a message", function(self,
      latch, client)
    local times = waiting(self, 10, latch.wait, latch)
    client:call("DEL", NAME)
    continue(self, times, 10, POLLS)
  end)

  of("opens although the connection was lost", function(self, latch)
    local times = waiting(self, 20, latch.wait, latch)
    for _, link in ipairs(self:route().links) do link:close_server() end
    elsewhere(self, function(other)
      assert.is_true(other:latch(NAME):delete())
    end)
    continue(self, times, 20, 2)
  end)

  of("opens after an outage of the server", function(self, latch)
    local times = waiting(self, 1, latch.wait, latch)
    self.server:restart(4, "nothing")
    continue(self, times, 1, 4 + POLLS)
  end)

  of("counts, is deleted and set once although the replies are lost",
    function(self, latch)
      assert.is_true((self:lose_reply(latch.count_down, latch)))
      assert.equal(1, latch:count())
      assert.is_true(self:lose_reply(latch.delete, latch))
      assert.is_true(self:lose_reply(latch.set, latch, 7))
      assert.equal(7, latch:count())
    end)

  of("counts down later if the server is away, or the task is cancelled",
    function(self, latch)
      self.server:restart(9, "data")
      local task = self.spawn(function() latch:count_down() end)
      local ok, code, detail = latch:count_down()
      assert.same({ nil, "connect" }, { ok, code })
      assert.match("in the background", detail)
      task:cancel()
      self.sleep(12)
      assert.is_nil(self.server.redis:entry(NAME))
    end)

  of("ends its wait when the client is closed, or it is cancelled",
    function(self, latch, client)
      local code
      local task = self.spawn(function() latch:wait() end)
      self.spawn(function() code = select(2, latch:wait()) end)
      self.sleep(1)
      task:cancel()
      client:close()
      self.sleep(0)
      assert.equal("closed", code)
      for _, method in ipairs { "wait", "count_down", "count", "delete" } do
        assert.equal("closed", select(2, latch[method](latch)), method)
      end
    end)
end)

local LEASE, WAIT = 0.05, 0.2

-- Takes a permit, so that the server knows the scripts.
local function warmed_up(self, client)
  local permits = client:permits "permits"
  assert.is_true(permits:set(2))
  assert.is_true(permits:release((assert(permits:acquire()))))
  self.recorded = {}
  return permits
end

-- The ids that were sent with an operation.
local function ids(self, operation)
  local list = {}
  for _, call in ipairs(self.recorded) do
    if call.operation == operation then list[#list + 1] = call.args[1] end
  end
  return list
end

describe("a permit", function()
  on_stage("is not valid any more while its release awaits a reply",
    function(self, client)
      local permits = warmed_up(self, client)
      local id = assert(permits:acquire())
      assert.is_true(permits:valid_for(id) > 0)
      self:route().delay = 0.01
      self.spawn(permits.release, permits, id)
      self.sleep(0.016)                 -- the server has executed it
      assert.equal("2", self.server.redis:entry("permits").value)
      assert.equal(0, permits:valid_for(id))
    end)
end)

describe("a permit whose reply comes too late", function()
  on_stage("is released without a longer wait", function(self, client)
    local permits, results, took = warmed_up(self, client), nil, nil
    self:route().delay = 0.04
    self.spawn(function()
      local began = self.now()
      results = { permits:acquire { lease = LEASE, wait = WAIT } }
      took = self.now() - began
    end)
    self.sleep(0.07)
    self.server:freeze(1)
    self.sleep(3)
    assert.same({ nil, "timeout" }, { table.unpack(results, 1, 2) })
    assert.near(WAIT, took, 0.001)
  end)

  on_stage("is another one than that of the next request",
    function(self, client, session)
      local permits, id = warmed_up(self, client), nil
      self:route().delay = 0.04
      self.spawn(function()
        id = assert(permits:acquire { lease = LEASE, wait = 9 })
      end)
      self.sleep(0.07)
      self:route().delay = 0.001
      self.sleep(0.04)
      local taken, released = ids(self, "acquire"), ids(self, "release")
      assert.equal(2, #taken)
      assert.same({ taken[1] }, released)
      assert.not_equal(taken[1], taken[2])
      assert.is_true(permits:release(id))
      assert.equal(0, session.pending)
    end)
end)
