--- What one owner has of one lock: its holds, and until when the server
--  certainly keeps the lock for it. A *hold* is one successful `lock`; each has
--  its own lease. This file asks the server and draws the conclusions; who
--  waits, and for how long, is lock.lua's affair.
--
--  Every request states the count of holds that is wanted, so that it is
--  idempotent. When a request is given up and its outcome is unknown, it is
--  undone in the background, and a task goes on under a new owner name. A
--  delayed copy of a request is never executed after a newer one: the node
--  sees to that (seal.lua).
--
--  state: free -> held <-> at_risk -> lost, and back to free with the last
--  unlock.

local answer = require "rlock.answer"
local deadline = require "rlock.deadline"
local naming = require "rlock.naming"
local policy = require "rlock.policy"
local remote = require "rlock.remote"

local grant = {}
grant.__index = grant

local huge, max, min = math.huge, math.max, math.min

-- A hold is `true` (the watchdog keeps it alive), the time at which its lease
-- ends, or, if it is carried about, a table with that time in `ends` and in
-- `face`, which is weak, what the program has of it. A table with `is_of_task`
-- is not carried about: only the task itself releases it.

local SPARES = 16                       -- tables kept for use again
local NONE = {}                         -- the holds of who has none; shared

-- Counts as Redis has them.
local COUNT = {}
for i = 0, 16 do COUNT[i] = ("%d"):format(i) end

-- The name under which a party holds the other side of a read/write lock, if it
-- does: both sides must know it by one name.
local function twin_owner(lock, party)
  local twin = lock.site.policy.source.twin
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
-- @param party       who holds: a task, or the name of an owner
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

--- For people: which lock this is.
function grant:show()
  local site = self.lock.site
  return ("%s lock %s"):format(site.policy.name, naming.show(site.name))
end

local function count_text(n) return COUNT[n] or ("%d"):format(n) end

-- Who waited for a turn may find that its task has a new number by now.
function grant:rename()
  if #self.holds == 0 then self.owner = owner_of(self.lock, self.party) end
end

-- turns -------------------------------------------------------------------

-- Several tasks may use one grant (an explicit owner, a hold handed on): their
-- requests go to the server one after the other.
local function wait_for_turn(self, until_)
  local host = self.lock.session.host
  local event = host.event()
  local queue = self.queue or {}
  self.queue = queue
  queue[#queue + 1] = event
  local is_ours, code, unwind = event:pause(until_ - host.now())
  if is_ours then return true end
  for i, other in ipairs(queue) do
    if other == event then
      table.remove(queue, i)
      if not queue[1] then self.queue = nil end
      if is_ours == nil then return nil, code, unwind end
      return nil, "timeout", "another task of this owner is busy with the lock"
    end
  end
  self:pass_turn()                    -- it was ours just as we gave up
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

-- Passes the turn on, unless it is needed until an earlier request is settled.
local function passed_on(self, ...)
  if not self.settling then self:pass_turn() end
  if self.is_given_up then self:give_up() end
  return ...
end

-- what the holds need -----------------------------------------------------

local function ends_of(hold)
  if hold == true then return nil end
  if type(hold) == "number" then return hold end
  return hold.ends
end

-- Seconds of lease that the holds need from now on, and whether one of them is
-- to be kept alive.
local function needed(self, now)
  local ends, watched, session = 0, false, self.lock.session
  for _, hold in ipairs(self.holds) do
    local own = ends_of(hold)
    if own then ends = max(ends, own) else watched = true end
  end
  local seconds = ends - now
  if watched then seconds = max(seconds, session.lease) end
  return max(seconds, deadline.least_lease), watched
end

--- What the watchdog needs to renew it.
-- @tparam number now by host.now()
-- @treturn integer the lease, in milliseconds
-- @treturn string the count of holds
function grant:renewal(now)
  return deadline.ms((needed(self, now))), count_text(#self.holds)
end

--- Ends it from our side, whatever the server knows.
function grant:end_it(why)
  self.lock.session.watchdog:remove(self)
  self.state, self.lost_because, self.on_lost = "lost", why, nil
end

-- Takes it from its party: another grant can be made.
local function vacate(self)
  local party = self.party
  self.lock.site.grants[party] = nil
  if party.grants then party.grants[self] = nil end
  if party.lost then party.lost[self] = nil end
end

-- Forgets a grant that holds nothing, unless others of its owner wait for their
-- turn with it. Its table serves again.
local function forget(self)
  local lock, spares = self.lock, self.lock.session.spares
  lock.session.watchdog:remove(self)
  self.state, self.watched, self.on_lost, self.token = "free", nil, nil, nil
  self.valid_until, self.lost_because = 0, nil
  if self.queue or self.settling then return end
  vacate(self)
  self.party, self.is_given_up = nil, nil
  if #spares < SPARES then
    self.lock = nil
    spares[#spares + 1] = self
  end
end

--- Forgets it if it holds nothing and nobody is at it.
function grant:sweep()
  if self.state == "free" and not self.acting and self.party then
    forget(self)
  end
end

-- asking for it -----------------------------------------------------------

-- Tells the server in the background, until it has heard it, that the owner
-- holds nothing, if `releases`, and waits for nothing. A task goes on under a
-- new number. An owner that was named keeps its name, as does one that holds
-- the other side of the lock; its next request waits until then.
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
    local until_ = now + seconds
    if releases then
      remote.run(session.node, ops.release, until_, now, site.keys, owner, "1",
        "0", publish)
    end
    if ops.leave then
      remote.run(session.node, ops.leave, until_, session.host.now(), site.keys,
        owner, publish)
    end
    if keeps_name then
      self.settling = nil
      self:pass_turn()
      self:sweep()
    end
  end)
end

-- Nobody knows whether a request was applied: tells the server that we hold
-- nothing. (If we do, every later request says how often.)
local function settle(self, seconds)
  if #self.holds == 0 then tell_later(self, seconds, true) end
end

local function entered(self, ends, lease, hold, sent)
  local holds = self.holds
  if holds == NONE then
    holds = {}
    self.holds = holds
  end
  if hold then
    hold.ends = lease and ends or nil
    holds[#holds + 1] = hold
  else
    holds[#holds + 1] = lease and ends or true
  end
  if ends > self.valid_until then self.valid_until = ends end
  self.state = "held"
  local watchdog = self.lock.session.watchdog
  if not lease then
    self.watched = true
    watchdog:watch(self, sent)
  elseif not self.watched then
    watchdog:rest(self)
  end
  return "held"
end

-- What the policy's acquire takes besides.
local function extra_of(self, now, wait_until)
  local extra = self.lock.site.policy.extra
  if not extra then return nil end
  local wait = wait_until - now
  return extra {
    wait_ms = wait == huge and -1 or deadline.ms(max(wait, 0)),
    publish = self.lock.session.publish,
    options = self.lock.options or {},
  }
end

-- Whether it makes sense to ask for one more hold.
local function may_ask(self, lease)
  local policy_ = self.lock.site.policy
  if self.lock.session.is_closed then
    return nil, "closed", "the client was closed"
  elseif policy_.source.reenter == false and #self.holds > 0 then
    return nil, "refused", "held by this task already, and " .. self:show()
      .. " cannot be entered twice"
  elseif not lease and not policy_.ops.renew then
    return nil, "usage", self:show() .. ": its policy has no server.renew; say "
      .. "how long it is to be held, as in { lease = 10 }"
  elseif self.state == "lost" then
    return nil, "lost", "this owner's earlier hold was lost ("
      .. self.lost_because .. "): unlock it first"
  end
  return true
end

-- What the answer of acquire comes to.
local function judge(self, reply, lease, hold, sent)
  local session, op = self.lock.session, self.lock.site.policy.ops.acquire
  local verdict, value, detail = answer.of(op, reply)
  if verdict == "lost" and #self.holds == 0 then
    verdict, value, detail = answer.wrong(op, reply)
  end
  if not verdict then
    settle(self, lease or session.lease)
  elseif verdict == "held" then
    local ends = session.valid_until(sent, lease or session.lease,
      self.lock.drift)
    if session.host.now() >= ends then  -- too late: it is given back
      settle(self, lease or session.lease)
      return "busy", 0
    end
    self.token = value
    return entered(self, ends, lease, hold, sent)
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

local let_go

-- What the hold does not want any more is given back before anybody else of
-- this owner has a turn, and finds it there.
local function accepted(self, hold, verdict, ...)
  if verdict ~= "held" then return verdict, ... end
  local session = self.lock.session
  local ok, code, detail = true, nil, nil
  if session.host.has_gone(self.party) then
    ok, code, detail = nil, "closed", "the task has ended"
  elseif hold and hold.accept then
    ok, code, detail = hold:accept()
  end
  if ok then return verdict, ... end
  local now = session.host.now()
  let_go(self, now + 2 * session.timeout, hold, now)
  return nil, code, detail
end

-- Asks, and passes the turn on.
local function ask(self, until_, lease, hold, now, extra)
  do
    local ok, code, why = may_ask(self, lease)
    if not ok then return passed_on(self, nil, code, why) end
  end
  local session, site = self.lock.session, self.lock.site
  session.pending = session.pending + 1
  local reply, sent, detail, may_be_applied = remote.run(session.node,
    site.policy.ops.acquire, until_, now, site.keys, self.owner,
    lease and deadline.ms(lease) or session.lease_ms,
    count_text(#self.holds + 1), nil, extra)
  session:work_done()
  if reply == nil then
    if may_be_applied then settle(self, lease or session.lease) end
    return passed_on(self, nil, sent, detail)
  elseif session.is_closed then
    settle(self, lease or session.lease)
    return passed_on(self, nil, "closed", "the client was closed")
  end
  return passed_on(self, accepted(self, hold,
    judge(self, reply, lease, hold, sent)))
end

--- Asks the server for one more hold.
-- @tparam number until_ when to give up, by host.now()
-- @tparam number|nil lease seconds; nil: keep it alive
-- @tparam table|nil hold what becomes the hold, if it is to be carried about;
--   its method `accept`, if it has one, says true, or nil, code, detail
-- @tparam number now    by host.now()
-- @tparam number wait_until when waiting ends: `now` for a single try
-- @treturn[1] string "held"
-- @treturn[2] string "busy"
-- @treturn[2] integer milliseconds until it is worth asking again
-- @treturn[3] nil, code, detail; for "cancelled", what is to be raised
function grant:acquire(until_, lease, hold, now, wait_until)
  local extra = extra_of(self, now, wait_until)
  if self.acting then
    local is_ours, code, detail = wait_for_turn(self, until_)
    if not is_ours then return nil, code, detail end
    self:rename()
  end
  self.acting = true
  return ask(self, until_, lease, hold, now, extra)
end

--- Gives up waiting, where the policy has a place for waiters. If a request of
--  the same named owner is under way, that one still wants the place. Who was
--  granted it, and could not have it any more, has given it back already.
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

-- letting it go -----------------------------------------------------------

local function take_out(self, hold)
  local holds = self.holds
  local n = #holds
  if not hold then
    local last = holds[n]
    holds[n] = nil
    return last
  end
  for i = n, 1, -1 do
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
    watchdog:rest(self)
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

-- The server could not be told: it ends with the lease at the latest.
local function untold(self, code, detail, left)
  left = max(left, 0)
  settle(self, left)
  if #self.holds == 0 then forget(self) end
  if code == "cancelled" then return nil, code, detail end
  return nil, code, ("%s; the lease ends it in %.1f s at the latest"):format(
    detail, left)
end

-- An earlier request may have freed it, while it was certainly ours: then the
-- work was protected to its end.
local function answered_lost(self, may_be_applied, left)
  if may_be_applied and left > 0 and #self.holds == 0 then
    forget(self)
    return true
  end
  return lost(self)
end

function let_go(self, until_, hold, now)
  hold = take_out(self, hold)
  if not hold then
    return nil, "not_held", "this task does not hold the lock"
  end
  if type(hold) == "table" then hold.is_over = true end
  if self.state == "lost" then return lost(self) end
  local session, site = self.lock.session, self.lock.site
  local left, want, seconds, watched = self.valid_until - now, #self.holds, 1
  if want == 0 then
    session.watchdog:remove(self)
  else
    seconds, watched = needed(self, now)
    self.watched = watched
    self.valid_until = min(self.valid_until,
      session.valid_until(now, seconds, self.lock.drift))
    session.watchdog:lower(self, now)
  end
  local reply, sent, detail = remote.run(session.node,
    site.policy.ops.release, until_, now, site.keys, self.owner,
    want == 0 and "1" or deadline.ms(seconds), count_text(want),
    session.publish)
  if reply == nil then return untold(self, sent, detail, left) end
  local may_be_applied = detail            -- by an earlier request
  local verdict = answer.of(site.policy.ops.release, reply)
  if verdict == "freed" and want == 0 then
    forget(self)
    return true
  elseif verdict == "kept" and want > 0 then
    return kept(self, sent, seconds, watched)
  elseif verdict == "lost" then
    return answered_lost(self, may_be_applied, left)
  end
  if want == 0 then forget(self) end
  return answer.wrong(site.policy.ops.release, reply)
end

-- Nobody will ask again for a hold that was carried about: it is given back
-- when its turn comes.
local function release_later(self, hold)
  self.lock.session:background(function()
    if not hold.is_over then self:release(hold) end
  end)
end

--- Gives up one hold.
-- @tparam[opt] table hold which; the last one by default
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string "not_held", "lost", why the server was not told, or
--   "cancelled"
-- @return[2] detail; for "cancelled", what is to be raised
function grant:release(hold)
  local session = self.lock.session
  local now = session.host.now()
  local until_ = now + 2 * session.timeout   -- time for one lost reply
  if self.acting then
    local is_ours, code, detail = wait_for_turn(self, until_)
    if not is_ours then
      if hold then release_later(self, hold) end
      return nil, code, detail
    end
  end
  self.acting = true
  return passed_on(self, let_go(self, until_, hold, now))
end

--- Gives back whatever is held: the task has ended.
function grant:give_up()
  self.is_given_up = true               -- for a request that is under way
  if self.acting or #self.holds == 0 then return end
  for _, hold in ipairs(self.holds) do
    if type(hold) == "table" then hold.is_over = true end
  end
  self.holds = NONE
  self:end_it("the task ended without unlocking it")
  settle(self, max(self.valid_until - self.lock.session.host.now(), 0))
  forget(self)
end

-- Is this hold in the hands of somebody besides its task? (A part of a joint
-- hold has no face.)
local function is_carried(hold)
  return type(hold) == "table" and not hold.is_of_task
    and (hold.face == nil or hold.face[1] ~= nil)
end

--- Has its task ended, and is there nobody else who could release it?
-- @treturn boolean
-- @treturn boolean whether the task has ended
function grant:is_abandoned()
  local host = self.lock.session.host
  if not host.is_over(self.party) then return false, false end
  for _, hold in ipairs(self.holds) do
    if is_carried(hold) then return false, true end
  end
  return true, true
end

--- "held", "at_risk", "lost" or "free", now.
function grant:now_is()
  local is_held = self.state == "held" or self.state == "at_risk"
  return is_held and self:valid_for() == 0 and "lost" or self.state
end

--- It was lost: its task knows that until it has unlocked it, though nobody
--  else may know the lock any more.
function grant:remember()
  local party = self.party
  if type(party) ~= "table" then return end
  party.lost = party.lost or {}
  party.lost[self] = true
end

--- Takes it from the site: nobody can ask for it any more.
function grant:drop()
  if self.lock.site.grants[self.party] == self and not self.acting then
    vacate(self)
  end
end

--- Seconds for which it is certainly ours.
function grant:valid_for()
  if self.state == "lost" or self.state == "free" then return 0 end
  return max(0, self.valid_until - self.lock.session.host.now())
end

--- Calls fn(lock, reason) once when it is lost; at once if it already is.
function grant:when_lost(fn, told)
  local session = self.lock.session
  if self.state == "lost" then
    session.host.spawn(fn, told, self.lost_because)
    return
  end
  self.on_lost = self.on_lost or {}
  table.insert(self.on_lost, { fn = fn, lock = told })
  if not self.watched then session.watchdog:rest(self) end
end

return grant
