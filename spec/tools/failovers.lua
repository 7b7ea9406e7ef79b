--- Ways in which a master fails over, one after the other: it is killed, it
--- freezes and resumes, and so on.
---
---   local fail = failovers.of_cluster(cluster, "name")   -- of cluster.lua
---   local fail = failovers.of_set(set)       -- of sentinel.lua, `can_split`
---   fail(1)     fail(2)                      -- each by the next way

local eventually = require "spec.tools.eventually"
local slow = require "spec.tools.slow"

local failovers = {}

local SOON = 60 * slow

-- in a cluster ---------------------------------------------------------------

--- The replica of a master; it follows closely.
function failovers.replica_of(cluster, master)
  return eventually(function()
    for _, node in ipairs(cluster.nodes) do
      if node.pid and node ~= master
          and node:info "master_port" == master.port
          and node:info "master_link_status" == "up" then
        return node
      end
    end
  end, SOON, "the master has a replica")
end

--- Waits until a node is the master for a key.
function failovers.is_owner(cluster, key, node)
  return eventually(function() return cluster:owner(key) == node end, SOON,
    "the replica has taken over")
end

-- Ways to make the replica the master. Each leaves the old master its replica.
local ways = {
  function(master, replica, has_taken_over)     -- asked to
    replica:cli("CLUSTER", "FAILOVER")
    has_taken_over()
    assert(master.pid)
  end,
  function(master, _, has_taken_over)           -- the master was killed
    master:kill()
    has_taken_over()
    master:launch()
  end,
  function(master, replica, has_taken_over)     -- it froze, and came back
    master:pause()
    eventually(function()
      return replica:info "role" == "master"
    end, SOON, "the replica has taken over")
    master:resume()
    has_taken_over()
  end,
}

--- The master for a key fails over.
---@return function # of the failover's number
function failovers.of_cluster(cluster, key)
  return function(i)
    local master = cluster:owner(key)
    local replica = failovers.replica_of(cluster, master)
    ways[i % #ways + 1](master, replica, function()
      failovers.is_owner(cluster, key, replica)
    end)
  end
end

-- with Sentinels -------------------------------------------------------------

-- The Sentinels name another master.
local function is_replaced(set, master)
  eventually(function()
    local new = set:master()
    return new and new ~= master and new:info "role" == "master"
  end, SOON, "a replica is promoted")
end

local set_ways = {
  function(set) set:fail_over() end,
  function(set, master)
    master:kill()
    is_replaced(set, master)
  end,
  function(set, master)
    master:pause()
    is_replaced(set, master)
    master:resume()
  end,
  function(set, master)                 -- partitioned, but reachable for us
    set:split(master)
    is_replaced(set, master)
    assert(master:info "role" == "master")
    set:join(master)
  end,
}

--- The master of a set with Sentinels fails over.
---@return function # of the failover's number
function failovers.of_set(set)
  return function(i)
    set_ways[i % #set_ways + 1](set, set:master())
    set:settle()
  end
end

return failovers
