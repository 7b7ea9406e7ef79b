--- Deadlocks on ZooKeeper: those among the tasks of a client, and what
--- `rlockctl deadlocks` finds by the data of the nodes that wait.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local on_zookeeper = require "spec.tools.on_zookeeper"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local server, open = on_zookeeper("a deadlock on ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown })
if not server then return end

local LONG = 60 * slow
local SOON = 20 * slow

teardown(ctl.clean)

-- A task of a client that takes a lock, and waits for another one.
local function crossing(client, first, second)
  local job = task.start(function()
    assert(first:lock())
    local ok, code, detail = second:lock { wait = LONG }
    if ok then second:unlock() end
    first:unlock()
    return ok, code, detail
  end)
  eventually(function()
    local waits = client.session.waits
    return waits and next(waits.of)
  end, SOON, "it waits")
  return job
end

describe("a deadlock on ZooKeeper", function()
  after_each(fixtures.close)

  it("of two tasks is told to the one that closes it", function()
    for _, kind in ipairs { "lock", "mutex", "fair_lock" } do
      local client = open()
      local one = client[kind](client, fixtures.name "one")
      local two = client[kind](client, fixtures.name "two")
      assert(one:lock())
      local job = crossing(client, two, one)
      local ok, code, detail = two:lock { wait = LONG }
      assert.same({ nil, "deadlock" }, { ok, code })
      assert.matches("^%S+ waits for %S+ lock .*, which %S+ holds; %S+ waits",
        detail)
      assert(one:unlock())
      assert.is_true(job:join(LONG))
    end
  end)

  it("may have a writer that waits for a reader", function()
    local client = open()
    local one = client:lock(fixtures.name "one")
    local pair = client:read_write_lock(fixtures.name "pair")
    assert(one:lock())
    local job = crossing(client, pair:read_lock(), one)
    assert.equal("deadlock", select(2, pair:write_lock():lock { wait = LONG }))
    assert.is_true(pair:read_lock():lock { wait = LONG })
    assert(pair:read_lock():unlock())
    assert(one:unlock())
    assert.is_true(job:join(LONG))
  end)

  it("is not announced by a node that ends while it connects", function()
    local client = open()
    local one, two = client:lock(fixtures.name "one"),
      client:lock(fixtures.name "two")
    assert(one:lock())
    local job = crossing(client, two, one)
    local target, link = one.record.target, client.session.server.connection
    local owner, entry
    eventually(function()
      for its, each in pairs(target.entries) do
        if not each.is_held and each.place.node then
          owner, entry = its, each
        end
      end
      return entry
    end, SOON, "its node")
    local node = entry.place.node
    link.reach = function()                   -- with a new session
      entry.place.node = nil
      return true
    end
    local ok, result = pcall(target.announce, target, rlock.now() + LONG, owner,
      "text")
    link.reach, entry.place.node = nil, node
    assert.same({ true, true }, { ok, result })
    assert(one:unlock())
    assert.is_true(job:join(LONG))
  end)
end)

describe("rlockctl deadlocks on ZooKeeper", function()
  after_each(fixtures.close)

  local function run(...)
    return ctl.run { url = server.url, "deadlocks", ... }
  end

  -- Tasks of two clients, as in two processes, take locks of a kind in two
  -- orders. Returns the task of the first one, that of the second, and the
  -- first lock.
  local function cross(kind)
    local a, b = open { name = "a" }, open { name = "b" }
    b.session.process =
      { sessions = { [b.session.id] = b.session }, waits = {} }
    local first, second = fixtures.name "first", fixtures.name "second"
    local one, held, go = a[kind](a, first), rlock.event(), rlock.event()
    local own = task.start(function()
      assert(one:lock())
      held:set()
      go:wait(LONG)
      local ok, code = a:fair_lock(second):lock { wait = LONG }
      a:fair_lock(second):unlock()
      return ok, code
    end)
    assert(held:wait(LONG))
    local other = crossing(b, b:fair_lock(second), b[kind](b, first))
    assert.same({ 0, "" }, { run().status, run().out })
    go:set()
    return own, other, one
  end

  it("shows the tasks of two clients until a lock is broken", function()
    for _, kind in ipairs { "lock", "mutex" } do
      local own, other, one = cross(kind)
      local text = eventually(function()
        local its = run()
        assert.equal("", its.err)
        return its.status == 1 and its.out
      end, SOON, "a deadlock")
      assert.matches("^2 tasks wait for each other:\n", text)
      for _, name in ipairs { "a", "b" } do
        assert.matches(("  %%S+: %%S+ %s %%(pid %%d+%%) holds \"%%S+\" and "
          .. "waits for \"%%S+\", for %%d+ s, since "):format(name), text)
      end
      assert.equal(2, select(2, run("--json").out:gsub('"waits_for"', "")))
      assert.is_true(one:break_lock())
      assert.is_true(other:join(LONG))
      assert.is_true(own:join(LONG))
      assert.same({ 0, "" }, { run().status, run().out })
    end
  end)
end)
