--- Several locks held as one: what multi-locks (multi.lua) and red locks
--  (quorum.lua) share beneath the public interface (handle.lua). A hold has one
--  part for each lock taken. Each part is a hold of that lock's grant
--  (grant.lua), so the watchdog of its client renews it and reports its loss.
--  A subclass implements:
--    kind                           for metrics
--    take_parts(hold, wait, lease)  true | nil, code, detail
--    release_parts(hold)            true | nil, code, detail
--    valid_of(hold)                 seconds
--    state_of(hold)                 "held" | "at_risk" | "lost"
--    watch(hold)                    calls joint.lose when the hold is lost
--  The owner is the calling task. Each object keeps the holds that were taken
--  through it.

local colon = require "rlock.util.colon"
local PASSED = require "rlock.util.deadline".passed
local grant = require "rlock.lock.grant"
local handle = require "rlock.lock.handle"
local metrics = require "rlock.util.metrics"
local naming = require "rlock.naming"
local owner = require "rlock.lock.owner"
local of_peek = require "rlock.lock.verdicts".of_peek

local joint = handle:class()

local huge = math.huge

--- Creates a joint lock.
-- @tparam table class
-- @tparam table members locks; they keep their clients alive
function joint.new(class, members)
  local session = members[1].session
  return setmetatable({
    session = session, host = session.host, members = members,
    held = setmetatable({}, { __mode = "k" }),   -- task -> its holds, in order
    series = members[1].session.meter:series(class.kind),
  }, class)
end

--- Checks that a list is not empty and has only the keys 1 to n. A hole would
--  silently drop members.
-- @param list
-- @tparam string what  for the message: "clients of red_lock"
-- @tparam number level as in error()
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

-- parts -------------------------------------------------------------------

--- Creates a part of a hold; it is not acquired yet.
-- @tparam table hold
-- @tparam table member a lock
function joint.part(hold, member)
  return {
    hold = hold, lock = member,
    owner = member.owner or owner.of_task(hold.task),
    is_transferable = hold.is_transferable, object = hold.object,
  }
end

--- The grant for a part's lock and owner; creates one if there is none. The
--  caller must recycle it.
-- @tparam table part
-- @tparam[opt] table waiter for that lock; the grant gets its place
function joint.granted(part, waiter)
  local member = part.lock
  local granted = member.site.grants[part.owner]
    or grant.new(member, part.owner, waiter and waiter.owner_name)
  if waiter then granted:admit(waiter) end
  return granted
end

--- Acquires a part.
-- @tparam table part
-- @tparam number deadline of the request, by host.now()
-- @tparam number|nil lease seconds; nil: renewed by the watchdog
-- @tparam number wait_deadline of the whole wait; `now` for one attempt
-- @tparam[opt] table waiter for the part's lock
-- @return as grant:acquire
function joint.acquire(part, deadline, lease, wait_deadline, waiter)
  local granted = joint.granted(part, waiter)
  local verdict, ms, code, detail = granted:acquire(deadline, lease, part,
    part.lock.session.host.now(), wait_deadline)
  if verdict ~= "held" then granted:recycle() end
  return verdict, ms, code, detail
end

--- The hold count of a part's owner, according to the server.
-- @tparam table part
-- @tparam number deadline of the request, by host.now()
-- @treturn[1] integer
-- @treturn[2] nil, code, detail; for "cancelled", the value to raise
function joint.count(part, deadline)
  local site, session = part.lock.site, part.lock.session
  local op, granted = site.policy.ops.peek, site.grants[part.owner]
  if not op then
    return nil, "usage", ("policy %s has no server.peek, needed here")
      :format(naming.show(site.policy.name))
  end
  local name = granted and granted.owner_name
    or part.owner:name_for(session, site.family)
  local reply, code, detail = site.target:run("peek", deadline,
    session.host.now(), name)
  if reply == nil then return nil, code, detail end
  local state, _, fault = of_peek(op, reply)
  if not state then return nil, "redis", fault end
  return reply[3]
end

--- Releases a part.
-- @return as grant:release
function joint.release(part)
  if part.is_over then return nil, "not_held", "it was released before" end
  return part.grant:release(part)
end

--- Is the part held, as far as this client knows?
function joint.is_alive(part)
  return not part.is_over and part.grant.state ~= "lost"
end

local function never() return false end

--- Runs fn(part) for all parts concurrently, each in a background task that
--  closing its client waits for. Requests to one server are sent together, in
--  the order of the parts. Returns when all have ended, when `is_decided`
--  returns true, or at the deadline; the remaining tasks continue.
-- @tparam table host
-- @tparam table parts
-- @tparam function fn
-- @tparam[opt] number deadline       by host.now()
-- @tparam[opt] function is_decided called whenever an fn has ended
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string "cancelled"
-- @return[2] the value to raise
function joint.together(host, parts, fn, deadline, is_decided)
  local left, event = #parts, host.event()
  is_decided = is_decided or never
  for _, part in ipairs(parts) do
    part.lock.session:background(function()
      fn(part)
      left = left - 1
      if left == 0 or is_decided() then event:set() end
    end)
  end
  if left == 0 then return true end
  local woken, code, unwind = event:pause((deadline or huge) - host.now())
  if woken == nil then return nil, code, unwind end
  return true
end

-- holds -------------------------------------------------------------------

-- A hold is its own grant: it has the methods of one (grant.lua).
local Hold = {}
Hold.__index = Hold

--- The last hold of the calling task, or nil.
function joint:mine()
  local holds = self.held[self.host.current()]
  return holds and holds[#holds]
end

local function remember(self, hold)
  local holds = self.held[hold.task] or {}
  self.held[hold.task] = holds
  holds[#holds + 1] = hold
end

local function forget(self, hold)
  local holds = self.held[hold.task] or {}
  for i = #holds, 1, -1 do
    if holds[i] == hold then table.remove(holds, i) end
  end
  if not holds[1] then self.held[hold.task] = nil end
end

--- Reports an event, see events.lua.
function joint:tell(level, event, message, fields)
  fields.kind, fields.lock = self.kind, self.name
  self.session:tell(level, event, message, fields)
end

local function count_grant(self, hold)
  local series, now = self.series, self.host.now()
  series.acquired = series.acquired + 1
  metrics.observe(series.wait, now - hold.since)
  if self.session.is_heard then
    self:tell("info", "acquired", ("acquired %s after %.3f s"):format(
      self:show(), now - hold.since), { wait = now - hold.since })
  end
  hold.since = now
end

--- Reports, once, that an attempt begins to wait.
-- @tparam table try
function joint:tell_wait(try)
  if try.is_reported or not self.session.is_heard then return end
  try.is_reported = true
  self:tell("info", "waiting", "waiting for " .. self:show(), {})
end

--- Takes one more hold for the calling task, see handle.lua.
function joint:take(wait, lease, hold)
  hold = setmetatable(hold or {}, Hold)
  hold.joint, hold.task, hold.parts = self, self.host.current(), {}
  hold.grant, hold.since = hold, self.host.now()
  local ok, code, detail = nil, "timeout", PASSED
  if wait >= 0 then ok, code, detail = self:take_parts(hold, wait, lease) end
  if ok and not self.host.has_gone(hold.task) then
    count_grant(self, hold)
    remember(self, hold)
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

--- Declares a hold lost, once, and runs its on_lost callbacks.
-- @tparam table hold
-- @tparam string reason for messages
function joint.lose(hold, reason)
  if hold.is_over or hold.lost_because then return end
  local self = hold.joint
  hold.lost_because = reason
  self.series.lost = self.series.lost + 1
  metrics.observe(self.series.hold, self.host.now() - hold.since)
  self:tell("warn", "lost", ("lost %s: %s"):format(self:show(), reason),
    { reason = reason, held = self.host.now() - hold.since })
  for _, callback in ipairs(hold.on_lost or {}) do
    self.host.spawn(callback.fn, callback.object, reason)
  end
  hold.on_lost = nil
end

--- As that of a grant.
function Hold:abandon(reason)
  joint.lose(self, reason)
  for _, part in ipairs(self.parts) do
    if not part.is_over then part.grant:abandon(reason) end
  end
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
