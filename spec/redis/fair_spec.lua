--- The fair lock on a real Redis: verdicts, Redisson's layout and deadlines,
--- and simulated Redisson waiters in the same queue. spec/check/fair_spec.lua
--- has the order of grants and dead waiters, at exact times.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local policy = require "rlock.policy"
local program = require "spec.tools.program"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
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

local function deadline(owner)
  local score = client:call("ZSCORE", keys[3], owner)
  return score and tonumber(score)
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

local function acquire(owner, wait, lease)
  return assert(fair.ask(name, "acquire", owner, lease or "30000", "1",
    wait or "-1", "publish"))
end

local function verdict(owner, wait, lease)
  return acquire(owner, wait, lease)[1]
end

local function release(owner)
  return assert(fair.ask(name, "release", owner, "1", "0", "publish"))[1]
end

local function leave(owner)
  return assert(fair.ask(name, "leave", owner, "publish"))[1]
end

-- Makes the last sign of life of a waiter that much older, or those of all and
-- the queue's own state.
local function age(ms, owner)
  local signs = call("HGETALL", keys[5])
  for i = 1, #signs, 2 do
    local first, second = signs[i + 1]:match("^(%d+)%.0(%d+)$")
    if signs[i] == "" then
      first, second = first - ms, math.max(second - ms, 0)
    else
      first = first - ms * 1024
    end
    if not owner or signs[i] == owner then
      call("HSET", keys[5], signs[i], ("%.0f.0%.0f"):format(first, second))
    end
  end
end

-- Redisson's side, by its own rules -------------------------------------------

local redisson = {}

-- What a Redisson waiter sends when it does not get the lock. Returns the time
-- that it is told to wait.
function redisson.join(owner, wait)
  local now = now_ms()
  local last = call("LRANGE", keys[2], -1, -1)[1]
  local ttl = last and deadline(last) - now or call("PTTL", keys[1])
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

-- Programs ------------------------------------------------------------------

-- Other processes that take the lock, print that, and end.
local LOCKER = [[
  local rlock = require "rlock"
  local name, id, hold = arg[1], arg[2], tonumber(arg[3])
  local client = assert(rlock.open())
  local lock = client:fair_lock(name)
  print("waits")
  io.stdout:flush()
  assert(lock:lock())
  assert(client:call("RPUSH", "order:" .. name, id))
  rlock.sleep(hold)
  assert(lock:unlock())
]]

local function locker(id, hold)
  return program.start(server, "-e", LOCKER, name, id, tostring(hold))
end

local function waiting()
  return call("LLEN", keys[2])
end

local function order()
  return table.concat(call("LRANGE", "order:" .. name, 0, -1), " ")
end

-- Tasks ---------------------------------------------------------------------

-- A task that waits for the lock, queued behind the current waiters.
local function wait_in_line(lock, options, fn)
  local before = waiting()
  local waiter = task.start(function()
    local ok, code, detail = lock:lock(options)
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

  it("give the verdict of the state", function()
    fair.play(name, [[
      peek a                              free
      break_ - publish                    free
      leave a publish                     left
      release a 1 0 publish               lost
      renew a 60000 1                     lost
      acquire a 60000 2 0 publish         lost
      acquire a 60000 1 0 publish         held
      acquire a 60000 1 0 publish         held    -- the same request again
      acquire a 60000 2 -1 publish        held
      acquire b 60000 1 0 publish         busy
      acquire b 60000 2 -1 publish        lost
      acquire b 60000 1 -1 publish        busy
      acquire c 60000 1 9000 publish      busy
      renew a 60000 2                     held
      renew b 60000 1                     lost
      release a 60000 1 publish           kept
      release a 60000 1 publish           kept
      release c 60000 1 publish           lost
      peek a                              held
      release a 1 0 publish               freed
      release a 1 0 publish               lost
      acquire a 60000 1 0 publish         busy    -- b is before it
      acquire a 60000 1 -1 publish        busy
      acquire c 60000 1 9000 publish      busy
      acquire b 60000 1 -1 publish        held
      acquire b 60000 1 -1 publish        held
      over
      renew b 60000 1                     lost
      acquire b 60000 2 -1 publish        lost
      leave c publish                     left
      leave c publish                     left
      acquire c 60000 1 0 publish         busy
      acquire a 60000 1 0 publish         held    -- first in line: by a try
      leave a publish                     left    -- and given back
      peek a                              free
      acquire c 60000 1 0 publish         held
      acquire c 10 1 0 publish            held    -- never shortened
      wait 20
      acquire a 60000 1 0 publish         busy
      break_ x publish                    freed
      peek c                              free
      acquire c 10 1 0 publish            held
      wait 20
      acquire a 60000 1 0 publish         held
      renew c 60000 1                     lost
      release a 1 0 publish               freed
    ]])
    check_keys()
  end)

  it("lay it out as Redisson does, but for a mark", function()
    assert.equal("held", verdict("a"))
    assert.same({ "a", "1", "", "0" }, call("HGETALL", name))
    assert.is_true(call("PTTL", name) > 29000)
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

  it("wake only the first waiter", function()
    verdict("a")
    verdict("b")
    verdict("c")
    local to_b, to_c = listen("b"), listen("c")
    release("a")
    eventually(function() return to_b[1] end)
    verdict("b")
    assert(fair.ask(name, "break_", "", "both"))
    eventually(function() return to_c[1] end)
    assert.same({ 1, 1 }, { #to_b, #to_c })
  end)

  it("change nothing if a key has the wrong type", function()
    local requests = {
      { "acquire", "b", "30000", "1", "-1", "publish" },
      { "acquire", "b", "30000", "1", "0", "publish" },
      { "acquire", "w", "30000", "1", "-1", "publish" },
      { "release", "a", "1", "0", "publish" },
      { "leave", "w", "publish" },
      { "break_", "", "publish" },
      { "renew", "a", "30000", "1" },
      { "peek", "a" },
    }
    local wrong = 0
    for _, which in ipairs { 1, 2, 3, 5 } do
      for _, is_held in ipairs { true, false } do
        for _, request in ipairs(requests) do
          call("DEL", keys[1], keys[2], keys[3], keys[5])
          verdict("a")
          verdict("w")
          verdict("x")
          age(5000, "w")                 -- a dead waiter to remove
          if not is_held then call("DEL", name) end
          call("SET", keys[which], "a string")
          local before = {}
          for i, key in ipairs(keys) do
            before[i] = call("EXISTS", key) == 1 and call("DUMP", key)
          end
          local reply, code, detail = fair.ask(name, table.unpack(request))
          if not reply then
            wrong = wrong + 1
            assert.equal("redis", code)
            assert.matches("WRONGTYPE", detail)
            assert.matches("/policy/%l+.lua:%d+", detail)
            for i, key in ipairs(keys) do
              assert.equal(before[i],
                call("EXISTS", key) == 1 and call("DUMP", key), detail)
            end
          end
        end
      end
    end
    assert.is_true(wrong > 25, wrong)
  end)

  it("take any name and any owner", function()
    for _, odd in ipairs {
      "with spaces", "nul\0inside", "{tag}:x", "a{b", "x{}y", "}{", "new\nline",
      "\255\254", ("x"):rep(100000),
    } do
      name = odd
      keys = policy.load("fair").keys(name)
      verdict("a")
      for _, owner in ipairs { odd, odd .. ":1", "0", "-1", "nil" } do
        assert.equal("busy", verdict(owner))
      end
      local last = "a"
      for _, owner in ipairs { odd, odd .. ":1", "0", "-1", "nil" } do
        release(last)
        assert.equal("held", verdict(owner))
        last = owner
      end
      check_keys()
      release(last)
    end
  end)

  it("cost the same for any number of waiters", function()
    local function calls(fn, ...)
      call("CONFIG", "RESETSTAT")
      fn(...)
      local total = 0
      for command, n in call("INFO", "commandstats"):gmatch(
          "cmdstat_([%w|]+):calls=(%d+)") do
        if command ~= "evalsha" and command ~= "config|resetstat" then
          total = total + n
        end
      end
      return total
    end
    local most = {}
    for _, n in ipairs { 2, 500 } do
      call("DEL", keys[1], keys[2], keys[3], keys[5])
      verdict("a")
      for i = 1, n do verdict("w" .. i) end
      local costs = {
        calls(verdict, "w" .. n), calls(verdict, "new", "0"),
        calls(verdict, "new"), calls(leave, "new"), calls(release, "a"),
        calls(verdict, "w1"),
      }
      for i, cost in ipairs(costs) do
        assert.is_true(cost <= (most[i] or 25), i .. ": " .. cost)
        most[i] = cost + 7              -- upkeep of the queue, once a second
      end
    end
  end)
end)

describe("the deadlines of a fair lock", function()
  before_each(start)
  after_each(fixtures.close)

  -- The waits that Redisson waiters would be told, minus the elapsed time.
  local began
  local function ttls(wait, ...)
    local result = {}
    for i, owner in ipairs { ... } do
      local ms = deadline(owner) - wait - began
      result[i] = math.floor(ms / 1000 + 0.5)
    end
    return result
  end

  local function begin(lease)
    began = now_ms()
    assert.equal("held", verdict("init", "5000", lease or "30000"))
  end

  it("testAcquireFailedTimeoutDrift_Descrete: 0, 5, 10 and 15 s, and 5 s "
    .. "less when one leaves", function()
      begin()
      for _, owner in ipairs { "w1", "w2", "w3", "w4" } do
        verdict(owner, "5000")
      end
      assert.same({ 0, 5, 10, 15 }, ttls(5000, "w1", "w2", "w3", "w4"))
      leave("w2")
      assert.same({ 0, 10 }, ttls(5000, "w1", "w4"))
      verdict("w2", "5000")
      assert.same({ 15 }, ttls(5000, "w2"))
      leave("w3")
      leave("w4")
      assert.same({ 5 }, ttls(5000, "w2"))
      release("init")
      assert.equal("held", verdict("w1", "5000"))
      assert.same({ 0 }, ttls(5000, "w2"))
      release("w1")
      assert.equal("held", verdict("w2", "5000"))
      check_keys()
    end)

  it("testAcquireFailedTimeoutDrift_Descrete, with waiters of Redisson among "
    .. "ours", function()
      begin()
      verdict("w1", "5000")
      assert.equal(5, math.floor(redisson.join("r2", 5000) / 1000 + 0.5))
      verdict("w3", "5000")
      assert.equal(15, math.floor(redisson.join("r4", 5000) / 1000 + 0.5))
      assert.same({ 0, 5, 10, 15 }, ttls(5000, "w1", "r2", "w3", "r4"))
      leave("w1")             -- r2 is not removed while the lock is held
      assert.same({ 30, 5, 15 }, ttls(5000, "r2", "w3", "r4"))
      leave("w3")
      assert.same({ 30, 15 }, ttls(5000, "r2", "r4"))
      verdict("w3", "5000")
      assert.same({ 30, 15, 20 }, ttls(5000, "r2", "r4", "w3"))
    end)

  it("testLockAcquiredTimeoutDrift_Descrete: 5 s less for all behind the one "
    .. "that gets it", function()
      begin()
      for i, owner in ipairs { "w1", "r2", "w3", "r4" } do
        if owner:find("r") then
          redisson.join(owner, 5000)
        else
          verdict(owner, "5000")
        end
        assert.same({ 5 * i - 5 }, ttls(5000, owner))
      end
      release("init")
      assert.equal("held", verdict("w1", "5000"))
      assert.same({ 30, 5, 15 }, ttls(5000, "r2", "w3", "r4"))
      redisson.unlock()
      assert.is_true(redisson.take("r2", 5000))
      assert.same({ 0, 10 }, ttls(5000, "w3", "r4"))
      redisson.unlock()
      assert.equal("held", verdict("w3", "5000"))
      assert.same({ 30 }, ttls(5000, "r4"))
    end)

  it("testLockAcquiredBooleanTimeoutDrift_Descrete: as well by a try",
    function()
      begin()
      for _, owner in ipairs { "w1", "w2", "w3" } do verdict(owner, "5000") end
      redisson.join("r4", 5000)
      release("init")
      assert.equal("busy", verdict("w2", "0"))
      assert.equal("held", verdict("w1", "0"))
      assert.same({ 0, 5, 15 }, ttls(5000, "w2", "w3", "r4"))
    end)

  it("testAbandonedTimeoutDrift_Descrete: nothing is left of who was struck "
    .. "off", function()
      begin()
      for _, owner in ipairs { "w1", "w2", "w3" } do verdict(owner, "5000") end
      redisson.join("r4", 5000)
      redisson.join("r5", 5000)
      age(5000, "w1")
      age(5000, "w2")
      assert.equal("busy", verdict("w3", "5000"))
      assert.equal("w3 r4 r5", line())
      assert.same({ 0, 15, 20 }, ttls(5000, "w3", "r4", "r5"))
      check_keys()
    end)

  -- Deadlines stay bounded, however long the queue has not been empty. On a
  -- slow machine, those of waiters that do not ask pass meanwhile.
  local function check_drift(each)
    local owners, now = call("LRANGE", keys[2], 0, -1), now_ms()
    for _, owner in ipairs(owners) do
      local left = deadline(owner) - now
      if left <= 0 then left = left + now - began end
      assert.is_true(left > 0 and left <= 31000 + each * #owners, owner)
    end
  end

  -- Repeats an event on a queue of six; Redisson waiters take their turns.
  local function wear(happens, is_mixed)
    local last = 0
    call("DEL", keys[1], keys[2], keys[3], keys[5])
    began = now_ms()
    verdict("holder")
    for _ = 1, 40 do
      while waiting() < 6 do
        last = last + 1
        if is_mixed and last % 7 == 0 then
          redisson.join("r" .. last, 300000)
        else
          verdict("w" .. last)
        end
      end
      local owners = call("LRANGE", keys[2], 0, -1)
      if owners[1]:find("^r") then
        call("DEL", name)
        assert.is_true(redisson.take(owners[1], 300000))
        call("DEL", name)
      else
        happens(owners[1], owners[2], owners[6])
      end
      if call("EXISTS", name) == 0 then
        verdict(call("LRANGE", keys[2], 0, 0)[1], "0")
      end
      check_drift(is_mixed and 300000 or 10000)
    end
  end

  for _, row in ipairs {
    { "testLockAcquiredTimeoutDrift", function(first)
        assert(fair.ask(name, "break_", "", "publish"))
        verdict(first)
      end },
    { "testWaitTimeoutDrift", function(_, _, last) leave(last) end },
    { "testFirstThreadDeathTimeoutDrift", function(first, second)
        age(5000, first)
        verdict(second)
      end },
  } do
    it(row[1] .. ": they do not drift", function()
      wear(row[2], false)
      wear(row[2], true)
    end)
  end
end)

describe("a fair lock", function()
  local lock

  before_each(function()
    start()
    lock = client:fair_lock(name)
  end)

  after_each(fixtures.close)

  it("20 processes: strict order of arrival", function()
    assert.is_true(lock:lock())
    local all, expected = {}, {}
    for i = 1, 20 do
      all[i] = locker(tostring(i), 0.01)
      eventually(function() return waiting() == i end, LONG, "in line")
      expected[i] = i
    end
    assert.is_true(lock:unlock())
    for i = 1, 20 do assert.equal(0, (all[i]:wait())) end
    assert.equal(table.concat(expected, " "), order())
    check_keys()
  end)
end)

describe("a waiter of a fair lock that is killed", function()
  local lock, dead

  before_each(function()
    start()
    lock = client:fair_lock(name)
    assert.is_true(lock:lock())
    dead = locker("dead", 60)
    eventually(function() return waiting() == 1 end)
  end)

  after_each(fixtures.close)

  it("is skipped when the lock is freed", function()
    local waiter = wait_in_line(lock)
    dead:kill(9)
    dead:wait()
    assert.is_true(lock:unlock())
    assert.is_true(waiter:join(LONG))
    check_keys()
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
    local first = wait_in_line(lock, nil, take(1))
    local ttl = redisson.join("java:1", 300000)
    assert.is_true(ttl > 0 and ttl <= 10000, ttl)
    local third = wait_in_line(lock, nil, take(3))
    assert.is_true(lock:unlock())
    assert.is_true(first:join())
    eventually(function() return heard[1] end, LONG)
    assert.equal("0", heard[1])
    rlock.sleep(0.7)                    -- long enough to overtake it
    assert.is_nil(third.is_over)
    assert.is_true(deadline("java:1") > now_ms() + 290000)
    assert.is_true(redisson.take("java:1", 300000))
    got[#got + 1] = 2
    rlock.sleep(0.7)
    assert.is_nil(third.is_over)
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
end)

describe("waiters of Redisson without a subscriber", function()
  local lock

  before_each(function()
    start()
    lock = client:fair_lock(name)
    assert.is_true(lock:lock())
  end)

  after_each(fixtures.close)

  it("are removed between ours, and live ones are notified", function()
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

  it("are dead, where there are replicas, if others in the line are heard "
    .. "here", function()
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
