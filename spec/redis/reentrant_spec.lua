--- The reentrant lock on a real Redis: the operations in each state, and
--- Redisson's layout and behaviours.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local states = require "spec.tools.states"
local task = require "spec.tools.task"

local server = redis.shared()

local function fresh() return fixtures.name "reentrant" end

local function open(options)
  return fixtures.open({ url = server.url }, options)
end

-- Runs fn in a task of its own: another owner.
local function as_another(fn)
  return rlock.spawn(fn):join()
end

describe("a reentrant lock", function()
  local client, name, lock

  before_each(function()
    client, name = open(), fresh()
    lock = client:lock(name)
  end)

  after_each(fixtures.close)

  it("gives the verdict of its state", function()
    states.of(client, "reentrant").play(name, [[
      peek a                       free
      break_ - publish             free
      break_ 5 publish             refused  -- it has no tokens
      release a 1 0 publish        lost
      renew a 60000 1              lost
      acquire a 60000 2            lost     -- the first hold is not there
      acquire a 60000 1            held
      acquire a 60000 1            held     -- the same request again
      acquire a 60000 2            held
      acquire b 60000 1            busy
      acquire b 60000 2            lost
      renew a 60000 2              held
      renew b 60000 1              lost
      release b 1 0 publish        lost
      release a 60000 1 publish    kept
      release a 60000 1 publish    kept     -- the same request again
      peek b                       held
      release a 1 0 publish        freed
      release a 1 0 publish        lost
      acquire b 60000 1            held
      over
      renew b 60000 1              lost
      acquire b 60000 2            lost
      acquire a 10 1               held
      wait 20
      release a 1 0 publish        lost
      acquire b 60000 1            held
      acquire b 10 1               held     -- a lease is never shortened
      renew b 10 1                 held
      wait 20
      acquire a 60000 1            busy
      acquire b 60000 2            held
      release b 10 1 publish       kept     -- but by what is released
      wait 20
      acquire a 60000 1            held
      break_ - publish             freed
      renew a 60000 1              lost
      peek a                       free
    ]])
  end)

  it("notifies its waiters once when released or broken", function()
    local ops = states.of(client, "reentrant")
    local channel = "redisson_lock__channel:{" .. name .. "}"
    for _, publish in ipairs { "publish", "both" } do
      assert.same({ "0", "0" }, fixtures.messages(server, channel, function()
        ops.play(name, ([[
          acquire a 60000 1 held
          release a 1 0 PUBLISH freed
          acquire a 60000 1 held
          break_ - PUBLISH freed
        ]]):gsub("PUBLISH", publish))
      end))
    end
  end)

  it("is one hash field per owner with its hold count, and expires", function()
    assert.is_true(lock:lock())
    local fields = server:cli("HGETALL", name)
    assert.matches("^%x+%-%x+%-4%x+%-%x+%-%x+:%d+\n1$", fields)
    local ttl = tonumber(server:cli("PTTL", name))
    assert.is_true(ttl > 29000 and ttl <= 30000)
    assert.is_true(lock:unlock())
    assert.equal("0", server:cli("EXISTS", name))
  end)

  it("keeps another task out, even through the same handle", function()
    assert.is_true(lock:lock())
    as_another(function()
      local ok, code, detail = lock:try_lock()
      assert.is_nil(ok)
      assert.equal("busy", code)
      assert.matches("held", detail)
      assert.is_false(lock:is_held())
      assert.is_true(lock:is_locked())
      assert.same({ nil, "not_held" }, { (lock:unlock()),
        (select(2, lock:unlock())) })
    end)
    assert.is_true(lock:is_held())
    assert.is_true(lock:unlock())
    assert.is_false(lock:is_locked())
  end)

  it("keeps another client out", function()
    local other = open()
    assert.is_true(lock:lock())
    assert.equal("busy", select(2, other:lock(name):try_lock()))
    assert.is_true(lock:unlock())
    assert.is_true(other:lock(name):try_lock())
    other:close()
    assert.equal("0", server:cli("EXISTS", name))
  end)

  it("cannot be unlocked by a task that never held it", function()
    local ok, code = lock:unlock()
    assert.is_nil(ok)
    assert.equal("not_held", code)
  end)

  it("says lost, not not_held, after the lease has ended", function()
    assert.is_true(lock:lock { lease = 0.02 })
    eventually(function() return server:cli("EXISTS", name) == "0" end)
    local ok, code = lock:unlock()
    assert.is_nil(ok)
    assert.equal("lost", code)
    assert.equal("not_held", select(2, lock:unlock()))
    assert.is_true(lock:try_lock())
  end)

  it("is handed over when it is unlocked", function()
    local order = {}
    assert.is_true(lock:lock())
    local waiting = rlock.spawn(function()
      assert.is_true(lock:lock { wait = 10 })
      order[#order + 1] = "second"
      assert.is_true(lock:unlock())
    end)
    eventually(function()
      return server:cli("PUBSUB", "NUMSUB",
        "redisson_lock__channel:{" .. name .. "}"):match("\n1$")
    end)
    order[#order + 1] = "first"
    assert.is_true(lock:unlock())
    waiting:join()
    assert.same({ "first", "second" }, order)
  end)

  it("is taken over when the holder's lease ends, without any message",
    function()
      server:cli("HSET", name, "somebody:1", "1")
      server:cli("PEXPIRE", name, "150")
      local before = rlock.now()
      assert.is_true(lock:lock { wait = 10 })
      assert.is_true(rlock.now() - before < 2)
    end)

  it("is woken by Redisson's message", function()
    server:cli("HSET", name, "java:1", "1")
    server:cli("PEXPIRE", name, "600000")
    local waiting = rlock.spawn(function() return lock:lock { wait = 20 } end)
    local channel = "redisson_lock__channel:{" .. name .. "}"
    eventually(function()
      return server:cli("PUBSUB", "NUMSUB", channel):match("\n1$")
    end)
    server:cli("DEL", name)
    local before = rlock.now()
    server:cli("PUBLISH", channel, "0")
    assert.is_true(waiting:join())
    assert.is_true(rlock.now() - before < 2)
  end)

  it("publishes 0 to Redisson's waiters, once, when the last hold goes",
    function()
      local channel = "redisson_lock__channel:{" .. name .. "}"
      assert.same({ "0" }, fixtures.messages(server, channel, function()
        assert.is_true(lock:lock())
        assert.is_true(lock:lock())
        assert.is_true(lock:unlock())
        assert.is_true(lock:unlock())
      end))
    end)

  it("never has its lease shortened by an inner hold", function()
    assert.is_true(lock:lock())
    assert.is_true(lock:lock { lease = 1 })
    assert.is_true(tonumber(server:cli("PTTL", name)) > 28000)
    assert.is_true(lock:unlock())
    assert.is_true(tonumber(server:cli("PTTL", name)) > 28000)
  end)

  it("has the outer expiry restored by the unlock of a longer inner hold",
    function()
      assert.is_true(lock:lock { lease = 20 })
      assert.is_true(lock:lock { lease = 100 })
      assert.is_true(tonumber(server:cli("PTTL", name)) > 90000)
      assert.is_true(lock:unlock())
      local ttl = tonumber(server:cli("PTTL", name))
      assert.is_true(ttl > 15000 and ttl <= 20000, "ttl " .. ttl)
      assert.is_true(lock:valid_for() <= 20)
    end)

  it("does not re-enter a lost hold", function()
    assert.is_true(lock:lock { lease = 30 })
    server:cli("DEL", name)
    local ok, code = lock:lock()
    assert.is_nil(ok)
    assert.equal("lost", code)
    assert.equal("0", server:cli("EXISTS", name))
    assert.equal("lost", select(2, lock:unlock()))
    assert.is_true(lock:try_lock())
  end)

  it("can be broken by force; the holder gets lost", function()
    assert.is_true(lock:lock())
    as_another(function() assert.is_true(lock:break_lock()) end)
    assert.is_false(lock:is_locked())
    assert.equal("lost", select(2, lock:unlock()))
    assert.is_false(lock:break_lock())
  end)

  it("passes values and errors through with()", function()
    assert.same({ 1, nil, 3 }, { lock:with(function(held, a, b, c)
      assert.equal(lock, held)
      assert.is_true(lock:is_held())
      return a, b, c
    end, 1, nil, 3) })
    for _, boom in ipairs { { "an error object" }, "a string", false } do
      local ok, caught = pcall(lock.with, lock, function() error(boom, 0) end)
      assert.is_false(ok)
      assert.equal(boom, caught)
      assert.is_false(lock:is_locked())
    end
  end)

  it("releases the hold of with(), or what replaced it", function()
    local inner
    assert.is_true(lock:with(function()
      inner = assert(lock:hold())
      return true
    end))
    assert.equal("held", inner:state())
    assert.is_true(inner:unlock())
    assert.is_true(lock:with(function()
      return lock:unlock() and lock:lock()
    end))
    assert.is_false(lock:is_locked())
  end)

  it("says lost from with() when the hold did not last", function()
    local result, code = lock:with({ lease = 0.02 }, function()
      eventually(function() return server:cli("EXISTS", name) == "0" end)
      return "done"
    end)
    assert.is_nil(result)
    assert.equal("lost", code)
  end)

  it("can be passed to another task as a hold", function()
    local hold = assert(lock:hold())
    as_another(function()
      assert.equal("not_held", select(2, lock:unlock()))
      assert.is_true(hold:valid_for() > 0)
      assert.is_true(hold:unlock())
      assert.equal("not_held", select(2, hold:unlock()))
    end)
    assert.is_false(lock:is_locked())
  end)

  it("belongs to the named owner", function()
    local mine = client:lock(name, { owner = "me" })
    assert.is_true(mine:lock())
    assert.equal("me\n1", server:cli("HGETALL", name))
    as_another(function()
      local again = client:lock(name, { owner = "me" })
      assert.is_true(again:lock())
      assert.equal(2, again:hold_count())
      assert.is_true(again:unlock())
    end)
    assert.equal("busy", select(2, lock:try_lock()))
    assert.is_true(mine:unlock())
  end)

  it("leaves a hold() to its object while its owner has others", function()
    local mine = client:lock(name, { owner = "me" })
    assert.is_true(mine:lock())
    local hold = as_another(function() return assert(mine:hold()) end)
    assert.is_true(mine:unlock())
    assert.equal("held", hold:state())
    assert.is_true(hold:unlock())
    assert.is_false(lock:is_locked())
  end)

  it("leaves a multi-lock's hold to it while it has others", function()
    local multi = rlock.multi_lock { lock, client:lock(name .. ":other") }
    assert.is_true(lock:lock())
    assert.is_true(multi:lock())
    assert.is_true(lock:unlock())
    assert.equal("held", multi:state())
    assert.is_true(multi:unlock())
    assert.is_false(lock:is_locked())
  end)

  it("gives up the hold of an object if there is no other", function()
    local hold = assert(lock:hold())
    assert.is_true(lock:unlock())
    assert.equal("free", hold:state())
    assert.is_false(lock:is_locked())
  end)

  it("accepts any name that Redis accepts as a key", function()
    local names = {
      "with spaces", "nul\0inside", "{tag}:x", "a{b", "x{}y", "}{", "new\nline",
      "\255\254", ("x"):rep(1048576),
    }
    for _, odd in ipairs(names) do
      local held = client:lock(odd)
      assert.is_true(held:lock { lease = 10 })
      assert.is_true(held:is_held())
      as_another(function()
        assert.equal("busy", select(2, held:try_lock()))
        assert.equal("timeout", select(2, held:lock { wait = 0.01 }))
      end)
      assert.is_true(held:unlock())
    end
  end)

  it("refuses wrong arguments by name", function()
    for _, case in ipairs {
      { "name", function() client:lock("") end },
      { "name", function() client:lock(nil) end },
      { "name", function() client:lock(("x"):rep(1048577)) end },
      { "owner", function() client:lock("x", { owner = "" }) end },
      { "wait", function() lock:lock { wait = -1 } end },
      { "wait", function() lock:lock { wait = 0 / 0 } end },
      { "wait", function() lock:lock { wait = "3" } end },
      { "lease", function() lock:lock { lease = 0 } end },
      { "at least 0.002 s", function() lock:lock { lease = 0.001 } end },
      { "lease", function() lock:lock { lease = math.huge } end },
      { "lease", function() lock:try_lock { lease = true } end },
      { "leese", function() lock:lock { leese = 3 } end },
      { "options", function() lock:lock(5) end },
      { "fn", function() lock:with() end },
      { "fn", function() lock:on_lost(1) end },
      { "seconds", function() lock:need("x") end },
      { "publish", function() rlock.open { publish = "shout" } end },
      { "watchdog", function() rlock.open { watchdog = 0 } end },
      { "argument #2", function() client:call("GET", {}) end },
    } do
      local ok, message = pcall(case[2])
      assert.is_false(ok, case[1])
      assert.matches(case[1], message, 1, true)
      assert.matches("reentrant_spec.lua:%d+:", message)
    end
    assert.is_false(lock:is_locked())
  end)

  it("says so when a method is called with a dot", function()
    local hold = assert(lock:hold())
    local multi = rlock.multi_lock { lock, client:lock(name .. ":other") }
    local carried = assert(multi:hold())
    local lock_methods = "lock try_lock unlock with hold valid_for state need "
      .. "on_lost is_held set"
    local hold_methods = "unlock valid_for state need on_lost set"
    for _, case in ipairs {
      { client, "client",
        "call get set lock fair_lock semaphore latch policy close" },
      { lock, "lock", lock_methods .. " peek is_locked token break_lock ttl" },
      { multi, "lock", lock_methods },
      { hold, "hold", hold_methods .. " token" },
      { carried, "hold", hold_methods },
      { client:read_write_lock(name .. ":pair"), "pair", "read_lock" },
      { client:semaphore(name .. ":semaphore"), "semaphore",
        "acquire try_acquire release add set drain available" },
      { client:permits(name .. ":permits"), "permits",
        "acquire try_acquire release renew on_lost set available acquired" },
      { client:latch(name .. ":latch"), "latch",
        "set count_down count wait delete" },
    } do
      local object, what, methods = case[1], case[2], case[3]
      for method in methods:gmatch("%S+") do
        for _, given in ipairs { {}, { { wait = 1 } }, { "x" }, { 5 } } do
          local ok, message = pcall(function() object[method](given[1]) end)
          assert.is_false(ok, method)
          assert.matches("reentrant_spec.lua:%d+: call it with a colon: "
            .. what .. ":" .. method .. "%(%)$", message)
        end
      end
    end
    assert(carried:unlock())
    assert(hold:unlock())
  end)

  it("keeps 2 ms for holds whose leases have ended", function()
    local told = client:policy("spec.tools.told_lease", name)
    assert.is_true(told:lock { lease = 0.1 })
    assert.is_true(told:lock { lease = 60 })
    rlock.sleep(0.11)
    assert.is_true(told:unlock())
    assert.equal("2", client:call("GET", name .. ":lease"))
  end)

  it("reports a key of the wrong type", function()
    server:cli("SET", name, "a string")
    local ok, code, detail = lock:lock()
    assert.is_nil(ok)
    assert.equal("redis", code)
    assert.matches("^WRONGTYPE .*rlock/policy/reentrant.lua:%d+%) for \""
      .. name .. "\": reentrant is expected, but a key of this name holds "
      .. "something else", detail)
    server:cli("DEL", name)
    assert.is_true(lock:lock())
    server:cli("HSET", name, lock:peek().holders[1].owner, "not a number")
    assert.equal(0, lock:hold_count())
    assert.is_true(lock:lock())
    assert.equal(2, lock:hold_count())
    assert.is_true(lock:unlock())
    assert.is_true(lock:unlock())
  end)
end)

describe("reentrant locks under load", function()
  after_each(fixtures.close)

  for _, row in ipairs {
    { "lockUnlockRLock: each lock is had by all", {} },
    { "tryLockUnlockRLock: each is had by who has the time", { wait = 0.01 } },
  } do
    it(row[1], function()
      local client, name, had = open(), fresh(), 0
      task.many(10, function()
        for i = 1, 200 do
          local lock = client:lock(name .. ":" .. i)
          if lock:lock(row[2]) then
            local semaphore = client:semaphore(name .. ":permits:" .. i)
            assert.is_true(semaphore:release())
            assert.is_true(semaphore:acquire())
            had = had + 1
            assert.is_true(lock:unlock())
          end
        end
      end, 60)
      assert.is_true(row[2].wait and had >= 200 or had == 2000, "had " .. had)
    end)
  end
end)

describe("kinds of locks that share a layout", function()
  after_each(fixtures.close)

  it("exclude each other, even in one task", function()
    local client, name = open(), fresh()
    local makers = { "lock", "mutex", "spin_lock", "fenced_lock" }
    for _, first in ipairs(makers) do
      for _, second in ipairs(makers) do
        local held, other = client[first](client, name),
          client[second](client, name)
        assert.is_true((held:lock()))
        if first ~= second then
          assert.equal("busy", select(2, other:try_lock()))
        end
        assert.is_true(held:unlock())
        assert.is_false(held:is_locked())
      end
    end
  end)

  it("are not broken by a token if they have none", function()
    local client, name = open(), fresh()
    assert.is_true(client:lock(name):lock())
    local ok, code = client:lock(name):break_lock(1)
    assert.is_nil(ok)
    assert.equal("refused", code)
  end)
end)

require "spec.rows.rlock" ("reentrant", describe, it, before_each,
  after_each)
