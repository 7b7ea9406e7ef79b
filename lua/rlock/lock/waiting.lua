--- The wait loop of locks and counters. waiting.pause is a single wait.
--- waiting.start is the loop: it waits and retries until the verdict is not
--- "busy" or the deadline passes.
---
--- A waiter of the loop has a `call`, which is a lock or a counter's call:
---   session, record
---   show()    what is waited for, for messages
---   late      the detail of a timeout; default: it is "not free in time"
---   retry(waiter, deadline, now)  sends the request; returns as grant:acquire
---   end_wait(waiter, is_held, code, detail)  leaves the waiters; returns what
---             the loop returns

local backoff = require "rlock.util.backoff"
local requests = require "rlock.lock.requests"

local waiting = {}

local huge, max, min = math.huge, math.max, math.min

--- Poll intervals in seconds: of the first waiter, of those behind it, and
--- without a subscription. Half of each is jitter.
local POLL, POLL_BEHIND, POLL_DEAF = 5, 20, 0.4
local SPREAD = 1          -- extra jitter for waiters behind the first
local LEAST = 0.01        -- a policy may reply "busy" and 0
local CONFIRM = 1         -- maximum wait for the subscription
--- Seconds between polls of a waiter without a channel.
local SPIN_FIRST, SPIN_LAST = 0.001, 0.128

---@type table
local deadlock          -- loaded when a client that holds something waits

--- Why a task must not wait for a lock: see deadlock.enter.
function waiting.deadlock(session, waiter, lock)
  for _, its in next, session.process.sessions do
    if its.watchdog:is_needed() then
      deadlock = deadlock or require "rlock.lock.deadlock"
      return deadlock.enter(session, waiter, lock)
    end
  end
end

--- Call this when a task retries several locks after a pause. It cannot be part
--- of a deadlock until its next pause.
function waiting.awake(waiter)
  local wait = waiter.edge
  if wait then wait.is_active, wait.next_search = false, 0 end
end

-- The job of a waiter has died, see resty/rlock/host/guard.lua.
local function leave_for(dead)
  local session, waiter, record = dead.session, dead.waiter, dead.record
  session.heartbeats:leave(waiter)
  if waiter.edge then deadlock.leave(session, waiter) end
  if waiter.channel then session.wakeup:leave(waiter, false) end
  if record then requests.leave_place(session, record, waiter.owner_name) end
end

--- Joins the waiters of a channel, so that no later release is missed. Without
--- a channel the waiter polls with a backoff.
---@param session rlock.session
---@param channel? string
---@param wakes? function as for wakeup:join
---@param record? rlock.record of a lock, whose policy may have a queue of
---  waiters
---@param hands_over? boolean whether the lock is handed over to waiters, even
---  if this one does not register; default: that of the record's target
---@return rlock.waiter
function waiting.join(session, channel, wakes, record, hands_over)
  local host = session.host
  ---@type rlock.waiter
  local waiter
  if channel then
    hands_over = hands_over or record and record.target.hands_over
    waiter =
      session.wakeup:join(channel, wakes, hands_over and session.id or nil)
  else
    waiter = host.event() --[[@as rlock.waiter]]
    waiter.backoff = backoff.new(SPIN_FIRST, SPIN_LAST, host.random_number)
  end
  if host.on_death then
    waiter.survives = host.on_death(leave_for,
      { session = session, waiter = waiter, record = record })
  end
  return waiter
end

--- Further arguments of the first waiter's request, which register it.
---@return table?
function waiting.registration(session, waiter)
  local channel = waiter.channel
  return channel and channel.inbox and channel.first == waiter
    and session.registration or nil
end

--- As wakeup:leave.
function waiting.leave(session, waiter, got_it)
  if waiter.survives then waiter.survives() end
  if waiter.edge then deadlock.leave(session, waiter) end
  if waiter.channel then session.wakeup:leave(waiter, got_it) end
end

-- How long to wait for a wake.
local function pause_length(session, waiter, ms, most, shared)
  local random, channel = session.host.random_number, waiter.channel
  local is_first = waiter == channel.first
  -- The second one is not registered if the first gets the lock.
  local is_next = is_first or channel.inbox and waiter.prev == channel.first
  ---@type number
  local poll = is_next and POLL or POLL_BEHIND
  if shared and session.wakeup:polls(waiter) then poll = shared end
  if not channel.is_live then
    poll = POLL_DEAF           -- no message reaches us
  end
  poll = min(poll, most or huge) * (0.5 + random() / 2)
  if ms < 0 then return poll end
  local seconds = max((ms + 1) / 1000, LEAST)
  if not is_first then seconds = seconds + random() * SPREAD end
  return min(seconds, poll)
end

local function off_the_line(session, waiter, ...)
  session.heartbeats:leave(waiter)
  return ...
end

-- Waits for a message, or for the reply to a heartbeat that names the waiter.
local function pause_in_line(session, waiter)
  local left = waiter.wait_deadline - session.host.now()
  return off_the_line(session, waiter,
    session.wakeup:wait(waiter, left < huge and left or nil))
end

--- Waits for a wake, for `ms` to pass or for the next poll; before the first
--- attempt, for the subscription.
---@param session rlock.session
---@param waiter rlock.waiter with `wait_deadline`, and its `owner_name`
---@param ms? integer until a retry may succeed; -1: unknown; nil: no attempt
---  since the waiter joined
---@param record rlock.record of the lock
---@return any ... # as wakeup:wait
function waiting.pause(session, waiter, ms, record)
  local policy = record and record.policy
  if ms and policy and policy.ops.refresh and waiter.channel then
    session.heartbeats:join(waiter, record, ms)
    return pause_in_line(session, waiter)
  end
  local most, shared = policy and policy.poll, policy and policy.poll_shared
  local seconds = min(CONFIRM, most or huge)
  if waiter.backoff then
    seconds = max(waiter.backoff:next(), SPIN_FIRST)
  elseif ms then
    seconds = pause_length(session, waiter, ms, most, shared)
  elseif waiter.channel.is_live then
    return true
  end
  return session.wakeup:wait(waiter,
    min(seconds, waiter.wait_deadline - session.host.now()))
end

--- The deadline of one request. A waiter retries an unreachable server for its
--- whole wait; a single attempt has the client's `timeout`.
function waiting.request_deadline(session, now, wait_deadline)
  return wait_deadline > now and wait_deadline or now + session.timeout
end

--- The detail of a timeout.
---@param call table see above
function waiting.late(call)
  return call.late or call:show() .. ": not free in time"
end

-- the loop -------------------------------------------------------------------

---@type function
local wait

-- Retries after a wait; waits again if it is still busy.
local function retry(waiter, woken, code, detail)
  local call = waiter.call
  if woken == nil then return call:end_wait(waiter, false, code, detail) end
  local now = call.session.host.now()
  if now >= waiter.wait_deadline then
    return call:end_wait(waiter, false, "timeout", waiting.late(call))
  end
  local verdict, ms
  verdict, ms, code, detail = call:retry(waiter,
    waiting.request_deadline(call.session, now, waiter.wait_deadline), now)
  if verdict == "busy" then return wait(waiter, ms) end
  return call:end_wait(waiter, verdict == "held", code, detail)
end

-- To keep thousands of waiting tasks small, tail calls leave one frame.
local function pause_and_retry(waiter, ms)
  local call = waiter.call
  return retry(waiter, waiting.pause(call.session, waiter, ms, call.record))
end

-- Waits, unless the wait would deadlock.
function wait(waiter, ms)
  local call = waiter.call
  local cycle = waiting.deadlock(call.session, waiter, call)
  if cycle then return call:end_wait(waiter, false, "deadlock", cycle) end
  return pause_and_retry(waiter, ms)
end

--- Waits, and retries until the verdict is not "busy" or the deadline passes.
---@param call table see above
---@param waiter rlock.waiter
---@param since number when the wait began, by host.now()
---@param wait_deadline number
---@param ms? integer as for `pause`
---@return any # as call:end_wait
function waiting.start(call, waiter, since, wait_deadline, ms)
  local session = call.session
  waiter.call, waiter.since, waiter.wait_deadline = call, since, wait_deadline
  if session.is_heard then
    session:report_of(call, "info", "waiting", "waiting for " .. call:show())
  end
  return wait(waiter, ms)
end

return waiting
