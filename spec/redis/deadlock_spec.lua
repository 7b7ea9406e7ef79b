--- Deadlocks among the tasks of one client: the task that would close a cycle
--- is told at once. What may resolve by itself is none.

local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local ngx = rawget(_G, "ngx")
local SHORT = 0.5                -- a wait that fails with a time-out
local LONG = 60 * slow
local PATIENCE = 20 * slow

local server, client, one, two

local function start(options)
  server = fixtures.server()
  client = fixtures.open({ url = server.url }, options)
  one, two = client:lock(fixtures.name "one"), client:lock(fixtures.name "two")
end

-- The number of tasks that wait while they hold something.
local function waits()
  local n = 0
  for _ in pairs(client.session.waits and client.session.waits.of or {}) do
    n = n + 1
  end
  return n
end

-- A task that takes `first` and waits for `second`, and releases both.
local function other(first, second, take, options)
  return task.start(function()
    local hold = take and take(first) or assert(first:lock(options))
    local ok, code, detail = second:lock { wait = LONG }
    if ok then second:unlock() end
    if type(hold) == "table" then hold:unlock() else first:unlock() end
    return ok, code, detail
  end)
end

-- Another task holds `two`, or `theirs`, and waits for `one`, or `mine`, which
-- this one has taken.
local function cross(take, options, mine, theirs)
  local job = other(theirs or two, mine or one, take, options)
  local channel = one.record.target:channel("")
  eventually(function()
    local its = client.session.wakeup.channels[channel]
    return its and its.first and its.is_live
  end, PATIENCE, "it waits")
  return job
end

describe("a deadlock of two tasks", function()
  before_each(function() start() end)
  after_each(fixtures.close)

  it("is told to the task that closes it, with the cycle", function()
    assert(one:lock())
    local job = cross()
    assert.equal(1, waits())
    local ok, code, detail = two:lock { wait = LONG }
    assert.is_nil(ok)
    assert.equal("deadlock", code)
    local a, b = one:peek().holders[1].owner, two:peek().holders[1].owner
    assert.equal(("%s waits for %s, which %s holds; %s waits for %s, which %s "
      .. "holds"):format(a, two:show(), b, b, one:show(), a), detail)
    assert.is_true(one:unlock())
    assert.is_true(job:join(LONG))
    assert.is_true(two:lock { wait = LONG })
    assert.is_true(two:unlock())
    assert.equal(0, waits())
  end)

  it("is told for locks with fencing tokens, too", function()
    local own = {}
    for field, value in pairs(require "rlock.policy.simple") do
      own[field] = value
    end
    own.name = "own"
    for _, kind in ipairs { "mutex", "fair_lock", "simple_lock", own } do
      local name, options = fixtures.name "one", { fenced = true }
      one = kind == own and client:policy(own, name, options)
        or client[kind](client, name, options)
      assert(one:lock())
      local job = other(two, one)
      eventually(function() return waits() == 1 end, PATIENCE, "it waits")
      local ok, code = two:lock { wait = SHORT }
      assert.same({ nil, "deadlock" }, { ok, code }, tostring(kind))
      assert.is_true(one:unlock())
      assert.is_true(job:join(LONG))
    end
  end)

  it("is searched for once a second by a waiter that polls", function()
    local spin = client:spin_lock(fixtures.name "spin")
    local other_spin =
      fixtures.open({ url = server.url }):spin_lock(spin.record.name)
    local held = assert(other_spin:hold())
    assert(one:lock())
    local watchdog, searches, tries = client.session.watchdog, 0, 0
    local all, run = watchdog.all, spin.record.target.run
    function watchdog.all(...)
      searches = searches + 1
      return all(...)
    end
    function spin.record.target.run(...)
      tries = tries + 1
      return run(...)
    end
    assert.equal("timeout", select(2, spin:lock { wait = SHORT }))
    assert.is_true(tries > 1)
    assert.equal(1, searches)
    assert(held:unlock() and one:unlock())
  end)

  it("is none for a single attempt", function()
    assert(one:lock())
    local job = cross()
    assert.equal("busy", select(2, two:try_lock()))
    assert(one:unlock())
    assert.is_true(job:join(LONG))
  end)

  it("is none if a hold has an object, which any task may release", function()
    assert(one:lock())
    local job = cross(function(lock) return assert(lock:hold()) end)
    assert.equal("timeout", select(2, two:lock { wait = SHORT }))
    assert(one:unlock())
    assert.is_true(job:join(LONG))
  end)

  it("is one if the task also holds the lock without an object", function()
    assert(one:lock())
    local job = cross(function(lock)
      assert(lock:lock())
      local object = assert(lock:hold())
      return { unlock = function()
        return object:unlock() and lock:unlock()
      end }
    end)
    assert.equal("deadlock", select(2, two:lock { wait = LONG }))
    assert(one:unlock())
    assert.is_true(job:join(LONG))
  end)

  it("is none if an owner has a name, which tasks may share", function()
    local named = client:lock(two.record.name, { owner = "us" })
    assert(one:lock())
    local job = cross(nil, nil, nil, named)
    assert.equal("timeout", select(2, two:lock { wait = SHORT }))
    assert(one:unlock())
    assert.is_true(job:join(LONG))
  end)

  it("is none if a lease ends before the wait", function()
    assert(one:lock())
    local job = cross(nil, { lease = SHORT })
    assert.is_true(two:lock { wait = LONG })
    assert(one:unlock())
    assert.is_true(job:join(LONG))
    assert(two:unlock())
  end)

  it("is one if the lease ends after the wait", function()
    assert(one:lock())
    local job = cross(nil, { lease = 2 * LONG })
    assert.equal("deadlock", select(2, two:lock { wait = LONG }))
    assert(one:unlock())
    assert.is_true(job:join(LONG))
  end)

  it("is found for a multi-lock, which waits but holds nothing of it",
    function()
      assert(one:lock())
      local job = cross()
      local both = rlock.multi_lock { two, client:lock(fixtures.name "three") }
      local ok, code, detail = both:lock { wait = LONG }
      assert.same({ nil, "deadlock" }, { ok, code })
      assert.matches("which %S+ holds; ", detail)
      assert(one:unlock())
      assert.is_true(job:join(LONG))
    end)

  it("is none of multi-locks alone", function()
    local a, b = rlock.multi_lock { one, two }, rlock.multi_lock { two, one }
    local jobs = {}
    for i = 1, 4 do
      jobs[i] = task.start(function()
        for _ = 1, 10 do
          local its = i % 2 == 0 and a or b
          assert(its:lock { wait = LONG })
          rlock.sleep(0.001)
          assert(its:unlock())
        end
        return true
      end)
    end
    for i = 1, 4 do assert.is_true(jobs[i]:join(LONG)) end
  end)
end)

describe("a deadlock of the tasks of several clients", function()
  before_each(function() start() end)
  after_each(fixtures.close)

  it("is told to the task that closes it", function()
    two = fixtures.open({ url = server.url }):lock(two.record.name)
    assert(one:lock())
    local job = cross()
    local ok, code, detail = two:lock { wait = LONG }
    assert.same({ nil, "deadlock" }, { ok, code })
    assert.matches("%S+ waits for .*; %S+ waits for .* holds$", detail)
    assert(one:unlock())
    assert.is_true(job:join(LONG))
  end)

  it("is none of one task, which is another owner in each client", function()
    assert(one:lock())
    local other_one = fixtures.open({ url = server.url })
      :lock(one.record.name)
    assert.equal("timeout", select(2, other_one:lock { wait = SHORT }))
    assert(one:unlock())
  end)

  it("is none if the locks of one name are on several servers", function()
    local away = fixtures.open({ url = server.url .. "?db=1" })
      :lock(one.record.name)
    assert(one:lock())
    local job = cross()
    assert.is_true(away:lock { wait = LONG })
    assert(away:unlock() and one:unlock())
    assert.is_true(job:join(LONG))
  end)
end)

describe("a deadlock in a cluster", function()
  after_each(fixtures.close)

  it("is told, and a wait that lasts is announced in its slot", function()
    local cluster = fixtures.cluster()
    client = fixtures.open { url = cluster.url }
    one, two = client:lock "{a}one", client:lock "{b}two"
    assert(one:lock())
    local job = cross()
    assert.equal("deadlock", select(2, two:lock { wait = LONG }))
    eventually(function()
      for _, node in ipairs(cluster.nodes) do
        if node:cli("KEYS", "*"):find "rlock_waits:{a}one:" then return true end
      end
    end, PATIENCE, "an announcement")
    assert(one:unlock())
    assert.is_true(job:join(LONG))
  end)
end)

describe("a deadlock with a read/write lock", function()
  local pair

  before_each(function()
    start()
    pair = client:read_write_lock(fixtures.name "pair")
  end)
  after_each(fixtures.close)

  it("is a writer that waits for one of several readers", function()
    local reader, go = pair:read_lock(), rlock.event()
    local ready = rlock.event()
    local job = task.start(function()
      assert(reader:lock())
      ready:set()
      go:wait(LONG)
      return reader:unlock()
    end)
    assert(ready:wait(LONG))
    assert(one:lock())
    local second = cross(nil, nil, one, reader)
    assert.equal("deadlock", select(2, pair:write_lock():lock { wait = LONG }))
    assert(one:unlock())
    assert.is_true(second:join(LONG))
    go:set()
    assert.is_true(job:join(LONG))
  end)

  it("is a reader that waits for the writer", function()
    assert(one:lock())
    local job = cross(nil, nil, one, pair:write_lock())
    assert.equal("deadlock", select(2, pair:read_lock():lock { wait = LONG }))
    assert(one:unlock())
    assert.is_true(job:join(LONG))
  end)

  it("is none if a reader waits, and another reader holds it", function()
    assert(one:lock())
    local job = cross(nil, nil, one, pair:read_lock())
    assert.is_true(pair:read_lock():lock { wait = LONG })
    assert(one:unlock())
    assert.is_true(job:join(LONG))
    assert(pair:read_lock():unlock())
  end)

  it("is none if a reader would become a writer: that is refused", function()
    assert(pair:read_lock():lock())
    assert.equal("refused", select(2, pair:write_lock():lock { wait = LONG }))
  end)
end)

describe("an announcement of a wait", function()
  before_each(function() start() end)
  after_each(fixtures.close)

  local function keys()
    return control.ask(server, "KEYS", "rlock_waits:*")
  end

  it("tells for what a task waits and what it holds, until it has it",
    function()
      assert(one:lock())
      local job = cross()
      eventually(function() return keys()[1] ~= nil end, PATIENCE)
      assert.equal(1, #keys())
      local key = keys()[1]
      local owner = two:peek().holders[1].owner
      assert.equal(("rlock_waits:{%s}:%s"):format(one.record.name, owner), key)
      local text = control.ask(server, "GET", key)
      assert.matches("^1 %d+ reentrant (%S+) " .. owner:gsub("%p", "%%%0")
        .. " task reentrant (%S+) %S+:%d+$", text)
      assert.is_true(control.ask(server, "TTL", key) > 0)
      assert(one:unlock())
      assert.is_true(job:join(LONG))
      eventually(function() return keys()[1] == nil end, PATIENCE)
    end)

  it("is given up if the server refuses it, and disturbs no wait", function()
    local login = "app" .. tostring(client):gsub("%W", "")
    control.ask(server, "ACL", "SETUSER", login, "on", "nopass", "&*", "+@all",
      "~one*", "~two*", "~{*", "~redisson*")
    local app = fixtures.open { url = server.url, username = login,
      password = "x" }
    local a, b = app:lock(one.record.name), app:lock(two.record.name)
    client = app
    assert(a:lock())
    local job = cross(nil, nil, a, b)
    eventually(function() return app.session.waits.is_refused end, PATIENCE,
      "a refusal")
    assert(a:unlock())
    assert.is_true(job:join(LONG))
    assert.equal(0, #keys())
  end)

  it("is none if the task holds nothing", function()
    assert(one:lock())
    local job = task.start(function() return one:lock { wait = LONG } end)
    local beside = task.start(function()
      assert(two:lock())
      return one:lock { wait = LONG }
    end)
    eventually(function() return keys()[1] ~= nil end, PATIENCE)
    assert.equal(1, #keys())
    assert(one:unlock())
    job:cancel()
    beside:cancel()
  end)
end)

if ngx then
  describe("a request with several light threads", function()
    before_each(function() start() end)
    after_each(fixtures.close)

    it("is part of no deadlock: another of them may release the lock",
      function()
        local taken = rlock.event()
        local job = task.start(function()
          local thread = ngx.thread.spawn(function()
            assert(two:lock())
            taken:set()
            rlock.sleep(SHORT)
            return two:unlock()
          end)
          taken:wait(LONG)
          local ok, code, detail = one:lock { wait = LONG }
          ngx.thread.wait(thread)
          return ok and one:unlock(), code, detail
        end)
        assert(one:lock())
        eventually(function() return two:is_locked() end, PATIENCE)
        assert.is_true(two:lock { wait = LONG })
        assert(one:unlock())
        assert.is_true(job:join(LONG))
        assert(two:unlock())
      end)
  end)
end
