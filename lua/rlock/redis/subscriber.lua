--- Keeps a connection to a node subscribed to channels. It connects when the
--  first channel is added, reconnects with a back-off after a loss, and
--  disconnects when the last one is gone.
--
--  Redis has two kinds of channels with separate messages: those of PUBLISH,
--  and the sharded ones of SPUBLISH, which in a cluster belong to a slot. By
--  `publish`, a channel is subscribed as the one, the other, or both.
--
--  A channel is a table: its `name`, and `idle_since`, by host.now(), if nobody
--  waits on it; a while later it is unsubscribed and dropped. The subscriber
--  sets `is_live` and `subscriber`, and calls notify(event, channel, payload):
--    "live"      it is subscribed; earlier messages may have been missed
--    "message"   a message
--    "dropped"   it is not subscribed any more
--    "moved"     the server ended the subscription, because its slot has moved

local backoff = require "rlock.backoff"

local subscriber = {}
subscriber.__index = subscriber

local WARM = 5                            -- seconds an idle channel stays
local FIRST_PAUSE, LAST_PAUSE = 0.05, 2   -- seconds between reconnects

local verbs = {
  publish = { "subscribe" }, spublish = { "ssubscribe" },
  both = { "subscribe", "ssubscribe" },
}

local opposite = { subscribe = "unsubscribe", ssubscribe = "sunsubscribe" }

--- @tparam table node
-- @tparam string publish  "publish", "spublish" or "both"
-- @tparam function notify see above
function subscriber.new(node, publish, notify)
  return setmetatable({
    node = node, host = node.host, verbs = verbs[publish], notify = notify,
    pause = backoff.new(FIRST_PAUSE, LAST_PAUSE, node.host.random_number),
    channels = {},          -- name -> channel
    count = 0,              -- of channels
  }, subscriber)
end

-- subscriptions --------------------------------------------------------------

local function subscribe(self, channel)
  channel.awaits = #self.verbs            -- confirmations
  for _, verb in ipairs(self.verbs) do
    self.connection:listen(verb, channel.name)
  end
end

local function unsubscribe(self, channel)
  channel.is_live, channel.is_leaving = false, true
  channel.awaits = #self.verbs
  for _, verb in ipairs(self.verbs) do
    self.connection:listen(opposite[verb], channel.name)
  end
end

-- Forgets a channel.
local function drop(self, channel)
  self.channels[channel.name] = nil
  self.count = self.count - 1
  channel.is_live, channel.is_leaving, channel.subscriber = false, nil, nil
  if self.count == 0 then self.change:set() end
end

-- A waiter may have joined while the channel was unsubscribed.
local function unsubscribed(self, channel)
  channel.is_leaving = nil
  if not channel.idle_since then return subscribe(self, channel) end
  drop(self, channel)
  self.notify("dropped", channel)
end

local heard = {}

function heard.message(self, channel, payload)
  self.notify("message", channel, payload)
end
heard.smessage = heard.message

function heard.subscribe(self, channel)
  channel.awaits = channel.awaits - 1
  if channel.awaits > 0 or channel.is_leaving then return end
  self.pause:reset()                      -- the connection works
  channel.is_live = true
  self.notify("live", channel)
end
heard.ssubscribe = heard.subscribe

function heard.unsubscribe(self, channel)
  channel.awaits = channel.awaits - 1
  if channel.awaits <= 0 then unsubscribed(self, channel) end
end

function heard.sunsubscribe(self, channel)
  if channel.is_leaving then return heard.unsubscribe(self, channel) end
  channel.is_live, channel.awaits = false, nil
  self.notify("moved", channel)
end

-- Handles a message of the connection.
local function hear(self, kind, name, payload)
  local channel, handle = self.channels[name], heard[kind]
  if channel and handle then handle(self, channel, payload) end
end

-- Drops the channels that have been idle since `before`.
local function drop_idle(self, before)
  for _, channel in pairs(self.channels) do
    if channel.idle_since and channel.idle_since <= before
        and not channel.is_leaving then
      if channel.is_live then
        unsubscribe(self, channel)
      elseif not self.connection then
        drop(self, channel)
        self.notify("dropped", channel)
      end
    end
  end
end

-- connection -----------------------------------------------------------------

local function lost(self, why)
  self.connection = nil
  for _, channel in pairs(self.channels) do
    channel.is_live, channel.is_leaving = false, nil
  end
  self.host.log("info", ("lost the subscriber of %s: %s"):format(
    self.node.where, why))
  self.change:set()
end

local function connect(self)
  local is_lost
  local connection, code, detail = self.node:open(
    function(why)
      is_lost = true
      lost(self, why)
    end,
    function(...) hear(self, ...) end)
  if is_lost then return end
  if self.is_closed then
    if connection then connection:close() end
    return
  end
  self.connection = connection
  if not connection then
    self.host.log("info", "no subscriber: " .. tostring(detail or code))
    return
  end
  for _, channel in pairs(self.channels) do subscribe(self, channel) end
end

-- The task that keeps the connection while there are channels.
local function serve(self)
  while not self.is_closed and self.count > 0 do
    if not self.connection then connect(self) end
    if self.connection then
      self.change:wait(WARM)
      if not self.is_closed then drop_idle(self, self.host.now() - WARM) end
    end
    if not self.connection and self.count > 0 and not self.is_closed then
      self.host.sleep(self.pause:next())
      drop_idle(self, self.host.now() - WARM)
    end
  end
  if self.connection then self.connection:close() end
  self.connection, self.is_serving = nil, nil
end

-- interface ------------------------------------------------------------------

--- Adds a channel.
-- @tparam table channel
function subscriber:add(channel)
  self.channels[channel.name] = channel
  self.count = self.count + 1
  channel.subscriber, channel.is_live = self, false
  if self.connection then subscribe(self, channel) end
  if not self.is_serving then
    self.is_serving = true
    self.change = self.host.event()
    self.host.daemon(serve, self)
  end
end

--- Subscribes again, after "moved", if the channel is still this node's.
-- @tparam table channel
function subscriber:renew(channel)
  if self.connection and not channel.awaits then subscribe(self, channel) end
end

--- Drops a channel at once, to add it to another subscriber.
-- @tparam table channel
function subscriber:remove(channel)
  for _, verb in ipairs(self.connection and self.verbs or {}) do
    -- A node refuses to unsubscribe a channel whose slot it has not.
    if verb == "subscribe" or channel.awaits then
      self.connection:listen(opposite[verb], channel.name)
    end
  end
  drop(self, channel)
end

--- Drops all idle channels without delay.
function subscriber:wind_down()
  for _, channel in pairs(self.channels) do
    if channel.idle_since then channel.idle_since = -math.huge end
  end
  if self.change then self.change:set() end
end

--- Reconnects, perhaps to another server.
-- @tparam string why for messages
function subscriber:reconnect(why)
  local connection = self.connection
  if not connection then return end
  lost(self, why)
  connection:close()
end

--- Closes the connection for good.
function subscriber:close()
  self.is_closed = true
  if self.change then self.change:set() end
  if self.connection then self.connection:close() end
  self.connection = nil
end

return subscriber
