--- The waiters of each pub/sub channel. A wake is only a hint to retry; Redis
--  alone knows whether a lock is free.
--  One subscriber connection per node, and one subscription per channel for any
--  number of waiters, kept for a while after the last one leaves. A message
--  wakes one local waiter, to avoid a thundering herd. A (re)connection wakes
--  all, because messages may have been missed.

local backoff = require "rlock.backoff"

local wakeup = {}
wakeup.__index = wakeup

local WARM = 5                            -- seconds a channel stays subscribed
local FIRST_PAUSE, LAST_PAUSE = 0.05, 2   -- seconds between reconnects

--- @tparam table node
function wakeup.new(node)
  return setmetatable({
    node = node,
    host = node.host,
    pause = backoff.new(FIRST_PAUSE, LAST_PAUSE, node.host.random_number),
    channels = {},          -- name -> channel
    count = 0,              -- of channels
  }, wakeup)
end

-- waiters: a list in order of arrival ----------------------------------------

local function append(channel, waiter)
  waiter.prev = channel.last
  if channel.last then
    channel.last.next = waiter
  else
    channel.first = waiter
  end
  channel.last = waiter
end

local function unlink(channel, waiter)
  local before, after = waiter.prev, waiter.next
  if before then before.next = after else channel.first = after end
  if after then after.prev = before else channel.last = before end
end

local function wake(waiter)
  waiter.is_woken = true
  waiter:set()
end

-- Wakes the first waiter that is not already retrying. If all are, the first
-- retries once more: its request may have been answered before this message.
local function wake_one(channel)
  local waiter = channel.first
  while waiter and waiter.is_woken do waiter = waiter.next end
  waiter = waiter or channel.first
  if waiter then wake(waiter) end
end

local function wake_all(channel)
  local waiter = channel.first
  while waiter do
    wake(waiter)
    waiter = waiter.next
  end
end

-- Wakes all waiters that can share the lock or latch, and one other.
local function wake_sharers(channel)
  local waiter, other = channel.first, nil
  while waiter do
    if waiter.shares then
      wake(waiter)
    elseif not other or (other.is_woken and not waiter.is_woken) then
      other = waiter
    end
    waiter = waiter.next
  end
  if other then wake(other) end
end

-- the subscriber ----------------------------------------------------------

-- Handles a message of the subscriber connection.
local function heard(self, kind, name, payload)
  local channel = self.channels[name]
  if kind == "message" then
    if not channel then return end
    if channel.wakes and channel.wakes(payload) == "all" then
      wake_sharers(channel)
    else
      wake_one(channel)
    end
  elseif kind == "subscribe" and channel then
    self.pause:reset()              -- the connection works
    channel.is_live = true
    wake_all(channel)
  elseif kind == "unsubscribe" and channel then
    channel.is_leaving = nil
    if channel.first then           -- a waiter joined during UNSUBSCRIBE
      self.connection:subscribe(name)
    else
      self.channels[name] = nil
      self.count = self.count - 1
      if self.count == 0 then self.change:set() end
    end
  end
end

local function lost(self, why)
  self.connection = nil
  for _, channel in pairs(self.channels) do
    channel.is_live, channel.is_leaving = false, nil
  end
  self.host.log("info", ("lost the subscriber of %s: %s"):format(
    self.node.where, why))
  self.change:set()
end

-- Unsubscribes from channels without a waiter for a while.
local function leave_idle(self)
  if self.is_closed then return end
  local before = self.host.now() - WARM
  for name, channel in pairs(self.channels) do
    if not channel.first and channel.idle_since <= before
        and not channel.is_leaving then
      if channel.is_live then
        channel.is_live, channel.is_leaving = false, true
        self.connection:unsubscribe(name)
      elseif not self.connection then
        self.channels[name] = nil
        self.count = self.count - 1
      end
    end
  end
end

local function subscribe_all(self)
  for name in pairs(self.channels) do self.connection:subscribe(name) end
end

-- The task that keeps the subscriber connected while there are channels.
local function serve(self)
  while not self.is_closed and self.count > 0 do
    if not self.connection then
      local is_lost
      local connection, _, detail = self.node:open(
        function(why)
          is_lost = true
          lost(self, why)
        end,
        function(...) heard(self, ...) end)
      if is_lost then connection = nil end
      if self.is_closed then
        if connection then connection:close() end
        break
      end
      self.connection = connection
      if connection then
        subscribe_all(self)
      else
        self.host.log("info", "no subscriber: " .. tostring(detail))
      end
    end
    if self.connection then
      self.change:wait(WARM)
      leave_idle(self)
    end
    if not self.connection and self.count > 0 then
      self.host.sleep(self.pause:next())
      leave_idle(self)
    end
  end
  if self.connection then self.connection:close() end
  self.connection, self.is_serving = nil, nil
end

local function open_channel(self, name)
  local channel = { is_live = false }
  self.channels[name] = channel
  self.count = self.count + 1
  if self.connection then self.connection:subscribe(name) end
  if not self.is_serving then
    self.is_serving = true
    self.change = self.host.event()
    self.host.daemon(serve, self)
  end
  return channel
end

-- interface to waiters ----------------------------------------------------

--- Is this channel subscribed already? Then a waiter that joins before its
--  first attempt cannot miss a release and need not retry at once.
function wakeup:is_live(name)
  local channel = name and self.channels[name]
  return channel and channel.is_live or false
end

--- Joins the waiters of a channel. Every waiter must leave.
-- @tparam string name the channel
-- @tparam[opt] function wakes  payload -> "one" or "all": whether a message
--   wakes all waiters that joined with this function; it wakes one other
-- @treturn table waiter for `wait` and `leave`; it is an event of the host
function wakeup:join(name, wakes)
  local channel = self.channels[name] or open_channel(self, name)
  local waiter = self.host.event()
  waiter.channel, waiter.shares = channel, wakes and true   -- nil takes no room
  channel.wakes = channel.wakes or wakes
  append(channel, waiter)
  return waiter
end

--- Waits for a wake.
-- @tparam table waiter
-- @tparam number seconds at most
-- @treturn[1] boolean whether it was woken
-- @treturn[2] nil
-- @treturn[2] string "cancelled"
-- @return[2] the value to raise
function wakeup.wait(_, waiter, seconds)
  waiter.is_woken = waiter.is_set          -- woken since the last wait
  return waiter:pause(seconds)
end

--- Leaves the waiters. An unused wake is passed to the next waiter.
-- @tparam table waiter
-- @tparam boolean got_it whether the waiter succeeded
function wakeup:leave(waiter, got_it)
  local channel = waiter.channel
  unlink(channel, waiter)
  if waiter.is_woken and not got_it then wake_one(channel) end
  if not channel.first then channel.idle_since = self.host.now() end
end

--- Passes on remaining permits: wakes the first waiter for which they suffice
--  and that is not already retrying.
-- @tparam string name the channel
-- @tparam number left how many; a waiter needs its field `wants`
-- @tparam[opt] table waiter one to skip: the caller's own
function wakeup:pass(name, left, waiter)
  local channel = self.channels[name]
  local other = channel and channel.first
  while other and (other == waiter or other.is_woken
      or (other.wants or 1) > left) do
    other = other.next
  end
  if other then wake(other) end
end

--- Unsubscribes from all channels without waiters, without delay.
function wakeup:wind_down()
  for _, channel in pairs(self.channels) do channel.idle_since = -math.huge end
  if self.change then self.change:set() end
end

--- Closes the subscriber and wakes all waiters, which then see the closed
--  session.
function wakeup:close()
  self.is_closed = true
  for _, channel in pairs(self.channels) do wake_all(channel) end
  if self.change then self.change:set() end
  if self.connection then self.connection:close() end
  self.connection = nil
end

return wakeup
