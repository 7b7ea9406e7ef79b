--- One owner's grant of one lock: its holds, and the time until which the
--- server certainly keeps the lock for it. A *hold* is one successful `lock`;
--- each has its own lease (holds.lua). The requests are in requests.lua;
--- waiting and retries in lock.lua.
---
--- A grant has one owner name. Each request, also one that rolls another back,
--- needs the grant's turn (turn.lua). The grant ends, and its table may serve
--- another lock, only when it has no holds and nothing has its turn or waits
--- for it.
---
--- state: free -> held <-> at_risk -> lost; free again after the last unlock.

local holds = require "rlock.lock.holds"
local metrics = require "rlock.util.metrics"
local owners = require "rlock.lock.owner"
local requests = require "rlock.lock.requests"
local turn = require "rlock.lock.turn"
local waiting = require "rlock.lock.waiting"

---@class rlock.grant
---@field [integer] any for the lists of the watchdog
---@field deadline? number of its entry in the heap
---@field lock any a rlock.lock; false in a spare grant
---@field owner any a rlock.owner; false in a spare grant
---@field owner_name string
---@field holds table a list, see holds.lua
---@field state "free" | "held" | "at_risk" | "lost"
---@field valid_until number
---@field since number
---@field acting boolean | string see turn.lua
---@field queue? table
---@field token? integer
---@field index? integer
---@field watched boolean
---@field is_unsure? boolean
---@field is_rolling_back? boolean
---@field is_given_up? boolean
---@field lost_because? string
---@field on_lost? table
---@field listener? table
local grant = {
  acquire = requests.acquire, release = requests.release,
  renewal = requests.renewal, leave = requests.leave,
  watched = true,                       -- the default
}
grant.__index = grant

local max = math.max
local NONE = holds.NONE

local SPARES = 16                       -- grants kept for reuse
local BY_TASK = { __mode = "k" }        -- entries end with their owner

-- The owner's grant of the other side of a read/write lock, or nil. `peer` is
-- that side's policy.
local function grant_at_peer(lock, peer, owner)
  local session = lock.session
  local record = session:known_record(session.options.backend.load(peer),
    lock.record.name)
  return record and record.grants[owner]
end

-- The owner's name there. Both sides must use the same name.
local function name_at_peer(lock, peer, owner)
  local granted = grant_at_peer(lock, peer, owner)
  return granted and granted.owner_name
end

-- A waiter keeps the name under which it is queued, unless it is rolled back.
local function kept_name(lock, name)
  local undone = lock.record.undone
  return not (undone and undone[name]) and name
end

---@param lock rlock.lock
---@param owner rlock.owner
---@param name? string the owner name of a waiter that retries
---@return rlock.grant
function grant.new(lock, owner, name)
  local spares = lock.session.spares
  local n = #spares
  local self = spares[n]
  if self then
    spares[n] = nil
  else
    self = setmetatable({
      false, false, false, false,               -- for the watchdog's lists
      lock = false, owner = false, owner_name = false, holds = NONE,
      state = "free", valid_until = 0, since = 0, acting = false,
    }, grant)
  end
  local record, session = lock.record, lock.session
  local peer = record.policy.peer
  self.lock, self.owner = lock, owner
  self.owner_name = owner.name or peer and name_at_peer(lock, peer, owner)
    or name and kept_name(lock, name) or owner[record.family]
    or owners.name_for(owner, session, record.family)
  record.grants[owner] = self
  if owner.grants then owner.grants[self] = true end
  return self
end

--- The lock's kind and name, for messages.
function grant:show() return self.lock:show() end

--- Marks the grant lost without a request to the server.
function grant:end_it(why)
  local session = self.lock.session
  session.watchdog:remove(self)
  metrics.observe(self.lock.record.series.hold, session.host.now() - self.since)
  self.state, self.lost_because, self.on_lost = "lost", why, nil
end

--- Does the owner keep its name in Redis if a request is rolled back? It does
--- if the name is explicit, if requests wait for their turn, or if the other
--- side of the pair uses it.
function grant:keeps_name()
  local peer = self.lock.record.policy.peer
  return self.queue or self.owner.is_named
    or peer and name_at_peer(self.lock, peer, self.owner)
end

--- The same owner's grant of the other side of a read/write lock, or nil.
function grant:peer()
  local peer = self.lock.record.policy.peer
  return peer and grant_at_peer(self.lock, peer, self.owner)
end

--- Detaches the grant from its owner, which can then get a new one.
function grant:detach()
  local owner, grants = self.owner, self.lock.record.grants
  if grants[owner] == self then grants[owner] = nil end
  if owner.grants then owner.grants[self] = nil end
  if owner.lost then owner.lost[self] = nil end
end

--- Resets a grant without holds. It ends with its turn, see `recycle`.
function grant:reset()
  if self[1] or self.index then self.lock.session.watchdog:remove(self) end
  self:clear()
end

--- As `reset`, of a grant that the watchdog does not have.
function grant:clear()
  self.state = "free"
  self.valid_until = 0
  self.watched = nil
  self.on_lost = nil
  self.token = nil
  self.lost_because = nil
  self.is_unsure = nil
end

--- Ends the grant, and keeps its table for reuse, if it has no holds and
--- nothing has its turn. The caller must not use it afterwards.
function grant:recycle()
  local owner, lock = self.owner, self.lock
  if self.state ~= "free" or self.acting or not owner then return end
  local grants, spares = lock.record.grants, lock.session.spares
  if grants[owner] == self then grants[owner] = nil end       -- as `detach`
  if owner.grants then
    owner.grants[self], self.is_given_up = nil, nil
  end
  if owner.lost then owner.lost[self] = nil end
  self.owner = false
  local n = #spares
  if n < SPARES then
    self.lock = false
    spares[n + 1] = self
  end
end

--- The channel on which releases are published, or nil.
function grant:channel()
  return self.lock.record.target:channel(self.owner_name)
end

--- Joins the client's waiters for the lock, see waiting.join.
---@return rlock.waiter # queued under its `owner_name`
function grant:join()
  local record = self.lock.record
  local waiter = waiting.join(self.lock.session, self:channel(),
    record.policy.wakes, record)
  waiter.owner_name = self.owner_name
  return waiter
end

--- Continues a waiter under this grant's owner name. If it is queued under
--- another name, leaves that place.
---@param waiter rlock.waiter
function grant:admit(waiter)
  local former = waiter.owner_name
  if former == self.owner_name then return end
  waiter.owner_name = self.owner_name
  requests.leave_place(self.lock.session, self.lock.record, former)
end

--- Releases all holds, because the task has ended.
function grant:give_up()
  self.is_given_up = true               -- for a request in flight
  if self.acting then self.acting = turn.CONTENDED end
  if self.acting or #self.holds == 0 then return end
  holds.end_all(self.holds)
  self.holds, self.acting = NONE, true
  self:end_it("the task ended without unlocking it")
  local session = self.lock.session
  requests.roll_back(self, self.is_unsure and session.lease
    or max(self.valid_until - session.host.now(), 0))
  self:reset()
  if not self.is_rolling_back then turn.pass(self) end
  self:recycle()
end

--- Has its task ended, with nothing left that could release it?
---@return boolean
---@return boolean # whether the task has ended
function grant:is_abandoned()
  local host = self.lock.session.host
  if not host.is_over(self.owner) then return false, false end
  return not holds.are_referenced(self.holds), true
end

--- The current state: "held", "at_risk", "lost" or "free".
function grant:now_is()
  local is_held = self.state == "held" or self.state == "at_risk"
  return is_held and self:valid_for() == 0 and "lost" or self.state
end

--- Marks the grant as lost without a release, so only the lease ends it. The
--- task continues under a new owner name, so it cannot re-enter the lock.
---@param reason string
function grant:abandon(reason)
  local session = self.lock.session
  self.is_unsure = nil
  session.watchdog:lose(self, reason)
  session:outlive()
  owners.renumber(self.owner, self.lock.record.family)
end

--- Keeps a lost grant referenced by its task until it is unlocked, even if
--- nothing else refers to the lock. If the task ends first, the grant ends with
--- it: the watchdog refers to grants that are held, not to lost ones.
function grant:remember()
  local owner = self.owner
  if owner.is_named then return end
  owner.lost = owner.lost or {}
  owner.lost[self] = true
  setmetatable(self.lock.record.grants, BY_TASK)
end

--- Detaches a lost grant, which no task will release, from its record, unless a
--- request is in progress. The server may keep it for longer if the outcome of
--- its last request is unknown: then releases it in the background.
function grant:drop()
  if self.acting then return end
  if self.is_unsure then
    self.acting, self.is_unsure = true, nil
    requests.release_lost(self, self.lock.session.lease)
  end
  if self.owner then self:detach() end
end

--- Seconds for which the lock is certainly ours.
function grant:valid_for()
  if self.state == "lost" or self.state == "free" then return 0 end
  local session, ends = self.lock.session, self.valid_until
  local bound = session.server.bound
  if bound and bound < ends then ends = bound end
  return max(0, ends - session.host.now())
end

--- Runs commands on the server if the hold is still held there.
---@param commands table arrays of strings and numbers
---@return any ... # as effect.run
function grant:effect(commands)
  return require("rlock.lock.effect").run({ self }, commands)    -- on first use
end

--- Calls fn(object, reason) once: when the grant is lost, or now if it is.
---@return boolean # whether there is a hold to lose
function grant:when_lost(fn, object)
  local session = self.lock.session
  if #self.holds == 0 then
    return false
  elseif self.state == "lost" then
    session.host.spawn(fn, object, self.lost_because)
    return true
  end
  self.on_lost = self.on_lost or {}
  table.insert(self.on_lost, { fn = fn, object = object })
  if not self.watched then session.watchdog:observe(self) end
  return true
end

return grant
