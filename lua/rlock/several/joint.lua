--- Several locks held as one: what multi-locks (multi.lua) and red locks
--- (quorum.lua) share beneath the public interface (handle.lua). A hold has one
--- inner hold for each lock taken. Each inner hold is a hold of that lock's
--- grant (grant.lua), so the watchdog of its client renews it and reports its
--- loss. A subclass implements:
---   kind                 for metrics
---   may_take(hold)       true | nil, code, detail; default: true
---   attempt(try)         requests all inner holds once, see take_parts:
---                        true | nil, code, detail, the inner hold to wait for
---   pause(try, code, detail, inner)  waits until a retry may succeed: true,
---                        and the code and detail if no time is left for one |
---                        nil, code, detail: no retry
---   end_take(try, is_held)
---   release_parts(hold)  true | nil, code, detail
---   valid_of(hold)       seconds
---   state_of(hold)       "held" | "at_risk" | "lost"
---   watch(hold)          calls joint.lose when the hold is lost
---   effect(grants, commands)  as effect.run
--- The owner is the calling task. Each object keeps the holds that were taken
--- through it.

local backoff = require "rlock.util.backoff"
local colon = require "rlock.util.colon"
local PASSED = require "rlock.util.deadline".passed
local grant = require "rlock.lock.grant"
local handle = require "rlock.lock.handle"
local metrics = require "rlock.util.metrics"
local waiting = require "rlock.lock.waiting"

---@class rlock.joint: rlock.handle
---@field host rlock.host
---@field members any[] locks
---@field kind string for metrics
---@field first_pause number
---@field held table
---@field name string
---@field series table
---@field release_parts function
local joint = handle:class()

local huge, max, min = math.huge, math.max, math.min

--- Back-off limits between attempts: seconds, from `first_pause` of the class,
--- doubled up to the last, with jitter; and the shortest pause.
local LAST_PAUSE, LEAST_PAUSE = 0.128, 0.001

--- Creates a joint lock.
---@param class table
---@param members table locks; they keep their clients alive
function joint.new(class, members)
  local session = members[1].session
  return setmetatable({
    session = session, host = session.host, members = members,
    held = setmetatable({}, { __mode = "k" }),   -- task -> its holds, in order
    series = members[1].session.meter:series(class.kind),
  }, class)
end

--- Checks that a list is not empty and has only the keys 1 to n. A hole would
--- silently drop members.
---@param what string for the message: "clients of red_lock"
---@param level integer as in error()
function joint.check_list(list, what, level)
  local n = 0
  for _ in pairs(type(list) == "table" and list or {}) do n = n + 1 end
  if n == 0 then
    error(("bad %s: must be an array"):format(what), level + 1)
  end
  for i = 1, n do
    if list[i] == nil then
      error(("bad %s: must be an array without holes and other keys; number %d "
        .. "is nil"):format(what, i), level + 1)
    end
  end
end

--- Creates an inner hold of a hold; it is not acquired yet.
---@param hold table
---@param member table a lock
function joint.inner_hold(hold, member)
  return {
    hold = hold, lock = member,
    owner = member.owner or hold.task,
    is_transferable = hold.is_transferable, object = hold.object,
  }
end

--- The grant for an inner hold's lock and owner; creates one if there is none.
--- The caller must recycle it.
---@param inner table an inner hold; has an `owner`, or its `round` has
---@param waiter? rlock.waiter for that lock; the grant gets its place
function joint.granted(inner, waiter)
  local member, its = inner.lock, inner.owner or inner.round.owner
  local granted = member.record.grants[its]
    or grant.new(member, its, waiter and waiter.owner_name)
  if waiter then granted:admit(waiter) end
  return granted
end

--- Acquires an inner hold.
---@param inner table an inner hold
---@param deadline number of the request, by host.now()
---@param lease? number seconds; nil: renewed by the watchdog
---@param wait_deadline number of the whole wait; `now` for one attempt
---@param waiter? rlock.waiter for the inner hold's lock
---@return any ... # as grant:acquire
function joint.acquire(inner, deadline, lease, wait_deadline, waiter)
  local granted = joint.granted(inner, waiter)
  local session = inner.lock.session
  local verdict, ms, code, detail = granted:acquire(deadline, lease, inner,
    session.host.now(), wait_deadline,
    waiter and waiting.registration(session, waiter))
  if verdict ~= "held" then granted:recycle() end
  return verdict, ms, code, detail
end

--- Releases an inner hold.
---@return any ... # as grant:release
function joint.release(inner)
  if inner.is_over then return nil, "not_held", "it was released before" end
  return inner.grant:release(inner)
end

--- Is the inner hold held, as far as this client knows?
function joint.is_alive(inner)
  return not inner.is_over and inner.grant.state ~= "lost"
end

--- Runs fn(inner) for all inner holds concurrently, each in a background task
--- that closing its client waits for. Requests to one server are sent together,
--- in the order of the inner holds. Returns when all have ended, when
--- `is_decided` returns true, or at the deadline; the remaining tasks continue.
---@param host rlock.host
---@param inner_holds table
---@param fn function
---@param deadline? number by host.now()
---@param is_decided? function called whenever an fn has ended
---@return boolean? # true
---@return rlock.failure? code # "cancelled"
---@return any # the value to raise
function joint.together(host, inner_holds, fn, deadline, is_decided)
  local left, event = #inner_holds, host.event()
  for _, inner in ipairs(inner_holds) do
    inner.lock.session:background(function()
      fn(inner)
      left = left - 1
      if left == 0 or is_decided and is_decided() then event:set() end
    end)
  end
  if left == 0 then return true end
  local woken, code, unwind = event:pause((deadline or huge) - host.now())
  if woken == nil then return nil, code, unwind end
  return true
end

-- A hold is its own grant: it has the methods of one (grant.lua).
---@class rlock.several.joint.Hold
---@field object any
---@field joint any
---@field task rlock.task
---@field lost_because any
---@field since number
---@field inner_holds any
local Hold = {}
Hold.__index = Hold

--- The last hold of the calling task, or nil.
function joint:mine()
  local holds = self.held[self.host.current()]
  return holds and holds[#holds]
end

local function forget(self, hold)
  local holds = self.held[hold.task] or {}
  for i = #holds, 1, -1 do
    if holds[i] == hold then table.remove(holds, i) end
  end
  if not holds[1] then self.held[hold.task] = nil end
end

--- Reports an event, see events.lua.
function joint:report(level, event, message, fields)
  fields.kind, fields.lock = self.kind, self.name
  self.session:report(level, event, message, fields)
end

local function count_grant(self, hold)
  local series, now = self.series, self.host.now()
  series.acquired = series.acquired + 1
  metrics.observe(series.wait, now - hold.since)
  if self.session.is_heard then
    self:report("info", "acquired", ("acquired %s after %.3f s"):format(
      self:show(), now - hold.since), { wait = now - hold.since })
  end
  hold.since = now
end

--- Reports, once, that an attempt begins to wait.
---@param try table
function joint:report_wait(try)
  if try.is_reported or not self.session.is_heard then return end
  try.is_reported = true
  self:report("info", "waiting", "waiting for " .. self:show(), {})
end

-- A hold that is not taken yet: a new table, or one that handle.lua made.
local function begun(self, made)
  local hold = {
    joint = self, task = self.host.current(),
    inner_holds = { nil, nil, nil, nil, nil },          -- with room
    since = self.host.now(), grant = false, is_over = false,
    lost_because = false, is_watched = false, object = false, lease = false,
  }
  if made then
    for name, value in pairs(hold) do
      if made[name] == nil then made[name] = value end
    end
    hold = made
  end
  hold.grant = hold
  return setmetatable(hold, Hold)
end

--- Pauses before a retry, for a random time.
---@return any ... # as event:pause
function joint:rest(try)
  try.pauses = try.pauses or backoff.new(self.first_pause, LAST_PAUSE,
    self.host.random_number)
  local left = try.wait_deadline - self.host.now()
  return self.host.event():pause(
    min(max(try.pauses:next(), LEAST_PAUSE), max(left, 0)))
end

-- Tries to take all inner holds, until that succeeds or a retry cannot.
local function take_parts(self, hold, wait, lease)
  local ok, code, detail = self:may_take(hold)
  if not ok then return nil, code, detail end
  local try = {
    hold = hold, lease = lease, wait_deadline = self.host.now() + wait,
    is_single = wait == 0,
  }
  local goes_on, inner
  repeat
    ok, code, detail, inner = self:attempt(try)
    goes_on = not ok and not try.is_single and code ~= "cancelled"
    if goes_on then
      goes_on, code, detail = self:pause(try, code, detail, inner)
      goes_on = goes_on and self.host.now() < try.wait_deadline
    end
  until not goes_on
  self:end_take(try, ok)
  return ok, code, detail
end

---@return any ...
function joint.may_take() return true end

--- Takes one more hold for the calling task, see handle.lua.
function joint:take(wait, lease, hold)
  hold = begun(self, hold)
  local ok, code, detail = nil, "timeout", PASSED
  if wait >= 0 then ok, code, detail = take_parts(self, hold, wait, lease) end
  if ok and not self.host.has_gone(hold.task) then
    count_grant(self, hold)
    local holds = self.held[hold.task] or {}
    self.held[hold.task] = holds
    holds[#holds + 1] = hold
    return true
  end
  metrics.failed(self.series, code or "closed")
  hold.is_over = true
  if ok then
    self:release_parts(hold)
    return nil, "closed", "the task has ended"
  end
  if code == "cancelled" then error(detail, 0) end
  return nil, code, detail
end

-- Releases this hold; by default, one without an object, if there is one.
function Hold:release(hold)
  if not hold and self.object then
    local holds = self.joint.held[self.task]
    for i = #holds, 1, -1 do
      if not holds[i].object then return holds[i]:release() end
    end
  end
  self.is_over = true
  if not self.lost_because then
    metrics.observe(self.joint.series.hold,
      self.joint.host.now() - self.since)
  end
  forget(self.joint, self)
  return self.joint:release_parts(self)
end

function Hold:valid_for()
  return self.lost_because and 0 or self.joint:valid_of(self)
end

function Hold:now_is()
  return self.lost_because and "lost" or self.joint:state_of(self)
end

function Hold:when_lost(fn, object)
  if self.lost_because then
    self.joint.host.spawn(fn, object, self.lost_because)
    return true
  end
  self.on_lost = self.on_lost or {}
  table.insert(self.on_lost, { fn = fn, object = object })
  self.joint:watch(self)
  return true
end

--- Runs commands on the server if all inner holds are held there, like `effect`
--- of a grant.
function Hold:effect(commands)
  local grants = {}
  for i, inner in ipairs(self.inner_holds) do grants[i] = inner.grant end
  return self.joint.effect(grants, commands)
end

--- Declares a hold lost, once, and runs its on_lost callbacks. Reports it at
--- the end: in nginx an ngx.exit in a `log` callback ends this task.
---@param hold table
---@param reason string for messages
function joint.lose(hold, reason)
  if hold.is_over or hold.lost_because then return end
  local self = hold.joint
  hold.lost_because = reason
  self.series.lost = self.series.lost + 1
  metrics.observe(self.series.hold, self.host.now() - hold.since)
  for _, callback in ipairs(hold.on_lost or {}) do
    self.host.spawn(callback.fn, callback.object, reason)
  end
  hold.on_lost = nil
  self:report("warn", "lost", ("lost %s: %s"):format(self:show(), reason),
    { reason = reason, held = self.host.now() - hold.since })
end

--- As that of a grant.
function Hold:abandon(reason)
  joint.lose(self, reason)
  for _, inner in ipairs(self.inner_holds) do
    if not inner.is_over then inner.grant:abandon(reason) end
  end
end

--- Fails: several members have a node, or none.
function joint:write()
  return nil, "usage", self:show() .. " has no node of its own: use a member"
end

-- These may differ between the members.
for _, name in ipairs { "is_locked", "hold_count", "ttl", "peek", "token",
    "break_lock" } do
  joint[name] = function(self)
    error(("%s has no %s: ask its members"):format(self:show(), name), 2)
  end
end

return colon.methods(joint, "lock", [[is_locked hold_count ttl peek token
  break_lock]])
