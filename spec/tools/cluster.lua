--- A private Redis Cluster: masters on loopback ports, with replicas. It is up
--- within a few seconds.
---
---   local cluster = require("spec.tools.cluster").start { masters = 3 }
---   cluster.url                                -- redis+cluster://...
---   cluster.nodes[1]                       -- as in redis.lua, with its `id`
---   cluster:owner("key")                       -- its master, by its own view
---   cluster:move(slot, cluster.nodes[2])       -- with its keys, in place
---   local node = cluster:add()                      -- a master without slots
---   cluster:remove(4, cluster.nodes[1])             -- a master without keys
---   cluster:stop()
---
--- The first nodes are the masters; replica i belongs to master i.

local eventually = require "spec.tools.eventually"
local redis = require "spec.tools.redis"
local slot = require "rlock.redis.slot"

local cluster = {}

local Cluster = {}
Cluster.__index = Cluster

local unpack = table.unpack or unpack

local ARGS = {
  "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
  "--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0",
  "--cluster-require-full-coverage", "no",
}

local TLS_ARGS = { "--tls-cluster", "yes", "--tls-replication", "yes" }

-- The port by which the nodes know a node.
local function port_of(node) return node.tls_port or node.port end

local function start_node(options, certificates)
  local args = { unpack(ARGS) }
  for _, list in ipairs { options.tls and TLS_ARGS or {}, options.args or {} }
  do
    for _, word in ipairs(list) do args[#args + 1] = word end
  end
  local node = redis.start {
    port = true, args = args, password = options.password,
    tls = options.tls and { certificates = certificates },
  }
  node.id = node:cli("CLUSTER", "MYID")
  return node
end

-- Gives each master an equal share of the slots.
local function share_slots(self, count)
  for i = 1, count do
    local first = math.floor((i - 1) * slot.count / count)
    local last = math.floor(i * slot.count / count) - 1
    self.nodes[i]:cli("CLUSTER", "ADDSLOTSRANGE", first, last)
    self.nodes[i]:cli("CLUSTER", "SET-CONFIG-EPOCH", i)
  end
end

local function known_to(node)
  return tonumber(node:cli("CLUSTER", "INFO"):match "cluster_known_nodes:(%d+)")
end

--- Introduces nodes to the first one.
function Cluster:meet(first)
  for i = first, #self.nodes do
    self.nodes[1]:cli("CLUSTER", "MEET", "127.0.0.1",
      port_of(self.nodes[i]))
  end
  eventually(function()
    for _, node in ipairs(self.nodes) do
      if known_to(node) ~= #self.nodes then return false end
    end
    return true
  end, 20, "the nodes know each other")
end

-- A node's line about itself: "myself,master", and its slots.
local function own_line(node)
  for line in node:cli("CLUSTER", "NODES"):gmatch "[^\n]+" do
    if line:find("myself", 1, true) then return line end
  end
end

local function has_slot(node, number)
  local line = own_line(node)
  if not line:find("master", 1, true) then return false end
  for first, last in line:gmatch " (%d+)-(%d+)" do
    if tonumber(first) <= number and number <= tonumber(last) then
      return true
    end
  end
  return (line .. " "):find(" " .. number .. " ", 1, true) ~= nil
end

--- Starts another master, without slots.
---@return table
function Cluster:add()
  local node = start_node(self.options, self.certificates)
  self.nodes[#self.nodes + 1] = node
  self:meet(#self.nodes)
  eventually(function() return self:is_up() end, 20, "the node has joined")
  return node
end

--- Gives the slots of a master, which have no keys any more, to another one,
--- and stops it.
---@param i integer in `nodes`
---@param target table
function Cluster:remove(i, target)
  local node, commands = table.remove(self.nodes, i), {}
  local ranges = own_line(node):match " connected(.*)"
  for first, last in ranges:gmatch " (%d+)%-?(%d*)" do
    for number = tonumber(first), tonumber(last) or first do
      commands[#commands + 1] = { "CLUSTER", "SETSLOT", number, "NODE",
        target.id }
    end
  end
  target:script(commands)
  node:script(commands)
  for _, other in ipairs(self.nodes) do
    other:cli("CLUSTER", "FORGET", node.id)
  end
  node:stop()
  return node
end

local function replicate(self, masters, replicas)
  for i = 1, replicas do
    local replica = self.nodes[masters + i]
    eventually(function()
      return replica:cli("CLUSTER", "REPLICATE", self.nodes[i].id) == "OK"
    end, 20, "the replica knows its master")
  end
end

--- Do all running nodes agree that the cluster is up?
function Cluster:is_up()
  for _, node in ipairs(self.nodes) do
    if node.pid and not node:cli("CLUSTER", "INFO")
        :find("cluster_state:ok", 1, true) then
      return false
    end
  end
  return true
end

-- Have all replicas caught up?
local function are_replicated(self, masters)
  for i = masters + 1, #self.nodes do
    if self.nodes[i]:info "master_link_status" ~= "up" then return false end
  end
  return true
end

--- Starts a cluster. Options: masters = 3, replicas = 0, args, password; tls =
--- true: its nodes have TLS ports too, and `certificates` is their folder.
function cluster.start(options)
  options = options or {}
  local masters, replicas = options.masters or 3, options.replicas or 0
  local self = setmetatable({ nodes = {}, options = options }, Cluster)
  for i = 1, masters + replicas do
    self.nodes[i] = start_node(options, self.certificates)
    self.certificates = self.nodes[i].certificates
  end
  share_slots(self, masters)
  self:meet(2)
  replicate(self, masters, replicas)
  eventually(function()
    return self:is_up() and are_replicated(self, masters)
  end, 20, "the cluster is up")
  local hosts = {}
  for i = 1, masters do hosts[i] = "127.0.0.1:" .. port_of(self.nodes[i]) end
  local login = options.password and ":" .. options.password .. "@" or ""
  self.url = (options.tls and "rediss" or "redis") .. "+cluster://" .. login
    .. table.concat(hosts, ",")
  return self
end

--- The running master that has the slot of a key, by its own view.
---@param key any a key, or the number of a slot
function Cluster:owner(key)
  local number = type(key) == "number" and key or slot.of(key)
  for _, node in ipairs(self.nodes) do
    if node.pid and has_slot(node, number) then return node end
  end
end

-- Do all running nodes know the epoch of the last move? A target that does not
-- would take the same epoch, and then lose the slot.
local function agree_on_epoch(self)
  local epoch
  for _, node in ipairs(self.nodes) do
    if node.pid then
      local its = node:cli("CLUSTER", "INFO"):match "current_epoch:(%d+)"
      if epoch and its ~= epoch then return false end
      epoch = its
    end
  end
  return true
end

--- Moves a slot with its keys to another master.
---@param number integer
---@param target table
function Cluster:move(number, target)
  eventually(function() return agree_on_epoch(self) end, 20,
    "the nodes know the last move")
  local source = self:owner(number)
  target:cli("CLUSTER", "SETSLOT", number, "IMPORTING", source.id)
  source:cli("CLUSTER", "SETSLOT", number, "MIGRATING", target.id)
  for key in source:cli("CLUSTER", "GETKEYSINSLOT", number, 1000)
      :gmatch "[^\n]+" do
    source:cli("MIGRATE", "127.0.0.1", port_of(target), key, 0, 5000)
  end
  for _, node in ipairs { target, source } do
    node:cli("CLUSTER", "SETSLOT", number, "NODE", target.id)
  end
end

--- Stops all nodes.
function Cluster:stop()
  for _, node in ipairs(self.nodes) do
    if node.pid then node:resume() end
    node:stop()
  end
end

return cluster
