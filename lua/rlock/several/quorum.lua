--- Redlock: a lock on a majority of independent Redis servers. It is available
--- while most servers are, and no single server can grant it twice. All servers
--- are asked at once, each with a short timeout; the result is decided as soon
--- as a majority has granted it or no longer can. The lock is valid while a
--- majority of the leases is: measured by our clock from before the requests,
--- less an allowance for clock drift. The watchdog of each client renews its
--- inner hold. An inner hold that is lost or missing is retried while a
--- majority holds.
---
--- This is safe while no majority of the servers forgets its grants. A server
--- that restarts without an append-only file, or is replaced, is therefore not
--- counted for one lease by clients that knew its predecessor.

local backoff = require "rlock.util.backoff"
local Round = require "rlock.several.round"
local check = require "rlock.util.options"
local colon = require "rlock.util.colon"
local joint = require "rlock.several.joint"
local naming = require "rlock.naming"
local policy = require "rlock.policy"
local posted = require "rlock.lock.posted"

---@class rlock.red_lock: rlock.joint
---@field name string
---@field majority integer
---@field held table
local quorum = joint:class()

quorum.kind, quorum.first_pause = "red", 0.004

local floor, huge, max, min = math.floor, math.huge, math.max, math.min

--- Seconds before a missing inner hold is retried: the first back-off limit,
--- which doubles up to a third of the lease, and the minimum.
local FIRST_HEAL, LEAST_HEAL = 0.1, 0.01
local NODE_TIMEOUT = 0.05
local DRIFT = 0.01             -- fraction of a lease, for clock drift

-- Two majorities may share only one server, and that one alone refuses the
-- second owner. So only mutual exclusion is sound; a semaphore is not.
local function check_policy(which, _, level)
  local loaded = policy.load(which, level + 2)
  if loaded.exclusive then return which end
  error(("bad policy %s of red_lock: not known to be mutual exclusion (if it "
    .. "is, set its exclusive = true). With two permits on each of 3 servers, "
    .. "3 owners get a majority: A has servers 1 and 2, B 2 and 3, C 1 and 3")
    :format(loaded.name), level + 1)
end

local function refuse_tokens(fenced, _, level)
  if not fenced then return fenced end
  error("bad option fenced of red_lock: independent servers cannot issue a "
    .. "common token", level + 1)
end

---@class rlock.options.red_lock
---@field policy? string | rlock.policy default: "reentrant"
---@field node_timeout? number seconds for one server; default: 0.05
---@field drift? number the fraction of a lease allowed for clock drift;
--- default: 0.01
---@field owner? string
---@field replicas? rlock.count
---@field replica_timeout? number

---@alias rlock.red_lock_options rlock.options.red_lock & {
---   policy?: any, node_timeout?: any, drift?: any, fenced?: any,
---   owner?: any, replicas?: any, replica_timeout?: any, [string]: nil }

local check_options = check.table({
  policy = check_policy, node_timeout = check.duration(0.001),
  drift = check.drift, fenced = refuse_tokens,
}, 'a table such as { policy = "simple" }', "red_lock")

local function check_clients(clients, level)
  joint.check_list(clients, "clients of red_lock", level + 1)
  local seen = {}
  for i, client in ipairs(clients) do
    if type(client) ~= "table" or not client.session then
      error(("bad client %d of red_lock: must be from rlock.open"):format(
        i), level + 1)
    elseif not client.session.options.backend.is_for_red_locks then
      error(("bad client %d of red_lock: red locks are for Redis; a ZooKeeper "
        .. "ensemble already decides by majority"):format(i), level + 1)
    elseif seen[client] then
      error(("bad client %d of red_lock: it is client %d"):format(i,
        seen[client]), level + 1)
    end
    seen[client] = i
  end
end

---@param clients table
---@param name string
---@param options? table policy, drift, node_timeout
function quorum.new(clients, name, options)
  check_clients(clients, 3)
  check.name(name, 3)
  options = check_options(options, 3)
  local members, lease = {}, huge
  for i, client in ipairs(clients) do
    members[i] = client:policy(options.policy or "reentrant", name,
      { drift = options.drift or DRIFT })
    lease = min(lease, client.session.lease)
  end
  local self = joint.new(quorum, members)
  self.name, self.lease = name, lease
  self.node_timeout = options.node_timeout or NODE_TIMEOUT
  self.majority = floor(#members / 2) + 1
  self.is_posted = posted.suits(members[1])
  return self
end

--- A description, for messages.
function quorum:show()
  return "red lock " .. naming.show(self.name)
end

local ends = {}                -- reused: the latest first

-- The times until which a majority, and any server, certainly keeps the hold;
-- or 0.
local function valid_until(self, hold)
  local n, inner_holds = 0, hold.inner_holds
  for i = 1, #inner_holds do
    local inner = inner_holds[i]
    local grant = inner.grant
    if not inner.is_over and grant.state ~= "lost" then       -- joint.is_alive
      local at, its = n, grant.valid_until
      while at > 0 and ends[at] < its do
        ends[at + 1], at = ends[at], at - 1
      end
      ends[at + 1], n = its, n + 1
    end
  end
  return n < self.majority and 0 or ends[self.majority], n > 0 and ends[1] or 0
end

function quorum:valid_of(hold)
  return max(0, (valid_until(self, hold)) - self.host.now())
end

-- A server without a connection may have crashed and forgotten its inner hold.
function quorum:state_of(hold)
  if self:valid_of(hold) == 0 then return "lost" end
  local sure = 0
  for _, inner in ipairs(hold.inner_holds) do
    if joint.is_alive(inner) and inner.grant.state == "held"
        and inner.lock.record.target:is_connected() then
      sure = sure + 1
    end
  end
  return sure >= self.majority and "held" or "at_risk"
end

-- Releases all inner holds in the background, each until its server answers or
-- its lease ends.
local function drop(hold)
  local inner_holds = hold.inner_holds
  hold.inner_holds = {}
  for _, inner in ipairs(inner_holds) do inner:release() end
end

--- If the caller's deadline cuts the attempt short, the outcome of the previous
--- one is reported.
function quorum:attempt(try)
  local hold = try.hold
  local round = Round.new(self, hold, try.lease,
    not try.is_single and try.wait_deadline or nil)
  hold.round = round
  ---@type any, any, any
  local ok, code, detail = round:request(self.members, true)
  if ok and round.held >= self.majority and not round.clash
      and self:valid_of(hold) > 0 then
    return true
  end
  round.is_over = true
  drop(hold)
  if ok then code, detail, try.is_final = round:outcome() end
  round:give_up(false)
  if not ok then return nil, code, detail end
  if code ~= "quorum" or not round.is_short or not try.code then
    try.code, try.detail = code, detail
  end
  return nil, try.code, try.detail
end

function quorum:pause(try, code, detail)
  if try.is_final then return nil, code, detail end
  self:report_wait(try)
  local slept, cancelled, unwind = self:rest(try)
  if slept == nil then return nil, cancelled, unwind end
  return true, code == "busy" and "timeout" or code, detail
end

function quorum:may_take()
  local outer = self:mine()
  if not outer then return true end
  if outer.lost_because or self:state_of(outer) == "lost" then
    return nil, "lost", ("this task's earlier hold was lost (%s): unlock it "
      .. "first"):format(outer.lost_because or "its lease has ended")
  elseif self.members[1].record.policy.reenter == false then
    return nil, "refused", "held by this task already, and " .. self:show()
      .. " cannot be entered twice"
  end
  return true
end

function quorum:end_take(try, is_held)
  if not is_held then return end
  try.hold.lease = try.lease
  if not try.lease then self:watch(try.hold) end
end

-- Releases the lost inner holds. Returns the members of which the hold has no
-- inner hold.
local function without_part(self, hold)
  local alive, dead, has, others = {}, {}, {}, {}
  for _, inner in ipairs(hold.inner_holds) do
    if joint.is_alive(inner) then
      alive[#alive + 1], has[inner.lock] = inner, true
    else
      dead[#dead + 1] = inner
    end
  end
  hold.inner_holds = alive
  for _, inner in ipairs(dead) do joint.release(inner) end
  for _, member in ipairs(self.members) do
    if not has[member] then others[#others + 1] = member end
  end
  return others
end

-- Is the hold still valid, and can anything still release it?
local function is_wanted(self, hold)
  return not hold.is_over and not hold.lost_because
    and self:valid_of(hold) > 0
    and (not self.host.is_over(hold.task)
      or hold.is_transferable and hold.object[1] ~= nil)
end

-- Retries the missing inner holds while the hold is valid. Holding more than a
-- majority does not exclude anyone else.
local function keep_healing(self, hold)
  local third = self.lease / 3
  local pauses = backoff.new(min(FIRST_HEAL, third), third,
    self.host.random_number)
  while not hold.healer:wait(max(pauses:next(), LEAST_HEAL)) do
    if not is_wanted(self, hold) then return end
    local others = without_part(self, hold)
    if not others[1] then break end
    hold.is_healed = true
    Round.new(self, hold):request(others)
  end
  hold.healer = nil
end

--- Retries the missing inner holds in the background.
function quorum:heal(hold)
  if hold.healer or hold.lease or not is_wanted(self, hold) then return end
  hold.healer = self.host.event()
  self.host.service(keep_healing, self, hold)
end

--- A part has lost its grant.
---@param part table
---@param reason string for messages
function quorum:lost_part(part, reason)
  local hold = part.round.hold
  if hold.is_over or hold.lost_because then return end
  if self:valid_of(hold) > 0 then return self:heal(hold) end
  drop(hold)
  joint.lose(hold, ("no majority of %d servers has it now; the last to "
    .. "lose it was %s: %s"):format(#self.members,
    part.lock.record.target:where(), reason))
end

function quorum:watch(hold)
  if hold.is_watched then return end
  hold.is_watched = true
  for _, part in ipairs(hold.inner_holds) do part:watch() end
  if hold.round.failed > 0 then self:heal(hold) end
end

-- The replies to the releases of a hold: `freed`, and `gone` where the inner
-- hold was lost already.
---@class rlock.several.quorum.Releases
---@field majority integer
---@field all any
---@field left any
---@field freed number
---@field gone number
---@field event rlock.event
local Releases = {}
Releases.__index = Releases

-- Has a majority freed it, or are too few servers left that kept it?
local function is_decided(self)
  return self.left == 0 or self.freed >= self.majority
    or self.all - self.gone < self.majority
end

-- A part has changed the counts, while a task waits for them.
function Releases:changed()
  if is_decided(self) then self.event:set() end
end

--- Releases the inner holds, and returns as soon as that is decided; the other
--- releases continue in the background.
---@return any ... # the counts, or nil, "cancelled", the value to raise
local function release_all(self, inner_holds, now)
  local n = #inner_holds
  local count = setmetatable({
    majority = self.majority, all = n, left = n, freed = 0, gone = 0,
    event = nil,
  }, Releases)
  for i = 1, n do
    local part = inner_holds[i]
    part.releases = count
    part:release()
  end
  if is_decided(count) then return count end
  count.event = self.host.event()
  local woken, code, unwind =
    count.event:pause(Round.time_limit(self, nil, now) - now)
  if woken == nil then return nil, code, unwind end
  return count
end

function quorum:release_parts(hold)
  if hold.healer then hold.healer:set() end
  hold.round:give_up(false)
  if hold.lost_because then return nil, "lost", hold.lost_because end
  local inner_holds, now, all = hold.inner_holds, self.host.now(), #self.members
  local ends_at, last = valid_until(self, hold)
  local count, code, unwind = release_all(self, inner_holds, now)
  if not count then return nil, code, unwind end
  local left = #inner_holds - count.gone
  if count.freed >= self.majority then
    return true
  elseif left < self.majority then
    return nil, "lost", ("only %d of %d servers still had it"):format(left, all)
  elseif ends_at <= now then
    return nil, "lost", "its lease has ended"
  elseif count.freed + count.gone >= self.majority then
    return true
  end
  return nil, "quorum", ("only %d of %d servers confirmed it; the leases end "
    .. "it in %.1f s at the latest"):format(count.freed, all,
      max(last - now, 0))
end

function quorum.effect()
  return nil, "usage", "a red lock guards no commands: no single server "
    .. "knows whether it is held"
end

--- Does the calling task hold it, according to a majority of the servers?
---@return boolean?
---@return rlock.failure? code # "quorum": too few servers answered
---@return string? detail
function quorum:is_held()
  local round = Round.new(self, { task = self.host.current() })
  local ok, _, unwind = round:count(self.members)
  if not ok then error(unwind, 0) end
  if round.held >= self.majority then return true end
  if round.failed > #self.members - self.majority then return false end
  return nil, "quorum", round:explain()
end

return colon.methods(quorum, "lock", "is_held")
