--- The requests of a grant (grant.lua): they acquire and release holds, and
--- roll back what has an unknown outcome. Each needs the grant's turn
--- (turn.lua).
---
--- Every request states the hold count that is wanted, so it is idempotent. If
--- a request is given up and its outcome is unknown, it is rolled back in the
--- background, and a task continues under a new owner name. A request
--- delivered late is never executed after a newer one: the node seals lost
--- connections (seal.lua).

local duration = require "rlock.util.duration"
local holds = require "rlock.lock.holds"
local metrics = require "rlock.util.metrics"
local owner = require "rlock.lock.owner"
local turn = require "rlock.lock.turn"
local verdicts = require "rlock.lock.verdicts"

local requests = {}

local huge, max, min = math.huge, math.max, math.min
local HOLD, ROUND_TRIP = metrics.bounds.hold, metrics.bounds.round_trip
local NONE, ONE, RENEWED = holds.NONE, holds.ONE, holds.RENEWED

-- Counts as strings, for Redis.
local COUNT = {}
for i = 0, 16 do COUNT[i] = ("%d"):format(i) end

local function count_text(n) return ("%d"):format(n) end

--- A count of holds, for Redis.
function requests.count_text(n) return COUNT[n] or count_text(n) end

--- Ends the turn, unless a rollback in the background keeps it.
---@return any ... # its further arguments
function requests.passed_on(self, a, b, c, d)
  if self.acting == true then
    self.acting = false
  else
    if not self.is_rolling_back then turn.pass(self) end
    if self.is_given_up then self:give_up() end
  end
  return a, b, c, d
end

local passed_on = requests.passed_on

-- Seconds of lease that the holds need from now on, and whether the watchdog
-- must renew any of them.
local function needed(self, now)
  local seconds, watched =
    holds.needed(self.holds, now, self.lock.session.lease)
  return max(seconds, duration.least_lease), watched
end

--- The arguments of a renewal.
---@param now number by host.now()
---@return integer # the lease, in milliseconds
---@return string # the count of holds
function requests.renewal(self, now)
  local list, session = self.holds, self.lock.session
  if list == ONE then return session.lease_ms, "1" end
  local seconds, n = needed(self, now), #list
  return seconds == session.lease and session.lease_ms or duration.ms(seconds),
    COUNT[n] or count_text(n)
end

-- rolling back -------------------------------------------------------------

-- Leaves a place in the server's queue of waiters. May wait.
local function send_leave(session, record, name)
  local now = session.host.now()
  record.target:run("leave", now + session.lease, now, name, nil, session.id)
end

-- In the background, releases the lock (with `seconds`, and retries for that
-- long) and leaves the server's queue of waiters, where a place may outlast a
-- lease. The caller has the turn. If the owner keeps its name, this task takes
-- over the turn, and the owner's next request waits for it. Otherwise the grant
-- ends here, and the task continues with a new grant and a new number.
-- `is_retried`: the caller's request is retried, so its waiter needs the name.
local function release_in_background(self, seconds, is_retried)
  local session, record, name = self.lock.session, self.lock.record,
    self.owner_name
  local is_kept = is_retried or self:keeps_name()
  if is_kept then
    self.is_rolling_back, self.acting = true, turn.CONTENDED
  else
    owner.renumber(self.owner, record.family)
    record.undone = record.undone or {}
    record.undone[name] = true
    self:detach()
    self.owner = false
  end
  local channel = self:channel()
  local function ended()
    session.wakeup:register_first(channel)
    if not is_kept then
      record.undone[name] = nil
      return
    end
    self.is_rolling_back = nil
    turn.pass(self)
    self:recycle()
  end
  local function send()
    if seconds then
      local now = session.host.now()
      record.target:run("release", now + seconds, now, name, "1", "0")
    end
    if record.target.leaves then send_leave(session, record, name) end
  end
  session:background(function()
    session.host.guard(ended, nil, send)
    ended()
  end)
end

--- Rolls back a request whose outcome is unknown, by a release: releases are
--- idempotent. Not needed if holds are left, because every later request states
--- their count. The caller has the turn, which the rollback may keep.
---@param seconds number for which to retry the release
---@param is_retried? boolean the request is retried by its waiter
function requests.roll_back(self, seconds, is_retried)
  if #self.holds == 0 then release_in_background(self, seconds, is_retried) end
end

local roll_back = requests.roll_back

--- Releases the lock in the background, although the grant is lost. The caller
--- has the turn.
---@param seconds number for which to retry that
function requests.release_lost(self, seconds)
  release_in_background(self, seconds)
  passed_on(self)
end

--- Leaves the server's queue of waiters, if it has one. A rollback in progress
--- does so itself, before the owner's next request. Keeps the place if the same
--- owner waits for the lock in another task, or holds it. Where locks are
--- handed over, a holder leaves: the lock would be reserved for it later. A
--- request of this owner in flight may get a place, and lose it by that. Then
--- the waiter retries at its next poll, or when the reply to a heartbeat names
--- it.
function requests.leave(self)
  local session, record = self.lock.session, self.lock.record
  local is_held = #self.holds > 0
  if not self.owner or not record.target.leaves or self.is_rolling_back
      or is_held and not record.target.hands_over
      or session.wakeup:has(self:channel(), self.owner_name) then
    return
  end
  if self.acting or is_held then
    return requests.leave_place(session, record, self.owner_name)
  end
  self.acting = true
  release_in_background(self)
  passed_on(self)
end

--- Leaves, in the background, a place in the server's queue of waiters, if it
--- has one.
---@param session rlock.session
---@param record rlock.record of the lock
---@param name any the owner name that has the place
function requests.leave_place(session, record, name)
  local target = record.target
  if not target.leaves or session.wakeup:has(target:channel(name), name) then
    return
  end
  session:background(function() send_leave(session, record, name) end)
end

-- In nginx, a request ends without a reply if its job dies with its timer. So
-- its outcome is unknown, and the turn is passed on here.
local function died(self)
  if self.is_rolling_back then return end
  self.is_unsure = #self.holds > 0 or nil
  roll_back(self, self.lock.session.lease)
  passed_on(self)
end

local function died_acquiring(self)
  self.lock.session:work_done()
  died(self)
end

-- The results of a request whose job has survived.
local function survived(cancel, ...)
  cancel()
  return ...
end

-- After a retried request: its first attempt may still be in the network, and
-- a node of a cluster may execute it when the slot returns. So later grants of
-- the owner need another name.
local function disown(self)
  owner.renumber(self.owner, self.lock.record.family)
end

-- acquiring ---------------------------------------------------------------

-- Records a hold.
local function add_hold(self, ends, lease, hold, sent, now)
  local lock, list = self.lock, self.holds
  local series, seconds, i = lock.record.series, now - sent, 1
  local trips = series.round_trip          -- metrics.observe, without a call
  while seconds > ROUND_TRIP[i] do i = i + 1 end
  trips[i], trips.sum = trips[i] + 1, trips.sum + seconds
  series.acquired = series.acquired + 1
  if not hold then
    hold = lease and { ends = ends, is_over = false } or RENEWED
  elseif lease then
    hold.ends = ends
  end
  local is_first = not list[1]
  if is_first then self.since = now end
  self.holds = is_first and hold == RENEWED and ONE or holds.add(list, hold)
  if ends > self.valid_until then self.valid_until = ends end
  self.state = "held"
  local watchdog = lock.session.watchdog
  if not lease then
    if not self.watched then self.watched = true end
    watchdog:watch(self, sent)
  else
    if is_first then self.watched = false end
    if not self.watched then watchdog:observe(self) end
  end
end

-- Extra arguments of the policy's acquire, by its function `extra`. If it
-- raises, the turn is passed on first.
local function extra_of(self, extra, now, wait_deadline)
  local wait = wait_deadline - now
  local is_ok, result = pcall(extra, {
    wait_ms = wait == huge and -1 or duration.ms(max(wait, 0)),
    publish = self.lock.record.target.publish,
    options = self.lock.options or {},
  })
  if is_ok then return result end
  passed_on(self)
  error(result, 0)
end

--- May this grant request another hold?
---@return boolean? # true
---@return rlock.failure? code, string? detail
function requests.may_enter(self, lease)
  local policy_ = self.lock.record.policy
  if self.lock.session.is_closed then
    return nil, "closed", "the client was closed"
  elseif policy_.reenter == false and #self.holds > 0 then
    return nil, "refused", "held by this task already, and " .. self:show()
      .. " cannot be entered twice"
  elseif not lease and not policy_.ops.renew then
    return nil, "usage", self:show() .. ": its policy has no server.renew; "
      .. "give a lease, such as { lease = 10 }"
  elseif self.state == "lost" then
    return nil, "lost", "this owner's earlier hold was lost ("
      .. self.lost_because .. "): unlock it first"
  end
  return true
end

local may_enter = requests.may_enter

--- Records a new hold, unless its lease may have ended already.
---@param value any a token or nil
---@return any ... # as `acquire`
function requests.entered(self, value, lease, hold, sent)
  local session = self.lock.session
  local ends = session.valid_until(sent, lease or session.lease,
    self.lock.drift)
  local now = session.host.now()
  if now >= ends then                 -- reply came too late
    roll_back(self, lease or session.lease, true)
    return "busy", 0
  end
  self.token = value
  add_hold(self, ends, lease, hold, sent, now)
  return "held"
end

local entered = requests.entered

--- Interprets the reply of acquire.
---@return any ... # as `acquire`
local function interpret(self, reply, lease, hold, sent)
  local session, op = self.lock.session, self.lock.record.policy.ops.acquire
  local verdict, value, detail = verdicts.of(op, reply)
  if verdict == "held" then
    return entered(self, value, lease, hold, sent)
  elseif verdict == "busy" then
    return "busy", value
  elseif verdict == "refused" then
    return nil, nil, "refused", value
  elseif verdict == "lost" then
    if #self.holds > 0 then
      session.watchdog:lose(self, "the server does not have it any more")
      return nil, nil, "lost", "the outer hold was lost: unlock it first"
    end
    verdict, value, detail = verdicts.wrong(op, reply)
  end
  roll_back(self, lease or session.lease)
  return verdict, nil, value, detail
end

--- Handles the outcome of a request: of acquire. The caller has the turn.
---@param reply any detail, may_be_applied, sent as target:run returns them
---@return any ... # as `acquire`
function requests.acquired(self, lease, hold, reply, code, detail,
    may_be_applied, sent)
  local session = self.lock.session
  if reply == nil then
    if may_be_applied then
      self.is_unsure = #self.holds > 0 or nil
      roll_back(self, lease or session.lease)
    end
    return nil, nil, code, detail
  elseif session.is_closed then
    roll_back(self, lease or session.lease)
    return nil, nil, "closed", "the client was closed"
  end
  if may_be_applied then disown(self) end
  return interpret(self, reply, lease, hold, sent)
end

---@type any, any
local acquired, send_release = requests.acquired, nil

--- Gives a hold its grant. Releases it instead if its task has ended or
--- `accept` rejects it. This keeps the turn meanwhile, so no other task of the
--- owner sees the hold.
---@return string? # "held"; nil, code, detail
---@return any ...
function requests.accepted(self, hold)
  local session = self.lock.session
  ---@type any, any, any
  local ok, code, detail = true, nil, nil
  if session.host.has_gone(self.owner) then
    ok, code, detail = nil, "closed", "the task has ended"
  elseif hold and hold.accept then
    ok, code, detail = hold:accept()
  end
  if ok then
    if hold then hold.grant = self end
    return "held"
  end
  local now = session.host.now()
  send_release(self, now + 2 * session.timeout, hold, now)
  return nil, nil, code, detail
end

local accepted = requests.accepted

-- Sends the request and passes the turn on.
local function send_acquire(self, deadline, lease, hold, now, extra)
  local session, record = self.lock.session, self.lock.record
  if self.state ~= "free" or session.is_closed
      or not (lease or record.policy.ops.renew) then
    local ok, code, why = may_enter(self, lease)
    if not ok then return passed_on(self, nil, nil, code, why) end
  end
  session.pending = session.pending + 1
  local want = #self.holds + 1
  local reply, code, detail, may_be_applied, sent = record.target:run("acquire",
    deadline, now, self.owner_name,
    lease and duration.ms(lease) or session.lease_ms, COUNT[want]
    or count_text(want), extra)
  if session.work_ended then
    session:work_done()
  else
    session.pending = session.pending - 1
  end
  if reply == nil or session.is_closed then
    return passed_on(self, acquired(self, lease, hold, reply, code, detail,
      may_be_applied, sent))
  end
  if may_be_applied then disown(self) end
  local verdict, value
  if reply == "held" then                               -- the usual case
    verdict, value = entered(self, nil, lease, hold, sent)
  else
    verdict, value, code, detail = interpret(self, reply, lease, hold, sent)
  end
  -- Without a `hold`, only a host that ends tasks can have ended this one.
  if verdict == "held" and (hold or session.host.ends_tasks) then
    verdict, value, code, detail = accepted(self, hold)
  end
  return passed_on(self, verdict, value, code, detail)
end

--- If the last hold of the other side is being released, by a rollback or in
--- another task, waits for that. It has the same name, and the server refuses
--- that a reader becomes a writer.
---@return boolean? # true
---@return rlock.failure? code
---@return string? detail # for "cancelled", the value to raise
local function await_release(peer, deadline)
  if not (peer.is_rolling_back or peer.acting and #peer.holds == 0
      and peer.state ~= "free") then
    return true
  end
  local is_ours, code, detail = turn.wait(peer, deadline)
  if not is_ours then return nil, code, detail end
  turn.pass(peer)
  peer:recycle()
  return true
end

--- Requests one more hold from the server.
---@param deadline number of the request, by host.now()
---@param lease? number seconds; nil: renewed by the watchdog
---@param hold? table the table that becomes the hold; its optional method
---  `accept` returns true, or nil, code, detail to give the hold back
---@param now number by host.now()
---@param wait_deadline number of the whole wait; `now` for one attempt
---@param registration? table further arguments, which register a waiter
---@return string? # "held"; "busy"; nil, code, detail; for "cancelled", the
---  value to raise
---@return integer? # milliseconds until a retry may succeed
---@return any ...
function requests.acquire(self, deadline, lease, hold, now, wait_deadline,
    registration)
  if self.acting then
    local is_ours, code, detail = turn.wait(self, deadline)
    if not is_ours then return nil, nil, code, detail end
    now = self.lock.session.host.now()
  else
    self.acting = true
  end
  local policy_ = self.lock.record.policy
  local peer = policy_.peer and self:peer()
  if peer then
    local ok, code, detail = await_release(peer, deadline)
    if not ok then return passed_on(self, nil, nil, code, detail) end
    now = self.lock.session.host.now()
  end
  local extra = policy_.extra
  if extra then
    extra = extra_of(self, extra, now, wait_deadline)
  else
    extra = registration
  end
  local on_death = self.lock.session.host.on_death
  if on_death then
    return survived(on_death(died_acquiring, self),
      send_acquire(self, deadline, lease, hold, now, extra))
  end
  return send_acquire(self, deadline, lease, hold, now, extra)
end

-- releasing ---------------------------------------------------------------

-- Replicas do not confirm a release. So it neither extends the validity nor
-- postpones the renewal.
local function kept(self, sent, seconds)
  local watchdog = self.lock.session.watchdog
  local span = self.lock.session.valid_until(sent, seconds, self.lock.drift)
    - sent
  self.valid_until = min(self.valid_until, sent + span)
  if self.watched then
    self.state = "held"
    watchdog:watch(self, self.valid_until - span)
  else
    watchdog:observe(self)
  end
  return true
end

local function lost(self)
  local because = self.lost_because
    or "the server did not have it any more when it was unlocked"
  self.lock.session.watchdog:lose(self, because)
  if #self.holds == 0 then self:reset() end
  return nil, "lost", because
end

-- The release failed: retries it in the background if no hold is left. The
-- lease ends the hold at the latest.
local function unconfirmed(self, code, detail, left)
  left = max(left, 0)
  self.is_unsure = #self.holds > 0 or nil
  roll_back(self, left)
  if #self.holds == 0 then self:reset() end
  if code == "cancelled" then return nil, code, detail end
  return nil, code, ("%s; the lease ends it in %.1f s at the latest"):format(
    detail, left)
end

--- Removes a hold, before the request that releases it. The caller has the
--- turn.
---@param hold? table as for `release`
---@param now number by host.now()
---@return number? # seconds for which it was still valid; nil: there is nothing
---  to send, and the other results are those of `release`
---@return any # seconds of lease that the other holds need, or 1
---@return any ...
function requests.removed(self, hold, now)
  if self.holds == ONE and not hold then                  -- the usual case
    self.holds = NONE
  else
    hold, self.holds = holds.remove(self.holds, hold)
    if not hold then
      return nil, nil, "not_held", "this task does not hold the lock"
    end
    hold.is_over = true
  end
  local session = self.lock.session
  if self.state == "lost" then
    if self.is_unsure then roll_back(self, session.lease) end
    return nil, lost(self)
  end
  local left = self.valid_until - now
  if not self.holds[1] then
    session.watchdog:remove(self)
    local times, held, i = self.lock.record.series.hold, now - self.since, 1
    while held > HOLD[i] do i = i + 1 end      -- metrics.observe
    times[i], times.sum = times[i] + 1, times.sum + held
    return left, 1
  end
  local seconds, watched = needed(self, now)
  if watched ~= self.watched then self.watched = watched end
  self.valid_until = min(self.valid_until,
    session.valid_until(now, seconds, self.lock.drift))
  session.watchdog:lower(self, now)
  return left, seconds
end

--- Handles the outcome of a request: of release. The caller has the turn.
---@param left any seconds as `removed` returns them
---@param reply any detail, may_be_applied, sent as target:run returns them
---@return any ... # as `release`
function requests.released(self, left, seconds, reply, code, detail,
    may_be_applied, sent)
  if reply == nil then return unconfirmed(self, code, detail, left) end
  if may_be_applied then disown(self) end
  local op, want = self.lock.record.policy.ops.release, #self.holds
  local verdict = verdicts.of(op, reply)
  if verdict == "freed" and want == 0 then
    self:clear()
    return true
  elseif verdict == "kept" and want > 0 then
    -- The leases of the outer holds may end while the request is in flight. The
    -- watchdog has reported that loss. The server kept this hold until now.
    if self.state == "lost" then return true end
    return kept(self, sent, seconds)
  elseif verdict == "lost" and may_be_applied and left > 0 and want == 0 then
    -- The release was retried while the hold was still valid, and the first
    -- attempt may have freed it. The lock was held until then: a success.
    self:reset()
    return true
  elseif verdict == "lost" then
    return lost(self)
  end
  if want == 0 then self:reset() end
  return verdicts.wrong(op, reply)
end

local removed, released = requests.removed, requests.released

--- Wakes a waiter of this client; its request follows the release. Does nothing
--- for a fair lock, whose queue on the server decides.
---@return table? # the channel
---@return table? # the waiter
---@return table? # further arguments of the release: the waiter's entry
local function hand_over(self, now)
  local session = self.lock.session
  local name = not self.lock.record.policy.ops.refresh and self:channel()
  if not name then return nil end
  local channel, waiter = session.wakeup:hand_over(name, now)
  return channel, waiter, waiter and channel.inbox
    and { session.id .. " " .. waiter.owner_name } or nil
end

function send_release(self, deadline, hold, now)
  ---@type any, any, any, any
  local session, channel, waiter, entry = self.lock.session, nil, nil, nil
  local left, seconds, failure, why = removed(self, hold, now)
  if not left then return seconds, failure, why end
  local want = #self.holds
  if want == 0 and session.wakeup.count > 0 then
    channel, waiter, entry = hand_over(self, now)
  end
  local reply, code, detail, may_be_applied, sent =
    self.lock.record.target:run("release", deadline, now, self.owner_name,
      want == 0 and "1" or duration.ms(seconds), COUNT[want]
      or count_text(want), entry)
  local is_freed = want == 0 and (reply == "freed"
    or type(reply) == "table" and reply[1] == "freed" and reply[2] == nil)
  if channel then session.wakeup.handed_over(channel, waiter, is_freed) end
  if entry and not waiter.channel then
    -- The waiter has left, and its request may have come before the release.
    ---@cast waiter -nil
    requests.leave_place(session, self.lock.record, waiter.owner_name)
  end
  if is_freed and not may_be_applied then               -- the usual case
    self:clear()
    return true
  end
  return released(self, left, seconds, reply, code, detail, may_be_applied,
    sent)
end

-- As passed_on; the caller does not use the grant afterwards.
local function ended(self, ok, code, detail)
  passed_on(self)
  self:recycle()
  return ok, code, detail
end

-- Releases a hold in the background, when its turn comes.
local function release_later(self, hold)
  self.lock.session:background(function()
    if not hold.is_over then self:release(hold) end
  end)
end

-- The caller got no turn to release its most recent hold, and may never retry.
-- So the watchdog stops renewing the hold, and a background task releases it.
-- Does nothing if no such hold remains, or if it is lost.
local function left_to_lease(self)
  if self.state ~= "held" and self.state ~= "at_risk" then return end
  local session = self.lock.session
  local list, hold = holds.leave_to_lease(self.holds, self.valid_until)
  self.holds = list
  if not hold then return end
  local _, watched = needed(self, session.host.now())
  if self.watched and not watched then
    self.watched = false
    session.watchdog:observe(self)
  end
  release_later(self, hold)
end

--- Releases one hold.
---@param hold? table default: the most recent; those of objects and of several
---  locks come last
---@return boolean? # true
---@return rlock.failure? code # "not_held", "lost", why the request failed, or
---  "cancelled"
---@return any detail # for "cancelled", the value to raise
function requests.release(self, hold)
  local session = self.lock.session
  local now = session.host.now()
  local deadline = now + 2 * session.timeout   -- allows one lost reply
  if self.acting then
    local is_ours, code, detail = turn.wait(self, deadline)
    if not is_ours then
      if hold then release_later(self, hold) else left_to_lease(self) end
      self:recycle()
      return nil, code, detail
    end
    now = session.host.now()
  else
    self.acting = true
  end
  if session.host.on_death then
    return survived(session.host.on_death(died, self),
      ended(self, send_release(self, deadline, hold, now)))
  end
  return ended(self, send_release(self, deadline, hold, now))
end

return requests
