--- A simulated Redis Cluster. A shard is a server (server.lua). A failover
--- gives it another address, and makes the old master its replica. Slots
--- migrate between shards, at once or key by key.
---
--- Each node has its own slot map. It lags behind, unless the node made the
--- change itself. `known` counts the `changes` that the node knows, `has` maps
--- slots to shards, and `at` maps shards to addresses.

local server = require "rlockctl.simulate.server"
local slot = require "rlock.redis.slot"

---@class rlockctl.simulate.cluster
---@field [any] any
local cluster = {}
cluster.__index = cluster

local LATE = 2                          -- seconds until each node knows a
                                        -- change
local BUS = 0.001                       -- seconds, between two nodes
local PORT = "6379"

--- The number of slots: fewer than in Redis, because each change reads them
--- all.
cluster.SLOTS = 256

local slots = setmetatable({}, { __index = function(list, key)
  list[key] = slot.of(key)
  return list[key]
end })

--- Makes a cluster of servers.
---@param network table
---@param shards table the last one has no slots
---@return table
function cluster.new(network, shards)
  local self = setmetatable({
    network = network, universe = network.universe, shards = shards,
    nodes = { table.unpack(shards) }, changes = {}, has = {}, moves = {},
    ids = { last = 0 }, granted = {}, released = {},
    untils = {},
  }, cluster)
  for number = 0, cluster.SLOTS - 1 do
    self.has[number] = shards[number * (#shards - 1) // cluster.SLOTS + 1]
  end
  for _, shard in ipairs(shards) do
    shard.cluster, shard.address, shard.epoch = self, shard.name, 0
    shard.ids, shard.granted, shard.untils = self.ids, self.granted,
      self.untils
    shard.released = self.released
    shard.known, shard.at = 0, {}
    shard.has = table.move(self.has, 0, cluster.SLOTS - 1, 0, {})
    for _, other in ipairs(shards) do shard.at[other] = other.name end
  end
  return self
end

--- The URL of the cluster.
function cluster:url()
  local names = {}
  for i, shard in ipairs(self.shards) do names[i] = shard.name end
  return "redis+cluster://" .. table.concat(names, ",")
end

--- The slot of a lock or counter. Each cycle of a latch has its own.
---@param thing table `name`; `cycle`, of a latch
function cluster.slot_of(thing)
  return slots[thing.cycle and thing.cycle.name or thing.name]
end

--- The servers that have the keys of a lock or counter: one, or two while its
--- slot migrates.
---@param thing table as for slot_of
---@return table # a live list: it follows the slot
function cluster:servers_of(thing)
  return setmetatable({}, { __index = function(_, i)
    local number = cluster.slot_of(thing)
    if i == 1 then return self.has[number] end
    local move = self.moves[number]
    return i == 2 and move and move.to or nil
  end })
end

-- changes ---------------------------------------------------------------------

-- Applies the first `count` changes to a node.
local function learn(node, count)
  local changes = node.cluster.changes
  for i = node.known + 1, count do
    local change = changes[i]
    for _, number in ipairs(change.slots or {}) do
      node.has[number] = change.shard
    end
    if change.address then node.at[change.shard] = change.address end
    node.known, node.reply = i, nil
  end
end

-- Records a change. The nodes of `knowing` know it at once, the others after a
-- delay.
local function tell(self, change, knowing)
  self.changes[#self.changes + 1] = change
  local count = #self.changes
  for _, node in ipairs(knowing) do learn(node, count) end
  for _, node in ipairs(self.nodes) do
    self.universe:after(self.universe.random() * LATE, function()
      learn(node, count)
    end)
  end
end

-- slot migration --------------------------------------------------------------

--- A hook, called before a key migrates. `move` has `slot`, `from` and `to`.
function cluster.on_key() end

--- A hook, called with the same when a slot begins to migrate, and at the end.
---@param move table
function cluster.on_slot(move) end               -- luacheck: ignore

-- MIGRATE: the key keeps its remaining lease, by the clock of the target.
local function move_key(self, move, key)
  local entry, from, to = move.from.redis.entries[key], move.from, move.to
  if not entry then return end
  self.on_key(move)
  local ahead = math.floor((to:clock() - from:clock()) * 1000)
  to.redis.entries[key] = {
    kind = entry.kind, value = entry.value,
    expires = entry.expires and entry.expires + ahead,
  }
  from.redis.entries[key] = nil
end

local function keys_in(shard, number)
  local keys = {}
  for key in pairs(shard.redis.entries) do
    if slots[key] == number then keys[#keys + 1] = key end
  end
  return keys
end

-- SETSLOT NODE: migrates the last keys, then the target owns the slot.
local function finish(self, move)
  if self.moves[move.slot] ~= move then return end
  for _, key in ipairs(keys_in(move.from, move.slot)) do
    move_key(self, move, key)
  end
  self.on_slot(move)
  self.moves[move.slot], self.has[move.slot] = nil, move.to
  tell(self, { slots = { move.slot }, shard = move.to },
    { move.from, move.to })
  move.from:drop_sharded(function(channel)
    return slots[channel] == move.slot
  end)
end

--- Migrates the slot of a lock or counter to another shard.
---@param thing table as for slot_of
---@param to table shard
---@param seconds number 0: at once; more: key by key, for this long
function cluster:move(thing, to, seconds)
  local number = cluster.slot_of(thing)
  local from = self.has[number]
  if self.moves[number] or from == to or self:is_changing(from)
      or self:is_changing(to) then
    return
  end
  local move = { slot = number, from = from, to = to }
  self.moves[number] = move
  self.on_slot(move)
  if seconds <= 0 then return finish(self, move) end
  for _, key in ipairs(keys_in(from, number)) do
    self.universe:after(self.universe.random() * seconds, function()
      if self.moves[number] == move then move_key(self, move, key) end
    end)
  end
  self.universe:after(seconds, function() finish(self, move) end)
end

--- Is the slot of a lock or counter migrating?
function cluster:is_moving(thing)
  return self.moves[cluster.slot_of(thing)] ~= nil
end

--- Completes the migrations from and to a shard; default: all migrations.
function cluster:settle(shard)
  for number = 0, cluster.SLOTS - 1 do
    local move = self.moves[number]
    if move and (not shard or move.from == shard or move.to == shard) then
      finish(self, move)
    end
  end
end

local function slots_of(self, shard)
  local list = {}
  for number = 0, cluster.SLOTS - 1 do
    if self.has[number] == shard then list[#list + 1] = number end
  end
  return list
end

--- Moves all slots of a shard to another one at once, and stops the shard. It
--- restarts empty and without slots.
---@param shard table
---@param to table shard
---@param seconds number until the restart
function cluster:remove(shard, to, seconds)
  if shard == to or self:is_changing(shard) or self:is_changing(to) then
    return
  end
  self:settle(shard)
  local list = slots_of(self, shard)
  for _, number in ipairs(list) do
    local move = { slot = number, from = shard, to = to }
    for _, key in ipairs(keys_in(shard, number)) do
      move_key(self, move, key)
    end
    self.on_slot(move)
    self.has[number] = to
  end
  tell(self, { slots = list, shard = to }, { shard, to })
  shard:restart(seconds, "nothing")
end

--- Unassigns the slot of a lock or counter for a while.
---@param thing table as for slot_of
---@param seconds number
function cluster:uncover(thing, seconds)
  local list = { cluster.slot_of(thing) }
  self:settle(self.has[list[1]])
  tell(self, { slots = list, shard = false }, self.nodes)
  self.universe:after(seconds, function()
    tell(self, { slots = list, shard = self.has[list[1]] }, self.nodes)
  end)
end

-- The old master learns of the failover and becomes a replica.
local function end_split(self, old, count)
  if self.split == old then self.split = nil end
  old.role = "slave"
  learn(old, count)
end

--- Ends all faults: no slot migrates, all nodes run and return no injected
--- errors, and each shard has one master.
function cluster:mend()
  self:settle()
  self.failing, self.is_down = nil, nil
  for _, node in ipairs(self.nodes) do node.ails_until = 0 end
  if self.split then end_split(self, self.split, #self.changes) end
end

-- failovers -------------------------------------------------------------------

-- The replica that stays at the old address, with the connections and the old
-- data.
local function leave_behind(master)
  local old = {}
  for key, value in pairs(master) do old[key] = value end
  old.reply, old.is_old = nil, true
  old.has = table.move(master.has, 0, cluster.SLOTS - 1, 0, {})
  old.at = {}
  for shard, address in next, master.at do old.at[shard] = address end
  setmetatable(old, getmetatable(master))
  for _, link in ipairs(old.links) do link.server = old end
  return old
end

-- The address of the replica to promote: that of the former master, if there
-- is one, else a new one.
local function heir_of(self, master, is_new)
  local spare = master.spare
  if spare and not is_new and not self.split then
    return spare.address, spare
  end
  master.epoch = master.epoch + 1
  return ("%s-%d"):format(master.name, master.epoch)
end

-- Promotes a former master: it keeps its connections.
local function come_back(master, spare)
  spare:thaw()
  master.run_id, master.scripts = spare.run_id, spare.scripts
  master.links, master.subscribers = spare.links, spare.subscribers
  for _, link in ipairs(master.links) do link.server = master end
  for channel, listeners in pairs(master.subscribers) do
    master.redis.listeners[channel] = #listeners
  end
end

--- Promotes a replica of the shard. It has the master's data or, if
--- `is_lagging`, the older copy that `save` kept.
---@param master table
---@param how table `is_lagging`; `is_new`: not a former master; `freezes`,
---  seconds for which the old master is frozen; `splits`, seconds until an old
---  master that is not frozen learns of the failover
function cluster:fail_over(master, how)
  local old, address, spare = leave_behind(master), heir_of(self, master,
    how.is_new)
  self.network.servers[old.address], master.spare = old, old
  self.nodes[#self.nodes + 1] = old
  master.address, self.network.servers[address] = address, master
  server.promote(master, how.is_lagging)
  if spare then come_back(master, spare) end
  tell(self, { shard = master, address = address }, { master })
  self:demote(old, math.max(how.splits, 0))
  old:freeze_only(how.freezes)
end

--- Lets the old master learn of a failover, after some seconds.
function cluster:demote(old, seconds)
  local count = #self.changes
  if seconds <= 0 then return end_split(self, old, count) end
  self.split = old
  self.universe:after(seconds, function() end_split(self, old, count) end)
end

--- Does the shard of a lock or counter have two masters (split brain)?
function cluster:is_split(thing)
  return self.split ~= nil
    and self.split.name == self.has[cluster.slot_of(thing)].name
end

--- Deletes the keys of a restored shard whose slots it no longer owns.
function cluster:forget_strays(shard)
  for key in pairs(shard.redis.entries) do
    if self.has[slots[key]] ~= shard then shard.redis.entries[key] = nil end
  end
end

-- the replies of nodes --------------------------------------------------------

--- Is a shard involved in a failover?
function cluster:is_changing(shard)
  return self.failing == shard or self.split and self.split.name == shard.name
end

local function keys_of(words, name)
  if name == "evalsha" then
    return { table.unpack(words, 4,
      3 + tonumber(words[3]) --[[@as integer]]) }
  elseif name == "ssubscribe" or name == "sunsubscribe" then
    return { words[2] }, true
  end
end

-- Counts the keys that the node has, and those that it lacks.
local function count(node, keys)
  local there, missing = 0, 0
  for _, key in ipairs(keys) do
    if node.redis:entry(key) then
      there = there + 1
    else
      missing = missing + 1
    end
  end
  return there, missing
end

local TRYAGAIN = "TRYAGAIN Multiple keys request during rehashing of slot"

-- The redirection (ASK, MOVED) or TRYAGAIN for keys of a migrating slot; nil if
-- the node has them.
local function of_moving(self, node, move, keys, is_asking)
  node:tick()
  local there, missing = count(node, keys)
  if node == move.from then
    if missing == 0 then return nil end
    return there > 0 and TRYAGAIN
      or ("ASK %d %s:%s"):format(move.slot, move.to.address, PORT)
  elseif node == move.to and is_asking then
    return missing > 0 and keys[2] and TRYAGAIN or nil
  end
  return self:moved(node, move.slot)
end

function cluster.moved(_, node, number)
  return ("MOVED %d %s:%s"):format(number, node.at[node.has[number]], PORT)
end

--- The error with which a node refuses a command, or nil.
---@param node table
---@param link table its connection
---@param words table
---@param name string of the command
---@return string?
function cluster:refusal(node, link, words, name)
  local is_asking = link.is_asking
  link.is_asking = name == "asking"
  local keys, is_channel = keys_of(words, name)
  if not keys then return nil end
  local number = slots[keys[1]]
  for _, key in ipairs(keys) do
    if slots[key] ~= number then
      return "CROSSSLOT Keys in request don't hash to the same slot"
    end
  end
  if self.is_down then return "CLUSTERDOWN The cluster is down" end
  local move = self.moves[number]
  if move and not is_channel and (node == move.from or node == move.to) then
    return of_moving(self, node, move, keys, is_asking)
  end
  if not node.has[number] then return "CLUSTERDOWN Hash slot not served" end
  local is_its = node.has[number].name == node.name
  if is_its and node.role ~= "slave" then return nil end
  return self:moved(node, number)
end

-- One range of CLUSTER SLOTS. A node may leave its own address empty.
local function range(node, first, last, shard)
  local address = node.at[shard]
  if address == node.address and node.is_nameless then address = "" end
  return { first + 0.0, last + 0.0, { address, PORT + 0.0 } }
end

--- The reply to CLUSTER SLOTS.
function cluster.slots_of(node)
  if node.reply then return node.reply end
  local list, first = {}, 0
  for number = 1, cluster.SLOTS do
    local shard = node.has[first]
    if node.has[number] ~= shard then
      if shard then list[#list + 1] = range(node, first, number - 1, shard) end
      first = number
    end
  end
  node.reply = list
  return list
end

--- Forwards a published message to the subscribers of the other nodes.
function cluster:broadcast(node, channel, payload)
  if node.is_old then return end
  for _, shard in ipairs(self.shards) do
    if shard ~= node and shard.subscribers[channel] then
      self.universe:after(BUS, function()
        if not shard.is_down then shard:deliver(channel, payload) end
      end)
    end
  end
end

return cluster
