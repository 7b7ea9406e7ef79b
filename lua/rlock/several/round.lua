--- One round of requests to all servers of a red lock (quorum.lua) and its
--  outcome. The round is decided as soon as a majority has granted the lock or
--  no longer can. Late replies are still handled: an unused grant is released.

local joint = require "rlock.several.joint"
local verdicts = require "rlock.lock.verdicts"

local round = {}
round.__index = round

local max, min = math.max, math.min

local SHARE = 4          -- a request takes at most lease/4

--- The deadline of a request to one server that is sent now.
-- @tparam table red the lock
-- @tparam[opt] number lease seconds
function round.time_limit(red, lease)
  return red.host.now() + min(red.node_timeout, (lease or red.lease) / SHARE)
end

--- @tparam table red  the lock: members, majority, node_timeout, lease, host
-- @tparam table hold gets the inner holds
-- @tparam[opt] number lease seconds; nil: renewed by the watchdog
-- @tparam[opt] number wait_deadline of the whole wait
function round.new(red, hold, lease, wait_deadline)
  local deadline = round.time_limit(red, lease)
  local is_short = wait_deadline and wait_deadline < deadline
  return setmetatable({
    red = red, hold = hold, lease = lease, inner_holds = {},
    deadline = is_short and wait_deadline or deadline, is_short = is_short,
    held = 0, failed = 0,     -- counts of replies
    unknown = 0,              -- count of servers not identified yet
  }, round)
end

-- requests ------------------------------------------------------------------

local missing = { connect = true, timeout = true, closed = true }

local function forgetful(seconds)
  return nil, "quorum", ("restarted or replaced, and may have forgotten what "
    .. "was granted: counts again in %.1f s"):format(seconds)
end

-- Identifies a server. It does not count if it is a duplicate, or recently
-- restarted or replaced.
-- @return its identity, or nil, code, detail
local function admit(self, member)
  local target = member.record.target
  local identity, code, detail = target:identify(self.deadline)
  if not identity then return nil, code, detail end
  self.clash = self.clash or target:clash(self.red.members)
  if self.clash then return nil, "refused", self.clash end
  local pause = target:quarantine(max(self.lease or 0, member.session.lease))
  if pause > 0 then return forgetful(pause) end
  return identity
end

-- Does the hold already have a live inner hold of this member?
local function has_inner(hold, member)
  for _, inner in ipairs(hold.inner_holds) do
    if inner.lock == member and joint.is_alive(inner) then return true end
  end
  return false
end

-- Is this grant valid and still wanted? The client may have reconnected during
-- the request, so the reply may come from a restarted server.
local function accept(self, inner, identity)
  local member, hold = inner.lock, self.hold
  if member.record.target:identity() ~= identity then
    local is_admitted, code, detail = admit(self, member)
    if not is_admitted then return nil, code, detail end
  end
  if self.is_over or hold.is_over or hold.lost_because
      or has_inner(hold, inner.lock) then
    return nil, "busy", 0
  end
  return true
end

-- Requests the lock from one server.
-- @return as joint.acquire
local function request(self, inner)
  local identity, code, detail = admit(self, inner.lock)
  self.unknown = self.unknown - 1
  if not identity then return nil, nil, code, detail end
  function inner.accept() return accept(self, inner, identity) end
  return joint.acquire(inner, self.deadline, self.lease, 0)
end

-- @return as joint.acquire
local function request_if_there(self, inner)
  local session = inner.lock.session
  local code, why = "closed", "the client was closed"
  if not session.is_closed then
    code, why = "connect", inner.lock.record.target:why_away()
  end
  if why then
    self.unknown = self.unknown - 1
    return nil, nil, code, why
  end
  local verdict, ms, detail
  verdict, ms, code, detail = request(self, inner)
  if verdict == nil and missing[code] and not session.is_closed
      and not self.is_short then
    inner.lock.record.target:mark_away(detail)
  end
  return verdict, ms, code, detail
end

--- Is the round decided? A majority needs all servers identified, to rule out
--  duplicates; that takes time only on new connections.
function round:is_decided()
  return self.clash ~= nil
    or self.held >= self.red.majority and self.unknown == 0
    or self.failed > #self.red.members - self.red.majority
end

-- Requests one inner hold and counts the outcome.
local function request_and_count(self, inner)
  local hold = self.hold
  if self:is_decided() then return end
  local verdict, ms, code, detail = request_if_there(self, inner)
  if verdict ~= "held" then
    inner.code, inner.answer = verdict or code, ms or detail
    self.failed = self.failed + 1
    if hold.heal then hold.heal() end
  else
    self.held = self.held + 1
    hold.inner_holds[#hold.inner_holds + 1] = inner
    if hold.watch_inner then hold.watch_inner(inner) end
  end
end

--- Calls fn(inner) for all these members concurrently (joint.together).
-- @tparam table members
-- @tparam function fn
-- @tparam boolean is_early return as soon as the round is decided
-- @return true, or nil, "cancelled", the value to raise
function round:call(members, fn, is_early)
  self.unknown = #members
  for i, member in ipairs(members) do
    self.inner_holds[i] = joint.inner_hold(self.hold, member)
  end
  return joint.together(self.red.host, self.inner_holds, fn, nil,
    is_early and function() return self:is_decided() end or nil)
end

--- Requests the lock; until `is_over` is set, grants become inner holds of the
--  hold.
-- @return as `call`
function round:request(members, is_early)
  return self:call(members, function(inner) request_and_count(self, inner) end,
    is_early)
end

--- Counts the servers on which the lock is held by the hold's owner.
-- @return as `call`
function round:count(members)
  return self:call(members, function(inner)
    self.unknown = self.unknown - 1
    local count, _, detail = joint.count(inner, self.deadline)
    inner.code, inner.answer = "counted", detail
    if count and count > 0 then
      self.held, inner.answer = self.held + 1, "yes"
    elseif count then
      self.failed, inner.answer = self.failed + 1, "no"
    end
  end, true)
end

-- outcome -------------------------------------------------------------------

local function show_reply(inner)
  if inner.code == nil then
    return inner.grant and "yes" or "not waited for"
  elseif inner.code == "busy" then
    return verdicts.busy(inner.answer)
  end
  return tostring(inner.answer)
end

--- A message that lists what each server answered.
function round:explain()
  local words = {}
  for i, inner in ipairs(self.inner_holds) do
    local where = inner.lock.record.target:where() .. ": "
    words[i] = where .. show_reply(inner):gsub(where:gsub("%p", "%%%0"), "")
  end
  return ("%s: %d of %d servers, %d are needed; %s"):format(self.red:show(),
    self.held, #self.inner_holds, self.red.majority, table.concat(words, "; "))
end

-- Classifies a server by its reply. A server without one is "away" only if its
-- deadline has passed; a round decided earlier did not wait for it.
local function kind_of(self, inner, now)
  if inner.lock.session.is_closed then return "closed" end
  if inner.code == "busy" or inner.code == "refused" then return inner.code end
  local server = inner.lock.session.server
  if inner.code == "redis"
      and not server:is_retried(inner.code, inner.answer) then
    return "broken"
  end
  if inner.code or not inner.grant and now >= self.deadline then
    return "away"
  end
  return "busy"
end

--- Why there is no majority.
-- @treturn string code: "refused" or "closed" (the clients are) if the other
--   servers are no majority; "busy" if a majority answers, but another owner
--   holds too many; else "quorum"
-- @treturn string detail
-- @treturn boolean|nil true if a retry cannot succeed
function round:outcome()
  if self.clash then return "refused", self.clash, true end
  local count = { busy = 0, refused = 0, closed = 0, away = 0, broken = 0 }
  local now = self.red.host.now()
  for _, inner in ipairs(self.inner_holds) do
    local kind = kind_of(self, inner, now)
    count[kind] = count[kind] + 1
  end
  local code, spare = "quorum", #self.inner_holds - self.red.majority
  if count.refused > spare then
    code = "refused"
  elseif count.closed > spare then
    code = "closed"
  elseif count.busy >= self.red.majority then
    code = "busy"
  end
  return code, self:explain(),
    count.refused + count.closed + count.broken > spare
end

return round
