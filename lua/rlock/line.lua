--- Waiting in the line of a channel: for a wake, for as long as is worth it
--  without one (lock.lua does so too), and for what is no lock (permits,
--  latches) the whole way: ask; get into the line; ask again, because something
--  may have been said before; then wait, and ask again. What is asked is the
--  caller's affair.
--
--  A question is a table that belongs to one call:
--    channel   what to listen to; `wakes` as for wakeup:join
--    wants     how much of what is left over it can use, see wakeup:pass
--    late      what people are told when it was not got in time
--    ask       function(question, until_, now) -> a verdict:
--              "held", left         got it; so much is left over, or nil
--              "busy", ms[, left]   not yet; -1: nobody knows when
--              nil, code, detail    never

local deadline = require "rlock.deadline"

local line = {}

local huge, max, min = math.huge, math.max, math.min

--- Seconds after which a waiter asks again if nothing wakes it: the first in
--  line, those behind it, and one without a subscription. Half of it is
--  random.
local POLL, POLL_BEHIND, POLL_DEAF = 5, 20, 0.4
local SPREAD = 1          -- those behind ask up to this much after the first
local LEAST = 0.01        -- a policy may say "busy" and 0
local CONFIRM = 1         -- at most this long until the subscription stands

-- How long to wait for a wake.
local function pause(session, waiter, ms, most)
  local random, channel = session.host.random_number, waiter.channel
  local is_first = waiter == channel.first
  local poll = is_first and POLL or POLL_BEHIND
  if not channel.is_live or session.publish == "spublish" then
    poll = POLL_DEAF           -- nothing that is published reaches us
  end
  poll = min(poll, most or huge) * (0.5 + random() / 2)
  if ms < 0 then return poll end
  local seconds = max((ms + 1) / 1000, LEAST)
  if not is_first then seconds = seconds + random() * SPREAD end
  return min(seconds, poll)
end

--- Waits for a wake, for `ms` to pass, for the next poll or, at first, for the
--  subscription to stand.
-- @tparam table session
-- @tparam table waiter   with `wait_until`: when all waiting ends
-- @tparam integer|nil ms until it is worth asking again, -1: nobody knows; nil:
--   we have not asked since we joined the line
-- @tparam[opt] number most seconds between two questions
-- @return as wakeup:wait
function line.rest(session, waiter, ms, most)
  local seconds = min(CONFIRM, most or huge)
  if ms then
    seconds = pause(session, waiter, ms, most)
  elseif waiter.channel.is_live then
    return true
  end
  return session.wakeup:wait(waiter,
    min(seconds, waiter.wait_until - session.host.now()))
end

--- When one question to the server is given up. A waiter uses all of its wait
--  to ride out a server that is away; a single try has the client's `timeout`.
function line.question_until(session, now, wait_until)
  return wait_until > now and wait_until or now + session.timeout
end

local function ask(session, question, wait_until, now)
  if session.is_closed then return nil, "closed", "the client was closed" end
  return question:ask(line.question_until(session, now, wait_until), now)
end

local function join(session, question)
  local waiter = session.wakeup:join(question.channel, question.wakes)
  waiter.wants = question.wants
  return waiter
end

-- Asks again until the verdict is not "busy".
local function stay(session, question, waiter, wait_until, ms)
  local host, wakeup = session.host, session.wakeup
  waiter.wait_until = wait_until
  while true do
    local woken, code, unwind = line.rest(session, waiter, ms)
    if woken == nil then return nil, code, unwind end
    local now = host.now()
    if now >= wait_until then return nil, "timeout", question.late end
    local verdict, answer, detail = ask(session, question, wait_until, now)
    if verdict ~= "busy" then return verdict, answer, detail end
    ms = answer
    if detail and detail > 0 then
      wakeup:pass(question.channel, detail, waiter)
    end
  end
end

--- Asks, and waits if it must.
-- @tparam table session
-- @tparam table question
-- @tparam number wait seconds; 0: asks once
-- @treturn[1] string "held"
-- @treturn[2] nil
-- @treturn[2] string code: "busy" if it was asked once, "timeout" if the wait
--   is over, "cancelled"
-- @return[2] detail; for "cancelled", what is to be raised
function line.wait(session, question, wait)
  local wakeup, now = session.wakeup, session.host.now()
  local wait_until, waiter = now + wait, nil
  if wait > 0 and wakeup:is_live(question.channel) then
    waiter = join(session, question)
  end
  local verdict, answer, detail = ask(session, question, wait_until, now)
  if verdict == "busy" and wait > 0 then
    if not waiter then
      waiter, answer = join(session, question), nil
    end
    verdict, answer, detail =
      stay(session, question, waiter, wait_until, answer)
  end
  if waiter then wakeup:leave(waiter, verdict == "held") end
  if verdict == "held" then
    if answer then wakeup:pass(question.channel, answer) end
    return "held"
  elseif verdict == "busy" then
    return nil, "busy", question.late
  end
  return nil, answer, detail
end

-- options -----------------------------------------------------------------

--- Checks the options of a call.
-- @tparam table|nil options
-- @tparam table known   option -> its least value, in seconds
-- @tparam number level  whose fault it is, as in error()
-- @treturn table option -> seconds; not to be changed
function line.options(options, known, level)
  if options == nil then return {} end
  if type(options) ~= "table" then
    error("bad options: must be a table such as { wait = 5 }", level + 1)
  end
  local checked = {}
  for key, value in pairs(options) do
    if not known[key] then
      error(("bad option %s"):format(tostring(key)), level + 1)
    end
    checked[key] = deadline.check(value, key, known[key],
      key == "wait" and huge or nil, level + 1)
  end
  return checked
end

--- Checks a count. Redisson's are Java's int, and so are ours.
-- @param n
-- @tparam string name what the caller calls it
-- @tparam number least
-- @tparam number level
function line.count(n, name, least, level)
  if type(n) ~= "number" or n % 1 ~= 0 or n < least or n > 2147483647 then
    error(("bad %s: %s: must be a whole number from %d to 2147483647"):format(
      name, tostring(n), least), level + 1)
  end
  return ("%d"):format(n)
end

return line
