--- The fair lock on a real Redis: Redisson's layout, and simulated Redisson
--- waiters in the same queue. spec/check/fair_spec.lua
--- has the operations at exact times.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local policy = require "rlock.policy"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local LONG = 30 * slow            -- seconds for what must happen earlier

local server = redis.shared()
local client, name, fair, keys

local function call(...)
  return assert(client:call(...))
end

local function open(options)
  return fixtures.open({ url = server.url }, options)
end

local function now_ms() return states.now_ms(client) end

-- The state as seen by others -------------------------------------------------

local function line()
  return table.concat(call("LRANGE", keys[2], 0, -1), " ")
end

-- List and zset have the same waiters, and a TTL beyond every deadline; or all
-- keys are gone.
local function check_keys()
  local owners = call("LRANGE", keys[2], 0, -1)
  local timed = call("ZRANGE", keys[3], 0, -1)
  local sorted = table.move(owners, 1, #owners, 1, {})
  table.sort(sorted)
  table.sort(timed)
  assert.same(sorted, timed)
  if #owners == 0 then
    assert.equal(0, call("EXISTS", keys[2], keys[3], keys[5]))
    return
  end
  local last = call("ZREVRANGE", keys[3], 0, 0, "WITHSCORES")[2]
  local now = now_ms()
  for i = 2, 5 do
    local ttl = call("PTTL", keys[i])
    if i ~= 4 then assert.is_true(ttl > 0 and now + ttl > tonumber(last)) end
  end
end

-- The operations ------------------------------------------------------------

local function verdict(owner, wait)
  return assert(fair.ask(name, "acquire", owner, "30000", "1", wait or "-1",
    "publish"))[1]
end

local function release(owner)
  return assert(fair.ask(name, "release", owner, "1", "0", "publish"))[1]
end

-- Redisson's side, by its own rules -------------------------------------------

local redisson = {}

-- What a Redisson waiter sends when it does not get the lock. Returns the time
-- that it is told to wait.
function redisson.join(owner, wait)
  local now = now_ms()
  local last = call("LRANGE", keys[2], -1, -1)[1]
  local ttl = last and call("ZSCORE", keys[3], last) - now
    or call("PTTL", keys[1])
  call("ZADD", keys[3], ("%.17g"):format(ttl + now + wait), owner)
  call("RPUSH", keys[2], owner)
  return ttl
end

-- What a Redisson waiter sends on its turn; returns whether it got the lock.
function redisson.take(owner, wait)
  if call("EXISTS", keys[1]) == 1
      or call("LRANGE", keys[2], 0, 0)[1] ~= owner then
    return false
  end
  call("LPOP", keys[2])
  call("ZREM", keys[3], owner)
  for _, other in ipairs(call("ZRANGE", keys[3], 0, -1)) do
    call("ZINCRBY", keys[3], -wait, other)
  end
  call("HSET", keys[1], owner, 1)
  call("PEXPIRE", keys[1], 30000)
  return true
end

function redisson.unlock()
  call("DEL", keys[1])
  local head = call("LRANGE", keys[2], 0, 0)[1]
  if head then call("PUBLISH", keys[4] .. ":" .. head, "0") end
end

-- Subscribes to the channel of an owner; returns the list of messages.
local function listen(owner, at)
  return fixtures.listen(at or server, { keys[4] .. ":" .. owner })
end

local function waiting()
  return call("LLEN", keys[2])
end

-- Tasks ---------------------------------------------------------------------

-- A task that waits for the lock, queued behind the current waiters.
local function wait_in_line(lock, fn)
  local before = waiting()
  local waiter = task.start(function()
    local ok, code, detail = lock:lock()
    if ok and fn then fn(lock) end
    return ok, code, detail
  end)
  eventually(function() return waiting() > before or waiter.is_over end)
  return waiter
end

local function start()
  client, name = open(), fixtures.name "fair"
  fair = states.of(client, "fair")
  keys = policy.load("fair").keys(name)
end

describe("the operations of a fair lock", function()
  before_each(start)
  after_each(fixtures.close)

  it("lay it out as Redisson does, but for a mark", function()
    assert.equal("held", verdict("a"))
    assert.same({ "a", "1", "", "0" }, call("HGETALL", name))
    assert.is_true(call("PTTL", name) > 10000)
    check_keys()
    verdict("b")
    verdict("c")
    assert.same({ "b", "c" },
      call("LRANGE", "redisson_lock_queue:{" .. name .. "}", 0, -1))
    assert.same({ "b", "c" },
      call("ZRANGE", "redisson_lock_timeout:{" .. name .. "}", 0, -1))
    check_keys()
    local heard, connection = listen("b")
    assert.equal("freed", release("a"))
    eventually(function() return heard[1] end)
    assert.same("0", heard[1])
    connection:close()
    assert.same({ "free", -2, 0, {}, { "queue", { "b", "c" } } },
      fair.ask(name, "peek", "a"))
  end)
end)

describe("waiters of Redisson in the queue of a fair lock", function()
  local lock

  before_each(function()
    start()
    lock = client:fair_lock(name)
    assert.is_true(lock:lock())
  end)

  after_each(fixtures.close)

  it("get their message and their turn between ours", function()
    local got, heard = {}, listen("java:1")
    local function take(i)
      return function()
        got[#got + 1] = i
        assert.is_true(lock:unlock())
      end
    end
    local first = wait_in_line(lock, take(1))
    local ttl = redisson.join("java:1", 300000)
    assert.is_true(ttl > 0 and ttl <= 11000, ttl)
    local third = wait_in_line(lock, take(3))
    assert.is_true(lock:unlock())
    assert.is_true(first:join())
    eventually(function() return heard[1] end, LONG)
    assert.equal("0", heard[1])
    assert.is_true(tonumber(call("ZSCORE", keys[3], "java:1"))
      > now_ms() + 200000)
    assert.is_true(redisson.take("java:1", 300000))
    got[#got + 1] = 2
    redisson.unlock()
    assert.is_true(third:join(LONG))
    assert.same({ 1, 2, 3 }, got)
    check_keys()
  end)

  it("wake ours when they unlock, and ours stand where Redisson looks",
    function()
      call("DEL", name)
      redisson.join("java:1", 300000)
      assert.is_true(redisson.take("java:1", 300000))
      local waiter = wait_in_line(lock)
      redisson.unlock()
      assert.is_true(waiter:join(LONG))
      check_keys()
    end)

  it("are removed if they hear nothing, and notified if they do", function()
    redisson.join("dead:1", 300000)
    redisson.join("java:1", 300000)
    local heard = listen("java:1")
    verdict("w1")
    redisson.join("dead:2", 300000)
    assert.is_true(lock:unlock())
    eventually(function()
      verdict("w1")
      return line() == "java:1 w1"
    end, LONG)
    eventually(function() return heard[1] end)
    assert.is_true(redisson.take("java:1", 300000))
    redisson.unlock()
    assert.equal("held", verdict("w1"))
  end)

  it("keep their places if the server cannot list subscribers", function()
    for _, args in ipairs {
      { "--cluster-enabled", "yes" },
      { "--user", "default", "on", "nopass", "~*", "&*", "+@all", "-info" },
      { "--user", "default", "on", "nopass", "~*", "&*", "+@all", "-pubsub" },
    } do
      -- a port, because the cluster bus listens at port + 10000
      local alone = fixtures.server { port = true, args = args }
      local other = open { url = alone.url }
      if args[1] == "--cluster-enabled" then
        other:call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(function() return other:call("SET", "x", "1") end)
      end
      local its = states.of(other, "fair")
      assert(other:call("RPUSH", keys[2], "java:1"))
      assert(other:call("ZADD", keys[3], now_ms() + 300000, "java:1"))
      for _ = 1, 3 do
        assert.equal("busy", its.ask(name, "acquire", "w1", "30000", "1", "-1",
          "publish")[1])
        assert.is_true(other:call("PTTL", keys[6]) > 25000)
        assert(other:call("PEXPIRE", keys[6], 25000))
      end
      assert.same({ "java:1", "w1" }, other:call("LRANGE", keys[2], 0, -1))
    end
  end)

  it("that hear nothing are dead, where there are replicas, if others in the "
    .. "line are heard here", function()
      local primary = fixtures.server { port = true }
      fixtures.server {
        args = { "--replicaof", "127.0.0.1 " .. primary.port },
      }
      local other = open { url = primary.url }
      local its = states.of(other, "fair")
      eventually(function()
        return other:call("INFO", "replication"):find "connected_slaves:1"
      end, 30)
      local function ask()
        its.ask(name, "acquire", "w1", "30000", "1", "-1", "publish")
        return table.concat(other:call("LRANGE", keys[2], 0, -1), " ")
      end
      for _, owner in ipairs { "dead:1", "java:1" } do
        other:call("RPUSH", keys[2], owner)
        other:call("ZADD", keys[3], now_ms() + 300000, owner)
      end
      for _ = 1, 2 do
        assert.equal("dead:1 java:1 w1", ask())
        other:call("PEXPIRE", keys[6], 25000)
      end
      assert.equal("dead:1 java:1 w1", ask())
      listen("java:1", primary)
      for _ = 1, 2 do
        other:call("PEXPIRE", keys[6], 25000)
        ask()
      end
      assert.equal("java:1 w1", ask())
    end)
end)

for _, rows in ipairs { "rlock", "fair" } do
  require("spec.rows." .. rows) ("fair", describe, it, before_each,
    after_each)
end
