--- The latch on a real Redis: the operations, Redisson's layout and behaviours,
--- and that no waiter is left behind.

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

describe("a latch", function()
  local client, name, channel, latch

  -- Starts tasks that wait for the latch; returns once all are waiting.
  local function start_waiting(n, of)
    local all, calls = {}, server:stat("evalsha")
    for i = 1, n or 1 do
      all[i] = task.start(function()
        return (of or latch):wait { wait = 30 * slow }
      end)
    end
    eventually(function()
      return client:call("PUBSUB", "NUMSUB", channel)[2] > 0
        and server:stat("evalsha") >= calls + #all
    end)
    rlock.sleep(0.02 * slow)
    return all
  end

  local function join(all, seconds)
    local before = rlock.now()
    for _, waiting in ipairs(all) do
      assert.is_true(waiting:join(20 * slow))
    end
    local took = rlock.now() - before
    assert.is_true(took < (seconds or 1) * slow, "took " .. took)
  end

  -- The messages on the channel while fn runs.
  local function heard(fn) return fixtures.messages(server, channel, fn) end

  before_each(function()
    client, name = open(), fixtures.name "latch"
    channel = "redisson_countdownlatch__channel__{" .. name .. "}"
    latch = client:latch(name)
  end)

  after_each(fixtures.close)

  it("gives the verdict of its state, and applies each number once",
    function()
      local ops = states.of(client, "latch")
      ops.play(name, [[
        count                            free
        count_down 1 60000 1 publish     free
        delete publish                   free
        set 2 60000 3 publish            held
        set 2 60000 3 publish            held     -- the same request again
        set 3 60000 3 publish            refused
        count                            held
        count_down 4 60000 1 publish     held
        count_down 4 60000 1 publish     held
        count_down 3 60000 1 publish     held     -- late, and not carried out
      ]])
      assert.equal("2", client:call("GET", name))
      ops.play(name, [[
        count_down 5 60000 1 publish     held
        count_down 6 60000 1 publish     free
        count_down 6 60000 1 publish     free
        count                            free
        set 8 60000 1 publish            held
        count_down 6 60000 1 publish     held     -- late
        delete publish                   freed
        delete publish                   free
      ]])
    end)

  it("testTrySetCount, testCount", function()
    assert.equal(0, latch:count())
    assert.is_true(latch:set(2))
    local ok, code, detail = latch:set(5)
    assert.same({ nil, "refused" }, { ok, code })
    assert.matches("its count is 2", detail)
    assert.equal(2, latch:count())
    assert.equal("2", client:call("GET", name))
    assert.same({ true, 1 }, { latch:count_down() })
    assert.equal(1, latch:count())
    assert.same({ true, 0 }, { latch:count_down() })
    assert.equal(0, client:call("EXISTS", name))
    assert.is_true(latch:set(1))
  end)

  it("testCountDown: never below zero; without a count, await returns",
    function()
      assert.same({ true, 0 }, { latch:count_down() })
      assert.equal(0, latch:count())
      assert.is_true(latch:wait())
      assert.is_true(latch:wait { wait = 0 })
      assert.is_true(latch:set(1))
      for _ = 1, 3 do assert.same({ true, 0 }, { latch:count_down() }) end
      assert.is_true(latch:wait())
      assert.equal(0, latch:count())
    end)

  it("testAwaitTimeout: opened in time", function()
    assert.is_true(latch:set(1))
    local waiting = start_waiting()
    assert.is_true(latch:count_down())
    join(waiting)
  end)

  it("testAwaitTimeoutFail: waits as long as requested", function()
    assert.is_true(latch:set(1))
    local before = rlock.now()
    local ok, code, detail = latch:wait { wait = 0.3 }
    local took = rlock.now() - before
    assert.same({ nil, "timeout" }, { ok, code })
    assert.matches("not open in time", detail)
    assert.is_true(took >= 0.299 and took < 0.3 + 0.3 * slow, "took " .. took)
    assert.equal("timeout", select(2, latch:wait { wait = 0 }))
  end)

  it("testMultiAwait: all waiters continue at once", function()
    local other = open()
    assert.is_true(latch:set(2))
    local here, there = start_waiting(50), start_waiting(50, other:latch(name))
    latch:count_down()
    rlock.sleep(0.02)
    assert.is_nil(here[1].is_over)
    latch:count_down()
    join(here)
    join(there)
  end)

  it("testDelete, testDeleteFailed: all waiters continue", function()
    assert.is_false(latch:delete())
    assert.is_true(latch:set(3))
    local waiting = start_waiting(3)
    assert.is_true(latch:delete())
    join(waiting)
    assert.equal(0, latch:count())
    assert.is_false(latch:delete())
  end)

  it("says 1 for set and deleted, and 0 exactly when the count has gone",
    function()
      assert.same({ "1", "0", "1", "1" }, heard(function()
        latch:set(2)
        latch:set(2)
        latch:count_down()
        latch:count_down()
        latch:count_down()
        latch:set(1)
        latch:delete()
        latch:delete()
      end))
    end)

  it("is opened by Redisson", function()
    client:call("SET", name, "1")
    local waiting = start_waiting(3)
    client:call("DEL", name)
    client:call("PUBLISH", channel, "0")
    join(waiting)
  end)

  it("is deleted by Redisson", function()
    client:call("SET", name, "1")
    local waiting = start_waiting(3)
    client:call("DEL", name)
    client:call("PUBLISH", channel, "1")
    join(waiting)
  end)

  it("keeps waiting after a message that does not open it", function()
    assert.is_true(latch:set(1))
    local waiting = start_waiting(2)
    client:call("PUBLISH", channel, "0")
    client:call("PUBLISH", channel, "1")
    client:call("PUBLISH", channel, "nonsense")
    rlock.sleep(0.1)
    assert.is_nil(waiting[1].is_over)
    latch:count_down()
    join(waiting)
  end)

  it("frees all waiters within seconds if deleted without a message",
    function()
      assert.is_true(latch:set(1))
      local waiting = start_waiting(10)
      client:call("DEL", name)
      join(waiting, 7)
    end)

  it("testSingleCountDownAwait_SingleInstance: counts exactly, over many "
    .. "clients", function()
    assert.is_true(latch:set(300))
    local waiting = start_waiting(5)
    task.many(10, function()
      local other = open()
      local its = other:latch(name)
      for _ = 1, 30 do assert.is_true((its:count_down())) end
    end)
    join(waiting)
    assert.equal(0, client:call("EXISTS", name))
  end)

  describe("behind a bad network", function()
    local proxy, other, its

    before_each(function()
      proxy = fixtures.proxy(server)
      other = open { url = proxy.url, timeout = 0.3 * slow }
      its = other:latch(name)
      assert.is_true(latch:set(3))
      assert.is_true((its:count_down()))
    end)

    it("counts once although the reply is lost", function()
      proxy:cut(1, name)
      assert.is_true((its:count_down()))
      assert.equal(1, latch:count())
    end)

    it("counts down later if the server is away", function()
      proxy:freeze()
      local ok, code, detail = its:count_down()
      assert.is_nil(ok)
      assert.is_true(code == "timeout" or code == "closed" or code == "connect",
        code)
      assert.matches("in the background", detail)
      assert.equal(2, latch:count())
      proxy:thaw()
      eventually(function() return latch:count() == 1 end, 10 * slow)
    end)

    it("counts down also for a cancelled task", function()
      proxy:freeze()
      local counting = task.start(function() its:count_down() end)
      rlock.sleep(0.02)
      counting:cancel(5 * slow)
      proxy:thaw()
      eventually(function() return latch:count() == 1 end, 10 * slow)
    end)

    it("is set and deleted once although the reply is lost", function()
      proxy:cut(1, name)
      assert.is_true(its:delete())
      proxy:cut(1, name)
      assert.is_true(its:set(7))
      assert.equal(7, latch:count())
    end)

    it("opens although the message is lost", function()
      local waiting = start_waiting(3, its)
      proxy:drop_messages(1, name)
      latch:count_down()
      latch:count_down()
      join(waiting, 7)
    end)

    it("opens although the connection was lost", function()
      local waiting = start_waiting(20, its)
      proxy:drop_messages(1, name)
      latch:delete()
      proxy:kill()
      join(waiting, 3)
    end)

    it("survives an outage of the server within the wait", function()
      local waiting = start_waiting(1, its)
      proxy:kill()
      proxy:freeze()
      latch:delete()
      rlock.sleep(0.5 * slow)
      proxy:thaw()
      join(waiting, 5)
    end)
  end)

  it("ends its wait when the client is closed, and when it is cancelled",
    function()
      assert.is_true(latch:set(1))
      local other = open()
      local waiting = start_waiting(2, other:latch(name))
      waiting[2]:cancel()
      other:close()
      assert.equal("closed", select(2, waiting[1]:join(5 * slow)))
      local its = other:latch(name)
      for _, method in ipairs { "wait", "count_down", "count", "delete" } do
        assert.equal("closed", select(2, its[method](its)), method)
      end
      assert.equal("closed", select(2, its:set(1)))
      assert.equal(1, latch:count())
    end)

  it("reports a key of the wrong type", function()
    client:call("HSET", name, "a", "b")
    for _, method in ipairs { "wait", "count_down", "count", "delete" } do
      local ok, code, detail = latch[method](latch)
      assert.same({ nil, "redis" }, { ok, code }, method)
      assert.matches("WRONGTYPE", detail)
      assert.not_matches("background", detail)
    end
    assert.matches("WRONGTYPE", select(3, latch:set(1)))
    client:call("SET", name, "no number")
    assert.matches("not an integer", select(3, latch:count_down()))
    assert.equal("no number", client:call("GET", name))
  end)

  it("accepts any name", function()
    for _, odd in ipairs { "with spaces", "nul\0inside", "{tag}:x", "a{b",
        "x{}y", "}{", "new\nline", "\255\254", ("x"):rep(100000) } do
      local its = client:latch(odd)
      assert.is_true(its:set(1))
      local waiting = task.start(function() return its:wait { wait = 9 } end)
      assert.is_true((its:count_down()))
      assert.is_true(waiting:join(5 * slow))
    end
  end)

  it("refuses wrong arguments by name", function()
    for _, case in ipairs {
      { "name", function() client:latch(5) end },
      { "n:", function() latch:set(0) end },
      { "n:", function() latch:set(2.5) end },
      { "n:", function() latch:set() end },
      { "n:", function() latch:set("2") end },
      { "wait", function() latch:wait { wait = -1 } end },
      { "weight", function() latch:wait { weight = 1 } end },
      { "options", function() latch:wait(5) end },
      { "not a lock", function() client:policy("latch", name) end },
    } do
      local ok, message = pcall(case[2])
      assert.is_false(ok, case[1])
      assert.matches(case[1], message, 1, true)
      assert.matches("latch_spec.lua:%d+:", message)
    end
  end)
end)
