--- The semaphore on a real Redis: the operations, Redisson's layout and
--- behaviours. spec/check/counters_spec.lua has its waiters, and requests whose
--- replies are lost.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local server = redis.shared()

local function open(options)
  return fixtures.open({ url = server.url }, options)
end

describe("a semaphore", function()
  local client, name, channel, semaphore

  local function permits() return tonumber(client:call("GET", name) or nil) end

  -- The messages on the channel while fn runs.
  local function heard(fn) return fixtures.messages(server, channel, fn) end

  before_each(function()
    client, name = open(), fixtures.name "semaphore"
    channel = "redisson_sc:{" .. name .. "}"
    semaphore = client:semaphore(name)
  end)

  after_each(fixtures.close)

  it("gives the verdict of its state, and applies each number once",
    function()
      local ops = states.of(client, "semaphore")
      ops.play(name, [[
        count                            held
        acquire 1 60000 1                busy
        set 2 60000 3 publish            held
        set 2 60000 3 publish            held     -- the same request again
        set 3 60000 3 publish            refused
        count                            free
        acquire 4 60000 2                held
        acquire 4 60000 2                held
        acquire 3 60000 1                held     -- late, and not carried out
      ]])
      assert.equal(1, permits())
      ops.play(name, [[
        acquire 5 60000 2                busy
        release 6 60000 1 publish        freed
        release 6 60000 1 publish        freed
        acquire 5 60000 2                held     -- late again
      ]])
      assert.equal(2, permits())
      ops.play(name, [[
        acquire 7 60000 2                held
        undo 8 60000 2 publish 7         freed
        undo 8 60000 2 publish 7         freed
        acquire 7 60000 2                held     -- late: it was undone
      ]])
      assert.equal(2, permits())
      ops.play(name, [[
        undo 10 60000 2 publish 9        freed    -- of what was not done yet
        acquire 9 60000 2                held     -- and now never is
      ]])
      assert.equal(2, permits())
      ops.play(name .. ":for a while", [[
        set 2 60000 3 publish 10         held
        wait 20
        count                            held
        acquire 3 60000 1                busy
        release 4 60000 1 publish        freed
        count                            free
      ]])
      local memory = client:call("PTTL", "rlock_request:{" .. name .. "}")
      assert.is_true(memory > 10000 and memory <= 60000)
    end)

  it("publishes no undone request if no permit is free", function()
    local ops = states.of(client, "semaphore")
    assert.same({}, heard(function()
      client:call("SET", name, 1)
      ops.play(name, "acquire 1 60000 1 held")
      client:call("DECR", name)         -- as one that removes a permit in use
      ops.play(name, "undo 2 60000 1 publish 1 freed")
    end))
    assert.equal(0, permits())
  end)

  it("testTrySetPermits: only the first counts", function()
    assert.equal(0, semaphore:available())
    assert.is_true(semaphore:set(10))
    local ok, code, detail = semaphore:set(15)
    assert.same({ nil, "refused" }, { ok, code })
    assert.matches("10 permits", detail)
    assert.equal(10, semaphore:available())
    assert.equal("10", client:call("GET", name))
    assert.equal(-1, client:call("PTTL", name))
  end)

  it("testTrySetPermitsTTL", function()
    assert.is_true(semaphore:set(1, { ttl = 60 }))
    assert.is_true(semaphore:acquire())
    assert.is_true(semaphore:release())
    assert.is_true(semaphore:add(3))
    assert.equal(4, semaphore:drain())
    local ttl = client:call("PTTL", name)
    assert.is_true(ttl > 50000 and ttl <= 60000)
  end)

  it("testZero: acquiring none always succeeds", function()
    assert.is_true(semaphore:try_acquire(0))
    assert.is_true(semaphore:acquire(0))
    assert.is_true(semaphore:release(0))
    assert.equal(0, client:call("EXISTS", name))
  end)

  it("testAcquireWithoutSetPermits: there are none", function()
    local ok, code = semaphore:try_acquire()
    assert.same({ nil, "busy" }, { ok, code })
    assert.equal("timeout", select(2, semaphore:acquire { wait = 0.05 }))
    assert.is_true(semaphore:release(2))
    assert.is_true(semaphore:acquire(2))
  end)

  it("testAddPermits, testReducePermits", function()
    assert.is_true(semaphore:set(10))
    assert.is_true(semaphore:add(5))
    assert.equal(15, semaphore:available())
    assert.is_true(semaphore:add(-20))
    assert.equal(-5, semaphore:available())
    assert.equal("busy", select(2, semaphore:try_acquire()))
    assert.is_true(semaphore:release(6))
    assert.is_true(semaphore:try_acquire())
    assert.equal(0, semaphore:available())
  end)

  it("testReleaseWithoutPermits: any client may release", function()
    assert.is_true(semaphore:release())
    assert.equal(1, semaphore:available())
  end)

  it("testDrainPermits", function()
    assert.equal(0, semaphore:drain())
    assert.equal(0, client:call("EXISTS", name))
    assert.is_true(semaphore:set(10))
    assert.is_true(semaphore:acquire(3))
    assert.equal(7, semaphore:drain())
    assert.equal(0, semaphore:available())
    assert.equal(0, semaphore:drain())
  end)

  it("testReleaseAcquire", function()
    assert.is_true(semaphore:set(10))
    for n = 1, 10 do
      assert.is_true(semaphore:acquire(n))
      assert.is_true(semaphore:release(n))
    end
    assert.equal(10, semaphore:available())
  end)

  for _, row in ipairs {
    { "testConcurrency_SingleInstance", 1, 15, 1, 1 },
    { "testConcurrencyLoop_MultiInstance", 1, 16, 20, 16 },
    { "testConcurrency_MultiInstance_1_permits", 1, 30, 1, 30 },
    { "some of three, over many clients", 3, 20, 10, 20,
      function(i) return i % 3 + 1 end },
    { "testConcurrencyLoopMax_MultiInstance", 2147483647, 4, 10, 4,
      function() return math.random(2) == 1 and 1 or 2147483647 end },
  } do
    it(row[1] .. ": never more inside than permits", function()
      local total, tasks, times, clients, n_of = table.unpack(row, 2)
      local inside, done, others = 0, 0, {}
      assert.is_true(semaphore:set(total))
      for i = 1, clients do others[i] = open() end
      task.many(tasks, function(i)
        local its = others[i % clients + 1]:semaphore(name)
        for _ = 1, times do
          local n = n_of and n_of(i) or 1
          assert.is_true(its:acquire(n, { wait = 40 * slow }))
          inside = inside + n
          assert.is_true(inside <= total)
          rlock.sleep(0)
          inside, done = inside - n, done + 1
          assert.is_true(its:release(n))
        end
      end, 60 * slow)
      assert.equal(tasks * times, done)
      assert.equal(total, semaphore:available())
      for i = 1, clients do others[i]:close() end
    end)
  end

  it("publishes the permits on Redisson's channel when they increase",
    function()
      assert.same({ "3", "1", "2", "7" }, heard(function()
        semaphore:set(3)
        semaphore:acquire(3)
        semaphore:release()
        semaphore:release()
        semaphore:try_acquire(2)
        semaphore:add(7)
        semaphore:add(-3)
        semaphore:drain()
        semaphore:add(-3)
        semaphore:release(2)           -- -1 are available: wakes nobody
      end))
      assert.equal(-1, semaphore:available())
    end)

  it("says it in both ways to a fleet that needs both, and hears the sharded "
    .. "messages", function()
      local other = open { publish = "both" }
      local sharded = open { publish = "spublish" }
      assert.same({ "2", "1" }, heard(function()
        assert.is_true(other:semaphore(name):set(2))
        assert.is_true(semaphore:acquire(2))
        assert.is_true(other:semaphore(name):release())
      end))
      assert.is_true(semaphore:acquire())
      local waiting = task.start(function()
        return sharded:semaphore(name):acquire(1, { wait = 30 * slow })
      end)
      eventually(function()
        return sharded.session.wakeup:is_live(channel)
      end)
      assert.is_true(other:semaphore(name):release())
      assert.is_true(waiting:join(10 * slow))
    end)

  it("refuses wrong arguments by name", function()
    for _, case in ipairs {
      { "name", function() client:semaphore("") end },
      { "n:", function() semaphore:acquire(-1) end },
      { "n:", function() semaphore:acquire(1.5) end },
      { "n:", function() semaphore:acquire("2") end },
      { "n:", function() semaphore:try_acquire(0 / 0) end },
      { "n:", function() semaphore:release(2147483648) end },
      { "n:", function() semaphore:set(-1) end },
      { "n:", function() semaphore:set() end },
      { "n:", function() semaphore:add() end },
      { "n:", function() semaphore:add(math.huge) end },
      { "wait", function() semaphore:acquire { wait = -1 } end },
      { "wait", function() semaphore:acquire(1, { wait = "3" }) end },
      { "weight", function() semaphore:acquire { weight = 3 } end },
      { "lease", function() semaphore:acquire { lease = 3 } end },
      { "options", function() semaphore:acquire(1, 5) end },
      { "ttl", function() semaphore:set(1, { ttl = 0 }) end },
    } do
      local ok, message = pcall(case[2])
      assert.is_false(ok, case[1])
      assert.matches(case[1], message, 1, true)
      assert.matches("semaphore_spec.lua:%d+:", message)
    end
  end)
end)
