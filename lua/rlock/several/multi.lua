--- A multi-lock: several locks as one, all of them held or none. Members may be
--- of any kind and belong to any clients. Every process takes them in the same
--- order, server by server, those on one server at once, all within one
--- deadline. If a member is busy, the others are released before waiting for
--- it: no hold-and-wait, so no deadlock. The multi-lock is lost when any member
--- is lost.

local colon = require "rlock.util.colon"
local joint = require "rlock.several.joint"
local lock = require "rlock.lock.lock"
local waiting = require "rlock.lock.waiting"

---@class rlock.multi_lock: rlock.joint
---@field timeout number
local multi = joint:class()

multi.kind, multi.first_pause = "multi", 0.002

local huge, max, min = math.huge, math.max, math.min

-- The order of members: by server, then by key.
local function is_before(a, b)
  if a.server ~= b.server then return a.server < b.server end
  return a.key < b.key
end

-- A duplicate lock counts once. The same key with another client, owner or
-- policy would deadlock with itself, so it is an error.
local function add_address(list, by_key, member, i, level)
  local server, key = member.record.target:address()
  local id = server .. " " .. key
  local other = by_key[id]
  if not other then
    by_key[id] = member
    list[#list + 1] = { member = member, server = server, key = key }
  elseif other.record ~= member.record or other.owner ~= member.owner then
    error(("bad member %d of multi_lock: %s is listed already, with another "
      .. "client, owner or policy"):format(i, member:show()),
      level + 1)
  end
end

local function ordered(locks, level)
  joint.check_list(locks, "locks of multi_lock", level + 1)
  local list, by_key = {}, {}
  for i, member in ipairs(locks) do
    if getmetatable(member) ~= lock then
      error(("bad member %d of multi_lock: must be a lock of a client"):format(
        i), level + 1)
    end
    add_address(list, by_key, member, i, level + 1)
  end
  table.sort(list, is_before)
  return list
end

---@param locks rlock.lock[]
---@param options? nil it has none
---@return any
function multi.new(locks, options)
  if options ~= nil then
    error("bad options of multi_lock: it has none; give them to its locks", 3)
  end
  local members, groups, longest, server = {}, {}, 0, nil
  for i, address in ipairs(ordered(locks, 3)) do
    local member, group = address.member, groups[#groups]
    members[i] = member
    if not group or address.server ~= server then
      group, server = {}, address.server
      groups[#groups + 1] = group
    end
    group[#group + 1] = member
    longest = max(longest, member.session.timeout)
  end
  local self = joint.new(multi, members)
  self.groups, self.timeout = groups, longest
  return self
end

--- A description, for messages.
function multi:show()
  return ("multi-lock of %d locks"):format(#self.members)
end

-- Leaves a member's queue of waiters.
local function leave_place(inner, waiter)
  local granted = joint.granted(inner, waiter)
  granted:leave()
  granted:recycle()
end

-- Requests one member. The wait is sent only to the busy member that this task
-- waits for. If the task was cancelled meanwhile, its place is left here.
local function request(try, inner)
  function inner.accept()
    if try.is_over then return nil, "cancelled" end
    return true
  end
  local waiter = inner.lock == try.member and try.waiter or nil
  inner.verdict, inner.ms, inner.code, inner.detail = joint.acquire(inner,
    try.deadline, try.lease, waiter and try.wait_deadline or 0, waiter)
  if waiter and try.is_over and inner.verdict ~= "held" then
    leave_place(inner, waiter)
  end
end

--- Combines the replies for one server's members.
---@return true?, rlock.failure? code
---@return string? detail # and the inner hold that failed
---@return any ...
local function combine(try, inner_holds)
  local blamed
  for _, inner in ipairs(inner_holds) do
    if inner.verdict == nil then
      return nil, inner.code, ("%s: %s"):format(inner.lock:show(),
        tostring(inner.detail)), inner
    elseif inner.verdict == "busy"
        and (not blamed or inner.lock == try.member) then
      blamed = inner
    end
  end
  if blamed then return nil, "busy", blamed.lock:busy(blamed.ms), blamed end
  return true
end

local function request_group(self, try, members)
  local hold, inner_holds = try.hold, {}
  for i, member in ipairs(members) do
    inner_holds[i] = joint.inner_hold(hold, member)
  end
  local ok, code, unwind = joint.together(self.host, inner_holds,
    function(inner) request(try, inner) end)
  for _, inner in ipairs(inner_holds) do
    if inner.verdict == "held" then
      hold.inner_holds[#hold.inner_holds + 1] = inner
    end
  end
  if not ok then return nil, code, unwind end
  return combine(try, inner_holds)
end

local function request_all(self, try)
  for _, members in ipairs(self.groups) do
    local ok, code, detail, inner = request_group(self, try, members)
    if not ok then return nil, code, detail, inner end
  end
  if self:valid_of(try.hold) > 0 then return true end
  return nil, "busy", self:show() .. ": the lease ended before all were held"
end

function multi:attempt(try)
  local now = self.host.now()
  try.deadline = now + self.timeout
  if try.wait_deadline > now then
    try.deadline = min(try.deadline, try.wait_deadline)
  end
  local ok, code, detail, inner = request_all(self, try)
  if ok then return true end
  if code == "cancelled" then try.is_over = true end
  local taken = try.hold.inner_holds
  try.hold.inner_holds, try.took_some = {}, #taken > 0
  local released, cancelled, unwind =
    joint.together(self.host, taken, joint.release, try.deadline)
  if not released then return nil, cancelled, unwind end
  return nil, code, detail, inner
end

local function join_waiters(try, inner)
  local granted = joint.granted(inner)
  local waiter = granted:join()
  waiter.wait_deadline = try.wait_deadline
  try.member, try.waiter, try.inner = inner.lock, waiter, inner
  granted:recycle()
end

local function leave_waiters(try, is_held)
  local waiter = try.waiter
  if not waiter then return end
  waiting.leave(try.member.session, waiter, is_held)
  if not is_held then leave_place(try.inner, waiter) end
  try.member, try.waiter, try.inner = nil, nil, nil
end

-- After releasing members, pauses for a random time before the retry: the
-- competing multi-locks may do the same (livelock).
local function jitter(self, try)
  if not try.took_some then return true end
  return self:rest(try)
end

-- Pauses while nothing of this attempt is held.
local function pause_for(try, ms)
  local member, waiter = try.member, try.waiter
  local cycle = waiting.deadlock(member.session, waiter, member)
  if cycle then return nil, "deadlock", cycle end
  local woken, code, unwind =
    waiting.pause(member.session, waiter, ms, member.record)
  waiting.awake(waiter)
  return woken, code, unwind
end

-- Waits for the busy member. The first time, joins its waiters and retries once
-- the subscription stands, because a release may have come before it.
local function wait_for_member(self, try, inner)
  if try.member ~= inner.lock then leave_waiters(try, false) end
  local is_new = not try.waiter
  if is_new then join_waiters(try, inner) end
  local slept, code, unwind = true, nil, nil
  if not try.waiter.is_set then slept, code, unwind = jitter(self, try) end
  if slept == nil then return nil, code, unwind end
  return pause_for(try, not is_new and inner.ms or nil)
end

-- Waits, holding nothing, until the server that failed answers a PING.
local function wait_for_server(self, try, inner)
  local host, target = self.host, inner.lock.record.target
  while not target:is_closed() and host.now() < try.wait_deadline do
    local reply, code, unwind = target:ping(
      min(host.now() + self.timeout, try.wait_deadline))
    if reply ~= nil then break end
    if code == "cancelled" then return nil, code, unwind end
    local slept
    slept, code, unwind = self:rest(try)
    if slept == nil then return nil, code, unwind end
  end
  return true
end

local passing = { connect = true, timeout = true, closed = true, redis = true }

-- May a retry succeed? Passing failures are retried up to the deadline, so a
-- failure before it is permanent.
local function is_passing(self, try, code, inner)
  return passing[code] and self.host.now() >= try.deadline
    and not inner.lock.session.is_closed
end

function multi:pause(try, code, detail, inner)
  local ok, problem, unwind
  self:report_wait(try)
  if code == "busy" and inner then
    ok, problem, unwind = wait_for_member(self, try, inner)
    code, detail = "timeout", inner.lock:show() .. ": not free in time"
  elseif code == "busy" then
    ok, problem, unwind = jitter(self, try)
    code = "timeout"
  elseif is_passing(self, try, code, inner) then
    leave_waiters(try, false)
    ok, problem, unwind = wait_for_server(self, try, inner)
  else
    return nil, code, detail
  end
  if ok == nil then return nil, problem, unwind end
  return true, code, detail
end

function multi.end_take(_, try, is_held) leave_waiters(try, is_held) end

function multi:release_parts(hold)
  local ok, code, detail = joint.together(self.host, hold.inner_holds,
    function(inner) inner.ok, inner.code, inner.why = joint.release(inner) end)
  if not ok then return nil, code, detail end
  for _, inner in ipairs(hold.inner_holds) do
    if not inner.ok and (ok or inner.code == "lost") then
      ok, code = nil, inner.code
      detail = ("%s: %s"):format(inner.lock:show(), tostring(inner.why))
    end
  end
  if ok then return true end
  return nil, code, detail
end

function multi:valid_of(hold)
  local least = huge
  for _, inner in ipairs(hold.inner_holds) do
    least = min(least, joint.is_alive(inner) and inner.grant:valid_for() or 0)
  end
  return least
end

function multi:state_of(hold)
  local worst = "held"
  for _, inner in ipairs(hold.inner_holds) do
    if not joint.is_alive(inner) or inner.grant:valid_for() == 0 then
      return "lost"
    end
    if inner.grant.state == "at_risk" then worst = "at_risk" end
  end
  return worst
end

function multi.watch(_, hold)
  if hold.is_watched then return end
  hold.is_watched = true
  for _, inner in ipairs(hold.inner_holds) do
    inner.grant:when_lost(function(lost, reason)
      if lost.is_over then return end
      joint.lose(hold, ("%s: %s"):format(lost.lock:show(), reason))
    end, inner)
  end
end

function multi.effect(grants, commands)
  return require("rlock.lock.effect").run(grants, commands)
end

--- Does the calling task hold every member, according to the servers?
---@return boolean?, rlock.failure? code, string? detail
function multi:is_held()
  for _, member in ipairs(self.members) do
    ---@cast member rlock.lock
    local is_held, code, detail = member:is_held()
    if not is_held then return is_held, code, detail end
  end
  return true
end

return colon.methods(multi, "lock", "is_held")
