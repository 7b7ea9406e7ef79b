--- Sets of servers that have the locks of a spec, see world.new; and what is
--- tested there.

local assert = require "luassert"
local cluster = require "spec.tools.cluster"
local commands = require "spec.interop.commands"
local counts = require "spec.interop.counts"
local fair = require "spec.interop.fair"
local locks = require "spec.interop.locks"
local readwrite = require "spec.interop.readwrite"
local sentinel = require "spec.tools.sentinel"

local sets = {}

-- A lock's keys have to be in one slot.
local CLUSTER_FORMS = { "interop:%d", "{i}:%d", "i{%d}i" }

local MASTERS = 3

local function start_cluster()
  return cluster.start { masters = MASTERS, replicas = 3 }
end

local function masters_of(its)
  return table.move(its.nodes, 1, MASTERS, 1, {})
end

--- A cluster.
---@param sharded string Redisson's shardedSubscriptionMode: "OFF", "AUTO"
function sets.cluster(sharded)
  return {
    start = start_cluster, nodes = masters_of, forms = CLUSTER_FORMS,
    sharded = sharded,
  }
end

--- A master with replicas, and its Sentinels.
sets.sentinel = {
  start = function() return sentinel.start() end,
  nodes = function(its) return { its:master() } end,
}

-- A scenario: which messages theirs waits for.
local function listens(to, not_to)
  local title = ("is waited for by theirs with %sSUBSCRIBE"):format(
    to == "SHARD" and "S" or "")
  return { title, function(w, kind)
    local name, holder, waiter = w:name(), w.ours:task(), w.theirs:task()
    assert.is_true(holder:ask("take", kind, name, -1, -1))
    local waiting = waiter:send("take", kind, name, -1, -1)
    w:asleep(name)
    assert.equal(1, w:subscriptions(name, to))
    assert.equal(0, w:subscriptions(name, not_to))
    assert.is_true(holder:ask("give", kind, name))
    assert.is_true((waiting:answer()))
    assert.is_true(waiter:ask("give", kind, name))
  end }
end

--- What is tested with a master and Sentinels.
sets.kinds = {
  { "lock", { locks.contend, locks.excluded, locks.woken, locks.forced,
    commands.shown } },
  { "fair", { locks.contend, locks.woken, fair.in_order } },
  { "write", { locks.contend, locks.woken } },
  { "read/write", { readwrite.mixed, readwrite.shared,
    readwrite.readers_woken } },
  { "semaphore", counts.shared },
}

--- What is tested in a cluster: all of that.
sets.sharded = table.move(sets.kinds, 1, #sets.kinds, 2, {
  { "lock", { listens("SHARD", "") } },
})

--- What may differ when Redisson's messages are not sharded.
sets.unsharded = {
  { "lock", { listens("", "SHARD"), locks.contend, locks.woken,
    locks.forced } },
  { "fair", { locks.woken } },
  { "write", { locks.woken } },
  { "read/write", { readwrite.readers_woken } },
  { "semaphore", { counts.woken } },
}

return sets
