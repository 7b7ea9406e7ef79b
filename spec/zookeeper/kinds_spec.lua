--- The other kinds on a real ZooKeeper, locks of several systems, and what is
--- refused.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local most_inside = require "spec.tools.most_inside"
local on_zookeeper = require "spec.tools.on_zookeeper"
local peers = require "spec.tools.zookeeper_peer"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local server, open = on_zookeeper("kinds on ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown })
if not server then return end

local PATIENCE = 20 * slow

local peer, client, name

local function nodes(path) return peer:names("/" .. name .. path) or {} end

-- Runs fn as another owner.
local function code_of(fn)
  return task.run(function() return (select(2, fn())) end)
end

before_each(function()
  peer = peer or peers.open(server)
  client, name = open(), fixtures.name "kind"
end)

after_each(fixtures.close)

describe("the option fenced on ZooKeeper", function()
  local option = { fenced = true }

  it("is accepted: each lock has a token without it", function()
    for _, make in ipairs {
      function(...) return client:lock(...) end,
      function(...) return client:mutex(...) end,
      function(...) return client:fair_lock(...) end,
      function(...) return client:fenced_lock(...) end,
      function(...) return client:policy("reentrant", ...) end,
      function(...) return client:read_write_lock(...):write_lock() end,
      function(...) return client:fair_read_write_lock(...):write_lock() end,
    } do
      local path = fixtures.name "fenced"
      local lock, last = make(path, option), 0
      for _ = 1, 2 do
        local ok, token = lock:lock { wait = PATIENCE }
        assert.is_true(ok)
        assert.is_true(token > last)
        assert.equal(token, lock:token())
        assert.is_true(lock:unlock())
        last = token
      end
    end
  end)

  it("does not make a kind that ZooKeeper does not have", function()
    for _, kind in ipairs { "spin_lock", "simple_lock" } do
      local ok, message = pcall(client[kind], client, name, option)
      assert.is_false(ok)
      assert.matches("is not for ZooKeeper: .*use client:lock", message)
    end
  end)
end)

describe("a mutex on ZooKeeper", function()
  local mutex

  before_each(function() mutex = client:mutex(name) end)

  it("is a lease of Curator's InterProcessSemaphoreMutex", function()
    assert.is_true(mutex:lock())
    eventually(function() return #nodes "/locks" == 0 end)
    assert.equal(1, #nodes "/leases")
    assert.matches("^_c_[%x-]+%-lease%-%d%d%d%d%d%d%d%d%d%d$",
      nodes "/leases"[1])
    assert.equal("refused", select(2, mutex:lock()))
    assert.equal("busy", code_of(function()
      return open():mutex(name):try_lock()
    end))
    assert.equal(1, #mutex:peek().holders)
    assert.is_true(mutex:unlock())
    eventually(function() return #nodes "/leases" + #nodes "/locks" == 0 end)
  end)

  it("is handed over in order of arrival", function()
    local order, others = {}, {}
    assert(mutex:lock())
    for i = 1, 4 do
      local other = i % 2 == 0 and mutex or open():mutex(name)
      others[i] = task.start(function()
        assert(other:lock())
        order[#order + 1] = i
        assert(other:unlock())
      end)
      eventually(function() return #nodes "/locks" == i end)
    end
    assert.equal(4, mutex:peek().waiting)
    assert(mutex:unlock())
    for i = 1, 4 do others[i]:join(PATIENCE) end
    assert.same({ 1, 2, 3, 4 }, order)
    assert.same({}, nodes "/leases")
    eventually(function() return #nodes "/locks" == 0 end)
  end)

  it("leaves nothing of a waiter that gives up", function()
    assert(mutex:lock())
    assert.equal("timeout", code_of(function()
      return mutex:lock { wait = 0.1 }
    end))
    eventually(function()
      return #nodes "/locks" == 0 and #nodes "/leases" == 1
    end)
    assert(mutex:unlock())
    assert.is_nil(next(client.session.server.entries))
    assert.is_nil(next(client.session.server.doomed))
  end)

  it("is broken by force", function()
    assert(mutex:lock())
    local waiting = task.start(function() return mutex:lock() end)
    eventually(function() return #nodes "/leases" == 2 end)
    assert.is_true(open():mutex(name):break_lock())
    assert.is_true(waiting:join(PATIENCE))
  end)
end)

describe("a read/write lock on ZooKeeper", function()
  local pair

  before_each(function() pair = client:read_write_lock(name) end)

  it("has Curator's nodes, shared by readers", function()
    local reading, writing = pair:read_lock(), pair:write_lock()
    assert.is_true(reading:lock())
    assert.matches("^_c_[%x-]+%-__READ__%d%d%d%d%d%d%d%d%d%d$", nodes ""[1])
    assert.is_true(task.run(function()
      local ok = reading:try_lock()
      reading:unlock()
      return ok
    end))
    assert.equal("busy", code_of(function() return writing:try_lock() end))
    assert.is_true(reading:unlock())
    assert.is_true(writing:lock())
    assert.matches("^_c_[%x-]+%-__WRIT__%d%d%d%d%d%d%d%d%d%d$", nodes ""[1])
    assert.equal("busy", code_of(function() return reading:try_lock() end))
    assert.is_true(writing:unlock())
    assert.same({}, nodes "")
  end)

  it("lets a writer remain as a reader, with its number", function()
    local reading, writing = pair:read_lock(), pair:write_lock()
    assert(writing:lock())
    local number = nodes ""[1]:match "%d+$"
    assert.is_true(reading:lock())
    assert.is_nil(reading:token())
    for _, node in ipairs(nodes "") do
      assert.equal(number, node:match "%d+$")
    end
    local other = open():read_write_lock(name)
    local waiting = task.start(function()
      return other:write_lock():lock()
    end)
    eventually(function() return #nodes "" == 3 end)
    assert(writing:unlock())
    assert.equal(2, #nodes "")
    assert.equal("timeout", code_of(function()
      return other:read_lock():lock { wait = 0.2 }    -- behind the writer
    end))
    assert(reading:unlock())
    assert.is_true(waiting:join(PATIENCE))
  end)

  it("refuses that a reader becomes a writer", function()
    assert(pair:read_lock():lock())
    assert.equal("refused", select(2, pair:write_lock():lock()))
    assert(pair:read_lock():unlock())
    assert.is_true(pair:write_lock():lock())
  end)

  it("lets all readers in when the writer leaves", function()
    local writing, readers = pair:write_lock(), {}
    assert(writing:lock())
    for i = 1, 4 do
      local other = i % 2 == 0 and client or open()
      readers[i] = task.start(function()
        return other:read_write_lock(name):read_lock():lock()
      end)
    end
    eventually(function() return #nodes "" == 5 end)
    assert(writing:unlock())
    for i = 1, 4 do assert.is_true(readers[i]:join(PATIENCE)) end
    assert.equal(4, #pair:read_lock():peek().holders)
  end)
end)

describe("a semaphore on ZooKeeper", function()
  local semaphore

  before_each(function() semaphore = client:semaphore(name) end)

  it("has leases of Curator's InterProcessSemaphoreV2", function()
    assert.equal(0, semaphore:available())
    assert.equal("busy", select(2, semaphore:try_acquire()))
    assert.is_true(semaphore:set(3))
    assert.equal("refused", select(2, semaphore:set(5)))
    assert.equal("\0\0\0\3", peer:get("/" .. name .. "/limit"))
    assert.is_true(semaphore:acquire(2))
    assert.equal(2, #nodes "/leases")
    eventually(function() return #nodes "/locks" == 0 end)
    assert.equal(1, semaphore:available())
    local other = open():semaphore(name)
    assert.equal("busy", select(2, other:try_acquire(2)))
    assert.is_true(other:try_acquire())
    assert.equal("held", other:peek().state)
    eventually(function() return #nodes "/leases" == 3 end)
    assert.is_true(semaphore:release(2))
    assert.equal("not_held", select(2, semaphore:release()))
    assert.equal(2, semaphore:available())
    assert.equal(2, semaphore:drain())
    assert.equal(0, other:drain())
    assert.is_true(semaphore:release(2))
    assert.is_true(other:release())
    assert.same({}, nodes "/leases")
  end)

  it("is waited for in order, also for several permits", function()
    assert(semaphore:set(2))
    assert(semaphore:acquire(2))
    local order, all = {}, {}
    for i, n in ipairs { 2, 1, 1 } do
      local other = i == 2 and semaphore or open():semaphore(name)
      all[i] = task.start(function()
        assert(other:acquire(n))
        order[#order + 1] = i
        assert(other:release(n))
      end)
      eventually(function() return #nodes "/locks" == i end)
    end
    assert(semaphore:release())
    assert.same({}, order)
    assert(semaphore:release())
    for i = 1, 3 do all[i]:join(PATIENCE) end
    assert.equal(1, order[1])
    assert.same({}, nodes "/leases")
    eventually(function() return #nodes "/locks" == 0 end)
    assert.is_nil(next(client.session.server.entries))
  end)

  it("is never held by more than there are permits", function()
    assert(semaphore:set(2))
    local most = most_inside(semaphore, function()
      return open():semaphore(name)
    end, PATIENCE)
    assert.is_true(most <= 2, most)
  end)

  it("wakes a waiter when its number is set or raised", function()
    local waiting = task.start(function() return semaphore:acquire(2) end)
    eventually(function() return #nodes "/locks" == 1 end)
    assert(open():semaphore(name):set(1))
    eventually(function() return #nodes "/leases" >= 1 end, PATIENCE)
    assert(open():semaphore(name):add(1))
    assert.is_true(waiting:join(PATIENCE))
    assert.equal(0, semaphore:available())
  end)

  it("leaves nothing of a waiter that gives up", function()
    assert(semaphore:set(1))
    assert(semaphore:acquire())
    assert.equal("timeout", select(2, semaphore:acquire(1, { wait = 0.1 })))
    local waiting = task.start(function() return semaphore:acquire() end)
    eventually(function() return #nodes "/leases" == 2 end)
    waiting.task:cancel()
    eventually(function()
      return #nodes "/locks" == 0 and #nodes "/leases" == 1
    end)
    assert(semaphore:release())
    assert.is_nil(next(client.session.server.entries))
    assert.equal(0, client.session.wakeup.count)
  end)

  it("gets its permits back when a client ends", function()
    local other = open()
    assert(semaphore:set(1))
    assert(other:semaphore(name):acquire())
    local waiting = task.start(function() return semaphore:acquire() end)
    eventually(function() return #nodes "/locks" == 1 end)
    other:close()
    assert.is_true(waiting:join(PATIENCE))
  end)
end)

describe("locks of several systems", function()
  it("are held as one", function()
    local on_redis = fixtures.open { url = redis.shared().url }
    local both = rlock.multi_lock { client:lock(name), on_redis:lock(name),
      client:mutex(name .. "/mutex") }
    assert.is_true(both:lock())
    assert.is_true(both:valid_for() > 0)
    assert.equal(1, #nodes "/mutex/leases")
    assert.equal("busy", code_of(function()
      return on_redis:lock(name):try_lock()
    end))
    assert.is_true(both:unlock())
    assert.same({ "mutex" }, nodes "")
  end)

  it("do not wait for one while they hold another", function()
    local on_redis = fixtures.open { url = redis.shared().url }
    local other = on_redis:lock(name)
    assert(other:lock())
    local waiting = task.start(function()
      return rlock.multi_lock { client:lock(name), on_redis:lock(name) }:lock()
    end)
    eventually(function() return #nodes "" == 0 end)
    assert(other:unlock())
    assert.is_true(waiting:join(PATIENCE))
  end)
end)

describe("ZooKeeper refuses", function()
  local function raised(fn, ...)
    local ok, why = pcall(fn, ...)
    assert.is_false(ok)
    assert.matches("^spec/zookeeper/kinds_spec%.lua:%d+: ", why)
    return why
  end

  it("kinds that it cannot have", function()
    for _, method in ipairs { "simple_lock", "spin_lock" } do
      assert.matches("is not for ZooKeeper: ", raised(function()
        local made = client[method](client, name)
        return made
      end))
    end
    assert.matches("policies of users and red locks need Redis",
      raised(function()
        local made = client:policy({ name = "mine" }, name)
        return made
      end))
    assert.matches("red locks are for Redis", raised(function()
      local made = rlock.red_lock({ client, open(), open() }, name)
      return made
    end))
  end)

  it("names that are no paths", function()
    for text, why in pairs { ["a//b"] = "empty part", ["a/"] = "empty part",
        ["/"] = "the root", ["a/../b"] = "the part %.%.",
        ["zookeeper/x"] = "is reserved", ["a\nb"] = "control character" } do
      local ok, fault = pcall(client.lock, client, text)
      assert.is_false(ok)
      assert.matches(why, fault)
    end
    assert(client:lock("/" .. name):lock())
    assert.equal("busy", code_of(function()
      return client:lock(name):try_lock()
    end) or "busy")
  end)

  it("options of Redis, and commands", function()
    for option, value in pairs { publish = "both", seal = "off", replicas = 1,
        replica_timeout = 1, nat = { ["a:1"] = "b:1" }, sentinel = {},
        tls = {} } do
      local opened, code, detail = rlock.open { url = server.url,
        [option] = value }
      assert.is_nil(opened)
      assert.equal("usage", code)
      assert.matches("^bad option " .. option .. ": only ", detail)
    end
    assert.equal("usage", select(2, client:call "PING"))
    local ok, why = pcall(client.lock, client, name, { replicas = 1 })
    assert.is_false(ok)
    assert.matches("bad option replicas: it is for Redis", why)
  end)

  it("a second kind at one path", function()
    assert(client:lock(name):lock())
    assert.equal("refused", select(2, client:mutex(name):try_lock()))
    assert.equal("refused", select(2,
      client:read_write_lock(name):read_lock():try_lock()))
    local other = name .. "/other"
    assert(client:mutex(other):lock())
    local _, code, detail = client:lock(other):lock()
    assert.equal("refused", code)
    assert.matches("has nodes of another kind of lock", detail)
    eventually(function()
      return not table.concat(nodes "/other", " "):find "lock%-"
    end)
  end)
end)
