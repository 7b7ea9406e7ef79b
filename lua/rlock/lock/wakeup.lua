--- The waiters of each pub/sub channel. A wake is only a hint to retry: the
--- server alone knows whether a lock is free.
--- The back end subscribes to a channel once for any number of waiters, and
--- stays subscribed for a while after the last one leaves. A message wakes one
--- local waiter, to avoid a thundering herd. A (re)connection wakes all: it may
--- have missed messages.

--- In the list of a channel, or polling.
---@class rlock.waiter: rlock.event
---@field channel table while it is in a list
---@field prev? rlock.waiter
---@field next? rlock.waiter
---@field owner_name? string
---@field is_woken? boolean
---@field is_handed? boolean
---@field since? number
---@field shares? boolean
---@field edge? table | false see deadlock.lua
---@field line? table see heartbeats.lua
---@field due? number
---@field ahead? rlock.waiter
---@field behind? rlock.waiter
---@field wants? function
---@field call? table see waiting.lua
---@field granted? rlock.grant
---@field lease? number
---@field hold? table
---@field wait_deadline number
---@field watched? boolean
---@field unwatch? function
---@field survives? function
---@field backoff? rlock.backoff

---@class rlock.wakeup
---@field listener rlock.channels
---@field host rlock.host
---@field channels table<string, table>
---@field count integer of channels
local wakeup = {}
wakeup.__index = wakeup

--- Seconds for which the tasks of one client may pass a lock to each other,
--- before other clients get it.
local TENURE = 0.005

local SUCCEEDED = {}      -- stands for a successor that has the lock

---@param listener rlock.channels of the back end
---@param host rlock.host
---@return rlock.wakeup
function wakeup.new(listener, host)
  local self = setmetatable({
    listener = listener, host = host,
    channels = {},          -- name -> channel
    count = 0,              -- of channels
  }, wakeup)
  function listener.notify(event, ...) self:notify(event, ...) end
  return self
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

wakeup.append, wakeup.unlink = append, unlink     -- for gate.lua

local function wake(waiter)
  waiter.is_woken = true
  waiter:set()
end

-- The first waiter that is not already retrying, or nil.
local function first_asleep(channel)
  local waiter = channel.first
  while waiter and waiter.is_woken do waiter = waiter.next end
  return waiter
end

-- The first waiter with this owner name, or nil.
local function waiter_of(channel, owner_name)
  local waiter = channel.first
  while waiter and waiter.owner_name ~= owner_name do waiter = waiter.next end
  return waiter
end

-- Wakes the first waiter that is not already retrying. If all are, the first
-- retries once more: its request may have been answered before this message.
local function wake_one(channel)
  local waiter = first_asleep(channel) or channel.first
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

-- Wakes waiters that share the lock or latch and are not retrying already: all,
-- or `most`.
local function wake_sleepers(channel, most)
  local waiter, left = channel.first, most or math.huge
  while waiter and left > 0 do
    if waiter.shares and not waiter.is_woken then
      wake(waiter)
      left = left - 1
    end
    waiter = waiter.next
  end
end

-- channels -----------------------------------------------------------------

local events = {}

function events.message(_, channel, payload)
  local successor = channel.successor
  channel.successor = nil
  if successor == SUCCEEDED then
    return                              -- of the release that sent this
  elseif successor then                 -- woken by hand_over: retries once more
    successor.is_handed = true
    wake(successor)
  elseif channel.wakes and channel.wakes(payload) == "all" then
    wake_sharers(channel)
  else
    wake_one(channel)
  end
end

-- The lock is reserved for a waiter, which may have left.
function events.granted(_, channel, owner_name)
  local waiter = waiter_of(channel, owner_name)
  if waiter then
    waiter.is_handed = true
    wake(waiter)
  end
end

function events.live(_, channel)
  channel.successor = nil
  wake_all(channel)
end

function events.dropped(self, channel)
  self.channels[channel.name] = nil
  self.count = self.count - 1
end

--- Handles an event of a channel: "live", "message", "granted" or "dropped".
function wakeup:notify(event, channel, payload)
  events[event](self, channel, payload)
end

local function open_channel(self, name, inbox)
  local channel = { name = name, inbox = inbox }
  self.channels[name] = channel
  self.count = self.count + 1
  self.listener:add(channel)
  return channel
end

-- interface to waiters ----------------------------------------------------

--- Is this channel subscribed already? Then a waiter that joins before its
--- first attempt cannot miss a release and need not retry at once.
function wakeup:is_live(name)
  local channel = name and self.channels[name]
  return channel and channel.is_live or false
end

--- Joins the waiters of a channel. Every waiter must leave.
---@param name string the channel
---@param wakes? function payload -> "one" or "all": whether a message wakes all
---  waiters that joined with this function; it also wakes one other
---@param inbox? string the id of the client, if the lock is handed over to its
---  waiters
---@return table # waiter for `wait` and `leave`; it is an event of the host
function wakeup:join(name, wakes, inbox)
  local channel = self.channels[name] or open_channel(self, name, inbox)
  local waiter = self.host.event()
  ---@cast waiter rlock.waiter
  waiter.channel, waiter.shares = channel, wakes and true   -- nil takes no room
  channel.wakes = channel.wakes or wakes
  channel.idle_since = nil
  append(channel, waiter)
  return waiter
end

--- Waits for a wake.
---@param waiter rlock.waiter
---@param seconds number at most
---@return boolean? # whether it was woken
---@return rlock.failure? code # "cancelled"
---@return any # the value to raise
function wakeup.wait(_, waiter, seconds)
  local channel = waiter.channel
  if channel and channel.successor == waiter then channel.successor = nil end
  waiter.is_handed = nil
  waiter.is_woken = waiter.is_set or false -- woken since the last wait
  return waiter:pause(seconds)
end

--- Does an owner wait on this channel?
---@param name? string of the channel
---@param owner_name string
function wakeup:has(name, owner_name)
  local channel = name and self.channels[name]
  return channel and waiter_of(channel, owner_name) ~= nil
end

--- Does this waiter poll for all that share the lock? The first one that waits
--- does, until it leaves.
function wakeup.polls(_, waiter)
  local channel = waiter.channel
  channel.poller = channel.poller or waiter
  return channel.poller == waiter
end

--- Leaves the waiters. Passes an unused wake to the next waiter, even if the
--- wake came while this waiter succeeded: more may be free. If this waiter
--- succeeded without a wake, wakes those that share the lock, because no
--- message was published. If it was the first and no wake came, messages may be
--- missing: the next waiter retries, and polls as the first from then on. If a
--- registered waiter gives up, the next one retries, which registers it.
---@param waiter rlock.waiter
---@param got_it boolean whether the waiter succeeded
function wakeup:leave(waiter, got_it)
  local channel = waiter.channel
  local was_first = channel.first == waiter
  unlink(channel, waiter)
  waiter.channel = nil
  if channel.successor == waiter then
    channel.successor = got_it and SUCCEEDED or nil
  end
  if waiter.is_handed and got_it then waiter.is_set = nil end
  if waiter.is_set or waiter.is_woken and not got_it
      or was_first and waiter.is_woken == false then
    wake_one(channel)
  end
  if was_first and not got_it and channel.inbox and channel.first then
    wake(channel.first)
  end
  if waiter.is_handed and not got_it then
    local same = waiter_of(channel, waiter.owner_name)
    if same then wake(same) end
  end
  if got_it and waiter.shares and not waiter.is_woken then
    wake_sleepers(channel)
  elseif channel.poller == waiter then
    wake_sleepers(channel, 1)
  end
  if channel.poller == waiter then channel.poller = nil end
  if not channel.first then
    channel.idle_since = self.host.now()
    if self.listener.idle then self.listener:idle(channel) end
  end
end

--- Wakes the first waiter just before its lock is released, so that its request
--- follows the release on the same connection. Either the release names the
--- waiter and publishes no message, or its message wakes no other waiter. Stops
--- after TENURE, so that other clients get the lock (a cohort lock: Dice,
--- Marathe, Shavit, "Lock cohorting", 2012). Wakes no waiter if the channel's
--- messages may wake several.
---@param name string the channel
---@param now number
---@return table? # the channel; call `handed_over` after the release
---@return table? # the waiter; nil if other clients are next
function wakeup:hand_over(name, now)
  local channel = self.channels[name]
  local waiter = channel and not channel.wakes and first_asleep(channel)
  if not waiter or now - (channel.tenure or now) > TENURE then
    if channel then channel.tenure = nil end
    return channel and channel.inbox and channel or nil
  end
  channel.tenure = channel.tenure or now
  if not channel.inbox then channel.successor = waiter end
  wake(waiter)
  return channel, waiter
end

-- The first waiter may have come to the front without a request since.
local function register_first(channel)
  local waiter = channel.first
  if waiter and not waiter.is_woken then wake(waiter) end
end

--- Lets the first waiter of a lock that is handed over register by a retry,
--- when a hold has ended without a release that could hand it over.
---@param name? string the channel
function wakeup:register_first(name)
  local channel = name and self.channels[name]
  if channel and channel.inbox then register_first(channel) end
end

--- Call this when the release of a hand-over has ended. A registered waiter
--- then retries once more, in case its request came before the release. If the
--- release failed, the next message is for any waiter. If other clients are
--- next, the first waiter registers now: with the release, its request would
--- always come before those of waiters that do not register.
---@param channel table
---@param waiter? rlock.waiter
---@param is_done boolean
function wakeup.handed_over(channel, waiter, is_done)
  if not waiter then return register_first(channel) end
  if not is_done then channel.successor = nil end
  if channel.inbox and waiter.channel then
    waiter.is_handed = true
    wake(waiter)
  end
end

--- Passes on remaining permits: wakes the first waiter for which they suffice
--- and that is not already retrying.
---@param name string the channel
---@param left number how many; a waiter needs its field `wants`
---@param waiter? rlock.waiter one to skip: the caller's own
function wakeup:pass(name, left, waiter)
  local channel = self.channels[name]
  local other = channel and channel.first
  while other and (other == waiter or other.is_woken
      or (other.wants or 1) > left) do
    other = other.next
  end
  if other then wake(other) end
end

--- Ends the subscriptions and wakes all waiters, which then see the closed
--- session.
function wakeup:close()
  for _, channel in pairs(self.channels) do wake_all(channel) end
  self.listener:close()
end

return wakeup
