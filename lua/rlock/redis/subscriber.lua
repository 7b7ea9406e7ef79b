--- Keeps a connection to a node subscribed to channels. It connects when the
--- first channel is added, reconnects with a back-off after a loss, and
--- disconnects a while after the last one is gone.
---
--- Redis has two kinds of channels with separate messages: those of PUBLISH,
--- and the sharded ones of SPUBLISH, which in a cluster belong to a slot.
--- `publish` selects the first kind, the second, or both.
---
--- A channel is a table: its `name`, and `idle_since`, by host.now(), if it has
--- no waiters; soon it is unsubscribed and dropped, because rlockctl shows the
--- subscribers of a channel as waiters. With an `inbox`, the id of the client,
--- two more channels of policy/handover.lua belong to it. With a `notify`, it
--- carries release requests, and is dropped first if the user lacks the
--- permission for one of the channels. The subscriber sets
--- `is_live` and `subscriber`, and calls notify(event, channel, payload, verb):
---   "live"      it is subscribed; earlier messages may have been missed
---   "granted"   the lock is reserved for the owner named by the payload
---   "message"   a message; its verb is "message", or "smessage" if sharded
---   "dropped"   it is not subscribed any more
---   "moved"     the server ended the subscription, because its slot has moved

local backoff = require "rlock.util.backoff"
local naming = require "rlock.naming"

---@class rlock.redis.subscriber
---@field node rlock.redis.node
---@field host rlock.host
---@field notify function
---@field verbs table
---@field opposites table
---@field pause rlock.backoff
---@field channels table
---@field count number
---@field inboxes table
---@field awaited table
---@field look_at number
local subscriber = {}
subscriber.__index = subscriber

local IDLE = 1                            -- seconds an idle channel stays,
local WARM = 5                            -- and the connection without any
local FIRST_PAUSE, LAST_PAUSE = 0.05, 2   -- seconds between reconnects

local max = math.max

local verbs = {
  publish = { "subscribe" }, spublish = { "ssubscribe" },
  both = { "subscribe", "ssubscribe" },
}

local opposites = {
  publish = { "unsubscribe" }, spublish = { "sunsubscribe" },
  both = { "unsubscribe", "sunsubscribe" },
}

---@param node table
---@param publish string "publish", "spublish" or "both"
---@param notify function see above
function subscriber.new(node, publish, notify)
  return setmetatable({
    node = node, host = node.host, notify = notify,
    verbs = verbs[publish], opposites = opposites[publish],
    pause = backoff.new(FIRST_PAUSE, LAST_PAUSE, node.host.random_number),
    channels = {},          -- name -> channel
    count = 0,              -- of channels
    inboxes = {},           -- name of an inbox -> its channel
    awaited = {},           -- name -> verbs that were sent, but not confirmed
    look_at = 0,            -- when to look for idle channels
  }, subscriber)
end

-- subscriptions --------------------------------------------------------------

-- Sends verbs for a channel. They are confirmed in the same order.
local function notify(self, channel, list)
  local awaited = self.awaited[channel.name] or {}
  self.awaited[channel.name] = awaited
  for _, verb in ipairs(list) do
    awaited[#awaited + 1] = verb
    self.connection:listen(verb, channel.name)
  end
end

local waiters_of = naming.waiters

local function inbox_of(channel)
  return naming.inbox(channel.name, channel.inbox)
end

-- Subscribes to the inbox first, so it works once the channel is live. The
-- channel of the waiters is the last to be joined and the first to be left: in
-- between, a release takes this client for one that does not register.
local function subscribe(self, channel)
  channel.has_moved = nil
  if channel.notify and self.ignores_requests then return end
  local is_handed_over = channel.inbox and not self.is_plain
  if is_handed_over then
    local inbox = inbox_of(channel)
    self.inboxes[inbox] = channel
    self.connection:listen("subscribe", inbox)
  end
  notify(self, channel, self.verbs)
  if is_handed_over then
    self.connection:listen("subscribe", waiters_of(channel.name))
  end
end

local function send_unsubscribe(self, channel, list)
  local is_handed_over = channel.inbox and not self.is_plain
  if is_handed_over then
    self.connection:listen("unsubscribe", waiters_of(channel.name))
  end
  notify(self, channel, list)
  if is_handed_over then
    self.connection:listen("unsubscribe", inbox_of(channel))
  end
end

-- Forgets a channel.
local function drop(self, channel)
  if channel.inbox then self.inboxes[inbox_of(channel)] = nil end
  self.channels[channel.name] = nil
  self.count = self.count - 1
  channel.is_live, channel.is_leaving, channel.has_moved = false, nil, nil
  channel.subscriber = nil
  if self.count == 0 then self.change:set() end
end

-- Is this the confirmation of a verb that was sent? If not, the server itself
-- has ended a subscription.
local function is_confirmation(self, kind, name)
  local awaited = self.awaited[name]
  if not awaited or awaited[1] ~= kind then return false end
  table.remove(awaited, 1)
  if not awaited[1] then self.awaited[name] = nil end
  return true
end

-- All verbs have been confirmed.
local function confirmed(self, channel)
  if not channel.is_leaving then
    self.pause:reset()                    -- the connection works
    channel.is_live = true
    return self.notify("live", channel)
  end
  channel.is_leaving = nil
  -- A waiter may have joined while the channel was unsubscribed.
  if not channel.idle_since then return subscribe(self, channel) end
  drop(self, channel)
  self.notify("dropped", channel)
end

-- Handles a message of the connection.
local function hear(self, kind, name, payload)
  local channel = self.channels[name]
  if kind == "message" or kind == "smessage" then
    if type(payload) ~= "string" then return end        -- malformed
    if channel then return self.notify("message", channel, payload, kind) end
    channel = self.inboxes[name]
    if channel then self.notify("granted", channel, payload) end
    return
  end
  local is_ours = is_confirmation(self, kind, name)
  if not channel then return end
  if is_ours then
    if not self.awaited[name] then confirmed(self, channel) end
  elseif kind == "sunsubscribe" and not channel.is_leaving then
    channel.is_live, channel.has_moved = false, true
    self.notify("moved", channel)
  end
end

-- Drops the channels that have been idle for a while. All channels are
-- examined for that, so it is done rarely, however often channels are added.
local function drop_idle(self)
  local now = self.host.now()
  if now < self.look_at and not self.is_ending then return end
  local before = now - IDLE
  self.look_at = now + IDLE
  for _, channel in pairs(self.channels) do
    if channel.idle_since and channel.idle_since <= before
        and not channel.is_leaving then
      if channel.is_live then
        channel.is_live, channel.is_leaving = false, true
        send_unsubscribe(self, channel, self.opposites)
      elseif not self.connection or channel.has_moved then
        self:remove(channel)
        self.notify("dropped", channel)
      end
    end
  end
end

-- connection -----------------------------------------------------------------

-- The user lacks the permission for a channel. Only the waiters' is needed.
local function do_without(self)
  local has_requests = false
  for _, channel in pairs(self.channels) do
    has_requests = has_requests or channel.notify ~= nil
  end
  if has_requests and not self.ignores_requests then
    self.ignores_requests = true
  else
    self.is_plain = true
  end
end

local function lost(self, why)
  self.connection = nil
  if why:find("NOPERM", 1, true) then do_without(self) end
  for _, channel in pairs(self.channels) do
    channel.is_live, channel.is_leaving, channel.has_moved = false, nil, nil
  end
  self.node:report("info", "disconnected", ("lost the subscriber of %s: %s")
    :format(self.node.where, why), { reason = why })
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
  self.connection, self.awaited = connection, {}
  if not connection then
    self.node:report("info", "disconnected", "no subscriber: "
      .. tostring(detail or code), { reason = tostring(detail or code) })
    return
  end
  for _, channel in pairs(self.channels) do subscribe(self, channel) end
end

--- Waits for a channel, if the last one has gone.
---@return any # whether there is one
local function has_channels(self)
  if self.count == 0 and self.connection and not self.is_ending then
    self.change:wait(WARM)
  end
  return self.count > 0
end

-- The task that keeps the connection while there are channels.
local function serve(self)
  while not self.is_closed and has_channels(self) do
    if not self.connection then connect(self) end
    if self.connection then
      self.change:wait(max(self.look_at - self.host.now(), 0))
      if not self.is_closed then drop_idle(self) end
    end
    if not self.connection and self.count > 0 and not self.is_closed then
      self.host.sleep(self.pause:next())
      drop_idle(self)
    end
  end
  if self.connection then self.connection:close() end
  self.connection, self.is_serving = nil, nil
end

-- interface ------------------------------------------------------------------

--- Adds a channel.
---@param channel table
function subscriber:add(channel)
  self.channels[channel.name] = channel
  self.count = self.count + 1
  channel.subscriber, channel.is_live = self, false
  self.is_ending = nil
  if self.connection then subscribe(self, channel) end
  if self.is_serving then return self.change:set() end
  self.is_serving = true
  self.change = self.host.event()
  self.host.service(serve, self)
end

--- Subscribes again, after "moved", if the channel is still this node's.
---@param channel table
function subscriber:renew(channel)
  if self.connection and channel.has_moved then subscribe(self, channel) end
end

--- Drops a channel at once, to add it to another subscriber.
---@param channel table
function subscriber:remove(channel)
  if self.connection and not channel.is_leaving then
    local list = self.opposites
    -- A node refuses SUNSUBSCRIBE for a slot that it does not serve.
    if channel.has_moved then list = { list[2] and list[1] } end
    send_unsubscribe(self, channel, list)
  end
  drop(self, channel)
end

--- Drops all idle channels, and the connection, without delay.
function subscriber:wind_down()
  self.is_ending = true
  for _, channel in pairs(self.channels) do
    if channel.idle_since then channel.idle_since = -math.huge end
  end
  if self.change then self.change:set() end
end

--- Reconnects, perhaps to another server.
---@param why string for messages
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
