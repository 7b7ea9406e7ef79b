--- The semaphore on a real Redis: the operations, Redisson's layout and
--- behaviours, and permits that count once however often a request is retried.

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

  -- Starts a task that waits for permits; returns once it is waiting.
  local function start_waiting(n, of)
    local subscribers = client:call("PUBSUB", "NUMSUB", channel)[2]
    local calls = server:stat("evalsha")
    local waiting = task.start(function()
      return (of or semaphore):acquire(n, { wait = 30 * slow })
    end)
    eventually(function()
      local now = client:call("PUBSUB", "NUMSUB", channel)[2]
      return now > 0 and (now > subscribers
        or server:stat("evalsha") > calls)
    end)
    return waiting
  end

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
      assert.is_true(memory > 59000 and memory <= 60000)
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

  it("testAcquireAfterAddPermits: those added are given at once", function()
    assert.is_true(semaphore:set(0))
    local waiting = start_waiting(2)
    assert.is_true(semaphore:add(2))
    assert.is_true(waiting:join(5 * slow))
    assert.equal(0, semaphore:available())
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

  it("testBlockingAcquire, testBlockingNAcquire", function()
    assert.is_true(semaphore:set(5))
    assert.is_true(semaphore:acquire(3))
    local waiting = start_waiting(4)
    assert.is_true(semaphore:release())
    assert.equal(3, semaphore:available())
    assert.is_true(semaphore:release())
    assert.is_true(waiting:join(5 * slow))
    assert.equal(0, semaphore:available())
  end)

  it("testTryNAcquire: waits as long as requested", function()
    assert.is_true(semaphore:set(5))
    assert.is_true(semaphore:try_acquire(3))
    local before = rlock.now()
    local ok, code, detail = semaphore:try_acquire(4, { wait = 0.3 })
    local took = rlock.now() - before
    assert.same({ nil, "timeout" }, { ok, code })
    assert.matches("fewer than 4", detail)
    assert.is_true(took >= 0.299 and took < 0.3 + 0.3 * slow, "took " .. took)
    assert.equal(2, semaphore:available())
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
      local before = rlock.now()
      assert.is_true(other:semaphore(name):release())
      assert.is_true(waiting:join(10 * slow))
      assert.is_true(rlock.now() - before < 1.5 * slow)
    end)

  it("is woken by Redisson", function()
    assert.is_true(semaphore:set(0))
    local waiting = start_waiting(1)
    client:call("INCRBY", name, 1)
    local before = rlock.now()
    client:call("PUBLISH", channel, "1")
    assert.is_true(waiting:join(10 * slow))
    assert.is_true(rlock.now() - before < slow)
  end)

  it("wakes as many waiters as a release serves", function()
    assert.is_true(semaphore:set(0))
    local all = {}
    for i = 1, 8 do all[i] = start_waiting(1) end
    local before = rlock.now()
    assert.is_true(semaphore:release(8))
    for i = 1, 8 do assert.is_true(all[i]:join(10 * slow)) end
    assert.is_true(rlock.now() - before < slow)
  end)

  it("serves small requests while a large one waits", function()
    assert.is_true(semaphore:set(0))
    local much = start_waiting(5)
    local less, little = start_waiting(2), start_waiting(1)
    local before = rlock.now()
    assert.is_true(semaphore:release(3))
    assert.is_true(less:join(10 * slow))
    assert.is_true(little:join(10 * slow))
    assert.is_true(rlock.now() - before < slow)
    assert.is_false(much.is_over or false)
    assert.is_true(semaphore:release(5))
    assert.is_true(much:join(10 * slow))
    assert.equal(0, semaphore:available())
  end)

  it("sends no request while no message comes", function()
    assert.is_true(semaphore:set(1))
    local waiting = {}
    for i = 1, 5 do waiting[i] = start_waiting(2) end
    local calls = server:stat("evalsha")
    rlock.sleep(0.5)
    assert.is_true(server:stat("evalsha") - calls <= 3)
    for i = 1, 5 do waiting[i].task:cancel() end
  end)

  it("notices a release without a message, in seconds", function()
    assert.is_true(semaphore:set(0))
    local waiting = start_waiting(1)
    client:call("INCRBY", name, 1)
    assert.is_true(waiting:join(7 * slow))
  end)

  it("passes on a wake that its waiter no longer needs", function()
    assert.is_true(semaphore:set(0))
    local first = start_waiting(1)
    local second = start_waiting(1)
    semaphore:release()
    first.task:cancel()
    local before = rlock.now()
    eventually(function() return first.is_over end)
    if not first.results[1] then
      assert.is_true(second:join(10 * slow))
      assert.is_true(rlock.now() - before < slow)
      assert.equal(0, semaphore:available())
    end
  end)

  describe("behind a bad network", function()
    local proxy, other, its

    before_each(function()
      proxy = fixtures.proxy(server)
      other = open { url = proxy.url, timeout = 0.3 * slow }
      its = other:semaphore(name)
      assert.is_true(semaphore:set(10))
      assert.is_true(its:acquire())
      assert.is_true(its:release())
      assert.equal(10, its:available())
    end)

    it("acquires once if the request is repeated", function()
      proxy:drop_replies(1, name)
      assert.is_true(its:acquire(3, { wait = 5 * slow }))
      assert.equal(7, semaphore:available())
    end)

    it("releases once if the request is repeated", function()
      assert.is_true(its:acquire(4))
      proxy:cut(1, name)
      assert.is_true(its:release(4))
      assert.equal(10, semaphore:available())
    end)

    it("releases permits of an acquire whose reply was lost", function()
      proxy:drop_replies(1000, name)
      local taking = task.start(function() return its:try_acquire(3) end)
      eventually(function() return semaphore:available() == 7 end)
      local ok, code = taking:join(20 * slow)
      assert.is_nil(ok)
      assert.is_true(code == "timeout" or code == "closed", code)
      proxy:reset()
      eventually(function() return semaphore:available() == 10 end, 10 * slow)
      rlock.sleep(0.1)
      assert.equal(10, semaphore:available())
    end)

    it("releases permits later if the server is away", function()
      assert.is_true(its:acquire(4))
      proxy:freeze()
      local ok, code, detail = its:release(4)
      assert.is_nil(ok)
      assert.is_true(code == "timeout" or code == "closed" or code == "connect",
        code)
      assert.matches("in the background", detail)
      assert.equal(6, semaphore:available())
      proxy:thaw()
      eventually(function() return semaphore:available() == 10 end, 10 * slow)
    end)

    it("releases the permits of a cancelled acquire", function()
      proxy:drop_replies(1, name)
      local taking = task.start(function() its:acquire(2) end)
      eventually(function() return semaphore:available() == 8 end)
      taking:cancel(5 * slow)
      eventually(function() return semaphore:available() == 10 end, 10 * slow)
    end)

    it("returns what a cancelled drain took", function()
      assert.is_true(semaphore:acquire(3))
      proxy:drop_replies(1, name)
      local draining = task.start(function() its:drain() end)
      eventually(function() return semaphore:available() == 0 end)
      draining:cancel(5 * slow)
      eventually(function() return semaphore:available() == 7 end, 10 * slow)
    end)

    it("drains once although the reply is lost", function()
      proxy:cut(1, name)
      assert.equal(10, its:drain())
      assert.equal(0, semaphore:available())
    end)

    it("sets its permits although the reply is lost", function()
      client:call("DEL", name)
      proxy:cut(1, name)
      assert.is_true(its:set(2))
      assert.equal(2, semaphore:available())
    end)

    it("misses no release while it reconnects", function()
      assert.equal(10, semaphore:drain())
      local waiting = start_waiting(1, its)
      proxy:drop_messages(1, name)
      semaphore:release()
      proxy:kill()
      local before = rlock.now()
      assert.is_true(waiting:join(20 * slow))
      assert.is_true(rlock.now() - before < 3 * slow)
    end)

    it("needs no more slots than concurrent requests", function()
      for _ = 1, 50 do
        assert.is_true(its:acquire())
        assert.is_true(its:release())
      end
      task.many(3, function() its:acquire() end)
      local slots = client:call("KEYS", "rlock_request:{" .. name .. "}:"
        .. other.session.id .. "*")
      assert.is_true(#slots <= 3, #slots .. " slots")
      for _, slot in ipairs(slots) do
        assert.is_true(client:call("PTTL", slot) > 0)
      end
    end)
  end)

  it("ends its wait when the client is closed", function()
    local other = open()
    local waiting = start_waiting(1, other:semaphore(name))
    other:close()
    assert.equal("closed", select(2, waiting:join(5 * slow)))
    assert.equal("closed", select(2, other:semaphore(name):try_acquire()))
    assert.equal("closed", select(2, other:semaphore(name):release()))
    assert.equal("closed", select(2, other:semaphore(name):available()))
  end)

  it("reports a key of the wrong type", function()
    client:call("HSET", name, "a", "b")
    for _, method in ipairs { "acquire", "try_acquire", "release", "available",
        "drain" } do
      local ok, code, detail = semaphore[method](semaphore)
      assert.same({ nil, "redis" }, { ok, code }, method)
      assert.matches("WRONGTYPE", detail)
      assert.not_matches("background", detail)
    end
    assert.matches("WRONGTYPE", select(3, semaphore:set(1)))
    for _, odd in ipairs { "no number", "1.5" } do
      client:call("SET", name, odd)
      for _, method in ipairs { "try_acquire", "release", "available" } do
        local ok, code, detail = semaphore[method](semaphore)
        assert.same({ nil, "redis" }, { ok, code }, method)
        assert.matches("not an integer", detail)
      end
      assert.equal(odd, client:call("GET", name))
    end
  end)

  it("accepts any name", function()
    for _, odd in ipairs { "with spaces", "nul\0inside", "{tag}:x", "a{b",
        "x{}y", "}{", "new\nline", "\255\254", ("x"):rep(100000) } do
      local its = client:semaphore(odd)
      assert.is_true(its:set(1))
      assert.is_true(its:acquire())
      assert.equal("busy", select(2, its:try_acquire()))
      assert.is_true(its:release())
    end
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
