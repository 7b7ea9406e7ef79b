--- Permits with leases on a real Redis: the operations, Redisson's layout and
--- behaviours, and the return of expired permits.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local LEASE = 0.3 * slow         -- of the watchdog, for leases that expire
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
  local function start_waiting(options, of)
    options = options or {}
    options.wait = options.wait or 30 * slow
    local calls = server:stat("evalsha")
    local waiting = task.start(function()
      return (of or permits):acquire(options)
    end)
    eventually(function()
      return client:call("PUBSUB", "NUMSUB", channel)[2] > 0
        and server:stat("evalsha") > calls
    end)
    rlock.sleep(0.02 * slow)
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

  it("costs the same for any number in use", function()
    local ops, costs = states.of(client, "permits"), {}
    local function commands(verdict, op, ...)
      local args = table.pack(...)
      return states.commands(client, function()
        assert.equal(verdict, ops.ask(name, op, table.unpack(args))[1])
      end)
    end
    local function acquire(id, verdict)
      return commands(verdict or "held", "acquire", id, "60000", "1", "publish")
    end
    acquire("warm", "busy")
    commands("lost", "renew", "warm", "60000", "1")
    commands("lost", "release", "warm", "1", "0", "publish")
    for i, n in ipairs { 10, 1000 } do
      client:call("SET", name, n + 1)
      for k = 1, n do acquire(n .. "-" .. k) end
      costs[i] = {
        acquire "one", acquire("two", "busy"),
        commands("held", "renew", "one", "90000", "1"),
        commands("freed", "release", "one", "1", "0", "publish"),
      }
    end
    assert.same(costs[1], costs[2])
    assert.same({ 5, 4, 4, 6 }, costs[1])
  end)

  it("says how long until a lease ends", function()
    local ops = states.of(client, "permits")
    ops.play(name, "set 2 publish held")
    ops.ask(name, "acquire", "a", "60000", "1", "publish")
    ops.ask(name, "acquire", "b", "30000", "1", "publish")
    local reply = ops.ask(name, "acquire", "c", "1000", "1", "publish")
    assert.equal("busy", reply[1])
    assert.is_true(reply[2] > 29000 and reply[2] <= 30000)
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
    assert.is_true(ends >= now + 20000 and ends < now + 21000)
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

  it("testAddPermits: those added are given at once", function()
    assert.is_true(permits:set(1))
    local first = assert(permits:acquire())
    local waiting = { start_waiting(), start_waiting(), start_waiting() }
    local before = rlock.now()
    assert.is_true(permits:set(4))
    for i = 1, 3 do assert.is_string(waiting[i]:join(10 * slow)) end
    assert.is_true(rlock.now() - before < slow)
    assert.is_true(permits:release(first))
  end)

  it("testBlockingAcquire: a released permit goes to the next", function()
    assert.is_true(permits:set(1))
    local first = assert(permits:acquire())
    local waiting = start_waiting()
    local before = rlock.now()
    assert.is_true(permits:release(first))
    assert.is_string(waiting:join(10 * slow))
    assert.is_true(rlock.now() - before < slow)
  end)

  it("testTryAcquire: waits as long as requested", function()
    assert.is_true(permits:set(1))
    assert(permits:acquire { lease = 60 })
    local before = rlock.now()
    local id, code, detail = permits:try_acquire { wait = 0.3 }
    local took = rlock.now() - before
    assert.same({ nil, "timeout" }, { id, code })
    assert.matches("no permit", detail)
    assert.is_true(took >= 0.299 and took < 0.3 + 0.3 * slow, "took " .. took)
  end)

  it("testExpire, testExpireTryAcquire: the next has it when a lease ends",
    function()
      assert.is_true(permits:set(1))
      local first = assert(permits:acquire { lease = 0.3 })
      local before = rlock.now()
      local id = assert(permits:acquire { wait = 20 * slow })
      local took = rlock.now() - before
      assert.is_true(took > 0.2 and took < 0.3 + 0.3 * slow, "took " .. took)
      assert.equal("lost", select(2, permits:release(first)))
      assert.same({ 0, 1 }, { permits:available(), permits:acquired() })
      assert.is_true(permits:release(id))
      assert.equal(1, permits:available())
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
    assert.is_true(left() > 97 and left() <= 101)
    assert.is_true(permits:renew(id, 5))
    assert.is_true(left() > 97)
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

  it("are acquired and released by Redisson", function()
    assert.is_true(permits:set(1))
    local java = "0123456789abcdef"
    client:call("DECR", name)
    client:call("ZADD", leases, "922337203685477", java)
    assert.equal("busy", select(2, permits:try_acquire()))
    local waiting = start_waiting()
    client:call("ZREM", leases, java)
    client:call("INCR", name)
    local before = rlock.now()
    client:call("PUBLISH", channel, "1")
    assert.is_string(waiting:join(10 * slow))
    assert.is_true(rlock.now() - before < slow)
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

  describe("of a watchdog", function()
    local other, its

    before_each(function()
      other = open { watchdog = LEASE }
      its = other:permits(name)
      assert.is_true(permits:set(2))
    end)

    after_each(function() other:close() end)

    it("are kept alive without a lease", function()
      local id = assert(its:acquire())
      rlock.sleep(3 * LEASE)
      assert.same({ 1, 1 }, { permits:available(), permits:acquired() })
      assert.is_true(its:release(id))
      assert.equal(2, permits:available())
      local calls = server:stat("evalsha")
      rlock.sleep(LEASE)
      assert.equal(calls, server:stat("evalsha"))
    end)

    it("are not kept alive with one", function()
      local id = assert(its:acquire { lease = LEASE })
      eventually(function() return permits:available() == 2 end)
      assert.equal("lost", select(2, its:release(id)))
    end)

    it("are reported when they are lost, once", function()
      local id = assert(its:acquire())
      local told = {}
      assert.is_true(its:valid_for(id) > 0)
      assert.equal(0, permits:valid_for(id))         -- of another client
      assert.is_true(its:on_lost(id, function(lost, reason)
        told[#told + 1] = { lost, reason }
      end))
      client:call("DEL", leases)
      eventually(function() return told[1] end)
      assert.equal(id, told[1][1])
      assert.is_string(told[1][2])
      assert.equal(0, its:valid_for(id))
      assert.equal("lost", select(2, its:release(id)))
      assert.equal(1, #told)
      assert.equal("not_held",
        select(2, its:on_lost(id, function() end)))
    end)

    it("are reported at the end of their lease to a callback", function()
      local id = assert(its:acquire { lease = 0.1 })
      local told
      assert.is_true(its:on_lost(id, function(lost) told = lost end))
      eventually(function() return told end)
      assert.equal(id, told)
    end)

    it("can be renewed beyond it", function()
      local id = assert(its:acquire())
      assert.is_true(its:renew(id, 60))
      local short = assert(its:acquire { lease = LEASE })
      assert.is_true(its:renew(short, 60))
      rlock.sleep(2 * LEASE)
      assert.equal(2, permits:acquired())
      assert.is_true(its:release(short))
      assert.is_true(its:release(id))
    end)

    it("are released when the client is closed", function()
      assert(its:acquire())
      assert(its:acquire { lease = 60 })
      assert.equal(0, permits:available())
      other:close()
      assert.same({ 2, 0 }, { permits:available(), permits:acquired() })
      assert.equal("closed", select(2, its:acquire()))
      assert.equal("closed", select(2, its:release(("0"):rep(32))))
      assert.equal("closed", select(2, its:available()))
    end)

    it("leave nothing behind here when their lease ends", function()
      for _ = 1, 50 do
        assert(its:acquire { lease = 0.02 })
        eventually(function() return permits:available() >= 1 end)
      end
      eventually(function() return permits:available() == 2 end)
      eventually(function()
        collectgarbage()
        return next(its.record.taken) == nil
          and #other.session.watchdog:all() == 0
      end)
    end)
  end)

  describe("behind a bad network", function()
    local proxy, other, its

    before_each(function()
      proxy = fixtures.proxy(server)
      other = open { url = proxy.url, timeout = 0.3 * slow }
      its = other:permits(name)
      assert.is_true(permits:set(3))
      assert.is_true(its:release((assert(its:acquire()))))
    end)

    it("are acquired once if the request is repeated", function()
      proxy:drop_replies(1, name)
      local id = assert(its:acquire { wait = 5 * slow })
      assert.same({ 2, 1 }, { permits:available(), permits:acquired() })
      assert.is_true(its:release(id))
    end)

    it("are released once although the reply is lost", function()
      local id = assert(its:acquire { lease = 60 })
      proxy:cut(1, name)
      assert.is_true(its:release(id))
      assert.same({ 3, 0 }, { permits:available(), permits:acquired() })
    end)

    it("are released if the reply to acquire was lost", function()
      proxy:drop_replies(1000, name)
      local taking = task.start(function()
        return its:acquire { wait = 0, lease = 60 }
      end)
      eventually(function() return permits:available() == 2 end)
      local id, code = taking:join(20 * slow)
      assert.is_nil(id)
      assert.is_true(code == "timeout" or code == "closed", code)
      proxy:reset()
      eventually(function() return permits:available() == 3 end, 10 * slow)
    end)

    it("are released if the reply came after the lease", function()
      proxy:hold(0.15, name)
      local id, code = its:acquire { wait = 0, lease = 0.05 }
      assert.same({ nil, "busy" }, { id, code })
      assert.same({ 3, 0 }, { permits:available(), permits:acquired() })
    end)

    it("are released for a task cancelled during its request", function()
      proxy:drop_replies(1, name)
      local taking = task.start(function() its:acquire { lease = 60 } end)
      eventually(function() return permits:available() == 2 end)
      taking:cancel(5 * slow)
      eventually(function() return permits:available() == 3 end, 10 * slow)
    end)

    it("are released later if the server is away", function()
      local id = assert(its:acquire { lease = 60 })
      proxy:freeze()
      local ok, code = its:release(id)
      assert.is_nil(ok)
      assert.is_true(code == "timeout" or code == "closed" or code == "connect",
        code)
      proxy:thaw()
      eventually(function() return permits:available() == 3 end, 10 * slow)
    end)

    it("are not missed while the subscriber reconnects", function()
      local ids = {}
      for i = 1, 3 do ids[i] = assert(permits:acquire { lease = 60 }) end
      local waiting = start_waiting(nil, its)
      proxy:drop_messages(1, name)
      permits:release(ids[1])
      proxy:kill()
      local before = rlock.now()
      assert.is_string(waiting:join(20 * slow))
      assert.is_true(rlock.now() - before < 3 * slow)
    end)
  end)

  it("reports a key of the wrong type", function()
    local id = ("0"):rep(32)
    local function each(word)
      for _, case in ipairs { { "acquire", { wait = 0 } }, { "available" },
          { "acquired" }, { "set", 3 } } do
        local ok, code, detail = permits[case[1]](permits, case[2])
        assert.same({ nil, "redis" }, { ok, code }, case[1])
        assert.matches(word, detail)
      end
    end
    client:call("HSET", name, "a", "b")
    each("WRONGTYPE")
    client:call("DEL", name)
    client:call("SET", name, "no number")
    each("not an integer")
    client:call("SET", name, "1")
    client:call("SET", leases, "a string")
    each("WRONGTYPE")
    assert.equal("1", client:call("GET", name))
    assert.matches("WRONGTYPE", select(3, permits:release(id)))
    assert.matches("WRONGTYPE", select(3, permits:renew(id, 1)))
  end)

  it("accept any name", function()
    for _, odd in ipairs { "with spaces", "nul\0inside", "{tag}:x", "a{b",
        "x{}y", "}{", "new\nline", "\255\254", ("x"):rep(100000) } do
      local its = client:permits(odd)
      assert.is_true(its:set(1))
      local id = assert(its:acquire())
      assert.equal("busy", select(2, its:try_acquire()))
      assert.is_true(its:release(id))
    end
  end)

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
