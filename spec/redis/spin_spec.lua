--- The spin lock on a real Redis: an RLock whose waiters poll.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local server = redis.shared()

describe("a spin lock", function()
  local client, name, lock, spin, channel

  before_each(function()
    client, name = fixtures.open { url = server.url }, fixtures.name "spin"
    lock = client:policy("spin", name)
    spin = states.of(client, "spin")
    channel = "redisson_lock__channel:{" .. name .. "}"
  end)

  after_each(fixtures.close)

  it("gives the verdict of its state", function()
    spin.play(name, [[
      acquire a 60000 1            held
      acquire a 60000 1            held     -- the same request again
      acquire a 60000 2            held
      acquire b 60000 1            busy
      release a 60000 1 publish    kept
      release a 60000 1 publish    kept
      release a 1 0 publish        freed
      release a 1 0 publish        lost
      acquire a 60000 2            lost
      acquire b 60000 1            held
      over
      renew b 60000 1              lost
      acquire a 10 1               held
      wait 20
      acquire b 60000 1            held
      acquire b 10 1               held     -- a lease is never shortened
      wait 20
      acquire a 60000 1            busy
    ]])
  end)

  it("needs no subscription for waiters", function()
    assert.is_true(lock:lock())
    local waiting = task.start(function()
      return lock:lock { wait = 10 * slow }
    end)
    local calls = server:stat("evalsha")
    eventually(function() return server:stat("evalsha") > calls + 3 end)
    assert.same({}, client:call("PUBSUB", "CHANNELS", channel))
    assert.is_true(lock:unlock())
    assert.is_true(waiting:join())
  end)

  it("wakes waiters that use it as a reentrant lock", function()
    assert.is_true(lock:lock())
    local waiting = task.start(function()
      return client:lock(name):lock { wait = 20 * slow }
    end)
    eventually(function()
      return client:call("PUBSUB", "NUMSUB", channel)[2] == 1
    end)
    assert.is_true(lock:unlock())
    assert.is_true(waiting:join())
  end)

  it("testTryLockAsyncSucceed, testTryLockAsyncFailed: a try is answered at "
    .. "once", function()
      assert.is_true(task.start(function()
        local ok = lock:try_lock()
        assert.equal("busy", select(2, task.start(function()
          return lock:try_lock()
        end):join()))
        return ok
      end):join())
    end)

  for _, row in ipairs {
    { "testTryLockAsync: without end", {} },
    { "testTimedTryLockAsync: for a time, with a lease",
      { wait = 30 * slow, lease = 30 } },
  } do
    it(row[1] .. ", a task waits while others go on", function()
      assert.is_true(lock:lock())
      local calls = server:stat("evalsha")
      local waiting = task.start(function() return lock:lock(row[2]) end)
      eventually(function() return server:stat("evalsha") > calls + 3 end)
      assert.is_nil(waiting.is_over)
      assert.is_true(lock:unlock())
      assert.is_true(waiting:join())
      assert.is_true(lock:is_locked())
      assert.is_true(lock:break_lock())
    end)
  end

  it("testTryLockAsyncWaitTime: a task that waits in vain times out", function()
    assert.is_true(lock:lock())
    assert.equal("timeout", select(2, task.start(function()
      return lock:lock { wait = 0.1 }
    end):join()))
  end)

  it("ends its wait when the client is closed", function()
    spin.ask(name, "acquire", "somebody", "60000", "1")
    local other, calls = fixtures.open { url = server.url },
      server:stat("evalsha")
    local waiting = task.start(function()
      return select(2, other:policy("spin", name):lock())
    end)
    eventually(function() return server:stat("evalsha") > calls end)
    other:close()
    assert.equal("closed", waiting:join())
  end)
end)

require "spec.rows.rlock" ("spin", describe, it, before_each,
  after_each)
