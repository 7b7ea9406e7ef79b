--- The channels to which a client is subscribed: one subscriber for each node
--- (subscriber.lua). In a cluster, a channel moves with its slot.

---@class rlock.redis.channels
---@field node rlock.redis.node | rlock.redis.cluster
---@field host rlock.host
---@field publish string
---@field subscribers table
local channels = {}
channels.__index = channels

-- Two copies of a message arrive within this time.
local ECHO = 0.002

---@param node table a node or a cluster
---@param publish string which messages to receive, see subscriber.lua
function channels.new(node, publish)
  return setmetatable({
    node = node, host = node.host, publish = publish,
    subscribers = {},       -- node -> its subscriber
  }, channels)
end

--- Called with an event and a channel:
---   "live"              it is subscribed; messages may have been missed before
---   "message", payload
---   "dropped"           it is not subscribed any more
function channels.notify() end

-- Is this the SPUBLISH copy of a message that PUBLISH has delivered? Redisson
-- sends one copy, so two messages of the same verb are two releases.
local function is_echo(self, channel, payload, verb)
  if self.publish ~= "both" then return false end
  local now = self.host.now()
  local is_second = verb == "smessage" and channel.heard == payload
    and now - channel.at < ECHO
  channel.heard, channel.at = verb == "message" and payload or nil, now
  return is_second
end

local function handle(self, event, channel, payload, verb)
  if event == "moved" then return self.node:suspect() end
  if event == "message" and is_echo(self, channel, payload, verb) then
    return
  end
  local notify = channel.notify or self.notify
  notify(event, channel, payload)
end

-- The node that has the channel now.
local function node_of(self, channel)
  return self.node:of { channel.name } or self.node:any()
end

--- Subscribes to a channel, until it has been idle for a while.
---@param channel table its `name`; see subscriber.lua for the other fields.
---  With a `notify` of its own, that is called instead
function channels:add(channel)
  local node = node_of(self, channel)
  local its = self.subscribers[node]
  if not its then
    -- Loaded on first use.
    its = require("rlock.redis.subscriber").new(node, self.publish,
      function(...) handle(self, ...) end)
    its.is_closed, self.subscribers[node] = self.is_closed, its
  end
  its:add(channel)
end

--- Reconnects the subscriber of a node.
---@param node table
---@param why string for messages
function channels:reconnect(node, why)
  local its = self.subscribers[node]
  if its then its:reconnect(why) end
end

--- Reconnects the subscriber of a node if it is connected to another server
--- than the node's commands.
---@param node table
---@param why string for messages
function channels:follow(node, why)
  local its = self.subscribers[node]
  local own = its and its.connection and its.connection.identity
  if own and own.run_id ~= node.server.run_id then its:reconnect(why) end
end

--- Moves each channel whose slot has moved to the new node's subscriber.
function channels:rehome()
  local all = {}
  for _, its in pairs(self.subscribers) do
    for _, channel in pairs(its.channels) do all[#all + 1] = channel end
  end
  for _, channel in ipairs(all) do
    local its = channel.subscriber
    if its.node ~= node_of(self, channel) then
      its:remove(channel)
      self:add(channel)
    else
      its:renew(channel)
    end
  end
end

--- Unsubscribes from all idle channels, without delay.
function channels:wind_down()
  for _, its in pairs(self.subscribers) do its:wind_down() end
end

--- Closes the subscribers.
function channels:close()
  self.is_closed = true
  for _, its in pairs(self.subscribers) do its:close() end
end

return channels
