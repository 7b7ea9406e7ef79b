--- One state of the exploration: a server, and clients with what they believe.
--
--  A client has, for each side of the lock (one, or read and write), a hold:
--    count, valid   hold count, and the time (ms) until which it is certain
--    token          the fencing token
--    is_forgiven    the hold was broken by force or its key was removed, so the
--                   client may be wrong
--  and `pending`, a request whose reply was lost; `waits`, its place in line;
--  `left`, how many more acquires it may start; `is_dead`.

local redis = require "rlock.check.redis"

local world = {}
world.__index = world

--- @tparam table bounds clients, ops, ticks, breaks
-- @tparam integer sides how many sides the lock has
function world.new(bounds, sides)
  local self = setmetatable({
    server = redis.new(), clients = {}, ticks = bounds.ticks,
    breaks = bounds.breaks, evictions = bounds.evictions, arrivals = 0,
    token = 0,
  }, world)
  for i = 1, bounds.clients do
    local holds = {}
    for side = 1, sides do holds[side] = { count = 0, valid = 0 } end
    self.clients[i] = {
      name = string.char(64 + i), holds = holds, left = bounds.ops,
    }
  end
  return self
end

local function copy(list)
  local result = {}
  for key, value in pairs(list) do result[key] = value end
  return result
end

local function copy_client(client)
  local result, holds = copy(client), {}
  for i, hold in ipairs(client.holds) do holds[i] = copy(hold) end
  result.holds = holds
  return result
end

--- A copy that changes independently.
function world:fork()
  local result = setmetatable(copy(self), world)
  result.server, result.clients = self.server:fork(), {}
  for i, client in ipairs(self.clients) do
    result.clients[i] = copy_client(client)
  end
  return result
end

--- Does the client believe that it holds this side?
function world:believes(client, side)
  local hold = client.holds[side]
  return not client.is_dead and hold.count > 0
    and self.server:ms() < hold.valid
end

-- canonical form --------------------------------------------------------------

local function text_of_hold(hold, now)
  if hold.count == 0 then return "-" end
  return ("%d/%d/%s%s"):format(hold.count, math.max(hold.valid - now, 0),
    hold.token or "", hold.is_forgiven and "!" or hold.is_unsure and "?" or "")
end

local function text_of_client(client, now)
  if client.is_dead then return "dead" end
  local parts = { client.left }
  for i, hold in ipairs(client.holds) do
    parts[i + 1] = text_of_hold(hold, now)
  end
  local pending, waits = client.pending, client.waits
  if pending then
    parts[#parts + 1] = ("?%s %d %s %s %s"):format(pending.op, pending.side,
      pending.want, pending.lease, pending.wait)
  end
  if waits then
    parts[#parts + 1] = ("#%d %d %d"):format(waits.place, waits.side,
      math.max(waits.retry - now, 0))
  end
  return table.concat(parts, " ")
end

--- The state as text; equal for states that behave alike.
-- @tparam boolean is_absolute whether the policy reads the clock
-- @treturn string
function world:text(is_absolute)
  local now, parts = self.server:ms(), { self.server:text(is_absolute) }
  for i, client in ipairs(self.clients) do
    parts[i + 1] = text_of_client(client, now)
  end
  parts[#parts + 1] = ("%d %d %d %.0f"):format(self.ticks, self.breaks,
    self.evictions, self.token)
  for _, copy in ipairs(self.copies or {}) do parts[#parts + 1] = copy.text end
  return table.concat(parts, "\n")
end

return world
