--- Reports subscriptions that nobody needs. A client may keep a channel for a
--- second after its last waiter has left, and looks for such channels once a
--- second. It leaves none on a connection that it does not use for the channel.

local subscriptions = {}

local MOST = 2.5          -- seconds: both of the above, and a slow route

local huge, max = math.huge, math.max

-- The client's channel, if it listens to that on this connection.
local function channel_of(link, name)
  for _, open in next, link.host.process.open do
    local asked = open.session.server.asked
    local channel = open.session.wakeup.channels[name] or asked and asked[name]
    local its = channel and channel.subscriber
    local connection = its and its.connection
    if connection and connection.link == link then return channel end
  end
end

-- Until when nothing passes between the two.
local function blocked_until(link)
  local route = link.route
  return max(link.forth, link.back, route.forth, route.back, link.server.thaws,
    link.host.stalls_until)
end

-- What is known of a subscription: `name`, of the channel without a prefix, and
-- without what follows it for a lock that is handed over (policy/handover.lua);
-- `since` when nobody needs it.
local function unneeded_of(link, name)
  link.unneeded = link.unneeded or {}
  local unneeded = link.unneeded[name]
  if not unneeded then
    unneeded =
      { name = name:gsub("^s:", ""):gsub(":waiters:?[%x-]*$", "") }
    link.unneeded[name] = unneeded
  end
  return unneeded
end

local function check(self, link, name, unneeded)
  local channel, now = channel_of(link, unneeded.name), self.universe.now
  if channel and (channel.first or channel.listeners) then
    unneeded.since = nil
    return
  end
  local left_at = channel and channel.idle_since
  if left_at ~= unneeded.left_at then unneeded.since = now end
  unneeded.left_at = left_at
  unneeded.since = max(unneeded.since or now, blocked_until(link))
  if now - unneeded.since > MOST then
    unneeded.since = huge               -- reported once
    self.oracle:fault("subscribed", "%s is subscribed to %s of %s, for which "
      .. "it does not wait", link.address, name, link.server.name)
  end
end

-- Can a client give a subscription up?
local function is_able(link)
  return not link.is_closed and not link.is_cut and not link.host.is_dead
    and not link.host.process.is_closed
end

--- Looks at all subscriptions, ten times a second.
---@param self table world
function subscriptions.look(self)
  for _, server in ipairs(self.servers) do
    for _, link in ipairs(server.links) do
      if link.channels[1] and is_able(link) then
        for _, name in ipairs(link.channels) do
          check(self, link, name, unneeded_of(link, name))
        end
      end
    end
  end
end

return subscriptions
