--- Locks in a Redis Cluster: slots, redirections, wakes, a node that fails.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local rlock = require "rlock"
local slot = require "rlock.redis.slot"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local SOON = 10 * slow

local cluster

-- A new name whose slot a node has.
local function name_on(node)
  local name
  repeat name = fixtures.name "cluster" until cluster:owner(name) == node
  return name
end

local function open(options) return fixtures.open(cluster.url, options) end

describe("a cluster", function()
  setup(function()
    cluster = require("spec.tools.cluster").start { masters = 3 }
  end)
  teardown(function() cluster:stop() end)
  after_each(fixtures.close)

  it("has locks on each of its nodes", function()
    local client = open()
    for _, node in ipairs(cluster.nodes) do
      local name = name_on(node)
      local lock = client:lock(name)
      assert.is_true(lock:lock())
      assert.equal("1", node:cli("EXISTS", name))
      assert.is_true(lock:unlock())
      assert.equal("0", node:cli("EXISTS", name))
    end
  end)

  it("wakes waiters on each node", function()
    local client, other = open(), open()
    for _, node in ipairs(cluster.nodes) do
      local name = name_on(node)
      local lock = client:lock(name)
      assert.is_true(lock:lock())
      local waiter = task.start(function()
        return other:lock(name):lock { wait = SOON }
      end)
      local channel = other:lock(name).site.policy.channel(lock.site.keys)
      eventually(function()
        return other.session.wakeup:is_live(channel)
      end, SOON, "the waiter listens")
      local before = rlock.now()
      assert.is_true(lock:unlock())
      assert.is_true(waiter:join())
      assert.is_true(rlock.now() - before < 2 * slow, "woken by a message")
    end
  end)

  it("follows a slot that has moved", function()
    local client = open()
    local source, target = cluster.nodes[1], cluster.nodes[2]
    local name = name_on(source)
    local lock = client:lock(name)
    assert.is_true(lock:lock())
    cluster:move(slot.of(name), target)
    assert.equal("1", target:cli("EXISTS", name))
    assert.is_true(lock:is_held())
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    assert.is_true(lock:unlock())
    assert.equal("0", target:cli("EXISTS", name))
  end)

  it("keeps renewing a hold whose slot has moved", function()
    local client = open { watchdog = 1 * slow }
    local name, lost = name_on(cluster.nodes[2]), nil
    local lock = client:lock(name)
    assert.is_true(lock:lock())
    lock:on_lost(function(_, why) lost = why end)
    cluster:move(slot.of(name), cluster.nodes[3])
    rlock.sleep(1.5 * slow)
    assert.is_nil(lost)
    assert.equal("held", lock:state())
    assert.is_true(lock:unlock())
  end)
end)
