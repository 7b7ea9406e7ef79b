--- One owner's grant of one lock: its holds, and the time until which the
--  server certainly keeps the lock for it. A *hold* is one successful `lock`;
--  each has its own lease. This file sends the requests and interprets the
--  replies; waiting and retries are in lock.lua.
--
--  Every request states the hold count that is wanted, so it is idempotent. If
--  a request is given up and its outcome is unknown, it is undone in the
--  background, and a task continues under a new owner name. A request
--  delivered late is never executed after a newer one: the node seals lost
--  connections (seal.lua).
--
--  state: free -> held <-> at_risk -> lost; free again after the last unlock.

local verdicts = require "rlock.verdicts"
local duration = require "rlock.duration"
local metrics = require "rlock.metrics"
local policy = require "rlock.policy"
local waiting = require "rlock.waiting"
local remote = require "rlock.redis.remote"

local grant = {}
grant.__index = grant

local huge, max, min = math.huge, math.max, math.min
local HOLD, ROUND_TRIP = metrics.bounds.hold, metrics.bounds.round_trip

-- A hold is a table: `ends` is the time at which its lease ends; without it the
-- watchdog renews the hold. If `is_transferable`, any task may release it;
-- `object` is a weak reference to the program's object for it. The part of a
-- multi-lock or red lock refers to the whole as `hold`.

-- The hold of each `lock` without a lease: the watchdog renews it. Shared, so
-- that 100 000 of them take no memory. Nothing reads its `is_over`.
local RENEWED = {}

local SPARES = 16                       -- grants kept for reuse
local NONE = {}                         -- shared empty list of holds

-- Counts as strings, for Redis.
local COUNT = {}
for i = 0, 16 do COUNT[i] = ("%d"):format(i) end

-- The owner name under which a party holds the other side of a read/write lock,
-- or nil. Both sides must use the same name.
local function twin_owner(lock, party)
  local twin = lock.site.policy.twin
  local site = twin
    and lock.session:known_site(policy.load(twin), lock.site.name)
  local granted = site and site.grants[party]
  return granted and granted.holds[1] and granted.owner
end

local function owner_of(lock, party)
  return lock.owner or twin_owner(lock, party)
    or lock.session:owner_of(party, lock.site.family)
end

--- @tparam table lock the handle
-- @param party       the owner: a task, or an explicit owner's name
function grant.new(lock, party)
  local spares = lock.session.spares
  local n = #spares
  local self = spares[n]
  if self then
    spares[n] = nil
  else
    self = setmetatable({ holds = NONE, state = "free", valid_until = 0 },
      grant)
  end
  self.lock, self.party = lock, party
  self.owner = owner_of(lock, party)
  lock.site.grants[party] = self
  if party.grants then party.grants[self] = true end
  return self
end

--- The lock's kind and name, for messages.
function grant:show() return self.lock:show() end

local function count_text(n) return COUNT[n] or ("%d"):format(n) end

-- The owner name may have changed while this request waited for its turn.
function grant:rename()
  if #self.holds == 0 then self.owner = owner_of(self.lock, self.party) end
end

-- turns -------------------------------------------------------------------

-- Several tasks may share a grant (an explicit owner, a transferred hold), so
-- its requests are serialized.
local function wait_for_turn(self, deadline)
  local host = self.lock.session.host
  local event = host.event()
  local queue = self.queue or {}
  self.queue = queue
  queue[#queue + 1] = event
  local is_ours, code, unwind = event:pause(deadline - host.now())
  if is_ours then return true end
  for i, other in ipairs(queue) do
    if other == event then
      table.remove(queue, i)
      if not queue[1] then self.queue = nil end
      if is_ours == nil then return nil, code, unwind end
      return nil, "timeout", "another request of this owner is in flight"
    end
  end
  self:pass_turn()                    -- the turn came as the wait ended
  return nil, code or "timeout", unwind or "no time left"
end

function grant:pass_turn()
  local queue = self.queue
  if not queue then
    self.acting = nil
    return
  end
  local next_one = table.remove(queue, 1)
  if not queue[1] then self.queue = nil end
  next_one:set()
end

-- Passes the turn on, unless an earlier request is still being settled.
local function passed_on(self, ...)
  if not self.settling then self:pass_turn() end
  if self.is_given_up then self:give_up() end
  return ...
end

-- what the holds need -----------------------------------------------------

-- Seconds of lease that the holds need from now on, and whether the watchdog
-- must renew any of them.
local function needed(self, now)
  local ends, watched, session = 0, false, self.lock.session
  for _, hold in ipairs(self.holds) do
    if hold.ends then ends = max(ends, hold.ends) else watched = true end
  end
  local seconds = ends - now
  if watched then seconds = max(seconds, session.lease) end
  return max(seconds, duration.least_lease), watched
end

--- The arguments of a renewal.
-- @tparam number now by host.now()
-- @treturn integer the lease, in milliseconds
-- @treturn string the count of holds
function grant:renewal(now)
  return duration.ms((needed(self, now))), count_text(#self.holds)
end

--- Marks the grant lost without a request to the server.
function grant:end_it(why)
  local session = self.lock.session
  session.watchdog:remove(self)
  metrics.observe(self.lock.site.series.hold, session.host.now() - self.since)
  self.state, self.lost_because, self.on_lost = "lost", why, nil
end

-- Detaches the grant from its party, which can then get a new one.
local function vacate(self)
  local party = self.party
  self.lock.site.grants[party] = nil
  if party.grants then party.grants[self] = nil end
  if party.lost then party.lost[self] = nil end
end

-- Frees a grant without holds, unless other tasks wait for a turn or a request
-- is being settled. The table is reused.
local function forget(self)
  local lock, spares = self.lock, self.lock.session.spares
  lock.session.watchdog:remove(self)
  self.state, self.watched, self.on_lost, self.token = "free", nil, nil, nil
  self.valid_until, self.lost_because, self.is_unsure = 0, nil, nil
  if self.queue or self.settling then return end
  vacate(self)
  self.party, self.is_given_up = nil, nil
  if #spares < SPARES then
    self.lock = nil
    spares[#spares + 1] = self
  end
end

--- Frees the grant if it has no holds and no request in progress.
function grant:sweep()
  if self.state == "free" and not self.acting and self.party then
    forget(self)
  end
end

-- acquiring ---------------------------------------------------------------

-- In the background, leaves the server's queue of waiters and, if `releases`,
-- releases the lock; retries for `seconds`. A task continues under a new owner
-- number. An explicit owner, or one that holds the other side of a read/write
-- lock, keeps its name: its next request waits for this to finish.
local function tell_later(self, seconds, releases)
  local session, site, owner = self.lock.session, self.lock.site, self.owner
  local ops, publish = site.policy.ops, session.publish
  local keeps_name = type(self.party) == "string"
    or twin_owner(self.lock, self.party)
  if keeps_name then
    self.settling = true
  else
    session:renumber(self.party, site.family)
  end
  session:background(function()
    local now = session.host.now()
    local deadline = now + seconds
    if releases then
      remote.run(session.node, ops.release, deadline, now, site.keys, owner,
        "1", "0", publish)
    end
    if ops.leave then
      remote.run(session.node, ops.leave, deadline, session.host.now(),
        site.keys, owner, publish)
    end
    if keeps_name then
      self.settling = nil
      self:pass_turn()
      self:sweep()
    end
  end)
end

-- The outcome of a request is unknown, so release: releases are idempotent. Not
-- needed if holds are left, because every later request states their count.
local function settle(self, seconds)
  if #self.holds == 0 then tell_later(self, seconds, true) end
end

local function entered(self, ends, lease, hold, sent, now)
  local lock, holds = self.lock, self.holds
  local series, seconds, i = lock.site.series, now - sent, 1
  local trips = series.round_trip          -- metrics.observe, without a call
  while seconds > ROUND_TRIP[i] do i = i + 1 end
  trips[i], trips.sum = trips[i] + 1, trips.sum + seconds
  series.acquired = series.acquired + 1
  if not hold then
    hold = lease and { ends = ends, is_over = false } or RENEWED
  elseif lease then
    hold.ends = ends
  end
  local n = #holds
  if n == 0 then
    self.since = now
    if holds == NONE then
      holds = {}
      self.holds = holds
    end
  end
  holds[n + 1] = hold
  if ends > self.valid_until then self.valid_until = ends end
  self.state = "held"
  local watchdog = lock.session.watchdog
  if not lease then
    self.watched = true
    watchdog:watch(self, sent)
  elseif not self.watched then
    watchdog:observe(self)
  end
  return "held"
end

-- Extra arguments of the policy's acquire.
local function extra_of(self, now, wait_deadline)
  local extra = self.lock.site.policy.extra
  if not extra then return nil end
  local wait = wait_deadline - now
  return extra {
    wait_ms = wait == huge and -1 or duration.ms(max(wait, 0)),
    publish = self.lock.session.publish,
    options = self.lock.options or {},
  }
end

-- May this grant request another hold?
local function may_enter(self, lease)
  local policy_ = self.lock.site.policy
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

-- Interprets the reply of acquire.
local function interpret(self, reply, lease, hold, sent)
  local session, op = self.lock.session, self.lock.site.policy.ops.acquire
  local verdict, value, detail = verdicts.of(op, reply)
  if verdict == "lost" and #self.holds == 0 then
    verdict, value, detail = verdicts.wrong(op, reply)
  end
  if not verdict then
    settle(self, lease or session.lease)
  elseif verdict == "held" then
    local ends = session.valid_until(sent, lease or session.lease,
      self.lock.drift)
    local now = session.host.now()
    if now >= ends then                 -- reply came too late
      settle(self, lease or session.lease)
      return "busy", 0
    end
    self.token = value
    return entered(self, ends, lease, hold, sent, now)
  elseif verdict == "busy" then
    return "busy", value
  elseif verdict == "lost" then
    session.watchdog:lose(self, "the server does not have it any more")
    return nil, "lost", "the outer hold was lost: unlock it first"
  elseif verdict == "refused" then
    return nil, "refused", value
  end
  return nil, value, detail
end

local send_release

-- Gives a hold its grant, or releases the hold if it is no longer wanted: its
-- task has ended, or `accept` rejects it. The turn is kept meanwhile, so no
-- other task of the owner sees the hold.
local function accepted(self, hold, verdict, ...)
  if verdict ~= "held" then return verdict, ... end
  local session = self.lock.session
  local ok, code, detail = true, nil, nil
  if session.host.has_gone(self.party) then
    ok, code, detail = nil, "closed", "the task has ended"
  elseif hold and hold.accept then
    ok, code, detail = hold:accept()
  end
  if ok then
    if hold then hold.grant = self end
    return verdict, ...
  end
  local now = session.host.now()
  send_release(self, now + 2 * session.timeout, hold, now)
  return nil, code, detail
end

-- Sends the request and passes the turn on.
local function send_acquire(self, deadline, lease, hold, now, extra)
  do
    local ok, code, why = may_enter(self, lease)
    if not ok then return passed_on(self, nil, code, why) end
  end
  local session, site = self.lock.session, self.lock.site
  session.pending = session.pending + 1
  local reply, code, detail, may_be_applied, sent = remote.run(session.node,
    site.policy.ops.acquire, deadline, now, site.keys, self.owner,
    lease and duration.ms(lease) or session.lease_ms,
    count_text(#self.holds + 1), nil, extra)
  session:work_done()
  if reply == nil then
    if may_be_applied then settle(self, lease or session.lease) end
    return passed_on(self, nil, code, detail)
  elseif session.is_closed then
    settle(self, lease or session.lease)
    return passed_on(self, nil, "closed", "the client was closed")
  end
  return passed_on(self, accepted(self, hold,
    interpret(self, reply, lease, hold, sent)))
end

--- Requests one more hold from the server.
-- @tparam number deadline of the request, by host.now()
-- @tparam number|nil lease seconds; nil: renewed by the watchdog
-- @tparam table|nil hold the table that becomes the hold; its optional method
--   `accept` returns true, or nil, code, detail to give the hold back
-- @tparam number now    by host.now()
-- @tparam number wait_deadline of the whole wait; `now` for one attempt
-- @treturn[1] string "held"
-- @treturn[2] string "busy"
-- @treturn[2] integer milliseconds until a retry may succeed
-- @treturn[3] nil, code, detail; for "cancelled", the value to raise
function grant:acquire(deadline, lease, hold, now, wait_deadline)
  local extra = extra_of(self, now, wait_deadline)
  if self.acting then
    local is_ours, code, detail = wait_for_turn(self, deadline)
    if not is_ours then return nil, code, detail end
    self:rename()
  end
  self.acting = true
  return send_acquire(self, deadline, lease, hold, now, extra)
end

--- The channel on which releases are published, or nil.
function grant:channel()
  local site = self.lock.site
  return site.policy.channel and site.policy.channel(site.keys, self.owner)
end

--- Joins the client's waiters for the lock, see waiting.join.
function grant:join()
  return waiting.join(self.lock.session, self:channel(),
    self.lock.site.policy.wakes)
end

--- Leaves the policy's queue of waiters, if it has one. If another request of
--  the same explicit owner is in flight, that one still needs the place. A hold
--  that was granted but no longer wanted has been released already.
function grant:leave()
  if not self.party or #self.holds > 0
      or not self.lock.site.policy.ops.leave then
    return
  end
  if type(self.party) == "string" then
    if self.acting then return end
    self.acting = true
  end
  tell_later(self, self.lock.session.lease)
end

-- releasing ---------------------------------------------------------------

-- Skips the holds of objects and multi-locks: each releases its own, and a task
-- of the same owner does not know of them.
local function last_of(holds)
  for i = #holds, 1, -1 do
    if not (holds[i].object or holds[i].hold) then return holds[i] end
  end
  return holds[#holds]
end

local function remove(self, hold)
  local holds = self.holds
  hold = hold or last_of(holds)
  for i = #holds, 1, -1 do
    if holds[i] == hold then return table.remove(holds, i) end
  end
end

local function kept(self, sent, seconds, watched)
  local watchdog = self.lock.session.watchdog
  self.watched = watched
  self.valid_until = self.lock.session.valid_until(sent, seconds,
    self.lock.drift)
  if watched then
    self.state = "held"
    watchdog:watch(self, sent)
  else
    watchdog:observe(self)
  end
  return true
end

local function lost(self)
  local because = self.lost_because
    or "the server did not have it any more when it was unlocked"
  self.lock.session.watchdog:lose(self, because)
  if #self.holds == 0 then forget(self) end
  return nil, "lost", because
end

-- The release failed: retries it in the background if no hold is left. The
-- lease ends the hold at the latest.
local function untold(self, code, detail, left)
  left = max(left, 0)
  settle(self, left)
  if #self.holds == 0 then forget(self) end
  if code == "cancelled" then return nil, code, detail end
  return nil, code, ("%s; the lease ends it in %.1f s at the latest"):format(
    detail, left)
end

-- "lost" in reply to a retried release: if the hold was still certainly valid,
-- the first request may have freed it, so the work was protected to its end.
local function answered_lost(self, may_be_applied, left)
  if may_be_applied and left > 0 and #self.holds == 0 then
    forget(self)
    return true
  end
  return lost(self)
end

function send_release(self, deadline, hold, now)
  hold = remove(self, hold)
  if not hold then
    return nil, "not_held", "this task does not hold the lock"
  end
  hold.is_over = true
  if self.state == "lost" then
    if self.is_unsure then settle(self, self.lock.session.lease) end
    return lost(self)
  end
  local session, site = self.lock.session, self.lock.site
  local left, want, seconds, watched = self.valid_until - now, #self.holds, 1
  if want == 0 then
    session.watchdog:remove(self)
    local holds, held, i = site.series.hold, now - self.since, 1
    while held > HOLD[i] do i = i + 1 end      -- metrics.observe
    holds[i], holds.sum = holds[i] + 1, holds.sum + held
  else
    seconds, watched = needed(self, now)
    self.watched = watched
    self.valid_until = min(self.valid_until,
      session.valid_until(now, seconds, self.lock.drift))
    session.watchdog:lower(self, now)
  end
  local reply, code, detail, may_be_applied, sent = remote.run(session.node,
    site.policy.ops.release, deadline, now, site.keys, self.owner,
    want == 0 and "1" or duration.ms(seconds), count_text(want),
    session.publish)
  if reply == nil then return untold(self, code, detail, left) end
  local verdict = verdicts.of(site.policy.ops.release, reply)
  if verdict == "freed" and want == 0 then
    forget(self)
    return true
  elseif verdict == "kept" and want > 0 then
    return kept(self, sent, seconds, watched)
  elseif verdict == "lost" then
    return answered_lost(self, may_be_applied, left)
  end
  if want == 0 then forget(self) end
  return verdicts.wrong(site.policy.ops.release, reply)
end

-- The caller cannot retry the release of a transferable hold, so a background
-- task does, when its turn comes.
local function release_later(self, hold)
  self.lock.session:background(function()
    if not hold.is_over then self:release(hold) end
  end)
end

--- Releases one hold.
-- @tparam[opt] table hold which one; default: the most recent, but one of an
--   object or of several locks only if there is no other
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string "not_held", "lost", why the request failed, or "cancelled"
-- @return[2] detail; for "cancelled", the value to raise
function grant:release(hold)
  local session = self.lock.session
  local now = session.host.now()
  local deadline = now + 2 * session.timeout   -- allows one lost reply
  if self.acting then
    local is_ours, code, detail = wait_for_turn(self, deadline)
    if not is_ours then
      if hold then release_later(self, hold) end
      return nil, code, detail
    end
  end
  self.acting = true
  return passed_on(self, send_release(self, deadline, hold, now))
end

--- Releases all holds, because the task has ended.
function grant:give_up()
  self.is_given_up = true               -- for a request in flight
  if self.acting or #self.holds == 0 then return end
  for _, hold in ipairs(self.holds) do hold.is_over = true end
  self.holds = NONE
  self:end_it("the task ended without unlocking it")
  settle(self, max(self.valid_until - self.lock.session.host.now(), 0))
  forget(self)
end

-- Can anything but its own task still release this hold?
local function is_referenced(hold)
  return hold.is_transferable and hold.object[1] ~= nil
end

--- Has its task ended, with nothing left that could release it?
-- @treturn boolean
-- @treturn boolean whether the task has ended
function grant:is_abandoned()
  local host = self.lock.session.host
  if not host.is_over(self.party) then return false, false end
  for _, hold in ipairs(self.holds) do
    if is_referenced(hold) then return false, true end
  end
  return true, true
end

--- The current state: "held", "at_risk", "lost" or "free".
function grant:now_is()
  local is_held = self.state == "held" or self.state == "at_risk"
  return is_held and self:valid_for() == 0 and "lost" or self.state
end

--- Keeps a lost grant referenced by its task until it is unlocked, even if
--  nothing else refers to the lock.
function grant:remember()
  local party = self.party
  if type(party) ~= "table" then return end
  party.lost = party.lost or {}
  party.lost[self] = true
end

--- Detaches the grant from its site, unless a request is in progress.
function grant:drop()
  if self.lock.site.grants[self.party] == self and not self.acting then
    vacate(self)
  end
end

--- Seconds for which the lock is certainly ours.
function grant:valid_for()
  if self.state == "lost" or self.state == "free" then return 0 end
  return max(0, self.valid_until - self.lock.session.host.now())
end

--- Calls fn(object, reason) once: when the grant is lost, or now if it is.
-- @treturn boolean whether there is a hold to lose
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
