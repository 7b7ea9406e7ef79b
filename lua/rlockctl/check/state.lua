--- One state of the exploration: a server, and the clients with their beliefs.
---
--- A client has, for each side of the lock (one, or read and write), a hold:
---   count, ends    hold count, and the ends of the leases (ms), as far as they
---                  are certain; `valid` is the last of them
---   token          the fencing token
---   is_forgiven    the hold was broken by force, or the server lost a key or
---                  its clock jumped, so the client may be wrong
---   is_unsure      a request was abandoned: the server's count may differ
---   due            when the server must have freed the hold, regardless of the
---                  client's belief; nil if the server has none
---   parts          what the server may still have of the client: "hold", or
---                  "place", its entry in a queue
--- and `pending`, a request whose reply was lost; `waits`, what it waits for;
--- `position` in the order of arrival, which the server knows even if the reply
--- was lost; `is_disturbed`: the server may have lost the position; `left`, the
--- number of acquires that it may still start; `is_dead`.
---
--- `last_due` is the latest `due` of any hold so far.
---
--- States share their clients: change a client only through State:change.

local copy = require "rlockctl.check.copy"
local snapshot = require "rlockctl.check.snapshot"

---@class rlockctl.check.state.State
---@field server table
---@field clients any
---@field ticks any
---@field breaks any
---@field server_faults any
---@field arrivals number
---@field token number
---@field last_due number
---@field copies any
local State = {}
State.__index = State

--- An empty hold.
function State.no_hold() return { count = 0, valid = 0, ends = {} } end

--- Sets the ends of the leases of a hold, which other states may share.
---@param hold table
---@param ends table
function State.set_ends(hold, ends)
  hold.ends, hold.valid = ends, 0
  for _, one in ipairs(ends) do hold.valid = math.max(hold.valid, one) end
end

--- The state before anything has happened.
---@param lock table see locks.lua
function State.new(lock)
  local bounds, clients = lock.bounds, {}
  for i = 1, bounds.clients do
    local holds = {}
    for side = 1, #lock.sides do holds[side] = State.no_hold() end
    clients[i] = {
      name = string.char(64 + i), holds = holds, left = bounds.ops,
    }
  end
  lock.empty = lock.empty
    or snapshot.empty(lock.is_absolute, nil, lock.listeners)
  return setmetatable({
    server = lock.empty, clients = clients, ticks = bounds.ticks,
    breaks = bounds.breaks, server_faults = bounds.server_faults, arrivals = 0,
    token = 0, last_due = 0,
  }, State)
end

--- A copy that changes independently.
function State:fork()
  local result = setmetatable(copy(self), State)
  result.clients = table.move(self.clients, 1, #self.clients, 1, {})
  return result
end

--- The client i, to be changed in this state only.
function State:change(i)
  local client, holds = copy(self.clients[i]), {}
  for side, hold in ipairs(client.holds) do holds[side] = copy(hold) end
  client.holds, client.numbers = holds, nil
  self.clients[i] = client
  return client
end

--- Does the client believe that it holds this side?
function State:believes(client, side)
  local hold = client.holds[side]
  return not client.is_dead and hold.count > 0 and self.server.now < hold.valid
end

-- canonical form --------------------------------------------------------------

local function text_of_hold(hold, now)
  if hold.count == 0 then return "-" end
  local left = {}
  for i, ends in ipairs(hold.ends) do left[i] = math.max(ends - now, 0) end
  return ("%d/%s/%s%s"):format(hold.count, table.concat(left, ","),
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
    parts[#parts + 1] = ("?%s %d %s %s %s %s %s %s"):format(pending.op,
      pending.side, pending.want, pending.lease, pending.wait,
      pending.was_valid, pending.leaves, pending.is_late)
  end
  if waits then
    parts[#parts + 1] = ("#%d %d %s %s"):format(waits.side, waits.lease,
      client.position and math.max(waits.retry - now, 0), waits.is_late)
  end
  if client.is_disturbed then parts[#parts + 1] = "!" end
  return table.concat(parts, " ")
end

--- A number for the current beliefs of a client. Within one snapshot, equal
--- numbers of a client mean equal behaviour.
---@param client table
---@return integer
function State:number_of(client)
  local now, numbers = self.server.now, client.numbers
  if not numbers then
    numbers = {}
    client.numbers = numbers
  end
  local number = numbers[now]
  if not number then
    number = self.server:number_of(text_of_client(client, now))
    numbers[now] = number
  end
  return number
end

-- The names of the waiters in order of arrival.
local function line_of(self)
  local line = {}
  for _, client in ipairs(self.clients) do
    if client.position then line[#line + 1] = client end
  end
  if #line < 2 then return line[1] and line[1].name or "-" end
  table.sort(line, function(a, b) return a.position < b.position end)
  for i, client in ipairs(line) do line[i] = client.name end
  return table.concat(line)
end

--- The state as text; equal for states that behave alike. `due` and `parts`
--- are not in it: on a correct server they follow from its keys, and delays.lua
--- compares them.
---@return string
function State:text()
  local parts = { self.server.number }
  for i, client in ipairs(self.clients) do
    parts[i + 1] = self:number_of(client)
  end
  local n = #parts
  parts[n + 1], parts[n + 2], parts[n + 3] =
    self.ticks, self.breaks, self.server_faults
  parts[n + 4], parts[n + 5] = self.token,
    self.arrivals > 0 and line_of(self) or "-"
  for _, request in ipairs(self.copies or {}) do
    parts[#parts + 1] = self.server:number_of(request.text)
  end
  return table.concat(parts, " ")
end

return State
