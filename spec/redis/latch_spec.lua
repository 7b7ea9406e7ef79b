--- The latch on a real Redis: the operations, Redisson's layout and behaviours.
--- spec/check/counters_spec.lua has its waiters, and requests whose replies are
--- lost.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local redis = require "spec.tools.redis"
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
  local function start_waiting(n)
    local all, calls = {}, server:stat("evalsha")
    for i = 1, n do
      all[i] = task.start(function()
        return latch:wait { wait = 30 * slow }
      end)
    end
    eventually(function()
      return client:call("PUBSUB", "NUMSUB", channel)[2] > 0
        and server:stat("evalsha") >= calls + #all
    end)
    return all
  end

  local function join(all)
    for _, waiting in ipairs(all) do
      assert.is_true(waiting:join(20 * slow))
    end
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
