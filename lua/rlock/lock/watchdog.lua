--- The watchdog: renews holds and reports those at risk or lost. One timer per
--  client. A hold is renewed a third of its lease after the last renewal was
--  sent. Regular renewals have one period, so appending keeps their list sorted
--  by time. Exceptions (a failed renewal, a lease whose end has a callback) are
--  in a heap. Operations are O(1) or O(log n), also with 100 000 holds.
--
--  A hold with an explicit lease is not renewed. But if its policy `restates`,
--  other clients may shorten its expiry in Redis: once a period, a request sets
--  the expiry back to the end of the lease, and no further.
--
--  held -> at_risk         a renewal failed, or the server was replaced
--  held, at_risk -> lost   the server says so, or the deadline has passed

local verdicts = require "rlock.lock.verdicts"
local heap = require "rlock.util.heap"
local metrics = require "rlock.util.metrics"
local remote = require "rlock.redis.remote"

local watchdog = {}
watchdog.__index = watchdog

local BATCH = 256        -- renewals sent at once
local IN_FLIGHT = 4      -- batches in flight to one node
local RETRIES = 12       -- a failed renewal is retried every lease/12
local GARBAGE = 100      -- kB, see collect()
local SHORT = 0.005      -- seconds that are too short for a retry
local RAISED = "the renewal raised an error"

--- @tparam table session session.lua's: host, node, lease (seconds)
function watchdog.new(session)
  return setmetatable({
    session = session,
    host = session.host,
    period = session.lease / 3,
    fresh = {},           -- grants in order of their next renewal
    flying = {},          -- grants whose renewal is in flight
    observed = {},        -- grants that need no action
    alarms = heap.new(),  -- exceptions
    batches = 0,          -- in flight
    batches_of = {},      -- node or lane -> in flight to it
  }, watchdog)
end

-- lists and heap ----------------------------------------------------------

local function append(list, grant)
  local last = list.last
  grant.list, grant.prev, grant.next = list, last, nil
  if last then last.next = grant else list.first = grant end
  list.last = grant
end

--- Removes a grant from its list or the heap.
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

local function next_deadline(self)
  local first, alarm = self.fresh.first, self.alarms:peek()
  if first and (not alarm or first.deadline <= alarm.deadline) then
    return first.deadline
  end
  return alarm and alarm.deadline
end

--- All grants that the watchdog knows.
function watchdog:all()
  local all = {}
  for _, list in ipairs { self.fresh, self.observed, self.flying } do
    local grant = list.first
    while grant do
      all[#all + 1] = grant
      grant = grant.next
    end
  end
  for i = 1, self.alarms.n do all[#all + 1] = self.alarms[i] end
  return all
end

--- Is there any grant that must be kept or watched?
function watchdog:is_needed()
  return self.fresh.first ~= nil or self.flying.first ~= nil
    or self.observed.first ~= nil or self.alarms.n > 0
end

--- Does the watchdog know this grant?
-- @tparam table grant
function watchdog:has(grant) return (grant.list or grant.place) ~= nil end

-- loss --------------------------------------------------------------------

local function count_loss(self, grant, reason)
  local series, held = grant.lock.site.series, self.host.now() - grant.since
  series.lost = series.lost + 1
  metrics.observe(series.hold, held)
  self.session:tell_of(grant.lock, "warn", "lost",
    ("lost %s: %s"):format(grant:show(), reason),
    { reason = reason, held = held })
end

--- Declares a grant lost, once, and runs its on_lost callbacks. Reports it at
--  the end: in nginx an ngx.exit in a `log` callback ends this task.
-- @tparam table grant
-- @tparam string reason for messages
function watchdog:lose(grant, reason)
  if grant.state == "lost" or grant.state == "free" then return end
  self:remove(grant)
  grant.state, grant.lost_because = "lost", reason
  for _, callback in ipairs(grant.on_lost or {}) do
    self.host.spawn(callback.fn, callback.object, reason)
  end
  grant.on_lost = nil
  if grant:is_abandoned() then
    grant:drop()
  elseif grant.remember then                    -- permits have no such method
    grant:remember()
  end
  count_loss(self, grant, reason)
end

-- renewals ----------------------------------------------------------------

-- Schedules a retry, at most half of the remaining time from now.
local function retry_at(self, grant, now)
  local left = grant.valid_until - now
  local pause = math.min(self.session.lease / RETRIES, left / 2)
  grant.deadline = pause < SHORT and grant.valid_until or now + pause
  self.alarms:push(grant)
end

local function tell_risk(self, grant, why, now)
  local left = math.max(0, grant.valid_until - now)
  self.session:tell_of(grant.lock, "warn", "at_risk",
    ("%s is at risk, valid for %.1f s more: %s"):format(grant:show(), left,
    why), { reason = why, valid_for = left })
end

local function not_renewed(self, grant, why, now)
  local was_held = grant.state == "held"
  grant.state = "at_risk"
  grant.lost_because = "not renewed in time: " .. why   -- used if it is lost
  grant.is_unsure = true          -- the renewal may have been executed
  if now >= grant.valid_until then
    self:lose(grant, grant.lost_because)
  else
    retry_at(self, grant, now)
    if was_held then tell_risk(self, grant, why, now) end
  end
end

local function renewed(self, grant, lease, sent)
  grant.state, grant.lost_because = "held", nil
  grant.is_suspect, grant.is_unsure = nil, nil
  if not grant.watched then return self:observe(grant) end
  if grant.valid_until - sent < self.session.lease / 2 then
    local series = grant.lock.site.series
    series.late_renewals = series.late_renewals + 1
  end
  grant.valid_until = math.max(grant.valid_until,
    self.session.valid_until(sent, lease / 1000, grant.lock.drift))
  grant.deadline = sent + self.period
  append(self.fresh, grant)
end

-- Handles the outcome of one renewal that was sent to `node`.
local function answered(self, node, grant, lease, reply, code, detail, sent)
  self:remove(grant)
  grant.batch = nil
  if type(reply) == "table" and reply[1] == "held" then
    renewed(self, grant, lease, sent)
  elseif type(reply) == "table" and reply[1] == "lost" then
    self:lose(grant, "expired or broken: the server does not have it any more")
  elseif reply ~= nil then
    local _, _, why = verdicts.wrong(grant.lock.site.policy.ops.renew, reply)
    not_renewed(self, grant, why, self.host.now())
  else
    local site = grant.lock.site
    local class, why = remote.classify(node, site.policy.ops.renew, code,
      detail, site.name)
    if class.node_down then self.session.node:suspect(node) end
    if class.gone then
      self:lose(grant, why)
    else
      not_renewed(self, grant, why, self.host.now())
    end
  end
end

-- Is the grant still in this batch? If it was released or renewed by another
-- request in the meantime, the batch's outcome does not apply to it.
local function is_in(self, batch, grant)
  return grant.list == self.flying and grant.batch == batch
end

-- Loads the scripts that the batch needs. This may wait; grants that leave in
-- the meantime are removed from the batch.
-- @return as remote.ready
local function prepare(self, batch, deadline)
  local word, code, detail
  for _, grant in ipairs(batch) do
    if is_in(self, batch, grant) then
      word, code, detail = remote.ready(batch.node,
        grant.lock.site.policy.ops.renew, deadline)
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

local function command(node, grant, word, now)
  local lease, want = grant:renewal(now)
  local site = grant.lock.site
  return lease, remote.command(node, site.policy.ops.renew, word, site.keys,
    grant.owner_name, lease, want, not grant.watched and "1" or nil)
end

-- The deadline of a batch's renewals: within a period, which leaves time for a
-- retry.
local function deadline_of(self, batch, now)
  local deadline = now + math.min(self.session.timeout, self.period)
  for _, grant in ipairs(batch) do
    deadline = math.min(deadline, grant.valid_until)
  end
  return deadline
end

-- Sends the renewals of a batch.
-- @return replies, codes, details, sent and the leases requested; or nil, code,
--   detail
local function send_batch(self, batch, now)
  local deadline = deadline_of(self, batch, now)
  local word, code, detail = prepare(self, batch, deadline)
  if not batch[1] then return {}, {}, {} end
  if not word then return nil, code, detail end
  local commands, leases = {}, {}
  local series = batch[1].lock.site.series    -- a grant may end meanwhile
  for i, grant in ipairs(batch) do
    leases[i], commands[i] = command(batch.node, grant, word, now)
  end
  local replies, codes, details, sent =
    batch.route:pipeline(deadline, commands)
  if sent then
    metrics.observe(series.round_trip, self.host.now() - sent)
  end
  return replies, codes, details, sent, leases
end

-- Renews a single grant whose slot has moved to another node.
local function renew_elsewhere(self, batch, grant)
  local function fail(code, detail)
    if is_in(self, batch, grant) then
      answered(self, batch.node, grant, nil, nil, code, detail)
    end
  end
  local host = self.host
  local function request()
    if not is_in(self, batch, grant) then return end
    local now = host.now()
    local lease, want = grant:renewal(now)
    local site = grant.lock.site
    local reply, code, detail, _, sent = remote.run(self.session.node,
      site.policy.ops.renew, deadline_of(self, { grant }, now), now, site.keys,
      grant.owner_name, lease, want, not grant.watched and "1" or nil)
    if is_in(self, batch, grant) then
      answered(self, batch.node, grant, lease, reply, code, detail, sent)
    end
  end
  local task, code, detail = host.daemon(function()
    host.guard(function() fail("closed", RAISED) end, nil, request)
  end)
  if not task then fail(code, detail) end
end

-- Handles one outcome of a batch.
-- @treturn boolean whether to retry, because the script or the clock is fetched
--   again; not if `is_second`
local function handle_reply(self, batch, grant, is_second, lease, reply, code,
    detail, sent)
  local site, class = grant.lock.site, nil
  if code then
    class = remote.classify(batch.node, site.policy.ops.renew, code, detail,
      site.name)
  end
  if remote.forget(batch.node, site.policy.ops.renew, class)
      and not is_second then
    return true
  elseif class and class.redirects and self.session.node.redirect then
    self.session.node:redirect(detail, batch.node)
    renew_elsewhere(self, batch, grant)
  else
    answered(self, batch.node, grant, lease, reply, code, detail, sent)
  end
  return false
end

-- Handles the outcomes of a batch.
-- @return the grants to retry
local function handle_replies(self, batch, is_second, replies, codes, details,
    sent, leases)
  local again = { node = batch.node, route = batch.route }
  batch.again = again                   -- for `abort`
  for i, grant in ipairs(batch) do
    local here = is_in(self, batch, grant)
    if here and not replies then
      answered(self, batch.node, grant, nil, nil, codes, details)
    elseif here and handle_reply(self, batch, grant, is_second, leases[i],
        replies[i], codes[i], details[i], sent) then
      grant.batch = again
      again[#again + 1] = grant
    end
  end
  return again
end

local function renew(self, batch, is_second)
  local again = handle_replies(self, batch, is_second,
    send_batch(self, batch, self.host.now()))
  if again[1] then return renew(self, again, true) end
end

-- Ends a batch, at the latest when it has failed.
local function land(self, batch)
  self.batches = self.batches - 1
  self.batches_of[batch.route] = self.batches_of[batch.route] - 1
  if self.change then self.change:set() end
end

-- Ends a batch that was not sent, or whose task has raised an error.
local function abort(self, batch, code, detail)
  local again = batch.again
  handle_replies(self, batch, true, nil, code, detail)
  if again then handle_replies(self, again, true, nil, code, detail) end
  land(self, batch)
end

local function send_part(self, batch)
  local flying = self.batches_of[batch.route] or 0
  self.batches = self.batches + 1
  self.batches_of[batch.route] = flying + 1
  local host = self.host
  local task, code, detail = host.daemon(function()
    host.guard(function()
      abort(self, batch, "closed", RAISED)
    end, nil, renew, self, batch)
    land(self, batch)
  end)
  if not task then abort(self, batch, code, detail) end
end

-- Splits a batch by node or lane, and sends the parts.
local function send(self, batch)
  local parts = {}
  for _, grant in ipairs(batch) do
    local route, node = self.session:route_of(grant)
    local part = parts[route] or { node = node, route = route }
    parts[route] = part
    part[#part + 1], grant.batch = grant, part
  end
  for _, part in pairs(parts) do send_part(self, part) end
end

local function restates(grant)
  return grant.lock.site.policy.restates
end

local function why_over(grant)
  if not grant.watched then return "its lease has ended" end
  return grant.lost_because or "not renewed in time"
end

-- Stops renewing a grant that nothing can release: it ends with its lease.
local function abandon(self, grant)
  grant.watched, grant.state = false, "at_risk"
  grant.deadline = grant.valid_until
  self.alarms:push(grant)
  local why = "its task ended without unlocking it"
  self.session:tell_of(grant.lock, "warn", "at_risk",
    grant:show() .. " is not renewed any more: " .. why,
    { reason = why, valid_for = math.max(0, grant.valid_until
      - self.host.now()) })
end

-- Are IN_FLIGHT batches on their way to the grant's node or lane? One that does
-- not answer must not delay the others.
local function is_full(self, grant)
  return self.batches >= IN_FLIGHT
    and (self.batches_of[self.session:route_of(grant)] or 0) >= IN_FLIGHT
end

-- Collects a batch of due grants from the heap or, if none is due there, from
-- the list. Never from both: the batch's deadline is that of its most urgent
-- grant, and regular renewals must not share an urgent one.
local function collect(self, now)
  local batch, alarm = {}, self.alarms:peek()
  local is_alarm, is_left = alarm and alarm.deadline <= now, false
  while #batch < BATCH do
    local grant, is_abandoned, has_ended = self.fresh.first, false, false
    if is_alarm then grant = self.alarms:peek() end
    if not grant or grant.deadline > now then break end
    self:remove(grant)
    if grant.watched then is_abandoned, has_ended = grant:is_abandoned() end
    is_left = is_left or has_ended
    if grant.valid_until <= now then
      self:lose(grant, why_over(grant))
    elseif is_abandoned then
      abandon(self, grant)
    elseif is_full(self, grant) then
      retry_at(self, grant, now)
    elseif grant.watched or restates(grant) or grant.is_suspect then
      append(self.flying, grant)
      grant.batch = batch
      batch[#batch + 1] = grant
    else
      grant.deadline = grant.valid_until
      self.alarms:push(grant)
    end
  end
  -- Only the garbage collector can tell whether a hold object that outlived its
  -- task is still referenced. An idle program would not run it for hours.
  if is_left then collectgarbage("step", GARBAGE) end
  return batch
end

-- Reports losses in time while nothing can be sent: IN_FLIGHT batches have no
-- reply yet.
local function report_losses(self, now)
  local alarm = self.alarms:peek()
  while alarm and alarm.deadline <= now do
    self:remove(alarm)
    if alarm.valid_until <= now then
      self:lose(alarm, why_over(alarm))
    else
      retry_at(self, alarm, now)
    end
    alarm = self.alarms:peek()
  end
  return alarm and alarm.deadline
end

-- Drops expired leases whose tasks have ended without a release. Checks all
-- observed grants, so it runs only once a period.
local function sweep(self, now)
  self.swept = now
  local grant = self.observed.first
  while grant do
    local after = grant.next
    if grant.valid_until <= now and grant:is_abandoned() then
      self:lose(grant, "its lease has ended")
    end
    grant = after
  end
end

-- Are there several nodes or lanes, of which one may be slow?
local function has_routes(self)
  local node = self.session.node
  return node:size() > 1 or next(node.lanes or {}) ~= nil
end

-- Retries the grants of a batch that a run collected, but died before it sent.
local function recover(self)
  local grant, now = self.flying.first, self.host.now()
  while grant do
    local after = grant.next
    if not grant.batch.route then
      self:remove(grant)
      retry_at(self, grant, now)
    end
    grant = after
  end
end

-- The watchdog's task. When idle it stays for another half period, so that an
-- occasional lock need not start it each time.
local function run(self)
  local was_idle = false
  recover(self)
  while not self.is_closed do
    local now = self.host.now()
    local deadline
    if self.batches < IN_FLIGHT or has_routes(self) then
      local batch = collect(self, now)
      if #batch > 0 then send(self, batch) end
      deadline = #batch > 0 and now or next_deadline(self)
    else
      deadline = report_losses(self, now)
    end
    if self.observed.first then
      if now >= (self.swept or 0) + self.period then sweep(self, now) end
      deadline = math.min(deadline or math.huge, now + self.period)
    elseif not deadline and self.batches == 0 then
      if was_idle or self.is_retired then break end
      deadline = now + self.period / 2
      was_idle = true
    else
      was_idle = false
    end
    if deadline ~= now then
      self.wake_deadline = deadline or math.huge
      self.change:wait(deadline and math.max(deadline - now, 0.001))
      self.wake_deadline = 0
    end
  end
  self.change, self.is_retired = nil, nil
end

-- interface to grants -----------------------------------------------------

local function awake(self, deadline)
  if not self.change then
    self.change, self.wake_deadline = self.host.event(), 0
    self.host.service(run, self)
  elseif deadline < self.wake_deadline then
    self.change:set()
  end
end

--- Renews a grant from now on.
-- @tparam table grant
-- @tparam number sent when its last renewal (or its acquire) was sent
function watchdog:watch(grant, sent)
  if grant.list or grant.place then self:remove(grant) end
  local deadline = sent + self.period
  grant.deadline = deadline
  append(self.fresh, grant)
  if not self.change or deadline < self.wake_deadline then
    awake(self, deadline)
  end
end

--- To be called before a request that lowers the lease: the reply to a renewal
--  in flight is then ignored.
-- @tparam table grant with the new valid_until and watched
-- @tparam number now
function watchdog:lower(grant, now)
  if not grant.watched then return self:observe(grant) end
  self:remove(grant)
  grant.deadline = math.min(now + self.period, grant.valid_until)
  self.alarms:push(grant)
  awake(self, grant.deadline)
end

-- When a grant that is not renewed is due: for the next restatement, or at its
-- end if it has on_lost callbacks. nil: never.
local function next_check(self, grant)
  local deadline = self.host.now() + self.period
  if restates(grant) and deadline < grant.valid_until then return deadline end
  return grant.on_lost and grant.valid_until
end

--- Keeps track of a grant that is not renewed: restates it if its policy
--  `restates`, and reports its end if it has on_lost callbacks.
-- @tparam table grant
function watchdog:observe(grant)
  self:remove(grant)
  local deadline = next_check(self, grant)
  if deadline then
    grant.deadline = deadline
    self.alarms:push(grant)
    awake(self, grant.deadline)
  else
    append(self.observed, grant)
    if not self.change then
      awake(self, math.huge)
    elseif self.wake_deadline == math.huge then
      self.change:set()                   -- schedules a sweep
    end
  end
end

-- Is the grant lost or released for certain, or is there no way to check it?
local function is_beyond_doubt(grant)
  return grant.state ~= "held" and grant.state ~= "at_risk"
    or not grant.lock.site.policy.ops.renew
end

--- Puts holds at risk, because their server was replaced, until the new one has
--  renewed them. A hold with a lease is renewed to the end of that lease, and
--  no further.
-- @tparam string why for messages
-- @tparam function is_there  grant -> whether it was on that server
function watchdog:suspect(why, is_there)
  local now, suspects = self.host.now(), {}
  for _, grant in ipairs(self:all()) do
    if not is_beyond_doubt(grant) and is_there(grant) then
      self:remove(grant)                -- ignores a renewal in flight
      grant.state, grant.is_suspect, grant.batch = "at_risk", true, nil
      grant.deadline = now
      self.alarms:push(grant)
      suspects[#suspects + 1] = grant
    end
  end
  local n = #suspects
  if n == 0 then return end
  awake(self, now)
  if self.session.options.log then
    for _, grant in ipairs(suspects) do tell_risk(self, grant, why, now) end
  else
    self.session:tell("warn", "at_risk", ("%d hold%s at risk: %s"):format(n,
      n == 1 and " is" or "s are", why))
  end
end

--- Ends the watchdog's task as soon as it is idle.
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
