--- Nodes that only one login may delete, on a real ZooKeeper.

local fixtures = require "spec.tools.fixtures"
local on_zookeeper = require "spec.tools.on_zookeeper"
local peers = require "spec.tools.zookeeper_peer"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local server = on_zookeeper("acl on ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown })
if not server then return end

local PATIENCE = 20 * slow

local peer, mine, name

local function open(login, acl)
  return fixtures.open { url = server.url:gsub("//", "//" .. login), acl = acl,
    watchdog = 4 }
end

-- Asserts that an access is denied.
local function denied(ok, code, detail)
  assert.same({ nil, "zookeeper" }, { ok, code })
  assert.matches("^NOAUTH for /", detail)
end

before_each(function()
  peer = peer or peers.open(server)
  mine, name = open("me:secret@", "creator"), fixtures.name "acl"
end)

after_each(fixtures.close)

describe('acl = "creator" on ZooKeeper', function()
  it("keeps others from a lock and its nodes", function()
    local lock = mine:lock(name .. "/a")
    assert.is_true(lock:lock())
    local other = open "you:secret@"
    denied(other:lock(name .. "/a"):try_lock())
    denied(other:lock(name .. "/a"):break_lock())
    denied(other:set(name .. "/a", "x"))
    local entry = next(mine.session.server.entries)
    assert.same({ nil, -102 }, { peer:delete(entry.place:path()) })
    assert.is_true(lock:unlock())
  end)

  it("leaves the nodes above a lock to all", function()
    assert(mine:lock(name .. "/a"):lock())
    assert(mine:mutex(name .. "/b"):lock())
    assert.is_true(peer:is_open("/" .. name))
    local other = open ""
    assert.is_true(other:lock(name .. "/other"):lock())
    assert.is_true(open("you:x@", "creator"):lock(name .. "/you"):lock())
    denied(other:mutex(name .. "/b"):try_lock())
  end)

  it("is for all clients with the same login", function()
    local again = open("me:secret@", "creator")
    local plain = open "me:secret@"
    local lock = mine:lock(name)
    assert(lock:lock())
    local waiting = task.start(function()
      return again:lock(name):with(function() return true end)
    end)
    local token = lock:token()
    assert.equal("busy", select(2, plain:lock(name):try_lock()))
    assert(lock:unlock())
    assert.is_true(waiting:join(PATIENCE))
    assert(lock:lock())
    assert.is_true(lock:token() > token)
    assert.is_true(plain:lock(name):break_lock())
  end)

  it("keeps others from counters", function()
    local other = open ""
    local permits, latch = mine:permits(name .. "/p"), mine:latch(name .. "/l")
    local semaphore = mine:semaphore(name .. "/s")
    assert(permits:set(1))
    assert(permits:release(assert(permits:acquire())))
    assert(semaphore:set(1))
    assert(semaphore:acquire())
    assert(latch:set(2))
    denied(other:permits(name .. "/p"):set(2))
    denied(other:permits(name .. "/p"):available())
    denied(other:semaphore(name .. "/s"):try_acquire())
    denied(other:latch(name .. "/l"):count_down())
    denied(other:latch(name .. "/l"):delete())
    assert.same({ true, 1 }, { latch:count_down() })
    assert.equal(0, semaphore:available())
  end)

  it("refuses a path whose nodes anyone may delete", function()
    local other = open ""
    assert(other:lock(name):lock())
    assert(other:permits(name .. "/p"):set(2))
    assert(other:permits(name .. "/p"):acquire())
    for _, outcome in ipairs { { mine:lock(name):try_lock() },
        { mine:latch(name .. "/p"):set(1) },
        { mine:permits(name .. "/p"):try_acquire() },
        { mine:mutex(name .. "/p"):try_lock() } } do
      assert.same({ nil, "refused" }, { outcome[1], outcome[2] })
      assert.matches("^anyone may delete nodes of /", outcome[3])
    end
    assert.is_nil(next(mine.session.server.entries))
  end)

  it("refuses a counter that anyone may change", function()
    local other = open ""
    assert(other:permits(name .. "/p"):set(2))
    assert(other:latch(name .. "/l"):set(2))
    local permits, latch = mine:permits(name .. "/p"), mine:latch(name .. "/l")
    local semaphore = mine:semaphore(name .. "/p")
    for i, outcome in ipairs { { permits:try_acquire() }, { permits:set(3) },
        { semaphore:try_acquire() }, { semaphore:available() },
        { latch:count_down() }, { latch:count() } } do
      assert.same({ nil, "refused" }, { outcome[1], outcome[2] }, i)
      assert.matches("^anyone may delete nodes of /acl:%d+/%l, which was made "
        .. 'without acl = "creator": delete it, or use another name$',
        outcome[3])
    end
    -- The parent is only ours, but not the node.
    assert(mine:latch(name .. "/m"):set(1))
    assert(mine:latch(name .. "/m"):delete())
    assert(open "me:secret@":latch(name .. "/m"):set(1))
    local ok, code, detail = mine:latch(name .. "/m"):count_down()
    assert.same({ nil, "refused" }, { ok, code })
    assert.matches("^anyone may set /acl:%d+/m/latch, which was made", detail)
    assert.is_nil(next(mine.session.server.entries))
  end)

  it("needs a login, and ZooKeeper", function()
    for options, why in pairs {
      [{ url = server.url, acl = "creator" }] = '"creator" needs a login',
      [{ url = redis.shared().url, acl = "creator" }] = "only for zk://",
    } do
      local ok, code, detail = rlock.open(options)
      assert.same({ nil, "usage" }, { ok, code })
      assert.matches("^bad option acl: " .. why, detail)
    end
    assert.matches('bad acl: must be "creator"', select(2, pcall(rlock.open,
      { url = server.url, acl = "me" })))
  end)
end)
