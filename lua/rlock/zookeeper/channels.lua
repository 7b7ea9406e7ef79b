--- The channels of a client's waiters: one for each owner that waits for a
--- lock. A message means that what the owner's node waits for has changed. A
--- channel sends nothing itself: the watch is part of the request for the lock.

---@class rlock.zookeeper.channels
---@field list table
local channels = {}
channels.__index = channels

function channels.new()
  return setmetatable({ list = {} }, channels)       -- name -> channel
end

--- Called with an event and a channel, as in redis/channels.lua.
---@overload fun(event: string, channel: any)
function channels.notify() end

--- Adds a channel; see the back end contract.
---@param channel table its `name`
function channels:add(channel)
  self.list[channel.name], channel.is_live = channel, true
end

--- Wakes the waiters of a channel, if there are any.
---@param name string
function channels:message(name)
  local channel = self.list[name]
  if channel then self.notify("message", channel) end
end

--- Wakes all waiters: messages may have been missed.
function channels:wake_all()
  for _, channel in pairs(self.list) do self.notify("live", channel) end
end

--- Drops a channel without waiters: the last one has left.
---@param channel table
function channels:idle(channel)
  self.list[channel.name] = nil
  self.notify("dropped", channel)
end

function channels.close() end

return channels
