--- A part of a red lock: its hold on one of the servers, for one round of
--- requests (round.lua). If the server is connected and counts for certain, its
--- requests are posted; else a background task makes them, because it may have
--- to connect, to identify the server, or to wait for it.

local grant = require "rlock.lock.grant"
local joint = require "rlock.several.joint"
local posted = require "rlock.lock.posted"

-- The field tells holds.lua that each is part of a hold.
---@class rlock.several.part: rlock.lock.posted
---@field lock rlock.lock
---@field round any
---@field identity any
---@field releases any
---@field acquire function
local part = { hold = true }
for name, method in pairs(posted) do part[name] = method end
part.__index = part

local max = math.max

---@param round table
---@param member table a lock of the server's client
function part.new(round, member)
  local self = setmetatable({           -- 8 fields: a 9th doubles its size
    round = round, lock = member, grant = false, identity = false,
    asks = false, sent = 0, is_over = false, releases = false,
  }, part)
  local hold = round.hold
  if hold.object then
    self.is_transferable, self.object = hold.is_transferable, hold.object
  end
  return self
end

-- The lease for which a server may have granted the lock before it restarted.
local function longest_lease(self)
  return max(self.round.lease or 0, self.lock.session.lease)
end

--- Identifies the server. It does not count if it is a duplicate, or recently
--- restarted or replaced.
---@return any # its identity
---@return rlock.failure? code, string? detail
local function admit(self)
  local target, round = self.lock.record.target, self.round
  local identity, code, detail = target:identify(round.deadline)
  if not identity then return nil, code, detail end
  round.clash = round.clash or target:clash(round.red.members)
  if round.clash then return nil, "refused", round.clash end
  local pause = target:quarantine(longest_lease(self))
  if pause <= 0 then return identity end
  return nil, "quorum", ("restarted or replaced, and may have forgotten what "
    .. "was granted: counts again in %.1f s"):format(pause)
end

-- Has another round of the hold requested the member already, and got it?
local function is_double(self)
  local hold = self.round.hold
  for i = 1, hold.is_healed and #hold.inner_holds or 0 do
    local inner = hold.inner_holds[i]
    if inner.lock == self.lock and joint.is_alive(inner) then return true end
  end
  return false
end

--- Is it still wanted? As posted.lua wants it.
function part:is_wanted()
  local round = self.round
  local hold = round.hold
  return not (round.is_over or hold.is_over or hold.lost_because)
end

--- Is this grant valid and still wanted? The client may have reconnected during
--- the request, so the reply may come from a restarted server.
function part:accept()
  if self.lock.record.target:identity() ~= self.identity then
    local is_admitted, code, detail = admit(self)
    if not is_admitted then return nil, code, detail end
  end
  if not self:is_wanted() or is_double(self) then return nil, "busy", 0 end
  return true
end

--- As posted.lua wants it. If the request does not end here, it may last beyond
--- the round's deadline.
function part:is_accepted()
  local round, is_accepted = self.round, nil
  if self.lock.record.target:identity() == self.identity then
    is_accepted = self:is_wanted() and not is_double(self)
  end
  if not is_accepted and round.event then round.event:set() end
  return is_accepted
end

--- In a task: requests the lock.
---@return any ... # as joint.acquire
local function requested(self)
  local round, session = self.round, self.lock.session
  ---@type any, any
  local code, why = "closed", "the client was closed"
  if not session.is_closed then
    code, why = "connect", self.lock.record.target:why_away()
  end
  if not why then self.identity, code, why = admit(self) end
  round.unknown = round.unknown - 1
  if not self.identity then return nil, nil, code, why end
  return joint.acquire(self, round.deadline, round.lease, 0)
end

local function request_in_task(self)
  local round = self.round
  if not round:is_decided() then return self:acquired(requested(self)) end
  round.left = round.left - 1
  if round.event then round:changed() end
end

--- Requests it.
---@param now number by host.now()
function part:start(now)
  local round, member = self.round, self.lock
  local session = member.session
  local identity = round.red.is_posted and not session.is_closed
    and member.record.target:standing(
      round.lease and longest_lease(self) or session.lease, now,
      round.red.members)
  if identity then
    self.identity, round.unknown = identity, round.unknown - 1
    local its = round.owner
    return self:acquire(member.record.grants[its] or grant.new(member, its),
      now)
  end
  session:background(function() request_in_task(self) end)
end

local missing = { connect = true, timeout = true, closed = true }

--- Counts the outcome of the request.
function part:acquired(verdict, ms, code, detail)
  local round = self.round
  local hold = round.hold
  if verdict == "held" then
    round.held = round.held + 1
    hold.inner_holds[#hold.inner_holds + 1] = self
    if hold.is_watched then self:watch() end
  else
    local session = self.lock.session
    if verdict == nil and missing[code] and not session.is_closed
        and not round.is_short then
      self.lock.record.target:mark_away(detail)
    end
    -- Unused once the round is decided; these fields double the size of a part.
    if self:is_wanted() then
      self.code, self.answer = verdict or code, ms or detail
    end
    round.failed = round.failed + 1
    if hold.is_watched then round.red:heal(hold) end
  end
  round.left = round.left - 1
  if round.event then round:changed() end
end

--- Is it held, as far as it is known? Also while it is being released.
function part:is_held()
  return self.grant and (not self.asks or self.asks == "release")
end

--- Counts the outcome of its release, for the task that releases the red lock.
function part:released(is_freed, why)
  local count = self.releases
  if not count then return end
  count.left = count.left - 1
  if is_freed then
    count.freed = count.freed + 1
  elseif why == "lost" then
    count.gone = count.gone + 1
  end
  if count.event then count:changed() end
end

-- In a task.
local function lost(self, reason)
  if not self.is_over then self.round.red:lost_part(self, reason) end
end

--- Reports a loss of the part to the red lock. Without a lease, `lost` does,
--- unless it is lost already.
function part:watch()
  local granted = self.grant
  if self.round.lease or granted.state == "lost" then
    granted:when_lost(lost, self)
  end
end

--- The grant is lost, see holds.lua.
function part:lost(reason)
  local round = self.round
  if round.hold.is_watched and not round.lease then
    round.red.host.spawn(lost, self, reason)
  end
end

return part
