--- The lock object of every policy: how it waits, and its state on the server.
--- Its public interface is in handle.lua; requests.lua sends the requests and
--- interprets the replies. The object knows its name and policy. The owner is
--- the calling task, not the object: tasks that share one still exclude each
--- other.

local verdicts = require "rlock.lock.verdicts"
local colon = require "rlock.util.colon"
local PASSED = require "rlock.util.deadline".passed
local grant = require "rlock.lock.grant"
local handle = require "rlock.lock.handle"
local metrics = require "rlock.util.metrics"
local naming = require "rlock.naming"
local owner = require "rlock.lock.owner"
local waiting = require "rlock.lock.waiting"

---@class rlock.lock: rlock.handle
---@field session rlock.session internal
---@field record rlock.record internal
---@field owner? rlock.owner internal
---@field drift? number internal
---@field options? table internal
local lock = handle:class()

lock.called = "the lock"

--- With this many requests of a client pending, first requests use the gate.
local FEW = 128

---@type table
local gate              -- loaded when that many are in flight

---@param client rlock.client its locks keep it alive
---@param policy rlock.loaded_policy
---@param name string
---@param options? table owner = an explicit owner name instead of the calling
---  task; drift = the fraction of a lease allowed for clock drift; the rest is
---  passed to the policy's `extra`
---@return rlock.lock
function lock.new(client, policy, name, options)
  local self = setmetatable({
    session = client.session,
    record = client.session:record(client, policy, name, options),
  }, lock)
  if options then
    local named = options.owner
    self.owner = named and owner.named(client.session, named)
    self.drift = options.drift
    if policy.extra then self.options = options end
  end
  return self
end

--- The lock's kind and name, for messages.
---@return string
function lock:show()
  return ("%s lock %s"):format(self.record.policy.name,
    naming.show(self.record.name))
end

--- The detail of "busy".
---@param ms? number until a retry may succeed
function lock:busy(ms)
  return ("%s is %s"):format(self:show(), verdicts.busy(ms))
end

-- taking ------------------------------------------------------------------

--- The grant of the calling task, or nil.
---@return rlock.grant?
function lock:mine()
  local task = self.session.host.current()
  return self.record.grants[self.owner or task]
end

local function not_held(self, granted, code, detail)
  metrics.failed(self.record.series, code)
  if granted then granted:recycle() end
  if code == "cancelled" then error(detail, 0) end
  return nil, code, detail
end

-- Records a grant: the time waited, and the event.
local function count_grant(self, granted, waiter)
  ---@type rlock.session, number
  local session, waited = self.session, 0
  if waiter and waiter.since then
    if waiter.is_handed and self.record.target.hands_over then
      local series = self.record.series
      series.handed_over = series.handed_over + 1
    end
    waited = session.host.now() - waiter.since
    metrics.observe(self.record.series.wait, waited)
  end
  if not session.is_heard then return end
  session:report_of(self, "info", "acquired",
    ("acquired %s after %.3f s"):format(self:show(), waited),
    { wait = waited, token = granted.token })
end

local function leave(self, granted, waiter, is_held, code, detail)
  if waiter then
    waiting.leave(self.session, waiter, is_held)
    if not is_held then granted:leave() end
  end
  if is_held then
    if waiter or self.session.is_heard then
      count_grant(self, granted, waiter)
    end
    if granted.token then return true, granted.token end
    return true
  end
  return not_held(self, granted, code, detail)
end

-- The grant of a waiter; creates one if there is none.
local function grant_for(self, waiter)
  local task = self.session.host.current()
  local its = self.owner or task
  local granted = self.record.grants[its]
    or grant.new(self, its, waiter.owner_name)
  granted:admit(waiter)
  return granted
end

--- Retries the request, see waiting.lua. A grant exists only during an attempt,
--- which saves memory when thousands wait.
---@return any ...
function lock:retry(waiter, deadline, now)
  local granted = grant_for(self, waiter)
  local verdict, ms, code, detail = granted:acquire(deadline, waiter.lease,
    waiter.hold, now, waiter.wait_deadline,
    waiting.registration(self.session, waiter))
  if verdict == "busy" then granted:recycle() else waiter.granted = granted end
  return verdict, ms, code, detail
end

--- Ends a wait, see waiting.lua.
---@return any ... # as `take`
function lock:end_wait(waiter, is_held, code, detail)
  local granted = waiter.granted or grant_for(self, waiter)
  return leave(self, granted, waiter, is_held, code, detail)
end

-- Goes on after the first request: waits if the lock is busy.
---@param since number when the wait began, by host.now()
---@param granted? rlock.grant nil: the request was not sent
---@param waiter? rlock.waiter if it has joined the waiters
---@param verdict any ms, code, detail as grant:acquire returns them
---@return any ... # as `take`
local function go_on(self, lease, hold, since, wait_deadline, granted, waiter,
    verdict, ms, code, detail)
  if verdict == "busy" and wait_deadline > since then
    ---@cast granted -nil
    if not waiter then waiter, ms = granted:join(), nil end
    waiter.lease, waiter.hold = lease, hold
    granted:recycle()
    return waiting.start(self, waiter, since, wait_deadline, ms)
  end
  if verdict == "busy" then code, detail = "busy", self:busy(ms) end
  return leave(self, granted, waiter, verdict == "held", code, detail)
end

-- Sends the first request, as `take`.
---@return rlock.grant
---@return rlock.waiter?
---@return any ... # as grant:acquire
local function begin(self, its, lease, hold, wait_deadline)
  local session, waiter = self.session, nil
  local granted = self.record.grants[its] or grant.new(self, its)
  if session.wakeup:is_live(granted:channel()) then waiter = granted:join() end
  return granted, waiter, granted:acquire(wait_deadline, lease, hold,
    session.host.now(), wait_deadline,
    waiter and waiting.registration(session, waiter))
end

-- As `take`, where first requests pass the gate.
local function take_at_gate(self, its, wait, lease, hold)
  gate = gate or require "rlock.lock.gate"
  local since = self.session.host.now()
  return go_on(self, lease, hold, since, since + wait,
    gate.pass(self, its, since + wait, begin, self, its, lease, hold,
      since + wait))
end

--- Takes one more hold for the calling task, see handle.lua.
function lock:take(wait, lease, hold)
  local session, waiter = self.session, nil
  local task = session.host.current()         -- an error outside of a task
  local its = self.owner or task
  if wait > 0 and session.pending >= FEW and self.record.policy.ops.refresh then
    return take_at_gate(self, its, wait, lease, hold)
  end
  local granted = self.record.grants[its] or grant.new(self, its)
  if wait < 0 then
    return not_held(self, granted, "timeout", PASSED)
  end
  if wait > 0 and session.wakeup.count > 0
      and session.wakeup:is_live(granted:channel()) then
    waiter = granted:join()
  end
  local now = session.host.now()
  local wait_deadline = now + wait
  local verdict, ms, code, detail = granted:acquire(
    wait > 0 and wait_deadline or now + session.timeout, lease, hold, now,
    wait_deadline, waiter and waiting.registration(session, waiter))
  if verdict == "held" and not waiter and not session.is_heard then
    if granted.token then return true, granted.token end
    return true
  end
  return go_on(self, lease, hold, now, wait_deadline, granted, waiter, verdict,
    ms, code, detail)
end

--- The fencing token of this task's hold, if the policy has one.
---@return integer?
function lock:token()
  local granted = self:mine()
  return granted and granted.token
end

--- Sets a node under a grant, see handle:set.
function lock:write(granted, path, value, version)
  if granted:now_is() == "lost" then
    return nil, "lost", granted.lost_because or "not confirmed in time"
  end
  local session = self.session
  local made, code, detail = session.server:set(
    session.host.now() + session.timeout, path, value, version, granted)
  if code == "cancelled" then error(detail, 0) end
  if not made then return nil, code, detail end
  return true, made
end

-- server state ------------------------------------------------------------

--- Runs an optional operation of the policy.
---@param name string
---@param a? any its argument
---@param deadline? number by host.now()
---@return any # the reply
---@return rlock.code? code, string? detail
local function run(self, name, a, deadline)
  local session = self.session
  if not self.record.policy.ops[name] then
    return nil, "usage", ("policy %s has no server.%s, needed here")
      :format(naming.show(self.record.policy.name), name)
  end
  local now = session.host.now()
  local reply, code, detail = self.record.target:run(name,
    deadline or now + session.timeout, now, a)
  if code == "cancelled" then error(detail, 0) end
  return reply, code, detail
end

---@class rlock.lock_state
---@field state "held" | "free"
---@field ttl? number seconds; nil: it has no expiry
---@field count integer holds of the calling task
---@field holders { owner: string, count: integer }[]
---@field token? integer of kinds with fencing tokens
---@field mode? "read" | "write" of the sides of a pair
---@field queue? string[] the first waiters, of kinds that list them
---@field identities? string[] on ZooKeeper: of the holders

--- The lock's current state on the server.
---@return rlock.lock_state?, rlock.code? code, string? detail
function lock:peek()
  return self:state_for(self.owner or self.session.host.current())
end

--- As `peek`, for another owner. Internal.
---@param its any the owner: a task, or a name
---@param deadline? number by host.now()
function lock:state_for(its, deadline)
  local record = self.record
  local granted, op = record.grants[its], record.policy.ops.peek
  local name = granted and granted.owner_name
    or owner.name_for(its, self.session, record.family)
  local reply, code, detail = run(self, "peek", name, deadline)
  if reply == nil then return nil, code, detail end
  local verdict, _, fault = verdicts.of_peek(op, reply)
  if not verdict then return nil, "redis", fault end
  local state, flat, more = {}, reply[4] or {}, reply[5] or {}
  for i = 1, #more, 2 do state[more[i]] = more[i + 1] or nil end
  state.state, state.count, state.holders = reply[1], reply[3], {}
  state.ttl = reply[2] >= 0 and reply[2] / 1000 or nil
  for i = 1, #flat, 2 do
    if flat[i] ~= "" then               -- "": the field of a fencing token
      state.holders[#state.holders + 1] =
        { owner = flat[i], count = tonumber(flat[i + 1]) }
    end
  end
  return state
end

local function peeked(field, self)
  local state, code, detail = self:peek()
  if not state then return nil, code, detail end
  return field(state)
end

--- Does anybody hold it? (A round trip.)
---@return boolean?, rlock.code? code, string? detail
function lock:is_locked()
  return peeked(function(state) return state.state == "held" end, self)
end

--- Does the calling task hold it, according to the server? (A round trip.)
---@return boolean?, rlock.code? code, string? detail
function lock:is_held()
  return peeked(function(state) return state.count > 0 end, self)
end

--- The calling task's hold count, according to the server.
---@return integer?, rlock.code? code, string? detail
function lock:hold_count()
  return peeked(function(state) return state.count end, self)
end

--- Seconds until the lock expires; false if it is free or has no expiry.
---@return number | false | nil
---@return rlock.code? code, string? detail
function lock:ttl()
  return peeked(function(state) return state.ttl or false end, self)
end

--- Frees the lock by force, regardless of its holder. The holder finds out on
--- its next renewal or unlock.
---@param token? integer free it only if the current hold has this fencing token
---@return boolean? # whether the lock was held
---@return rlock.code? code, string? detail
function lock:break_lock(token)
  local op = self.record.policy.ops.break_
  local reply, code, detail = run(self, "break_", token or "")
  if reply == nil then return nil, code, detail end
  local verdict, value, fault = verdicts.of(op, reply)
  if not verdict then return nil, value, fault end
  if verdict == "refused" then return nil, "refused", value end
  return verdict == "freed"
end

return colon.methods(lock, "lock", [[token peek is_locked is_held hold_count ttl
  break_lock]])
