--- Permits with leases on a real Redis: the operations, Redisson's layout and
--- behaviours, and the return of expired permits. spec/check/counters_spec.lua
--- has leases, waiters, and requests whose replies are lost.

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

local function hex(bytes)
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

describe("permits", function()
  local client, name, leases, channel, permits

  -- Expires the lease of a permit.
  local function expire(id)
    local bytes = id:gsub("..", function(pair)
      return string.char(tonumber(pair, 16))
    end)
    assert.equal(0, client:call("ZADD", leases, "XX", 1, bytes))
    assert.equal("1", client:call("ZSCORE", leases, bytes))
  end

  -- Starts a task that waits for a permit; returns once it is waiting.
  local function start_waiting()
    local calls = server:stat("evalsha")
    local waiting = task.start(function()
      return permits:acquire { wait = 30 * slow }
    end)
    eventually(function()
      return client:call("PUBSUB", "NUMSUB", channel)[2] > 0
        and server:stat("evalsha") > calls
    end)
    return waiting
  end

  before_each(function()
    client, name = open(), fixtures.name "permits"
    leases = "{" .. name .. "}:timeout"
    channel = "redisson_sc:{" .. name .. "}"
    permits = client:permits(name)
  end)

  after_each(fixtures.close)

  it("notifies its waiters when there is a permit, not earlier",
    function()
      local ops = states.of(client, "permits")
      local told = fixtures.messages(server, channel, function()
        ops.play(name, [[
          set 2 publish                held
          acquire a 60000 1 publish    held
          acquire b 60000 1 publish    held
          set 1 publish                held
          set 2 publish                held     -- both are in use
          set 1 publish                held
          release a 1 0 publish        freed    -- leaves none
          release b 1 0 publish        freed
        ]])
      end)
      assert.same({ "2", "1" }, told)
    end)

  it("gives the verdict of its state", function()
    local ops = states.of(client, "permits")
    ops.play(name, [[
      count                          held
      acquire a 60000 1 publish      busy
      release a 1 0 publish          lost
      renew a 60000 1                lost
      set 2 publish                  held
      set 2 publish                  held
      count                          free
      acquire a 60000 1 publish      held
      acquire a 60000 1 publish      held     -- the same request again
      acquire b 60000 1 publish      held
      acquire a 60000 1 publish      held     -- again, with none left
      acquire c 60000 1 publish      busy
      count                          held
      renew a 60000 1                held
      renew a 60000 1                held
      renew c 60000 1                lost
      release c 1 0 publish          lost
      release a 1 0 publish          freed
      release a 1 0 publish          lost
      acquire c 60000 1 publish      held
      acquire a 60000 1 publish      busy
    ]])
    assert.equal("0", client:call("GET", name))
    client:call("ZADD", leases, 1, "b")             -- its lease has expired
    ops.play(name, [[
      renew b 60000 1                lost
      count                          free
      acquire a 60000 1 publish      held
      release b 1 0 publish          lost
      acquire b 60000 1 publish      busy
    ]])
    client:call("ZADD", leases, 1, "a")
    ops.play(name, [[
      release a 1 0 publish          lost     -- but it is back
      acquire b 60000 1 publish      held
      acquire a 60000 1 publish      busy
    ]])
    client:call("ZADD", leases, 1, "b")
    ops.play(name, [[
      acquire b 60000 1 publish      held     -- nobody else had it meanwhile
      acquire a 60000 1 publish      busy
      release b 1 0 publish          freed
      acquire b 10 1 publish         held
      wait 20
      renew b 60000 1                lost
      acquire b 60000 1 publish      held
    ]])
    assert.equal("0", client:call("GET", name))
    assert.equal(2, client:call("ZCARD", leases))
  end)

  it("says how long until a lease ends", function()
    local ops = states.of(client, "permits")
    ops.play(name, "set 2 publish held")
    ops.ask(name, "acquire", "a", "60000", "1", "publish")
    ops.ask(name, "acquire", "b", "30000", "1", "publish")
    local reply = ops.ask(name, "acquire", "c", "1000", "1", "publish")
    assert.equal("busy", reply[1])
    assert.is_true(reply[2] > 10000 and reply[2] <= 30000)
    client:call("ZADD", leases, "922337203685477", "a",
      "922337203685477", "b")                 -- Redisson's without a lease
    assert.same({ "busy", -1 },
      ops.ask(name, "acquire", "c", "1000", "1", "publish"))
  end)

  it("never shortens a lease", function()
    local ops = states.of(client, "permits")
    ops.play(name, [[
      set 1 publish held
      acquire a 60000 1 publish held
    ]])
    local ends = client:call("ZSCORE", leases, "a")
    ops.play(name, [[
      acquire a 1000 1 publish held
      renew a 1000 1 held
    ]])
    assert.equal(ends, client:call("ZSCORE", leases, "a"))
    ops.play(name, "renew a 90000 1 held")
    assert.is_true(tonumber(client:call("ZSCORE", leases, "a")) >
      tonumber(ends) + 29000)
  end)

  it("testAcquire, testRelease: are 16 bytes each in Redisson's set, 32 hex "
    .. "digits to people", function()
    assert.is_true(permits:set(1))
    local before = client:call("TIME")
    local id = assert(permits:acquire { lease = 20 })
    assert.matches("^%x+$", id)
    assert.equal(32, #id)
    local member = client:call("ZRANGE", leases, 0, -1, "WITHSCORES")
    assert.equal(16, #member[1])
    assert.equal(id, hex(member[1]))
    local now = before[1] * 1000 + math.floor(before[2] / 1000)
    local ends = tonumber(member[2])
    assert.is_true(ends >= now + 20000 and ends < now + 60000)
    assert.equal("0", client:call("GET", name))
    assert.is_true(permits:release(id))
    assert.equal("1", client:call("GET", name))
    assert.equal(0, client:call("EXISTS", leases))
  end)

  it("testNotExistent: there are none", function()
    assert.equal(0, permits:available())
    assert.equal(0, permits:acquired())
    assert.equal("busy", select(2, permits:acquire { wait = 0 }))
    assert.equal("timeout", select(2, permits:acquire { wait = 0.05 }))
  end)

  it("testAvailablePermits, testAcquiredPermits", function()
    assert.is_true(permits:set(8))
    local ids = {}
    for i = 1, 3 do ids[i] = assert(permits:acquire()) end
    assert.same({ 5, 3 }, { permits:available(), permits:acquired() })
    assert.is_true(permits:release(ids[2]))
    assert.same({ 6, 2 }, { permits:available(), permits:acquired() })
  end)

  it("testSetPermits, testTrySetPermits, testGetPermits: so many in all, as "
    .. "often as it is said",
    function()
      assert.is_true(permits:set(4))
      for _ = 1, 3 do assert(permits:acquire { lease = 60 }) end
      assert.is_true(permits:set(4))
      assert.same({ 1, 3 }, { permits:available(), permits:acquired() })
      assert.is_true(permits:set(2))              -- fewer than are acquired
      assert.same({ -1, 3 }, { permits:available(), permits:acquired() })
      assert.equal("busy", select(2, permits:try_acquire()))
      assert.is_true(permits:set(5))
      assert.same({ 2, 3 }, { permits:available(), permits:acquired() })
    end)

  it("testBlockingAcquire: a released permit goes to the next", function()
    assert.is_true(permits:set(1))
    local first = assert(permits:acquire())
    local waiting = start_waiting()
    assert.is_true(permits:release(first))
    assert.is_string(waiting:join(10 * slow))
  end)

  it("testExpiration: nothing is left of permits that expire altogether",
    function()
      assert.is_true(permits:set(2))
      client:call("PEXPIRE", name, 300)
      assert(permits:acquire { lease = 60 })
      assert.is_true(client:call("PTTL", leases) <= 300)
      eventually(function() return client:call("EXISTS", name, leases) == 0 end)
      assert.equal(0, permits:available())
    end)

  it("testUpdateLeaseTime", function()
    assert.is_true(permits:set(1))
    local id = assert(permits:acquire { lease = 20 })
    local function left()
      local time = client:call("TIME")
      local ends = client:call("ZRANGE", leases, 0, -1, "WITHSCORES")[2]
      return tonumber(ends) / 1000 - tonumber(time[1])
    end
    assert.is_true(permits:renew(id, 100))
    assert.is_true(left() > 50 and left() <= 101)
    assert.is_true(permits:renew(id, 5))
    assert.is_true(left() > 50)
    assert.is_true(permits:release(id))
    assert.equal("lost", select(2, permits:renew(id, 5)))
  end)

  it("testReleaseWithoutPermits: it does not exist, or no longer", function()
    assert.is_true(permits:set(1))
    local ok, code = permits:release(("0"):rep(32))
    assert.same({ nil, "lost" }, { ok, code })
    assert.equal(1, permits:available())
    local id = assert(permits:acquire())
    assert.is_true(permits:release(id))
    assert.equal("lost", select(2, permits:release(id)))
    assert.equal(1, permits:available())
  end)

  it("testReleaseExpired: it is back, and was lost", function()
    assert.is_true(permits:set(1))
    local id = assert(permits:acquire { lease = 60 })
    expire(id)
    assert.equal("lost", select(2, permits:release(id)))
    assert.equal("1", client:call("GET", name))
    assert.equal(0, client:call("EXISTS", leases))
  end)

  it("are freed when the server is asked for their number", function()
    assert.is_true(permits:set(3))
    for _ = 1, 3 do expire((assert(permits:acquire { lease = 60 }))) end
    assert.same({ 3, 0 }, { permits:available(), permits:acquired() })
    assert(permits:acquire { lease = 60 })
    assert.same({ 2, 1 }, { permits:available(), permits:acquired() })
    assert.equal("2", client:call("GET", name))
  end)

  it("fill a gap first when there are to be fewer", function()
    assert.is_true(permits:set(3))
    local ids = {}
    for i = 1, 3 do ids[i] = assert(permits:acquire { lease = 60 }) end
    assert.is_true(permits:set(1))
    expire(ids[1])
    expire(ids[2])
    assert.equal("busy", select(2, permits:try_acquire()))
    assert.same({ 0, 1 }, { permits:available(), permits:acquired() })
    assert.is_true(permits:release(ids[3]))
    assert.is_string((permits:try_acquire()))
  end)

  it("are released and renewed by any client with the id", function()
    assert.is_true(permits:set(1))
    local id = assert(permits:acquire { lease = 60 })
    local other = open()
    local its = other:permits(name)
    assert.is_true(its:renew(id, 90))
    assert.is_true(its:release(id:upper()))
    assert.equal(1, permits:available())
    assert.equal("lost", select(2, permits:release(id)))
  end)

  for _, row in ipairs {
    { "testConcurrency_SingleInstance", 1, 100, 1, 1 },
    { "testConcurrencyLoop_MultiInstance", 1, 16, 20, 16 },
    { "some of three, over many clients", 3, 20, 10, 20 },
  } do
    it(row[1] .. ": never more inside than permits", function()
      local total, tasks, times, clients = table.unpack(row, 2)
      local inside, done, seen, others = 0, 0, {}, {}
      assert.is_true(permits:set(total))
      for i = 1, clients do others[i] = open() end
      task.many(tasks, function(i)
        local its = others[i % clients + 1]:permits(name)
        for _ = 1, times do
          local id = assert(its:acquire { wait = 40 * slow,
            lease = i % 2 == 0 and 60 or nil })
          assert.is_nil(seen[id])
          seen[id] = true
          inside = inside + 1
          assert.is_true(inside <= total)
          rlock.sleep(0)
          inside, done = inside - 1, done + 1
          assert.is_true(its:release(id))
        end
      end, 60 * slow)
      assert.equal(tasks * times, done)
      assert.same({ total, 0 }, { permits:available(), permits:acquired() })
      for i = 1, clients do others[i]:close() end
    end)
  end

  it("refuse wrong arguments by name", function()
    local id = ("0"):rep(32)
    for _, case in ipairs {
      { "name", function() client:permits() end },
      { "n:", function() permits:set(-1) end },
      { "n:", function() permits:set("2") end },
      { "wait", function() permits:acquire { wait = -1 } end },
      { "lease", function() permits:acquire { lease = 0 } end },
      { "at least 0.002 s", function() permits:renew(id, 0.001) end },
      { "at least 0.002 s", function() permits:acquire { lease = 0.001 } end },
      { "lease", function() permits:acquire { lease = math.huge } end },
      { "leese", function() permits:acquire { leese = 1 } end },
      { "options", function() permits:acquire(3) end },
      { "options", function() permits:try_acquire(3) end },
      { "id", function() permits:release() end },
      { "id", function() permits:release("xyz") end },
      { "id", function() permits:release(("g"):rep(32)) end },
      { "id", function() permits:renew("", 1) end },
      { "lease", function() permits:renew(id) end },
      { "fn", function() permits:on_lost(id) end },
      { "id", function() permits:on_lost("", print) end },
      { "id", function() permits:valid_for(1) end },
    } do
      local ok, message = pcall(case[2])
      assert.is_false(ok, case[1])
      assert.matches(case[1], message, 1, true)
      assert.matches("permits_spec.lua:%d+:", message)
    end
  end)
end)
