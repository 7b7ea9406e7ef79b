--- The public lock object of every policy: options, waiting, holds.
--  grant.lua sends the requests and interprets the replies. A handle knows its
--  name and policy. The owner is the calling task, not the handle: tasks that
--  share a handle still exclude each other.

local verdicts = require "rlock.verdicts"
local backoff = require "rlock.backoff"
local check = require "rlock.options"
local colon = require "rlock.colon"
local duration = require "rlock.duration"
local grant = require "rlock.grant"
local waiting = require "rlock.waiting"
local remote = require "rlock.redis.remote"

local lock = {}
lock.__index = lock

local huge, max, min = math.huge, math.max, math.min

--- Seconds between polls of a waiter without a channel.
local SPIN_FIRST, SPIN_LAST = 0.001, 0.128

--- @tparam table client the public object; its locks keep it alive
-- @tparam table policy  from policy.load
-- @tparam string name
-- @tparam[opt] table options owner = an explicit owner name instead of the
--   calling task; drift = the fraction of a lease allowed for clock drift; the
--   rest is passed to the policy's `extra`
function lock.new(client, policy, name, options)
  local self = setmetatable({
    session = client.session, site = client.session:site(client, policy, name),
  }, lock)
  if options then
    local owner = options.owner
    self.owner, self.party = owner, owner and client.session.party_of(owner)
    self.drift = options.drift
    if policy.extra then self.options = options end
  end
  return self
end

--- The lock's kind and name, for messages.
function lock:__tostring() return grant.show { lock = self } end

-- options -----------------------------------------------------------------

local function check_options(options, level)
  if options == nil then return nil, nil end
  options = check.of_lock(options, level + 1)
  return options.wait, options.lease
end

-- The grant of the calling task, or nil.
local function mine(self)
  local task = self.session.host.current()
  return self.site.grants[self.party or task]
end

-- waiting -----------------------------------------------------------------

-- The grant of the calling task; creates one if there is none.
local function grant_of(self)
  local party = self.session.host.current()
  if self.party then party = self.party end
  return self.site.grants[party] or grant.new(self, party)
end

-- The channel on which releases are published, or nil.
local function channel_of(self, granted)
  local policy = self.site.policy
  return policy.channel and policy.channel(self.site.keys, granted.owner)
end

-- Joins the channel's waiters, so that no later release is missed. Without a
-- channel the waiter polls with a backoff.
local function join(self, granted)
  local channel, session = channel_of(self, granted), self.session
  if channel then
    return session.wakeup:join(channel, self.site.policy.wakes)
  end
  local waiter = session.host.event()
  waiter.backoff = backoff.new(SPIN_FIRST, SPIN_LAST,
    session.host.random_number)
  return waiter
end

-- Waits for a wake or for the time of the next retry.
local function wait_a_while(self, waiter, ttl)
  if waiter.backoff then
    return waiter:pause(min(max(waiter.backoff:next(), SPIN_FIRST),
      waiter.wait_deadline - self.session.host.now()))
  end
  return waiting.pause(self.session, waiter, ttl, self.site.policy.poll)
end

local function need(self, seconds)
  seconds = duration.check(seconds, "seconds", 0, nil, 2)
  if self:state() == "free" then
    return nil, "not_held", "this task does not hold it"
  end
  local left = self:valid_for()
  if left >= seconds then return true end
  return nil, "lost", ("valid for %.3f s only, %g s are needed"):format(
    left, seconds)
end

--- Building blocks for locks that combine other locks (joint.lua).
--    options(options, level)     checks the options of `lock`: wait, lease
--    need(lock or hold, seconds) the method `need`
--    join(lock, granted)         -> waiter; the caller sets `wait_deadline`
--                                and calls wakeup:leave if it has a `channel`
--    wait(lock, waiter, ttl)     -> as wakeup:wait
lock.parts = {
  options = check_options, need = need, join = join, wait = wait_a_while,
}

local function not_held(granted, code, detail)
  granted:sweep()
  if code == "cancelled" then error(detail, 0) end
  return nil, code, detail
end

local function leave(self, granted, waiter, verdict, code, detail)
  if waiter and waiter.channel then
    self.session.wakeup:leave(waiter, verdict == "held")
  end
  if waiter and verdict ~= "held" then granted:leave() end
  if verdict == "held" then
    if granted.token then return true, granted.token end
    return true
  end
  return not_held(granted, code, detail)
end

local stand_in_line

-- Retries after a wait; waits again if the lock is still busy.
local function ask_again(waiter, woken, code, detail)
  local self = waiter.lock
  local granted, now = grant_of(self), self.session.host.now()
  if woken == nil then
    return leave(self, granted, waiter, nil, code, detail)
  end
  if now >= waiter.wait_deadline then
    return leave(self, granted, waiter, nil, "timeout",
      granted:show() .. ": not free in time")
  end
  local verdict, ttl, why = granted:acquire(
    waiting.request_deadline(self.session, now, waiter.wait_deadline),
    waiter.lease, waiter.hold, now, waiter.wait_deadline)
  if verdict ~= "busy" then
    return leave(self, granted, waiter, verdict, ttl, why)
  end
  granted:sweep()
  return stand_in_line(waiter, ttl)
end

-- Retries until the lock is held or the deadline passes. A nil `ttl` means no
-- attempt since joining the waiters. To keep thousands of waiting tasks small,
-- tail calls leave one frame, and a grant exists only during an attempt.
function stand_in_line(waiter, ttl)
  return ask_again(waiter, wait_a_while(waiter.lock, waiter, ttl))
end

local function busy(granted, ttl)
  return nil, "busy", ("%s is held by another owner%s"):format(granted:show(),
    ttl > 0 and (" for %.1f s more"):format(ttl / 1000) or "")
end

local function take(self, wait, lease, hold)
  local granted, session, waiter = grant_of(self), self.session, nil
  if wait > 0 and session.wakeup.count > 0
      and session.wakeup:is_live(channel_of(self, granted)) then
    waiter = join(self, granted)
  end
  local now = session.host.now()
  local verdict, ttl, detail = granted:acquire(
    waiting.request_deadline(session, now, now + wait), lease, hold, now,
    now + wait)
  if verdict == "busy" and wait > 0 then
    if not waiter then waiter, ttl = join(self, granted), nil end
    waiter.lock, waiter.wait_deadline = self, now + wait
    waiter.lease, waiter.hold = lease, hold
    granted:sweep()
    return stand_in_line(waiter, ttl)
  end
  if verdict == "busy" then verdict, ttl, detail = busy(granted, ttl) end
  return leave(self, granted, waiter, verdict, ttl, detail)
end

-- Takes one more hold for the calling task.
local function enter(self, wait, lease, hold)
  return self.session.host.whole(take, self, wait, lease, hold)
end

--- Waits for the lock and takes it.
-- @tparam[opt] table options
--   wait: maximum seconds to wait; bounds the whole call. Default: forever,
--   even while the server is unreachable, unless an error is permanent.
--   lease: maximum seconds to hold it; without it the watchdog renews it.
-- @treturn[1] boolean true
-- @return[1] the fencing token, if the policy has one
-- @treturn[2] nil
-- @treturn[2] string code: "timeout", "refused", "connect", "closed", "lost"
-- @treturn[2] string detail
function lock:lock(options)
  local wait, lease = check_options(options, 2)
  return enter(self, wait or huge, lease)
end

--- Takes the lock if it is free. As `lock`, but `wait` defaults to 0.
function lock:try_lock(options)
  local wait, lease = check_options(options, 2)
  return enter(self, wait or 0, lease)
end

local function let_go(granted, hold)
  local ok, code, detail = granted:release(hold)
  if ok then return true end
  if code == "cancelled" then error(detail, 0) end
  return ok, code, detail
end

local function release(self, granted, hold)
  return self.session.host.whole(let_go, granted, hold)
end

--- Releases the calling task's most recent hold.
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string "not_held" (never held), "lost" (held, then expired or
--   broken), or why the request failed
-- @treturn[2] string detail
function lock:unlock()
  local granted = mine(self)
  if not granted then
    return nil, "not_held", "this task does not hold the lock"
  end
  return release(self, granted)
end

local function done(self, ...)
  local is_released, code, detail = self:unlock()
  if not is_released then return nil, code, detail end
  return ...
end

--- Holds the lock while a function runs; releases it even if fn raises.
-- @tparam[opt] table options as for `lock`
-- @tparam function fn called with the lock and the further arguments
-- @return[1] what fn returned
-- @treturn[2] nil
-- @treturn[2] string code: the lock was not taken and fn did not run, or the
--   lock was "lost" before fn returned
-- @treturn[2] string detail
function lock:with(options, fn, ...)
  if type(options) == "function" then
    return self:with(nil, options, fn, ...)
  end
  if type(fn) ~= "function" then
    error("bad argument fn of lock:with: must be a function", 2)
  end
  local wait, lease = check_options(options, 2)
  local ok, code, detail = enter(self, wait or huge, lease)
  if not ok then return nil, code, detail end
  return done(self,
    self.session.host.guard(self.unlock, self, fn, self, ...))
end

-- transferable holds ------------------------------------------------------

-- The public object (face) of a hold. The grant refers to it weakly: once the
-- task has ended and the object is garbage, the hold is abandoned.
local Hold = {}
Hold.__index = Hold

local WEAK = { __mode = "v" }

--- Takes the lock and returns an object for this hold. Any task may use it; a
--  `<close>` variable releases it at the end of its block.
-- @tparam[opt] table options as for `lock`
-- @return[1] the hold: unlock, valid_for, need, on_lost, state, token
-- @treturn[2] nil, code, detail as for `lock`
function lock:hold(options)
  local wait, lease = check_options(options, 2)
  local hold = { is_carried = not self.session.host.ends_tasks }
  local ok, code, detail = enter(self, wait or huge, lease, hold)
  if not ok then return nil, code, detail end
  local face = setmetatable({
    lock = self, grant = mine(self), hold = hold,
  }, Hold)
  hold.face = setmetatable({ face }, WEAK)
  return face
end

--- As lock:unlock, for this hold.
function Hold:unlock()
  if self.hold.is_over then
    return nil, "not_held", "this hold was released before"
  end
  return release(self.lock, self.grant, self.hold)
end

function Hold:__close()
  if not self.hold.is_over then release(self.lock, self.grant, self.hold) end
end

function Hold:valid_for()
  return self.hold.is_over and 0 or self.grant:valid_for()
end

function Hold:token()
  return not self.hold.is_over and self.grant.token or nil
end

function Hold:state()
  return self.hold.is_over and "free" or self.grant:now_is()
end

function Hold:on_lost(fn)
  if self.hold.is_over then return end
  local face = self.hold.face
  self.grant:when_lost(function(its_lock, reason)
    return fn(face[1] or its_lock, reason)
  end, self.lock)
end

function Hold:__tostring() return "hold of " .. tostring(self.lock) end

--- Is the lock certainly ours for at least this long?
-- @tparam number seconds
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string "lost": already lost or valid for less; "not_held"
-- @treturn[2] string detail
Hold.need = need
lock.need = need

-- local state -------------------------------------------------------------

--- Seconds for which this task's hold is certainly valid.
function lock:valid_for()
  local granted = mine(self)
  return granted and granted:valid_for() or 0
end

--- "held", "at_risk" (a renewal failed, there is still time), "lost", "free".
function lock:state()
  local granted = mine(self)
  return granted and granted:now_is() or "free"
end

--- The fencing token of this task's hold, if the policy has one.
function lock:token()
  local granted = mine(self)
  return granted and granted.token
end

--- Calls fn if this task's hold is lost: expired, broken, not renewed in time.
-- @tparam function fn called once, as a task, with the lock and the reason
-- @return true, or nil, "not_held"
function lock:on_lost(fn)
  if type(fn) ~= "function" then
    error("bad argument fn of lock:on_lost: must be a function", 2)
  end
  local granted = mine(self)
  if not granted or #granted.holds == 0 then
    return nil, "not_held", "this task does not hold the lock"
  end
  granted:when_lost(fn, self)
  return true
end

-- server state ------------------------------------------------------------

-- Runs an optional operation of the policy.
-- @return the reply, and the operation
local function run(self, name, a, b)
  local op, node = self.site.policy.ops[name], self.session.node
  if not op then
    return nil, "usage", ("policy %q has no server.%s, needed here")
      :format(self.site.policy.name, name)
  end
  local now = node.host.now()
  local reply, code, detail = remote.run(node, op,
    now + self.session.timeout, now, self.site.keys, a, b)
  if code == "cancelled" then error(detail, 0) end
  if reply == nil then return nil, code, detail end
  return reply, op
end

--- The lock's current state on the server.
-- @treturn[1] table { state = "held"|"free", ttl = seconds or nil, count =
--   holds of the calling task, holders = { { owner =, count = }, ... } }, and
--   the policy's extra fields: `token`, `mode`, `queue` (the first waiters)
-- @treturn[2] nil, code, detail
function lock:peek()
  local granted = mine(self)
  local owner = granted and granted.owner or self.owner
    or self.session:owner_of(self.session.host.current(), self.site.family)
  local reply, code, detail = run(self, "peek", owner)
  if reply == nil then return nil, code, detail end
  local told, _, fault = verdicts.of_peek(code, reply)
  if not told then return nil, "redis", fault end
  local state = { state = reply[1], count = reply[3], holders = {} }
  if reply[2] >= 0 then state.ttl = reply[2] / 1000 end
  local flat, more = reply[4] or {}, reply[5] or {}
  for i = 1, #more, 2 do state[more[i]] = more[i + 1] or nil end
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
function lock:is_locked()
  return peeked(function(state) return state.state == "held" end, self)
end

--- Does the calling task hold it, according to the server? (A round trip.)
function lock:is_held()
  return peeked(function(state) return state.count > 0 end, self)
end

--- The calling task's hold count, according to the server.
function lock:hold_count()
  return peeked(function(state) return state.count end, self)
end

--- Seconds until the lock expires; false if it is free or has no expiry.
function lock:ttl()
  return peeked(function(state) return state.ttl or false end, self)
end

--- Frees the lock by force, regardless of its holder. The holder finds out on
--  its next renewal or unlock.
-- @param[opt] token free it only if the current hold has this fencing token
-- @treturn[1] boolean whether the lock was held
-- @treturn[2] nil, code, detail
function lock:break_lock(token)
  local reply, code, detail = run(self, "break_", token or "",
    self.session.publish)
  if reply == nil then return nil, code, detail end
  local verdict, value, fault = verdicts.of(code, reply)
  if not verdict then return nil, value, fault end
  if verdict == "refused" then return nil, "refused", value end
  return verdict == "freed"
end

colon.methods(Hold, "hold", "unlock valid_for token state on_lost need")
return colon.methods(lock, "lock", [[lock try_lock unlock with hold valid_for
  state token need on_lost peek is_locked is_held hold_count ttl break_lock]])
