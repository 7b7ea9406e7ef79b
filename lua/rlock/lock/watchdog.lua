--- The watchdog: renews holds and reports those at risk or lost, see "The
--- watchdog" in ../README.md. One timer per client. Regular renewals have one
--- period, so appending keeps their list sorted by time. Exceptions (a failed
--- renewal, a lease whose end has a callback) are in a heap, by `deadline`.
--- Operations are O(1) or O(log n), even with 100 000 holds. If a policy
--- `reasserts`, other clients may shorten the expiry of a hold with a lease:
--- once a period, a request sets it back to the end of the lease, no further.

local verdicts = require "rlock.lock.verdicts"
local heap = require "rlock.util.heap"
local metrics = require "rlock.util.metrics"

---@class rlock.watchdog
---@field session rlock.session
---@field host rlock.host
---@field period number seconds
---@field fresh table
---@field flights table
---@field observed table
---@field alarms rlock.heap
---@field batches integer
---@field batches_of table<any, integer>
---@field sender table
---@field change rlock.event?
---@field wake_deadline any
local watchdog = {}
watchdog.__index = watchdog

local BATCH = 256        -- renewals sent at once
local IN_FLIGHT = 4      -- batches in flight on one route
local RETRIES = 12       -- a failed renewal is retried every lease/12
local GARBAGE = 100      -- kB, see collect()
local SHORT = 0.005      -- seconds that are too short for a retry
local EARLY = 1 / 50     -- of a period; what is due then is renewed at once
local RAISED = "the renewal raised an error"

---@type function
local sender_of

---@param session rlock.session
---@return rlock.watchdog
function watchdog.new(session)
  local self = setmetatable({
    session = session,
    host = session.host,
    period = session.lease / 3,
    fresh = {},           -- grants in order of their next renewal
    flights = {},         -- batches in flight; a grant that has left one in
                          -- the meantime is in another list
    observed = {},        -- grants that need no action
    alarms = heap.new(),  -- exceptions
    batches = 0,          -- in flight
    batches_of = {},      -- route -> in flight on it
  }, watchdog)
  self.sender = sender_of(self)
  return self
end

-- lists and heap ----------------------------------------------------------

-- A grant in a list has four array entries: the list, the previous grant, the
-- next grant, and when it is due. Named fields would double its hash part.

local function append(list, grant)
  local last = list.last
  grant[1], grant[2], grant[3] = list, last or false, false
  if last then last[3] = grant else list.first = grant end
  list.last = grant
end

--- Removes a grant from its list or the heap. Ignores the outcome of a renewal
--- in flight.
---@param grant rlock.grant | rlock.leased
function watchdog:remove(grant)
  local list = grant[1]
  if list then
    if list == self.fresh or list == self.observed then
      local before, after = grant[2], grant[3]
      if before then before[3] = after else list.first = after end
      if after then after[2] = before else list.last = before end
    end
    grant[1], grant[2], grant[3] = false, false, false
  elseif grant.index then
    self.alarms:remove(grant)
  end
end

local function next_deadline(self)
  local first, alarm = self.fresh.first, self.alarms:peek()
  if first and (not alarm or first[4] <= alarm.deadline) then
    return first[4]
  end
  return alarm and alarm.deadline
end

-- The first grant of a batch that is in flight.
local function first_in(batch)
  for _, grant in ipairs(batch) do
    if grant[1] == batch then return grant end
  end
end

--- The grants that the watchdog knows.
---@param most? integer of each list, and then the newest; default: all
---@return table
function watchdog:all(most)
  local all, left = {}, most or math.huge
  for _, list in ipairs { self.fresh, self.observed } do
    local grant, n = list.last, 0
    while grant and n < left do
      n = n + 1
      all[#all + 1] = grant
      grant = grant[2]
    end
  end
  for _, batch in ipairs(self.flights) do
    for _, grant in ipairs(batch) do
      if grant[1] == batch then all[#all + 1] = grant end
    end
  end
  for i = 1, math.min(self.alarms.n, left) do
    all[#all + 1] = self.alarms[i]
  end
  return all
end

--- Is there any grant that must be kept or watched?
function watchdog:is_needed()
  if self.fresh.first or self.observed.first or self.alarms.n > 0 then
    return true
  end
  for _, batch in ipairs(self.flights) do
    if first_in(batch) then return true end
  end
  return false
end

--- Does the watchdog know this grant?
---@param grant rlock.grant | rlock.leased
function watchdog:has(grant) return (grant[1] or grant.index) ~= nil end

--- Ignores the outcome of a renewal in flight, but still knows the grant: for a
--- period, nothing is done about it.
---@param grant rlock.grant | rlock.leased
function watchdog:ground(grant)
  local list = grant[1]
  if not list or list == self.fresh or list == self.observed then return end
  self:remove(grant)
  grant[4] = self.host.now() + self.period
  append(self.fresh, grant)
end

-- loss --------------------------------------------------------------------

local function count_loss(self, grant, reason)
  local series, held = grant.lock.record.series, self.host.now() - grant.since
  series.lost = series.lost + 1
  metrics.observe(series.hold, held)
  self.session:report_of(grant.lock, "warn", "lost",
    ("lost %s: %s"):format(grant:show(), reason),
    { reason = reason, held = held })
end

--- Declares a grant lost, once, and runs its on_lost callbacks. Reports it at
--- the end: in nginx an ngx.exit in a `log` callback ends this task.
---@param grant rlock.grant | rlock.leased
---@param reason string for messages
function watchdog:lose(grant, reason)
  if grant.state == "lost" or grant.state == "free" then return end
  self:remove(grant)
  grant.state, grant.lost_because = "lost", reason
  for _, callback in ipairs(grant.on_lost or {}) do
    self.host.spawn(callback.fn, callback.object, reason)
  end
  grant.on_lost = nil
  for _, hold in ipairs(grant.holds or {}) do      -- permits have no such list
    if hold.lost then hold:lost(reason) end
  end
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
  self.session:report_of(grant.lock, "warn", "at_risk",
    ("%s is at risk, valid for %.1f s more: %s"):format(grant:show(), left,
    why), { reason = why, valid_for = left })
end

-- Notes a failure.
local function put_at_risk(grant, why)
  grant.state = "at_risk"
  grant.lost_because = "not renewed in time: " .. why   -- used if it is lost
  grant.is_unsure = true          -- the renewal may have been executed
end

-- When a hold expires, the last failure may only be that no time was left for a
-- request. So this reports an earlier failure.
local function not_renewed(self, grant, why, now)
  local was_held, earlier = grant.state == "held", grant.lost_because
  put_at_risk(grant, why)
  if now >= grant.valid_until then
    self:lose(grant, not was_held and earlier or grant.lost_because)
  else
    retry_at(self, grant, now)
    if was_held then tell_risk(self, grant, why, now) end
  end
end

-- Would a grant that is due then break the order of `fresh`, after an inner
-- unlock or a late reply?
local function is_before_others(self, deadline)
  local last = self.fresh.last
  return last and last[4] > deadline + self.period * EARLY
end

-- Adds a grant, which is in no list: to `fresh`, if that keeps its order.
local function schedule(self, grant, deadline)
  if is_before_others(self, deadline) then
    grant.deadline = deadline
    self.alarms:push(grant)
  else
    grant[4] = deadline
    append(self.fresh, grant)
  end
end

-- The server keeps a grant, which is in no list, until `ends`.
local function renewed(self, grant, ends, sent)
  grant.state, grant.lost_because = "held", nil
  grant.is_unsure = nil
  if not grant.watched then return self:observe(grant) end
  if grant.valid_until - sent < self.session.lease / 2 then
    local series = grant.lock.record.series
    series.late_renewals = series.late_renewals + 1
  end
  grant.valid_until = math.max(grant.valid_until, ends)
  schedule(self, grant, sent + self.period)
end

-- As `renewed` for the grants that are still in the batch. What is held, and
-- not late, needs no calls.
local function all_renewed(self, batch, grants, n, lease, sent)
  local session, fresh, last = self.session, self.fresh, self.fresh.last
  local deadline, early = sent + self.period, sent + session.lease / 2
  local drift, ends
  local is_late = is_before_others(self, deadline)
  for i = 1, n do
    local grant = grants[i]
    if grant and grant[1] == batch then
      local lock, until_now = grant.lock, grant.valid_until
      if not ends or lock.drift ~= drift then
        drift = lock.drift
        ends = session.valid_until(sent, lease / 1000, drift)
      end
      if grant.watched and grant.state == "held" and until_now >= early
          and not grant.is_unsure and not is_late then
        if ends > until_now then grant.valid_until = ends end
        grant[1], grant[2], grant[3] = fresh, last or false, false
        grant[4] = deadline
        if last then last[3] = grant else fresh.first = grant end
        fresh.last, last = grant, grant
      else
        self:remove(grant)
        renewed(self, grant, ends, sent)
        last = fresh.last
      end
    end
  end
end

-- The callbacks for a batch of renewals, see redis/batch.lua.
function sender_of(self)
  local sender = {}

  -- If a grant was released or renewed by another request in the meantime, the
  -- batch's outcome does not apply to it.
  function sender.is_in(batch, grant) return grant[1] == batch end

  -- Within a period, which leaves time for a retry.
  function sender.deadline(grants, now)
    local deadline = now + math.min(self.session.timeout, self.period)
    for i = 1, #grants do
      local ends = grants[i].valid_until
      if ends < deadline and grants[i][1] then deadline = ends end
    end
    return deadline
  end

  function sender.words(grant, now, batch)
    if batch and grant[1] ~= batch then return nil end
    local lease, want = grant:renewal(now)
    return lease, want, not grant.watched and "1" or nil
  end

  function sender.held(...) all_renewed(self, ...) end

  function sender.answered(grant, lease, reply, sent)
    self:remove(grant)
    local verdict, ended, why =
      verdicts.of(grant.lock.record.policy.ops.renew, reply)
    if verdict == "held" then
      renewed(self, grant, self.session.valid_until(sent, lease / 1000,
        grant.lock.drift), sent)
    elseif verdict == "lost" and ended and grant.removed then
      grant:removed()                   -- a member of a barrier: no loss
    elseif verdict == "lost" then
      self:lose(grant,
        "expired or broken: the server does not have it any more")
    else
      not_renewed(self, grant, why, self.host.now())
    end
  end

  function sender.failed(grant, why, is_gone)
    self:remove(grant)
    if is_gone then return self:lose(grant, why) end
    not_renewed(self, grant, why, self.host.now())
  end

  return sender
end

-- Removes a batch from those in flight.
local function unlist(self, batch)
  local flights = self.flights
  for i = 1, #flights do
    if flights[i] == batch then return table.remove(flights, i) end
  end
end

-- Called when a batch has ended, successfully or not.
local function land(self, batch)
  self.batches = self.batches - 1
  self.batches_of[batch.route] = self.batches_of[batch.route] - 1
  unlist(self, batch)
  if self.change then self.change:set() end
end

-- Retries the grants of a batch that have no outcome: its task was refused, has
-- died or raised an error. Reports that at the end: in nginx an ngx.exit in a
-- `log` callback ends this task as well.
local function crash(self, batch, why)
  local now, risks = self.host.now(), {}
  land(self, batch)
  for _, grant in ipairs(batch) do
    if grant[1] == batch then
      self:remove(grant)
      if grant.state == "held" then risks[#risks + 1] = grant end
      put_at_risk(grant, why)
      retry_at(self, grant, now)
    end
  end
  for _, grant in ipairs(risks) do tell_risk(self, grant, why, now) end
end

local function renew(batch)
  batch:send()
  if batch.round_trip then
    metrics.observe(batch.series.round_trip, batch.round_trip)
  end
end

local function send_part(self, batch)
  local flying = self.batches_of[batch.route] or 0
  self.batches = self.batches + 1
  self.batches_of[batch.route] = flying + 1
  local host = self.host
  local task, _, detail = host.daemon(function()
    host.guard(function() crash(self, batch, RAISED) end, nil, renew, batch)
    land(self, batch)
  end)
  if not task then crash(self, batch, tostring(detail)) end
end

-- Makes a list of grants in flight a batch for a route.
local function depart(self, grants, first, route)
  grants.route, grants.name, grants.is_joint = route, "renew", true
  grants.sender, grants.series = self.sender, first.lock.record.series
  return send_part(self, self.session.server:batch(grants))
end

-- Splits a list of grants by route, and sends the parts.
local function send(self, grants)
  local parts, routes, session = {}, {}, self.session
  local first = first_in(grants)
  if first and not session.server:has_routes() then
    return depart(self, grants, first, session.route_of(first))
  end
  for _, grant in ipairs(grants) do
    if grant[1] == grants then
      local route = session.route_of(grant)
      local part = parts[route] or {}
      if not parts[route] then
        parts[route], routes[#routes + 1] = part, route
        self.flights[#self.flights + 1] = part
      end
      part[#part + 1], grant[1] = grant, part
    end
  end
  unlist(self, grants)
  for _, route in ipairs(routes) do
    depart(self, parts[route], parts[route][1], route)
  end
end

local function why_over(grant)
  if not grant.watched then return "its lease has ended" end
  return grant.state == "at_risk" and grant.lost_because
    or "not renewed in time"
end

-- Stops renewing a grant that nothing can release: it ends with its lease.
local function abandon(self, grant)
  grant.watched, grant.state = false, "at_risk"
  grant.deadline = grant.valid_until
  self.alarms:push(grant)
  local why = "its task ended without unlocking it"
  self.session:report_of(grant.lock, "warn", "at_risk",
    grant:show() .. " is not renewed any more: " .. why,
    { reason = why, valid_for = math.max(0, grant.valid_until
      - self.host.now()) })
end

-- Are IN_FLIGHT batches on their way on the grant's route? One that does
-- not answer must not delay the others.
local function is_full(self, grant)
  return self.batches >= IN_FLIGHT
    and (self.batches_of[self.session.route_of(grant)] or 0) >= IN_FLIGHT
end

--- Takes a due grant, which is in no list, into the batch, if it is to be
--- renewed.
---@return boolean? # whether its task has ended
local function take(self, batch, grant, now)
  local is_abandoned, has_ended = false, false
  if grant.watched then is_abandoned, has_ended = grant:is_abandoned() end
  if grant.valid_until <= now then
    self:lose(grant, why_over(grant))
  elseif is_abandoned then
    abandon(self, grant)
  elseif is_full(self, grant) then
    retry_at(self, grant, now)
  else
    batch[#batch + 1], grant[1] = grant, batch
  end
  return has_ended
end

-- Collects due grants from the heap.
local function collect_alarms(self, batch, now)
  local grant, is_left = self.alarms:peek(), false
  while grant and grant.deadline <= now and #batch < BATCH do
    self:remove(grant)
    is_left = take(self, batch, grant, now) or is_left
    grant = self.alarms:peek()
  end
  return is_left
end

-- Collects grants from the front of the list, if the first is due: also those
-- that soon are, because large batches cost less. Most need no calls.
local function collect_fresh(self, batch, now)
  local fresh, is_over, is_left = self.fresh, self.host.is_over, false
  local is_crowded, latest = self.batches >= IN_FLIGHT, now
  local grant, n = fresh.first, 0
  if grant and grant[4] <= now then latest = now + self.period * EARLY end
  while grant and grant[4] <= latest and n < BATCH do
    if is_crowded or grant.valid_until <= now
        or is_over(grant.owner or grant.task) then
      fresh.first, grant[2] = grant, false
      self:remove(grant)
      is_left = take(self, batch, grant, now) or is_left
      grant, n = fresh.first, #batch
    else
      n = n + 1
      batch[n], grant[1] = grant, batch
      grant = grant[3]
    end
  end
  fresh.first = grant
  if grant then grant[2] = false else fresh.last = false end
  return is_left
end

-- Collects a batch of due grants from the heap or, if none is due there, from
-- the list. Never from both: the batch's deadline is that of its most urgent
-- grant, and regular renewals must not share an urgent one.
local function collect(self, now)
  local batch, alarm = {}, self.alarms:peek()
  self.flights[#self.flights + 1] = batch
  local is_alarm = alarm and alarm.deadline <= now
  local is_left = (is_alarm and collect_alarms or collect_fresh)(self, batch,
    now)
  -- Only the garbage collector can tell whether a hold object that outlived its
  -- task is still referenced. An idle program would not run it for hours.
  if is_left then collectgarbage("step", GARBAGE) end
  if not batch[1] then unlist(self, batch) end
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

-- Drops expired leases whose tasks have ended without a release. A named owner
-- never ends. Checks all observed grants, so it runs only once a period.
local function sweep(self, now)
  self.swept = now
  local grant = self.observed.first
  while grant do
    local after = grant[3]
    local owner = grant.owner           -- permits have none
    if grant.valid_until <= now
        and (owner and owner.is_named or grant:is_abandoned()) then
      self:lose(grant, "its lease has ended")
    end
    grant = after
  end
end

-- Retries the grants of batches that were collected but not sent, because the
-- task died.
local function recover(self)
  local now = self.host.now()
  for i = #self.flights, 1, -1 do
    local batch = self.flights[i]
    if not batch.route then
      table.remove(self.flights, i)
      for _, grant in ipairs(batch) do
        if grant[1] == batch then
          self:remove(grant)
          retry_at(self, grant, now)
        end
      end
    end
  end
end

-- The watchdog's task. When idle it stays for another half period, so that an
-- occasional lock need not start it each time.
local function run(self)
  local was_idle = false
  if not self.is_closed then recover(self) end
  while not self.is_closed do
    local now = self.host.now()
    local deadline
    if self.batches < IN_FLIGHT or self.session.server:has_routes() then
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
---@param grant rlock.grant | rlock.leased
---@param sent number when its last renewal (or its acquire) was sent
function watchdog:watch(grant, sent)
  if grant[1] or grant.index then self:remove(grant) end
  local deadline = sent + self.period
  schedule(self, grant, deadline)
  if not self.change or deadline < self.wake_deadline then
    awake(self, deadline)
  end
end

--- Call this before a request that shortens the lease, so that the watchdog
--- ignores the reply to a renewal in flight.
---@param grant rlock.grant | rlock.leased with the new valid_until and watched
---@param now number
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
  if grant.lock.record.policy.reasserts and deadline < grant.valid_until then
    return deadline
  end
  return grant.on_lost and grant.valid_until
end

--- Keeps track of a grant that is not renewed: reasserts it if its policy
--- `reasserts`, and reports its end if it has on_lost callbacks.
---@param grant rlock.grant | rlock.leased
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
    or not grant.lock.record.policy.ops.renew
end

--- Marks holds "at_risk" because their server was replaced. Each is "held"
--- again once the new server has renewed it. That does not extend an explicit
--- lease.
---@param why string for messages
---@param is_there function grant -> whether it was on that server
function watchdog:suspect(why, is_there)
  local now, suspects = self.host.now(), {}
  for _, grant in ipairs(self:all()) do
    if not is_beyond_doubt(grant) and is_there(grant) then
      self:remove(grant)                -- ignores a renewal in flight
      grant.state = "at_risk"
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
    self.session:report("warn", "at_risk", ("%d hold%s at risk: %s"):format(n,
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
