--- Behaviours that Redisson's own tests assert only of its fair lock, by their
--- names there (RedissonFairLockTest), for any first-come, first-served lock.
--- spec/rows/behaviours.lua lists which kind has which.
---
---   require "spec.rows.fair" ("fair", describe, it, before_each, after_each)

local assert = require "luassert"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local kinds = require "spec.tools.kinds"
local program = require "spec.tools.program"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local LONG = 30 * slow              -- for a wait that must end earlier

-- Another process, in which `arg[3]` tasks wait for a lock of kind `arg[1]`.
local CROWD = [[
  local rlock = require "rlock"
  local client = assert(rlock.open())
  local function wait()
    local lock = arg[1] == "fair" and client:fair_lock(arg[2])
      or client:fair_read_write_lock(arg[2]):write_lock()
    assert(lock:lock())
  end
  for _ = 1, arg[3] do rlock.spawn(wait) end
  rlock.sleep(300)
]]

local function one_to(n)
  local list = {}
  for i = 1, n do list[i] = i end
  return list
end

return function(which, describe, it, before_each, after_each)
  local kind = kinds.of[which]
  local server, client, name, lock

  -- The same lock, by another client.
  local function another()
    local world = kinds.open(which, { server.url })
    return world.lock(name), world.clients[1]
  end

  -- A task that queues behind the current waiters, takes the lock, runs fn()
  -- and unlocks.
  local function takes_turn(its, fn, options)
    local before = kind.waiting(client, name)
    local waiter = task.start(function()
      assert.is_true((its:lock(options or { wait = 2 * LONG })))
      fn()
      return options or its:unlock()
    end)
    eventually(function()
      return kind.waiting(client, name) > before or waiter.is_over
    end, LONG, "it is in line")
    return waiter
  end

  local function nothing_is_left()
    eventually(function()
      return #client:call("KEYS", "*" .. name .. "*") == 0
    end)
  end

  -- Kills a process with n waiters, then frees the lock.
  local function let_die(n)
    assert.is_true(lock:lock())
    local crowd = program.start(server, "-e", CROWD, which, name, tostring(n))
    eventually(function() return kind.waiting(client, name) == n end, LONG,
      "all are in line")
    crowd:kill(9)
    crowd:wait()
    assert.is_true(lock:unlock())
  end

  local function setup(on)
    server, name = on, fixtures.name("rows:" .. which .. ":order")
    lock, client = another()
  end

  describe("dead waiters of " .. which .. ",", function()
    before_each(function() setup(redis.shared()) end)

    after_each(fixtures.close)

    it("a hundred of them, are skipped", function()
      let_die(100)
      assert.is_true(lock:lock { wait = LONG })
      assert.is_true(lock:unlock())
      nothing_is_left()
    end)

    it("lose their places by force", function()
      let_die(3)
      local is_broken = false              -- their last signs of life differ
      eventually(function()
        is_broken = lock:break_lock() or is_broken
        return kind.waiting(client, name) == 0
      end)
      assert.is_true(is_broken)
      assert.is_false(lock:break_lock())
      assert.is_true(lock:try_lock())
      assert.is_true(lock:unlock())
    end)
  end)

  describe("rows of " .. which .. ":", function()
    before_each(function() setup(redis.shared()) end)

    after_each(fixtures.close)

    it("testLeaseTimeout: order of arrival where nobody unlocks", function()
      local got, all = {}, {}
      for i = 1, 4 do
        all[i] = takes_turn(lock, function() got[#got + 1] = i end,
          { lease = 0.5 * slow })
      end
      for i = 1, 4 do all[i]:join(LONG) end
      assert.same(one_to(4), got)
    end)

    it("testMultipleLocks: 500 tasks are all served", function()
      local served = 0
      task.many(500, function()
        assert.is_true(lock:lock())
        served = served + 1
        assert.is_true(lock:unlock())
      end, 2 * LONG)
      assert.equal(500, served)
      nothing_is_left()
    end)

    it("testTryLockNonDelayed: a try is answered at once, and leaves nothing",
      function()
        assert.is_true(lock:lock())
        task.run(function()
          assert.equal("busy", select(2, lock:try_lock()))
        end)
        assert.equal(0, kind.waiting(client, name))
        assert.is_true(lock:unlock())
        nothing_is_left()
      end)

    it("testConcurrency_MultiInstance_Ordering: 20 clients, strict order of "
      .. "arrival", function()
        local got, all = {}, {}
        assert.is_true(lock:lock())
        for i = 1, 20 do
          all[i] = takes_turn(another(), function() got[#got + 1] = i end)
        end
        assert.is_true(lock:unlock())
        for i = 1, 20 do assert.is_true(all[i]:join(LONG)) end
        assert.same(one_to(20), got)
        nothing_is_left()
      end)

    it("testAcquireFailedNotCalledOnRedisTimeout: a server that is away for a "
      .. "while changes nothing in the order, and leaves nothing behind",
      function()
        local alone = fixtures.server()
        setup(alone)
        local got, all = {}, {}
        assert.is_true(lock:lock { lease = 60 })
        for i = 1, 6 do
          all[i] = takes_turn(lock, function() got[#got + 1] = i end)
        end
        alone:pause()
        rlock.sleep(1.5)                   -- a silent waiter is dead after 1.2
        alone:resume()
        assert.is_true(lock:unlock())
        for i = 1, 6 do assert.is_true(all[i]:join(LONG)) end
        assert.same(one_to(6), got)
        nothing_is_left()
      end)
  end)
end
