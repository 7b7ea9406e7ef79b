--- The fair lock on a real Redis: the order of grants, when dead waiters are
--- skipped, Redisson's layout and timings, and simulated Redisson waiters in
--- the same queue.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local policy = require "rlock.policy"
local program = require "spec.tools.program"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local SKIPPED = 2.5 * slow        -- seconds: 1.5, and 1 for a busy machine
local SLACK = 0.5 * slow
local GONE = 1.5 * slow           -- nginx polls for ended tasks

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

local function took(fn)
  local before = rlock.now()
  fn()
  return rlock.now() - before
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

  it("lay it out as Redisson does", function()
    assert.equal("held", verdict("a"))
    assert.same({ "a", "1" }, call("HGETALL", name))
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

  it("keep the order of arrival, however often and in whatever order the "
    .. "waiters ask", function()
      verdict("holder")
      for i = 1, 20 do verdict("w" .. i) end
      local expected = line()
      for _ = 1, 100 do
        assert.equal("busy", verdict("w" .. math.random(20)))
      end
      assert.equal(expected, line())
      local last = "holder"
      for i = 1, 20 do
        assert.equal("freed", release(last))
        for j = 20, i + 1, -1 do assert.equal("busy", verdict("w" .. j)) end
        assert.equal("busy", verdict("newcomer", "0"))
        last = "w" .. i
        assert.equal("held", verdict(last))
      end
      assert.equal("freed", release(last))
      check_keys()
    end)

  it("put no try in line", function()
    verdict("a")
    assert.equal("busy", verdict("b", "0"))
    assert.equal(0, waiting())
    verdict("c")
    release("a")
    assert.equal("busy", verdict("b", "0"))
    assert.equal("c", line())
    check_keys()
  end)

  it("never shorten a lease, and never lengthen one that is not ours",
    function()
      acquire("a", "0", "60000")
      acquire("a", "0", "1000")
      assert.is_true(call("PTTL", name) > 59000)
      assert(fair.ask(name, "renew", "a", "1000", "1"))
      assert.is_true(call("PTTL", name) > 59000)
      assert(fair.ask(name, "renew", "b", "90000", "1"))
      assert.is_true(call("PTTL", name) <= 60000)
      assert(fair.ask(name, "renew", "a", "90000", "1"))
      assert.is_true(call("PTTL", name) > 89000)
    end)

  it("say when it is worth asking again: never at once, unless it is the "
    .. "asker's turn", function()
      acquire("a", "0", "150")
      assert.is_true(acquire("b")[2] <= 150)
      assert.is_true(acquire("c")[2] >= 100)
      fair.over(name)
      -- It is b's turn, and b counts as alive for a while.
      local ms = acquire("c")[2]
      assert.is_true(ms >= 100 and ms <= 1200, ms)
      age(1150, "b")
      assert.equal(100, acquire("c")[2])
      call("HSET", name, "x", "1")
      assert.equal(-1, acquire("c")[2])
      assert.equal(-1, acquire("c", "0")[2])
    end)

  it("wake the first in line, and nobody else", function()
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

  it("let a waiter leave at once, and wake the next if it had its turn",
    function()
      for _, owner in ipairs { "a", "b", "c", "d" } do verdict(owner) end
      local to_c, to_d = listen("c"), listen("d")
      leave("c")
      assert.equal("b d", line())
      release("a")
      assert.equal("busy", verdict("d"))
      assert.same({ 0, 0 }, { #to_c, #to_d })
      leave("b")
      eventually(function() return to_d[1] end)
      assert.equal("held", verdict("d"))
      check_keys()
    end)

  it("hand the lock on when it was given to a waiter that leaves", function()
    verdict("a")
    verdict("b")
    verdict("c")
    release("a")
    verdict("b")
    local heard = listen("c")
    leave("b")
    eventually(function() return heard[1] end)
    assert.equal("held", verdict("c"))
    leave("b")
    assert.same({ "c", "1" }, call("HGETALL", name))
  end)

  it("do not take a lock away that was entered twice when a leave comes late",
    function()
      verdict("a")
      assert(fair.ask(name, "acquire", "a", "30000", "2", "0", "publish"))
      leave("a")
      assert.same({ "a", "2" }, call("HGETALL", name))
    end)

  it("take out of the line who releases what it does not hold", function()
    verdict("a")
    verdict("b")
    verdict("c")
    assert.equal("lost", release("b"))
    assert.equal("c", line())
    check_keys()
    assert.equal("lost", fair.ask(name, "release", "c", "1", "1",
      "publish")[1])
    assert.equal("c", line())
  end)

  it("change nothing when they are sent twice", function()
    local function state()
      return {
        call("HGETALL", name), math.ceil(call("PTTL", name) / 1000), line(),
        call("ZRANGE", keys[3], 0, -1),
      }
    end
    local function twice(...)
      local first = fair.ask(name, ...)
      local before = state()
      local second = fair.ask(name, ...)
      assert.equal(first[1] == "freed" and "lost" or first[1], second[1])
      assert.same(before, state())
    end
    twice("acquire", "a", "30000", "1", "-1", "publish")
    twice("acquire", "b", "30000", "1", "-1", "publish")
    twice("acquire", "c", "30000", "1", "-1", "publish")
    twice("acquire", "d", "30000", "1", "-1", "publish")
    twice("acquire", "a", "30000", "2", "-1", "publish")
    twice("renew", "a", "30000", "2")
    twice("release", "a", "30000", "1", "publish")
    twice("leave", "c", "publish")
    twice("release", "a", "1", "0", "publish")
    twice("acquire", "d", "30000", "1", "0", "publish")
    twice("acquire", "b", "30000", "1", "0", "publish")
    fair.ask(name, "break_", "", "publish")
    assert.equal("free", fair.ask(name, "break_", "", "publish")[1])
    check_keys()
  end)

  it("change nothing where a key is something else", function()
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

  it("cost the same however many wait", function()
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

  it("have 10 s of each waiter of ours, or what it waits if that is less",
    function()
      begin()
      verdict("w1")
      verdict("w2", "86400000")
      verdict("w3", "700")
      redisson.join("r4", 300000)
      verdict("w5", "4000")
      assert.same({ 10, 20, 21, 321, 325 },
        ttls(0, "w1", "w2", "w3", "r4", "w5"))
    end)

  -- Deadlines stay bounded, however long the queue has not been empty.
  local function check_drift(each)
    local owners, now = call("LRANGE", keys[2], 0, -1), now_ms()
    for _, owner in ipairs(owners) do
      local left = deadline(owner) - now
      assert.is_true(left > 0 and left <= 31000 + each * #owners, owner)
    end
  end

  -- Repeats an event on a queue of six; Redisson waiters take their turns.
  local function wear(happens, is_mixed)
    local last = 0
    call("DEL", keys[1], keys[2], keys[3], keys[5])
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

  it("are put off by who asks, so that Redisson does not strike it off",
    function()
      begin("600000")
      verdict("w1", "5000")
      redisson.join("r2", 300000)
      verdict("w3", "5000")
      call("ZADD", keys[3], now_ms() + 100, "w1")
      age(600)
      verdict("w1", "5000")
      verdict("w3", "5000")
      assert.same({ 5, 305, 311 }, ttls(0, "w1", "r2", "w3"))
    end)

  it("are forgiven: who is alive and was struck off comes back to the front, "
    .. "with more time", function()
      begin()
      for _, owner in ipairs { "w1", "w2", "w3" } do verdict(owner) end
      for _ = 1, 4 do
        call("LPOP", keys[2])              -- as Redisson does
        call("ZREM", keys[3], "w1")
        verdict("w3")
        assert.equal("w2 w3", line())
        verdict("w1")
        assert.equal("w1 w2 w3", line())
        check_keys()
      end
      assert.same({ 300 }, ttls(0, "w1"))
      -- A waiter that was dead meanwhile goes to the end, like a new one.
      call("LPOP", keys[2])
      call("ZREM", keys[3], "w1")
      age(1300, "w1")
      verdict("w1")
      assert.equal("w2 w3 w1", line())
    end)
end)

describe("the line of a fair lock", function()
  before_each(start)
  after_each(fixtures.close)

  it("has signs of life of this moment when it was deleted", function()
    for _, owner in ipairs { "a", "w", "x" } do verdict(owner) end
    call("DEL", keys[2], keys[3])
    assert.equal("busy", verdict "w")
    local seconds = math.floor(call("HGET", keys[5], "w"):match("^%d+")
      / 1024000)
    assert.is_true(math.abs(now_ms() / 1000 - seconds) < 60)
  end)

  it("is mended where somebody has lost his deadline", function()
    verdict("a")
    for _, owner in ipairs { "b", "c", "d" } do verdict(owner) end
    call("ZREM", keys[3], "c")
    age(1000)
    verdict("d")
    assert.equal("b c d", line())
    check_keys()
    call("DEL", keys[3])
    age(1000)
    verdict("d")
    assert.equal("b c d", line())
    check_keys()
  end)

  it("is mended where somebody has lost his place", function()
    verdict("a")
    for _, owner in ipairs { "b", "c", "d" } do verdict(owner) end
    call("LREM", keys[2], 1, "c")
    age(1000)
    verdict("d")
    assert.equal("b c d", line())
    check_keys()
    call("DEL", keys[2])
    age(1000)
    verdict("d")
    assert.equal("b c d", line())
    check_keys()
  end)

  it("is mended where somebody stands twice", function()
    verdict("a")
    for _, owner in ipairs { "b", "c", "d" } do verdict(owner) end
    call("RPUSH", keys[2], "b", "d")
    age(1000)
    verdict("c")
    assert.equal("b c d", line())
    check_keys()
  end)

  it("forgets who is not in it any more", function()
    verdict("a")
    for _, owner in ipairs { "b", "c" } do verdict(owner) end
    call("HSET", keys[5], "dead", (now_ms() - 5000) * 1024 + 10)
    eventually(function()                  -- in the next second
      verdict("b")
      verdict("c")
      return call("HLEN", keys[5]) == 3
    end)
    redisson.join("r1", 300000)
    leave("b")
    leave("c")
    assert.equal(0, call("EXISTS", keys[5]))
  end)

  it("goes on where the signs of life are lost", function()
    verdict("a")
    for _, owner in ipairs { "b", "c" } do verdict(owner) end
    call("DEL", keys[5])
    assert.equal("busy", verdict("c"))
    release("a")
    assert.equal("busy", verdict("c"))
    assert.equal("held", verdict("b"))
    release("b")
    assert.equal("held", verdict("c"))
  end)

  it("is not blocked by a first in line without a deadline, as Redisson's is",
    function()
      verdict("a")
      redisson.join("r1", 300000)
      verdict("b")
      call("ZREM", keys[3], "r1")
      release("a")
      local heard = listen("r1")
      assert.equal("busy", verdict("b"))
      eventually(function() return heard[1] end)       -- it has its turn
      local left = deadline("r1") - now_ms()
      assert.is_true(left > 4000 and left <= 5000)
      call("ZADD", keys[3], now_ms() - 1, "r1")
      assert.equal("held", verdict("b"))
    end)

  it("has a time to live beyond every deadline, also Redisson's", function()
    verdict("a")
    redisson.join("r1", 300000)
    assert.equal(-1, call("PTTL", keys[2]))
    verdict("b")
    check_keys()
    for i = 1, 100 do verdict("w" .. i) end
    check_keys()
    redisson.join("r2", 86400000)
    age(1000)
    verdict("b")
    check_keys()
  end)

  for i, what in ipairs { "lock", "queue", "timeout", false, "alive" } do
    if what then
      it("goes on where the " .. what .. " key has expired", function()
        verdict("a")
        for _, owner in ipairs { "b", "c" } do verdict(owner) end
        fair.over(keys[i])
        age(1000)
        if what ~= "lock" then
          verdict("c")
          verdict("b")
          release("a")
        end
        local first, second = "b", "c"
        assert.equal("busy", verdict(second))
        assert.equal("held", verdict(first))
        release(first)
        assert.equal("held", verdict(second))
        release(second)
        check_keys()
      end)
    end
  end
end)

describe("a waiter of a fair lock that gives no sign of life", function()
  before_each(start)
  after_each(fixtures.close)

  it("is skipped when it is first, and the next one is told", function()
    verdict("a")
    for _, owner in ipairs { "b", "c", "d", "e" } do verdict(owner) end
    release("a")
    age(1300, "b")
    age(1300, "c")
    local heard = listen("d")
    assert.equal("busy", verdict("e"))
    assert.equal("d e", line())
    eventually(function() return heard[1] end)
    assert.equal("held", verdict("d"))
    check_keys()
  end)

  it("is skipped by a release, a break and a try too", function()
    for _, op in ipairs { "release", "break_", "try", "leave" } do
      call("DEL", keys[1], keys[2], keys[3], keys[5])
      verdict("a")
      for _, owner in ipairs { "b", "c", "d" } do verdict(owner) end
      local heard, connection = listen("c")
      age(1300, "b")
      if op == "release" then
        release("a")
      elseif op == "break_" then
        assert(fair.ask(name, "break_", "", "publish"))
      else
        call("DEL", name)
        if op == "try" then
          assert.equal("busy", verdict("x", "0"))
        else
          leave("d")
        end
      end
      eventually(function() return heard[1] end, 5, op)
      assert.equal(op == "leave" and "c" or "c d", line())
      connection:close()
    end
  end)

  it("does not keep a try out for ever", function()
    verdict("a")
    verdict("b")
    release("a")
    age(60000)
    assert.equal("busy", verdict("x", "0"))       -- the server may have stalled
    age(60000)
    assert.equal("held", verdict("x", "0"))
    check_keys()
  end)

  it("keeps its place when it was the server that was silent", function()
    verdict("a")
    for _, owner in ipairs { "b", "c", "d" } do verdict(owner) end
    release("a")
    age(30000)
    assert.equal("busy", verdict("d"))
    assert.equal("b c d", line())
    assert.equal("held", verdict("b"))
    release("b")
    assert.equal("busy", verdict("d"))
    assert.equal("held", verdict("c"))
    release("c")
    assert.equal("held", verdict("d"))
  end)

  it("is skipped also if the next one is far away and asks seldom", function()
    verdict("a")
    for _, owner in ipairs { "b", "c" } do verdict(owner) end
    release("a")
    local asked = 0
    repeat
      age(900)
      asked = asked + 1
    until verdict("c") == "held" or asked == 10
    assert.is_true(asked <= 3, asked)
  end)

  it("is skipped when the server's clock was put back", function()
    verdict("a")
    for _, owner in ipairs { "b", "c" } do verdict(owner) end
    release("a")
    age(-3600000)
    assert.equal("busy", verdict("c"))
    age(1300, "")
    assert.equal("held", verdict("c"))
  end)
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
      eventually(function() return waiting() == i end, 5 * slow, "in line")
      expected[i] = i
    end
    assert.is_true(lock:unlock())
    for i = 1, 20 do assert.equal(0, (all[i]:wait())) end
    assert.equal(table.concat(expected, " "), order())
    check_keys()
  end)

  it("is not taken by a try while somebody waits for it", function()
    assert.is_true(lock:lock())
    local got = {}
    local waiters = {}
    for i = 1, 3 do
      waiters[i] = wait_in_line(lock, nil, function()
        got[#got + 1] = i
        rlock.sleep(0.02)
        assert.is_true(lock:unlock())
      end)
    end
    local tries = task.start(function()
      while not waiters[3].is_over do
        local ok = lock:try_lock()
        if ok then
          got[#got + 1] = "try"
          lock:unlock()
        end
        rlock.sleep(0)
      end
    end)
    assert.is_true(lock:unlock())
    tries:join()
    while got[4] do assert.equal("try", table.remove(got)) end
    assert.same({ 1, 2, 3 }, got)
  end)

  it("goes to the next at once when the one whose turn it is is cancelled or "
    .. "closes", function()
      local other = open()
      assert.is_true(lock:lock())
      local first = wait_in_line(lock)
      local second = wait_in_line(other:fair_lock(name))
      local third = wait_in_line(lock)
      first:cancel()
      eventually(function() return waiting() == 2 end, GONE)
      other:close()
      assert.equal("closed", select(2, second:join()))
      eventually(function() return waiting() == 1 end, SLACK)
      assert.is_true(lock:unlock())
      assert.is_true(third:join(SLACK))
      check_keys()
    end)

  it("is not given back by a leave that is repeated, when its owner has "
    .. "come again", function()
      local proxy = fixtures.proxy(server)
      local far = open { url = proxy.url, timeout = 0.3 * slow }
      local mine = far:fair_lock(name, { owner = "me" })
      assert.is_true(mine:lock())                    -- loads the scripts
      assert.is_true(mine:unlock())
      call("HSET", name, "somebody:1", "1")
      assert.equal("timeout", select(2, mine:lock { wait = 0.05 }))
      eventually(function() return waiting() == 0 end)
      assert.equal("timeout", select(2, mine:lock { wait = 0.05 }))
      local sha = far.session.node.shas[mine.site.policy.ops.leave]
      eventually(function() return waiting() == 0 end)
      proxy:cut(1, sha)
      assert.equal("timeout", select(2, mine:lock { wait = 0.05 }))
      call("DEL", name)
      assert.is_true(mine:lock { wait = 5 * slow })
      rlock.sleep(0.8 * slow)
      assert.same({ "me", "1" }, call("HGETALL", name))
      assert.is_true(mine:unlock())
    end)

  it("is not asked for more often than every 100 ms", function()
    assert.is_true(lock:lock())
    local dead = locker("dead", 0)
    eventually(function() return waiting() == 1 end)
    local waiters = {}
    for i = 1, 5 do
      waiters[i] = wait_in_line(lock, nil, function()
        rlock.sleep(60)
      end)
    end
    rlock.sleep(0.6)                    -- until all are subscribed
    dead:kill(9)
    local asked = server:stat("evalsha")
    local seconds = took(function()
      assert.is_true(lock:unlock())
      eventually(function() return call("EXISTS", name) == 1 end)
    end)
    asked = server:stat("evalsha") - asked
    assert.is_true(asked <= 2 + 5 * (seconds / 0.1 + 1), asked)
    for i = 1, 5 do waiters[i]:cancel() end
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

  it("is skipped in time when the lock is freed later", function()
    local waiter = wait_in_line(lock)
    dead:kill(9)
    dead:wait()
    assert.is_true(lock:unlock())
    assert.is_true(took(function()
      assert.is_true(waiter:join(5))
    end) < SKIPPED)
    check_keys()
  end)

  it("is skipped at once when it died long before its turn", function()
    local waiter = wait_in_line(lock)
    dead:kill(9)
    dead:wait()
    rlock.sleep(1.4)
    assert.is_true(lock:unlock())
    assert.is_true(waiter:join(SLACK))
  end)

  it("is skipped in time when the lock is free already", function()
    -- The first waiter is suspended at its turn, and then killed.
    local waiter = wait_in_line(lock)
    dead:kill(19)
    assert.is_true(lock:unlock())
    dead:kill(9)
    assert.is_true(took(function()
      assert.is_true(waiter:join(5))
    end) < SKIPPED)
    assert.equal("", order())
    check_keys()
  end)

  it("is skipped in time when the lease of a holder ends that died too",
    function()
      local waiter = wait_in_line(lock)
      dead:kill(9)
      call("PEXPIRE", name, 300)
      assert.is_true(took(function()
        assert.is_true(waiter:join(5))
      end) < 0.3 + SKIPPED)
    end)

  it("is skipped in time by one that comes then", function()
    dead:kill(9)
    dead:wait()
    assert.is_true(lock:unlock())
    local seconds = took(function() assert.is_true(lock:lock { wait = 5 }) end)
    assert.is_true(seconds < SKIPPED, seconds)
    check_keys()
  end)

  it("is skipped in time by one that comes much later", function()
    dead:kill(9)
    dead:wait()
    assert.is_true(lock:unlock())
    age(60000)
    local seconds = took(function() assert.is_true(lock:lock { wait = 5 }) end)
    assert.is_true(seconds < SKIPPED, seconds)
  end)

  it("together with the nine behind it is skipped in time", function()
    local all = { dead }
    for i = 2, 10 do
      all[i] = locker("dead", 60)
      eventually(function() return waiting() == i end)
    end
    local waiter = wait_in_line(lock)
    for i = 1, 10 do all[i]:kill(9) end
    assert.is_true(lock:unlock())
    assert.is_true(took(function()
      assert.is_true(waiter:join(5))
    end) < SKIPPED)
    check_keys()
  end)

  it("does not lose its place when it was only slow", function()
    local waiter = wait_in_line(lock)
    dead:kill(19)
    rlock.sleep(0.4)
    dead:kill(18)
    assert.is_true(lock:unlock())
    eventually(function() return order() == "dead" end)
    assert.is_nil(waiter.is_over)
    dead:kill(9)
    waiter:cancel()
  end)
end)

describe("waiters of Redisson in the line of a fair lock", function()
  local lock

  before_each(function()
    start()
    lock = client:fair_lock(name)
    assert.is_true(lock:lock())
  end)

  after_each(fixtures.close)

  it("get their message and their turn in the middle of ours", function()
    local got, heard = {}, listen("java:1")
    local function take(i)
      return function()
        got[#got + 1] = i
        assert.is_true(lock:unlock())
      end
    end
    local first = wait_in_line(lock, nil, take(1))
    local ttl = redisson.join("java:1", 300000)
    assert.is_true(ttl > 9000 and ttl <= 10000, ttl)
    local third = wait_in_line(lock, nil, take(3))
    assert.is_true(lock:unlock())
    assert.is_true(first:join())
    eventually(function() return heard[1] end, SLACK)
    assert.equal("0", heard[1])
    rlock.sleep(0.7)                    -- long enough to overtake it
    assert.is_nil(third.is_over)
    assert.is_true(deadline("java:1") > now_ms() + 290000)
    assert.is_true(redisson.take("java:1", 300000))
    got[#got + 1] = 2
    rlock.sleep(0.7)
    assert.is_nil(third.is_over)
    redisson.unlock()
    assert.is_true(third:join(SLACK))
    assert.same({ 1, 2, 3 }, got)
    check_keys()
  end)

  it("are skipped when their deadline has passed, with the lock free",
    function()
      redisson.join("java:1", 300000)
      local waiter = wait_in_line(lock)
      call("ZADD", keys[3], now_ms() + 600, "java:1")
      assert.is_true(lock:unlock())
      local seconds = took(function() assert.is_true(waiter:join(5)) end)
      assert.is_true(seconds > 0.5 and seconds < 0.6 + SLACK, seconds)
      check_keys()
    end)

  it("are skipped when their deadline has passed, with the lock held",
    function()
      redisson.join("java:1", 300000)
      local waiter = wait_in_line(lock)
      call("ZADD", keys[3], now_ms() - 1, "java:1")
      eventually(function() return line() ~= "" and waiting() == 1 end, SLACK)
      assert.is_true(lock:unlock())
      assert.is_true(waiter:join(SLACK))
    end)

  it("are told when the lock became free without a word", function()
    local heard = listen("java:1")
    redisson.join("java:1", 300000)
    local waiter = wait_in_line(lock)
    call("DEL", name)
    eventually(function() return heard[1] end, SLACK)
    assert.is_true(redisson.take("java:1", 300000))
    redisson.unlock()
    assert.is_true(waiter:join(SLACK))
  end)

  it("go on after one of ours has left, died, or was cancelled", function()
    local heard = listen("java:1")
    local dead = locker("dead", 60)
    eventually(function() return waiting() == 1 end)
    local cancelled = wait_in_line(lock)
    local late = wait_in_line(lock, { wait = 0.3 })
    redisson.join("java:1", 300000)
    local last = wait_in_line(lock)
    dead:kill(9)
    cancelled:cancel()
    late:join()
    assert.is_true(lock:unlock())
    eventually(function() return heard[1] end, SKIPPED)
    assert.equal("java:1", call("LRANGE", keys[2], 0, 0)[1])
    assert.is_true(redisson.take("java:1", 300000))
    redisson.unlock()
    assert.is_true(last:join(SLACK))
  end)

  it("wake ours when they unlock, and ours stand where Redisson looks",
    function()
      call("DEL", name)
      redisson.join("java:1", 300000)
      assert.is_true(redisson.take("java:1", 300000))
      local waiter = wait_in_line(lock)
      rlock.sleep(0.1)
      local asked = server:stat("evalsha")
      local seconds = took(function()
        redisson.unlock()
        assert.is_true(waiter:join())
      end)
      assert.is_true(seconds < SLACK)
      assert.is_true(server:stat("evalsha") - asked <= 3)
      check_keys()
    end)

  it("are not struck off where all before them were ours for a long time",
    function()
      for i = 1, 10 do verdict("w" .. i) end
      redisson.join("java:1", 300000)
      -- A queue that has not been empty for long has old deadlines.
      for _, owner in ipairs(call("LRANGE", keys[2], 0, -1)) do
        call("ZINCRBY", keys[3], -410000, owner)
      end
      for i = 1, 10 do verdict("w" .. i) end
      assert.is_true(lock:unlock())
      for i = 1, 10 do
        assert.equal("held", verdict("w" .. i))
        release("w" .. i)
      end
      assert.equal("java:1", line())
    end)
end)

describe("waiters of Redisson to whom nobody listens", function()
  local lock

  before_each(function()
    start()
    lock = client:fair_lock(name)
    assert.is_true(lock:lock())
  end)

  after_each(fixtures.close)

  it("are struck off, three as soon as one", function()
    for _, n in ipairs { 1, 3 } do
      for i = 1, n do redisson.join("dead:" .. i, 300000) end
      local waiter = wait_in_line(lock)
      local seconds = took(function()
        assert.is_true(lock:unlock())
        assert.is_true(waiter:join(30))
      end)
      assert.is_true(seconds > 1 and seconds < 4 + SLACK, seconds)
      check_keys()
      client:call("DEL", name, keys[6])
      assert.is_true(lock:try_lock())
    end
  end)

  it("are struck off between ours, and those who live are told", function()
    redisson.join("dead:1", 300000)
    redisson.join("java:1", 300000)
    local heard = listen("java:1")
    verdict("w1")
    redisson.join("dead:2", 300000)
    assert.is_true(lock:unlock())
    eventually(function()
      verdict("w1")
      return line() == "java:1 w1"
    end, 4 + SLACK)
    eventually(function() return heard[1] end)
    assert.is_true(redisson.take("java:1", 300000))
    redisson.unlock()
    assert.equal("held", verdict("w1"))
  end)

  it("do not keep tries out for long", function()
    redisson.join("dead:1", 300000)
    assert.is_true(lock:unlock())
    local seconds = took(function()
      eventually(function() return (lock:try_lock()) end, 30)
    end)
    assert.is_true(seconds < 4 + SLACK, seconds)
  end)

  it("lose their places by force; those who live keep them, and are told",
    function()
      redisson.join("dead:1", 300000)
      redisson.join("java:1", 300000)
      redisson.join("dead:2", 300000)
      local heard, connection = listen("java:1")
      assert.is_true(lock:unlock())
      assert.is_true(lock:break_lock())
      assert.equal("java:1", line())
      eventually(function() return heard[1] end)
      assert.is_false(lock:break_lock())
      connection:close()
      eventually(function() return lock:break_lock() end)
      assert.equal(0, call("EXISTS", keys[2], keys[3]))
      assert.is_true(lock:try_lock())
    end)

  it("keep their places while somebody listens again in time", function()
    redisson.join("java:1", 300000)
    assert.is_true(lock:unlock())
    assert.equal("busy", verdict("w1"))                  -- the first probe
    assert.equal("1", call("HGET", keys[6], "java:1"))
    assert.equal("busy", verdict("w1"))                  -- none again so soon
    call("PEXPIRE", keys[6], 27000)
    local _, connection = listen("java:1")
    assert.equal("busy", verdict("w1"))
    connection:close()
    eventually(function()
      return call("PUBSUB", "NUMSUB", keys[4] .. ":java:1")[2] == 0
    end)
    call("PEXPIRE", keys[6], 1)
    eventually(function() return call("EXISTS", keys[6]) == 0 end)
    assert.equal("busy", verdict("w1"))
    assert.equal("java:1 w1", line())
  end)

  it("keep their places where the server cannot tell who listens", function()
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

  it("cost nothing while they listen", function()
    redisson.join("java:1", 300000)
    listen("java:1")
    verdict("w1")
    assert.is_true(lock:unlock())
    verdict("w1")
    assert.equal(0, call("EXISTS", keys[6]))
  end)
end)

describe("the keys of a fair lock that were deleted", function()
  before_each(start)
  after_each(fixtures.close)

  it("do not cost ours their order", function()
    verdict("a")
    for i = 1, 30 do verdict("w" .. i) end
    leave("w7")
    verdict("w7")
    local expected = line()
    call("DEL", keys[1], keys[2], keys[3])               -- Redisson's delete()
    assert.equal("busy", verdict("w30"))
    assert.equal("busy", verdict("try", "0"))
    assert.equal("busy", verdict("w12"))
    assert.equal("busy", verdict("late"))
    assert.equal(expected .. " late", line())
    check_keys()
    for owner in expected:gmatch("%S+") do
      assert.equal("held", verdict(owner))
      release(owner)
    end
  end)

  it("do not cost ours their order when Redisson's come meanwhile", function()
    verdict("a")
    for _, owner in ipairs { "b", "c", "d" } do verdict(owner) end
    call("DEL", keys[1], keys[2], keys[3])
    redisson.join("java:1", 300000)
    verdict("d")
    assert.equal("b c d java:1", line())
    assert.equal("held", verdict("b"))
    assert.equal("c d java:1", line())
    check_keys()
  end)

  it("leave no dead waiter behind", function()
    verdict("a")
    for _, owner in ipairs { "b", "c" } do verdict(owner) end
    age(5000, "b")
    age(5000, "c")
    call("DEL", keys[1], keys[2], keys[3])
    assert.equal("held", verdict("x", "0"))
    assert.equal(0, call("EXISTS", keys[2], keys[3], keys[5]))
  end)

  it("are given a time to live where a try makes one of them again", function()
    call("RPUSH", keys[2], "java:1")                     -- without a deadline
    assert.equal("busy", verdict("x", "0"))
    assert.is_true(call("PTTL", keys[3]) > 0)
    assert.is_true(call("PTTL", keys[2]) > 0)
  end)
end)

describe("a dead waiter of ours", function()
  before_each(start)
  after_each(fixtures.close)

  it("delays Redisson by 10 s, however long the lease is", function()
    acquire("a", "0", "600000")
    verdict("w1")
    verdict("w1")
    assert.is_true(deadline("w1") - now_ms() <= 10000)
    assert.is_true(redisson.join("java:1", 300000) <= 10000)
    -- On its turn, Redisson's waiter is still given the lease's time.
    fair.over(name)
    acquire("w1", "-1", "600000")
    assert.is_true(deadline("java:1") >= now_ms() + 600000)
  end)
end)

describe("the deadlines behind dead waiters", function()
  before_each(start)
  after_each(fixtures.close)

  it("are whole milliseconds, which PEXPIRE takes", function()
    verdict("a")
    verdict("w1", "2000")                -- the shares are 2, 10 and 10 s
    verdict("w2")
    verdict("w3")
    verdict("w4")
    for _, owner in ipairs { "w1", "w2", "w3" } do age(20000, owner) end
    call("ZADD", keys[3], now_ms() + 8000, "w4")
    release("a")
    assert.equal("busy", verdict("x", "0"))
    assert.equal(0, deadline("w4") % 1)
    assert.equal("busy", verdict("w5"))
  end)

  it("come earlier by the shares of these", function()
    verdict("a")
    verdict("w1", "5000")
    verdict("w2", "5000")
    verdict("w3", "5000")
    local before = deadline("w3")
    age(20000, "w1")
    assert.equal("busy", verdict("w2", "5000"))
    assert.equal("w2 w3", line())
    assert.equal(5, math.floor((before - deadline("w3")) / 1000 + 0.5))
  end)

  it("may be fractions that another version left", function()
    verdict("a")
    verdict("w1")
    call("ZADD", keys[3], ("%d.5"):format(now_ms() + 5000000), "w1")
    call("PERSIST", keys[3])
    call("PEXPIRE", keys[3], 1000000)
    assert.equal("busy", verdict("w2"))
  end)
end)

for _, rows in ipairs { "rlock", "fair" } do
  require("spec.rows." .. rows) ("fair", describe, it, before_each,
    after_each)
end
