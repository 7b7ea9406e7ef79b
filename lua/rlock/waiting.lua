--- The wait loop of a channel's waiters. waiting.pause is one wait, for a wake
--  or the next poll (lock.lua uses it directly). waiting.wait is the whole loop
--  for semaphores, permits and latches: try, join the waiters, retry (a message
--  may have come before the join), then wait and retry until done.
--
--  A call is a table:
--    counter   what it is for, with `site` and `session`
--    channel   the channel to wait on; `wakes` as for wakeup:join
--    wants     how many permits it needs, see wakeup:pass
--    late      the detail of a timeout
--    try       function(call, deadline, now) -> a verdict:
--              "held", left         success; `left` permits remain, or nil
--              "busy", ms[, left]   retry in ms; -1: unknown
--              nil, code, detail    failed

local backoff = require "rlock.backoff"
local PASSED = require "rlock.deadline".passed
local metrics = require "rlock.metrics"
local naming = require "rlock.naming"

local waiting = {}

local huge, max, min = math.huge, math.max, math.min

--- Poll intervals in seconds: of the first waiter, of those behind it, and
--  without a subscription. Half of each is jitter.
local POLL, POLL_BEHIND, POLL_DEAF = 5, 20, 0.4
local SPREAD = 1          -- extra jitter for waiters behind the first
local LEAST = 0.01        -- a policy may reply "busy" and 0
local CONFIRM = 1         -- maximum wait for the subscription
--- Seconds between polls of a waiter without a channel.
local SPIN_FIRST, SPIN_LAST = 0.001, 0.128

--- Joins the waiters of a channel, so that no later release is missed. Without
--  a channel the waiter polls with a backoff.
-- @tparam table session
-- @tparam string|nil channel
-- @tparam[opt] function wakes as for wakeup:join
-- @treturn table waiter
function waiting.join(session, channel, wakes)
  if channel then return session.wakeup:join(channel, wakes) end
  local waiter, host = session.host.event(), session.host
  waiter.backoff = backoff.new(SPIN_FIRST, SPIN_LAST, host.random_number)
  return waiter
end

--- As wakeup:leave.
function waiting.leave(session, waiter, got_it)
  if waiter.channel then session.wakeup:leave(waiter, got_it) end
end

-- How long to wait for a wake.
local function pause_length(session, waiter, ms, most)
  local random, channel = session.host.random_number, waiter.channel
  local is_first = waiter == channel.first
  local poll = is_first and POLL or POLL_BEHIND
  if not channel.is_live then
    poll = POLL_DEAF           -- no message reaches us
  end
  poll = min(poll, most or huge) * (0.5 + random() / 2)
  if ms < 0 then return poll end
  local seconds = max((ms + 1) / 1000, LEAST)
  if not is_first then seconds = seconds + random() * SPREAD end
  return min(seconds, poll)
end

--- Waits for a wake, for `ms` to pass or for the next poll; before the first
--  attempt, for the subscription.
-- @tparam table session
-- @tparam table waiter   with `wait_deadline`
-- @tparam integer|nil ms until a retry may succeed; -1: unknown; nil: no
--   attempt since the waiter joined
-- @tparam[opt] number most maximum seconds between attempts
-- @return as wakeup:wait
function waiting.pause(session, waiter, ms, most)
  local seconds = min(CONFIRM, most or huge)
  if waiter.backoff then
    seconds = max(waiter.backoff:next(), SPIN_FIRST)
  elseif ms then
    seconds = pause_length(session, waiter, ms, most)
  elseif waiter.channel.is_live then
    return true
  end
  return session.wakeup:wait(waiter,
    min(seconds, waiter.wait_deadline - session.host.now()))
end

--- The deadline of one request. A waiter retries an unreachable server for its
--  whole wait; a single attempt has the client's `timeout`.
function waiting.request_deadline(session, now, wait_deadline)
  return wait_deadline > now and wait_deadline or now + session.timeout
end

local function try(session, call, wait_deadline, now)
  if session.is_closed then return nil, "closed", "the client was closed" end
  local verdict, value, detail = call:try(
    waiting.request_deadline(session, now, wait_deadline), now)
  if verdict == "held" then
    metrics.observe(call.counter.site.series.round_trip,
      session.host.now() - now)
  end
  return verdict, value, detail
end

local function join(session, call)
  local waiter = session.wakeup:join(call.channel, call.wakes)
  waiter.wants = call.wants
  return waiter
end

-- Retries until the verdict is not "busy".
local function stay(session, call, waiter, wait_deadline, ms)
  local host, wakeup = session.host, session.wakeup
  waiter.wait_deadline = wait_deadline
  while true do
    local woken, code, unwind = waiting.pause(session, waiter, ms)
    if woken == nil then return nil, code, unwind end
    local now = host.now()
    if now >= wait_deadline then return nil, "timeout", call.late end
    local verdict, value, detail = try(session, call, wait_deadline, now)
    if verdict ~= "busy" then return verdict, value, detail end
    ms = value
    if detail and detail > 0 then
      wakeup:pass(call.channel, detail, waiter)
    end
  end
end

local function show(call)
  local site = call.counter.site
  return site.policy.name .. " " .. naming.show(site.name)
end

-- Counts the outcome of a call, and reports a grant.
local function record(session, call, code, since)
  local series = call.counter.site.series
  if code then return metrics.failed(series, code) end
  local waited = since and session.host.now() - since or 0
  series.acquired = series.acquired + 1
  if since then metrics.observe(series.wait, waited) end
  if session.is_heard then
    session:tell_of(call.counter, "info", "acquired",
      ("acquired %s after %.3f s"):format(show(call), waited),
      { wait = waited })
  end
end

local function wait_for_it(session, call, waiter, wait_deadline, ms)
  if session.is_heard then
    session:tell_of(call.counter, "info", "waiting", "waiting for "
      .. show(call))
  end
  return stay(session, call, waiter, wait_deadline, ms)
end

--- Tries, then waits and retries until success or the deadline.
-- @tparam table session
-- @tparam table call
-- @tparam number wait seconds; 0: one attempt
-- @treturn[1] string "held"
-- @treturn[2] nil
-- @treturn[2] string code: "busy" after a single attempt, "timeout" after the
--   wait, "cancelled"
-- @return[2] detail; for "cancelled", the value to raise
function waiting.wait(session, call, wait)
  if wait < 0 then
    record(session, call, "timeout")
    return nil, "timeout", PASSED
  end
  local wakeup, now = session.wakeup, session.host.now()
  local wait_deadline, waiter, since = now + wait, nil, nil
  if wait > 0 and wakeup:is_live(call.channel) then
    waiter = join(session, call)
  end
  local verdict, value, detail = try(session, call, wait_deadline, now)
  if verdict == "busy" and wait > 0 then
    if not waiter then waiter, value = join(session, call), nil end
    verdict, value, detail =
      wait_for_it(session, call, waiter, wait_deadline, value)
    since = now
  end
  if waiter then wakeup:leave(waiter, verdict == "held") end
  record(session, call, verdict ~= "held" and (verdict or value), since)
  if verdict == "held" then
    if value then wakeup:pass(call.channel, value) end
    return "held"
  elseif verdict == "busy" then
    return nil, "busy", call.late
  end
  return nil, value, detail
end

return waiting
