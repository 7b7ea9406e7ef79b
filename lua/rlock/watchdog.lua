--- Keeps holds alive, and says when one is at risk and when it is lost.
--  One timer per client. A hold is renewed a third of its lease after the last
--  renewal was sent. First renewals stand in a list that is in order of time by
--  itself, because all have the same period; what is out of the ordinary (a
--  renewal that failed, a lease somebody wants to be told the end of) stands in
--  a heap. Both are O(1) or O(log n), so 100 000 holds cost no more each than
--  one does.
--
--  A hold with a lease of its own is left alone, unless its policy `restates`:
--  then other clients may shorten what keeps the hold alive in Redis. Such a
--  hold is restated in each period: the server puts the expiry back to the end
--  of the lease, and no further.
--
--  held -> at_risk         a renewal did not succeed; it is repeated
--  held, at_risk -> lost   the server says so, or the deadline has passed

local answer = require "rlock.answer"
local heap = require "rlock.heap"
local remote = require "rlock.remote"

local watchdog = {}
watchdog.__index = watchdog

local BATCH = 256        -- renewals sent at once
local IN_FLIGHT = 4      -- batches in flight
local RETRIES = 12       -- a failed renewal is repeated every lease/12
local GARBAGE = 100      -- kB, see collect()
local SHORT = 0.005      -- seconds in which nothing can be tried any more

--- @tparam table session session.lua's: host, node, lease (seconds)
function watchdog.new(session)
  return setmetatable({
    session = session,
    host = session.host,
    period = session.lease / 3,
    fresh = {},           -- grants in order of their next renewal
    flying = {},          -- grants whose renewal is under way
    resting = {},         -- grants that nothing is to be done about
    alarms = heap.new(),  -- grants that are out of the ordinary
    batches = 0,          -- in flight
  }, watchdog)
end

-- where a grant stands ----------------------------------------------------

local function append(list, grant)
  local last = list.last
  grant.list, grant.prev, grant.next = list, last, nil
  if last then last.next = grant else list.first = grant end
  list.last = grant
end

--- Takes a grant out of wherever it stands.
-- @tparam table grant
function watchdog:remove(grant)
  local list = grant.list
  if list then
    local before, after = grant.prev, grant.next
    if before then before.next = after else list.first = after end
    if after then after.prev = before else list.last = before end
    grant.list, grant.prev, grant.next = nil, nil, nil
  elseif grant.place then
    self.alarms:remove(grant)
  end
end

local function next_due(self)
  local first, alarm = self.fresh.first, self.alarms:peek()
  if first and (not alarm or first.due <= alarm.due) then return first.due end
  return alarm and alarm.due
end

--- Every grant that is held.
function watchdog:all()
  local all = {}
  for _, list in ipairs { self.fresh, self.resting, self.flying } do
    local grant = list.first
    while grant do
      all[#all + 1] = grant
      grant = grant.next
    end
  end
  for i = 1, self.alarms.n do all[#all + 1] = self.alarms[i] end
  return all
end

--- Is this grant among them still?
-- @tparam table grant
function watchdog:has(grant) return (grant.list or grant.place) ~= nil end

-- loss --------------------------------------------------------------------

--- Declares a hold lost and tells who wanted to know, once.
-- @tparam table grant
-- @tparam string reason for people
function watchdog:lose(grant, reason)
  if grant.state == "lost" or grant.state == "free" then return end
  self:remove(grant)
  grant.state, grant.lost_because = "lost", reason
  self.session:log("warn", ("lost %s: %s"):format(grant:show(), reason))
  for _, told in ipairs(grant.on_lost or {}) do
    self.host.spawn(told.fn, told.lock, reason)
  end
  grant.on_lost = nil
  if grant:is_abandoned() then
    grant:drop()
  elseif grant.remember then                    -- permits need not
    grant:remember()
  end
end

-- renewals ----------------------------------------------------------------

-- When to repeat a renewal: often enough that something is tried in whatever
-- time is left.
local function retry_at(self, grant, now)
  local left = grant.valid_until - now
  local pause = math.min(self.session.lease / RETRIES, left / 2)
  grant.due = pause < SHORT and grant.valid_until or now + pause
  self.alarms:push(grant)
end

local function not_renewed(self, grant, why, now)
  if grant.state == "held" then
    grant.state = "at_risk"
    self.session:log("warn", ("%s is at risk, valid for %.1f s more: %s")
      :format(grant:show(), math.max(0, grant.valid_until - now), why))
  end
  grant.lost_because = "not renewed in time: " .. why   -- if it comes to that
  if now >= grant.valid_until then
    self:lose(grant, grant.lost_because)
  else
    retry_at(self, grant, now)
  end
end

local function renewed(self, grant, lease, sent)
  grant.state, grant.lost_because = "held", nil
  if not grant.watched then return self:rest(grant) end
  grant.valid_until = math.max(grant.valid_until,
    self.session.valid_until(sent, lease / 1000, grant.lock.drift))
  grant.due = sent + self.period
  append(self.fresh, grant)
end

-- What the server answered to one renewal.
local function answered(self, grant, lease, reply, code, detail, sent)
  self:remove(grant)
  grant.batch = nil
  if type(reply) == "table" and reply[1] == "held" then
    renewed(self, grant, lease, sent)
  elseif type(reply) == "table" and reply[1] == "lost" then
    self:lose(grant, "expired or broken: the server does not have it any more")
  elseif reply ~= nil then
    local _, _, why = answer.wrong(grant.lock.site.policy.ops.renew, reply)
    not_renewed(self, grant, why, self.host.now())
  else
    local site = grant.lock.site
    local class, why = remote.judge(self.session.node, site.policy.ops.renew,
      code, detail, site.name)
    if class.gone then
      self:lose(grant, why)
    else
      not_renewed(self, grant, why, self.host.now())
    end
  end
end

-- The server forgot our scripts: nothing is wrong with the hold.
local function lacks_script(self, grant, code, detail)
  local site = grant.lock.site
  local op = site.policy.ops.renew
  local node = self.session.node
  if not code or not remote.judge(node, op, code, detail, site.name).forget then
    return false
  end
  remote.forget(node, op)
  return true
end

-- Is it still in this batch? Meanwhile it may have been released, or renewed
-- otherwise: then it is not ours to judge any more.
local function is_in(self, batch, grant)
  return grant.list == self.flying and grant.batch == batch
end

-- Gets the scripts that the batch needs onto the node. This may wait; a grant
-- that has left the batch meanwhile is taken out of it.
-- @return as remote.ready
local function prepare(self, batch, until_)
  local word, code, detail
  for _, grant in ipairs(batch) do
    if is_in(self, batch, grant) then
      word, code, detail = remote.ready(self.session.node,
        grant.lock.site.policy.ops.renew, until_)
      if not word then return nil, code, detail end
    end
  end
  local all, n = #batch, 0
  for i = 1, all do
    local grant = batch[i]
    batch[i] = nil
    if is_in(self, batch, grant) then
      n = n + 1
      batch[n] = grant
    end
  end
  return word
end

local function command(self, grant, word, now)
  local lease, want = grant:renewal(now)
  local site = grant.lock.site
  return lease, remote.command(self.session.node, site.policy.ops.renew, word,
    site.keys, grant.owner, lease, want, not grant.watched and "1" or nil)
end

-- Sends the renewals of a batch. No answer within a period is a failure, so
-- that there is time for another attempt.
-- @return replies, codes, details, sent and the leases asked for; or nil, code,
--   detail
local function send_batch(self, batch, now)
  local until_ = now + math.min(self.session.timeout, self.period)
  for _, grant in ipairs(batch) do
    until_ = math.min(until_, grant.valid_until)
  end
  local word, code, detail = prepare(self, batch, until_)
  if not batch[1] then return {}, {}, {} end
  if not word then return nil, code, detail end
  local commands, leases = {}, {}
  for i, grant in ipairs(batch) do
    leases[i], commands[i] = command(self, grant, word, now)
  end
  local replies, codes, details, sent =
    self.session.node:pipeline(until_, commands)
  return replies, codes, details, sent, leases
end

-- Judges the answers to a batch.
-- @return those for which the server lacked the script, if `is_second` is not
local function judge(self, batch, is_second, replies, codes, details, sent,
    leases)
  local again = {}
  for i, grant in ipairs(batch) do
    local here = is_in(self, batch, grant)
    if here and not replies then
      answered(self, grant, nil, nil, codes, details)
    elseif here and not is_second
        and lacks_script(self, grant, codes[i], details[i]) then
      grant.batch = again
      again[#again + 1] = grant
    elseif here then
      answered(self, grant, leases[i], replies[i], codes[i], details[i], sent)
    end
  end
  return again
end

local function renew(self, batch, is_second)
  local again = judge(self, batch, is_second,
    send_batch(self, batch, self.host.now()))
  if again[1] then return renew(self, again, true) end
end

local function send(self, batch)
  self.batches = self.batches + 1
  self.host.daemon(function()
    renew(self, batch)
    self.batches = self.batches - 1
    if self.change then self.change:set() end
  end)
end

local function restates(grant)
  return grant.lock.site.policy.source.restates
end

local function why_over(grant)
  if not grant.watched then return "its lease has ended" end
  return grant.lost_because or "not renewed in time"
end

-- Nobody can release it: it ends with its lease.
local function abandon(self, grant)
  grant.watched, grant.due, grant.state = false, grant.valid_until, "at_risk"
  self.session:log("warn", grant:show()
    .. " is not renewed any more: its task ended without unlocking it")
  self.alarms:push(grant)
end

-- Takes what is due out of the heap or, if nothing is due there, out of the
-- list. Never both, so that one near its end hurries only its like.
local function collect(self, now)
  local batch, alarm = {}, self.alarms:peek()
  local is_alarm, is_left = alarm and alarm.due <= now, false
  while #batch < BATCH do
    local grant, is_abandoned, has_ended = self.fresh.first, false, false
    if is_alarm then grant = self.alarms:peek() end
    if not grant or grant.due > now then break end
    self:remove(grant)
    if grant.watched then is_abandoned, has_ended = grant:is_abandoned() end
    is_left = is_left or has_ended
    if grant.valid_until <= now then
      self:lose(grant, why_over(grant))
    elseif is_abandoned then
      abandon(self, grant)
    elseif grant.watched or restates(grant) then
      append(self.flying, grant)
      grant.batch = batch
      batch[#batch + 1] = grant
    else
      grant.due = grant.valid_until
      self.alarms:push(grant)
    end
  end
  -- Does somebody still have what a task has left behind? The collector of
  -- garbage knows, which in a quiet program would take hours to get there.
  if is_left then collectgarbage("step", GARBAGE) end
  return batch
end

-- With every batch in flight (the server does not answer) nothing more is
-- sent, but losses are still told in time.
local function bury(self, now)
  local alarm = self.alarms:peek()
  while alarm and alarm.due <= now do
    self:remove(alarm)
    if alarm.valid_until <= now then
      self:lose(alarm, why_over(alarm))
    else
      retry_at(self, alarm, now)
    end
    alarm = self.alarms:peek()
  end
  return alarm and alarm.due
end

-- Forgets leases that have ended and that nobody will ever give back, because
-- their tasks have ended. All are looked at, but not often.
local function sweep(self, now)
  self.swept = now
  local grant = self.resting.first
  while grant do
    local after = grant.next
    if grant.valid_until <= now and grant:is_abandoned() then
      self:lose(grant, "its lease has ended")
    end
    grant = after
  end
end

-- The task of the watchdog. With nothing to do it looks once more after half a
-- period: a lock that is taken now and then need not start it each time.
local function keep(self)
  local was_idle = false
  while not self.is_closed do
    local now = self.host.now()
    local due
    if self.batches < IN_FLIGHT then
      local batch = collect(self, now)
      if #batch > 0 then send(self, batch) end
      due = #batch > 0 and now or next_due(self)
    else
      due = bury(self, now)
    end
    if self.resting.first then
      if now >= (self.swept or 0) + self.period then sweep(self, now) end
      due = math.min(due or math.huge, now + self.period)
    elseif not due and self.batches == 0 then
      if was_idle or self.is_retired then break end
      due = now + self.period / 2
      was_idle = true
    else
      was_idle = false
    end
    if due ~= now then
      self.sleeps_until = due or math.huge
      self.change:wait(due and math.max(due - now, 0.001))
      self.sleeps_until = 0
    end
  end
  self.change, self.is_retired = nil, nil
end

-- the lock's side ---------------------------------------------------------

local function awake(self, due)
  if not self.change then
    self.change, self.sleeps_until = self.host.event(), 0
    self.host.daemon(keep, self)
  elseif due < self.sleeps_until then
    self.change:set()
  end
end

--- Keeps a grant alive from now on.
-- @tparam table grant
-- @tparam number sent when its last renewal (or its request) was sent
function watchdog:watch(grant, sent)
  if grant.list or grant.place then self:remove(grant) end
  local due = sent + self.period
  grant.due = due
  append(self.fresh, grant)
  if not self.change or due < self.sleeps_until then awake(self, due) end
end

--- A request is about to lower the lease: what a renewal that is under way is
--  answered does not count any more.
-- @tparam table grant with the new valid_until and watched
-- @tparam number now
function watchdog:lower(grant, now)
  if not grant.watched then return self:rest(grant) end
  self:remove(grant)
  grant.due = math.min(now + self.period, grant.valid_until)
  self.alarms:push(grant)
  awake(self, grant.due)
end

-- When to look at a grant that is not kept alive: for the next restatement, or
-- at its end if somebody listens for that. nil: never.
local function next_look(self, grant)
  local due = self.host.now() + self.period
  if restates(grant) and due < grant.valid_until then return due end
  return grant.on_lost and grant.valid_until
end

--- Remembers a grant that is not to be kept alive. It is restated if its policy
--  wants that; if somebody listens for its loss, its end is watched.
-- @tparam table grant
function watchdog:rest(grant)
  self:remove(grant)
  local due = next_look(self, grant)
  if due then
    grant.due = due
    self.alarms:push(grant)
    awake(self, grant.due)
  else
    append(self.resting, grant)
    if not self.change then
      awake(self, math.huge)
    elseif self.sleeps_until == math.huge then
      self.change:set()                   -- it is to be swept some day
    end
  end
end

--- Lets the task end as soon as there is nothing to do.
function watchdog:retire()
  if not self.change then return end
  self.is_retired = true
  self.change:set()
end

function watchdog:close()
  self.is_closed = true
  if self.change then self.change:set() end
end

return watchdog
