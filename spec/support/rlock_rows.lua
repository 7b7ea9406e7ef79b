--- Behaviours that Redisson's own tests assert of every kind of RLock
--- (RedissonLockTest and its kin), by their names there. A spec calls this
--- inside its `describe`:
--
--    require "spec.support.rlock_rows" (it, before_each, after_each, {
--      policy = "spin", enters_again = true })

local assert = require "luassert"
local redis = require "spec.support.redis"
local rlock = require "rlock"
local states = require "spec.support.states"
local task = require "spec.support.task"

local slow = tonumber(os.getenv("RLOCK_SLOW") or 1)
local server = redis.shared()

-- Runs fn n times in each of so many tasks, each time under the lock, and
-- counts without any other protection.
local function contend(tasks, times, lock_of)
  local counter = 0
  task.many(tasks, function(i)
    local lock = lock_of(i)
    for _ = 1, times do
      assert.is_true(lock:lock { wait = 30 * slow })
      local was = counter
      rlock.sleep(0)
      counter = was + 1
      assert.is_true(lock:unlock())
    end
  end, 60 * slow)
  assert.equal(tasks * times, counter)
end

return function(it, before_each, after_each, kind)
  local client, name, lock, number = nil, nil, nil, 0

  local function open(options)
    options = options or {}
    options.url = server.url
    return assert(rlock.open(options))
  end

  local function another(options)
    local other = open(options)
    return other:policy(kind.policy, name), other
  end

  before_each(function()
    number = number + 1
    client, name = open(), kind.policy .. ":rows:" .. number
    lock = client:policy(kind.policy, name)
  end)

  after_each(function() client:close() end)

  it("testLockUnlock", function()
    for _ = 1, 3 do
      assert.is_true((lock:lock()))
      assert.is_true(lock:unlock())
    end
    assert.equal(0, client:call("EXISTS", name))
  end)

  it("testUnlockFail: who does not hold it cannot unlock it", function()
    assert.is_true(lock:lock())
    task.run(function()
      assert.equal("not_held", select(2, lock:unlock()))
    end)
    assert.is_true(lock:is_held())
  end)

  it("testTryLockWait: the wait is what was asked for", function()
    local other, its = another()
    assert.is_true(other:lock())
    local before = rlock.now()
    assert.equal("timeout", select(2, lock:try_lock { wait = 0.3 }))
    local took = rlock.now() - before
    assert.is_true(took >= 0.299 and took < 0.335 + 0.3 * slow, "took " .. took)
    its:close()
  end)

  it("testExpire: the waiter has it when the lease ends, the owner lost it",
    function()
      local other, its = another()
      assert.is_true(other:lock { lease = 0.3 })
      local before = rlock.now()
      assert.is_true(lock:lock { wait = 10 * slow })
      assert.is_true(rlock.now() - before < 0.3 + 0.3 * slow)
      assert.equal("lost", select(2, other:unlock()))
      assert.is_true(lock:is_held())
      its:close()
    end)

  it("testAutoExpire: a dead owner's lock is free with its lease", function()
    states.of(client, kind.policy).ask(name, "acquire", "dead:1", "200", "1")
    assert.is_true(lock:is_locked())
    assert.is_true(lock:lock { wait = 10 * slow })
  end)

  it("testForceUnlock", function()
    assert.is_false(lock:break_lock())
    assert.is_true(lock:lock())
    assert.is_true(lock:break_lock())
    assert.is_false(lock:is_locked())
    assert.equal("lost", select(2, lock:unlock()))
  end)

  it("testRemainTimeToLive", function()
    assert.is_true(lock:lock { lease = 3600 })
    assert.is_true(lock:ttl() > 3590 and lock:ttl() <= 3600)
    assert.is_true(lock:unlock())
    assert.is_false(lock:ttl())
    assert.is_true(lock:lock())
    assert.is_true(lock:ttl() > 29 and lock:ttl() <= 30)
  end)

  it("testIsLocked, testIsHeldByCurrentThread, and by another", function()
    local function seen() return { lock:is_locked(), lock:is_held() } end
    assert.same({ false, false }, seen())
    assert.is_true(lock:lock())
    assert.same({ true, true }, seen())
    assert.same({ true, false }, task.run(seen))
    assert.is_true(lock:unlock())
    assert.same({ false, false }, seen())
  end)

  it("testConcurrency_SingleInstance", function()
    contend(16, 20, function() return lock end)
  end)

  it("testConcurrency_MultiInstance", function()
    local clients = {}
    contend(24, 8, function(i)
      local its
      its, clients[i] = another()
      return its
    end)
    for _, other in ipairs(clients) do other:close() end
  end)

  if not kind.enters_again then return end

  it("testGetHoldCount, testReentrancy", function()
    local counts = { lock:hold_count() }
    for _, step in ipairs { "lock", "unlock", "lock", "lock" } do
      assert.is_true((lock[step](lock)))
      counts[#counts + 1] = lock:hold_count()
    end
    assert.equal("busy", task.run(function()
      return select(2, lock:try_lock())
    end))
    assert.is_true(lock:unlock())
    counts[#counts + 1] = lock:hold_count()
    assert.is_true(lock:unlock())
    counts[#counts + 1] = lock:hold_count()
    assert.same({ 0, 1, 0, 1, 2, 1, 0 }, counts)
  end)

  it("testRemainTimeToLive2: what is left of three leases", function()
    for _ = 1, 3 do assert.is_true((lock:lock { lease = 10 })) end
    for _ = 1, 2 do assert.is_true(lock:unlock()) end
    assert.is_true(lock:ttl() > 9 and lock:ttl() <= 10)
  end)
end
