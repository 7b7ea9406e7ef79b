--- Simulated Sentinels, and failovers. Sentinels learn of a failover one after
--- another, so they disagree for a while. A failover gives the master another
--- address and another run_id. The old master stays at the old address: it is
--- frozen for a while, then becomes a replica.

local server = require "rlockctl.simulate.server"

local sentinels = {}

local COUNT, LATE = 3, 2                -- Sentinels; seconds of disagreement
local CHANNEL = "+switch-master"
local READONLY = "READONLY You can't write against a read only replica."

local names = {}
for i = 1, COUNT do names[i] = "sentinel" .. i end

--- The URL of a master.
function sentinels.url(master)
  return ("redis+sentinel://%s/%s"):format(table.concat(names, ","),
    master.name)
end

--- The URL of a master that Sentinels watch, else nil.
function sentinels.of(master)
  return master.epoch and sentinels.url(master)
end

--- Adds Sentinels that watch these servers.
function sentinels.add(network, masters)
  for i, name in ipairs(names) do
    local one = network:server(name)
    one.watched, one.others = {}, {}
    for k, other in ipairs(names) do
      if k ~= i then table.insert(one.others, other) end
    end
    for _, master in ipairs(masters) do
      master.epoch, master.address = 0, master.name
      one.watched[master.name] = { address = master.name, epoch = 0 }
    end
  end
end

-- One Sentinel learns of a failover, and notifies its subscribers.
local function learn(one, name, address, epoch)
  local known = one.watched[name]
  if known.epoch >= epoch then return end
  for _, link in ipairs(one.subscribers[CHANNEL] or {}) do
    link:push("message", CHANNEL, ("%s %s 6379 %s 6379"):format(name,
      known.address, address))
  end
  known.address, known.epoch = address, epoch
end

-- The replica that stays at the old address, with the connections and the old
-- data.
local function leave_behind(master)
  local old = {}
  for key, value in pairs(master) do old[key] = value end
  old.role, old.ails_until, old.message = "slave", math.huge, READONLY
  setmetatable(old, getmetatable(master))
  for _, link in ipairs(old.links) do link.server = old end
  return old
end

--- Fails over. The new master has the current data or, if `is_lagging`, the
--- older copy that `save` kept.
---@param network table
---@param master table
---@param is_lagging boolean
---@param seconds number for which the old master is frozen
---@param random function
function sentinels.fail_over(network, master, is_lagging, seconds, random)
  local old = leave_behind(master)
  master.epoch = master.epoch + 1
  network.servers[master.address] = old
  master.address = ("%s-%d"):format(master.name, master.epoch)
  network.servers[master.address] = master
  server.promote(master, is_lagging)
  old:freeze_only(seconds)
  for _, name in ipairs(names) do
    local address, epoch = master.address, master.epoch
    network.universe:after(random() * LATE, function()
      learn(network.servers[name], master.name, address, epoch)
    end)
  end
end

return sentinels
