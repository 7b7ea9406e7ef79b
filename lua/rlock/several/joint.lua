--- Several locks held as one: the public interface shared by multi-locks
--  (multi.lua) and red locks (quorum.lua). A hold has one part for each lock
--  taken. Each part is a hold of that lock's grant (grant.lua), so the watchdog
--  of its client renews it and reports its loss. A driver implements:
--    take_parts(hold, wait, lease)  true | nil, code, detail
--    release_parts(hold)            true | nil, code, detail
--    valid_of(hold)                 seconds
--    state_of(hold)                 "held" | "at_risk" | "lost"
--    watch(hold)                    calls joint.lose when the hold is lost
--  The owner is the calling task. Each handle keeps the holds that were taken
--  through it.

local colon = require "rlock.colon"
local grant = require "rlock.grant"
local lock = require "rlock.lock"
local of_peek = require("rlock.verdicts").of_peek
local remote = require "rlock.redis.remote"

local joint = {}
joint.__index = joint

local huge = math.huge
local check_options = lock.parts.options

--- Creates a joint lock.
-- @tparam table driver the class
-- @tparam table host
-- @tparam table members locks; they keep their clients alive
function joint.new(driver, host, members)
  return setmetatable({
    host = host, members = members,
    held = setmetatable({}, { __mode = "k" }),   -- task -> its holds, in order
  }, driver)
end

--- Creates a driver class.
function joint.class()
  local driver = setmetatable({}, joint)
  driver.__index = driver
  function driver:__tostring() return self:show() end
  return driver
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
    hold = hold, lock = member, party = member.party or hold.party,
    is_carried = hold.is_carried,
  }
end

--- The grant for a part's lock and party; creates one if there is none. The
--  caller must sweep it.
function joint.granted(part)
  local member = part.lock
  return member.site.grants[part.party] or grant.new(member, part.party)
end

--- Acquires a part.
-- @tparam table part
-- @tparam number deadline deadline of the request, by host.now()
-- @tparam number|nil lease seconds; nil: renewed by the watchdog
-- @tparam number wait_deadline of the whole wait; `now` for one attempt
-- @return as grant:acquire
function joint.acquire(part, deadline, lease, wait_deadline)
  local granted = joint.granted(part)
  local verdict, answer, detail = granted:acquire(deadline, lease, part,
    part.lock.session.host.now(), wait_deadline)
  if verdict == "held" then
    part.grant = granted
  else
    granted:sweep()
  end
  return verdict, answer, detail
end

--- The hold count of a part's party, according to the server.
-- @tparam table part
-- @tparam number deadline deadline of the request, by host.now()
-- @treturn[1] integer
-- @treturn[2] nil, code, detail; for "cancelled", the value to raise
function joint.count(part, deadline)
  local site, session = part.lock.site, part.lock.session
  local op, granted = site.policy.ops.peek, site.grants[part.party]
  if not op then
    return nil, "usage", ("policy %q has no server.peek, needed here")
      :format(site.policy.name)
  end
  local owner = granted and granted.owner or part.lock.owner
    or session:owner_of(part.party, part.lock.site.family)
  local reply, code, detail = remote.run(session.node, op, deadline,
    session.host.now(), site.keys, owner)
  if reply == nil then return nil, code, detail end
  local told, _, fault = of_peek(op, reply)
  if not told then return nil, "redis", fault end
  return reply[3]
end

--- Releases a part.
-- @return as grant:release
function joint.release(part)
  if part.is_over then return nil, "not_held", "it was released before" end
  return part.grant:release(part)
end

--- Is the part still ours, as far as we know?
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

local Hold = {}
Hold.__index = Hold

-- The last hold of the calling task, or nil.
local function mine(self)
  local holds = self.held[self.host.current()]
  return holds and holds[#holds]
end

local function remember(self, hold)
  local holds = self.held[hold.party] or {}
  self.held[hold.party] = holds
  holds[#holds + 1] = hold
end

local function forget(self, hold)
  local holds = self.held[hold.party] or {}
  for i = #holds, 1, -1 do
    if holds[i] == hold then table.remove(holds, i) end
  end
  if not holds[1] then self.held[hold.party] = nil end
end

local function take(self, wait, lease, is_carried)
  local hold = setmetatable({
    joint = self, party = self.host.current(), parts = {},
    is_carried = is_carried and not self.host.ends_tasks,
  }, Hold)
  local ok, code, detail = self:take_parts(hold, wait, lease)
  if ok and not self.host.has_gone(hold.party) then
    remember(self, hold)
    return hold
  end
  hold.is_over = true
  if ok then
    self:release_parts(hold)
    return nil, "closed", "the task has ended"
  end
  if code == "cancelled" then error(detail, 0) end
  return nil, code, detail
end

-- Takes one more hold for the calling task.
local function enter(self, wait, lease, is_carried)
  return self.host.whole(take, self, wait, lease, is_carried)
end

local function let_go(hold)
  hold.is_over = true
  forget(hold.joint, hold)
  local ok, code, detail = hold.joint:release_parts(hold)
  if ok then return true end
  if code == "cancelled" then error(detail, 0) end
  return nil, code, detail
end

local function release(hold)
  if hold.is_over then
    return nil, "not_held", "this hold was released before"
  end
  return hold.joint.host.whole(let_go, hold)
end

--- Declares a hold lost, once, and runs its on_lost callbacks.
-- @tparam table hold
-- @tparam string reason for messages
function joint.lose(hold, reason)
  if hold.is_over or hold.lost_because then return end
  local self = hold.joint
  hold.lost_because = reason
  self.host.log("warn", ("lost %s: %s"):format(self:show(), reason))
  for _, told in ipairs(hold.on_lost_calls or {}) do
    self.host.spawn(told.fn, told.lock, reason)
  end
  hold.on_lost_calls = nil
end

local function when_lost(hold, fn, told)
  local host = hold.joint.host
  if hold.lost_because then
    host.spawn(fn, told, hold.lost_because)
    return
  end
  hold.on_lost_calls = hold.on_lost_calls or {}
  table.insert(hold.on_lost_calls, { fn = fn, lock = told })
  hold.joint:watch(hold)
end

local function valid_for(hold)
  if not hold or hold.is_over or hold.lost_because then return 0 end
  return hold.joint:valid_of(hold)
end

local function state(hold)
  if not hold or hold.is_over then return "free" end
  if hold.lost_because then return "lost" end
  return hold.joint:state_of(hold)
end

-- public methods ----------------------------------------------------------

--- Waits for the lock and takes it.
-- @tparam[opt] table options
--   wait: maximum seconds to wait; bounds the whole call. Default: forever,
--   even while a server is unreachable, unless an error is permanent.
--   lease: maximum seconds to hold it; without it the watchdogs renew it.
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string code
-- @treturn[2] string detail
function joint:lock(options)
  local wait, lease = check_options(options, 2)
  local hold, code, detail = enter(self, wait or huge, lease)
  if not hold then return nil, code, detail end
  return true
end

--- As `lock`, but `wait` defaults to 0.
function joint:try_lock(options)
  local wait, lease = check_options(options, 2)
  local hold, code, detail = enter(self, wait or 0, lease)
  if not hold then return nil, code, detail end
  return true
end

--- Takes the lock and returns an object for this hold. Any task may use it; a
--  `<close>` variable releases it at the end of its block.
-- @tparam[opt] table options as for `lock`
-- @return[1] the hold: unlock, valid_for, need, on_lost, state
-- @treturn[2] nil, code, detail as for `lock`
function joint:hold(options)
  local wait, lease = check_options(options, 2)
  return enter(self, wait or huge, lease, true)
end

--- Releases the calling task's most recent hold.
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string "not_held" (never held), "lost", "quorum" (no majority
--   of a red lock's servers confirmed it), or why a request failed; in the last
--   two cases the leases end the hold
-- @treturn[2] string detail
function joint:unlock()
  local hold = mine(self)
  if not hold then
    return nil, "not_held", "this task does not hold " .. self:show()
  end
  return release(hold)
end

local function done(hold, ...)
  local is_released, code, detail = release(hold)
  if not is_released then return nil, code, detail end
  return ...
end

--- Holds the lock while a function runs; releases it even if fn raises.
-- @tparam[opt] table options as for `lock`
-- @tparam function fn called with the lock and the further arguments
-- @return[1] what fn returned
-- @treturn[2] nil
-- @treturn[2] string code: the lock was not taken and fn did not run, or the
--   lock was "lost" before fn returned, or as for `unlock`
-- @treturn[2] string detail
function joint:with(options, fn, ...)
  if type(options) == "function" then
    return self:with(nil, options, fn, ...)
  end
  if type(fn) ~= "function" then
    error("bad argument fn of lock:with: must be a function", 2)
  end
  local wait, lease = check_options(options, 2)
  local hold, code, detail = enter(self, wait or huge, lease)
  if not hold then return nil, code, detail end
  return done(hold, self.host.guard(release, hold, fn, self, ...))
end

--- Seconds for which this task's most recent hold is certainly valid.
function joint:valid_for() return valid_for(mine(self)) end

--- "held"; "at_risk" (still valid, but a renewal failed or no majority of a red
--  lock's servers is in reach); "lost"; "free".
function joint:state() return state(mine(self)) end

--- As lock.need.
joint.need = lock.parts.need

--- Calls fn if this task's most recent hold is lost.
-- @tparam function fn called once, as a task, with the lock and the reason
-- @return true, or nil, "not_held"
function joint:on_lost(fn)
  if type(fn) ~= "function" then
    error("bad argument fn of lock:on_lost: must be a function", 2)
  end
  local hold = mine(self)
  if not hold then
    return nil, "not_held", "this task does not hold " .. self:show()
  end
  when_lost(hold, fn, self)
  return true
end

-- Each server has its own answer to these.
for _, name in ipairs { "is_locked", "hold_count", "ttl", "peek", "token",
    "break_lock" } do
  joint[name] = function(self)
    error(("%s has no %s: ask its members"):format(self:show(),
      name), 2)
  end
end

--- As the lock's methods, for this hold.
function Hold:unlock() return release(self) end
function Hold:valid_for() return valid_for(self) end
function Hold:state() return state(self) end
Hold.need = lock.parts.need

function Hold:__tostring() return "hold of " .. self.joint:show() end

function Hold:on_lost(fn)
  if type(fn) ~= "function" then
    error("bad argument fn of hold:on_lost: must be a function", 2)
  end
  if not self.is_over then when_lost(self, fn, self) end
end

function Hold:__close()
  if not self.is_over then release(self) end
end

colon.methods(Hold, "hold", "unlock valid_for state on_lost need")
return colon.methods(joint, "lock", [[lock try_lock unlock with hold valid_for
  state need on_lost is_locked hold_count ttl peek token break_lock]])
