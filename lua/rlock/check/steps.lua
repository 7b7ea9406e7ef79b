--- What a step does to a state of a lock. A step is a plain table, so that a
--  trace of them can be stored and replayed:
--    { what = "request", client =, side =, op =, lease =, want =, wait =,
--      reply = "told", "lost" or "dropped" }
--    { what = "give up" | "die", client = }
--    { what = "tick" }  { what = "break", side = }
--    { what = "evict" | "expire", key = }   { what = "jump", ms = }
--    { what = "late", copy = }   an old request, executed again
--  "dropped": the request itself is lost, and given up.
--  `is_turned`: replies without a defined order come in the other order.

local verdicts = require "rlock.verdicts"
local world = require "rlock.check.world"

local steps = {}

local LEAST = 2          -- ms: the shortest lease that clients request
local POLL = 5000        -- ms until a waiter retries when it is told no time

-- requests --------------------------------------------------------------------

local NONE = {}

local function extra_words(lock, side, wait)
  local extra = lock.sides[side].extra
  return extra and extra {
    wait_ms = wait, publish = "publish", options = lock.options,
  } or NONE
end

--- The arguments of an operation.
-- @tparam table lock
-- @tparam string name the owner
-- @tparam table step
-- @treturn table
function steps.arguments(lock, name, step)
  if step.op == "leave" then return { name, "publish" } end
  local words = { name, ("%d"):format(step.lease), ("%d"):format(step.want) }
  if step.op == "release" then words[4] = "publish" end
  if step.op == "acquire" then
    for _, word in ipairs(extra_words(lock, step.side, step.wait)) do
      words[#words + 1] = word
    end
  end
  return words
end

-- Adds to a result what its reply means: verdict, value; or fault.
local function judge(result, compiled, op)
  local reply = result.reply
  result.is_judged = true
  if result.foreign then
    result.fault = ("%s uses the key %s, which is not among those of `keys`")
      :format(op, result.foreign)
  elseif type(reply) == "table" and reply.err then
    result.fault = ("%s fails: %s"):format(compiled.name, reply.err)
  elseif op == "leave" then
    result.verdict = "left"
  else
    local check = op == "peek" and verdicts.of_peek or verdicts.of
    local verdict, value, detail = check(compiled, reply)
    result.verdict, result.value = verdict, value
    if not verdict then result.fault = detail end
  end
end

--- Executes an operation.
-- @tparam table lock
-- @tparam table server a snapshot
-- @tparam integer side
-- @tparam string op
-- @tparam table words its arguments
-- @tparam[opt] boolean is_turned
-- @treturn table as snapshot:run; and `verdict`, `value`, or `fault`
function steps.execute(lock, server, side, op, words, is_turned)
  local compiled = lock.sides[side].ops[op]
  local result = server:run(compiled, lock.keys, words, is_turned)
  if not result.is_judged then judge(result, compiled, op) end
  return result
end

-- what a reply tells ----------------------------------------------------------

local told = {}

local function forget(hold)
  hold.count, hold.token, hold.is_forgiven = 0, nil, nil
  world.set_ends(hold, {})
end

-- Extends the leases of some holds, from the i-th on; never shortens them.
local function extend(hold, i, ends)
  local list = table.move(hold.ends, 1, #hold.ends, 1, {})
  for k = i, hold.count do list[k] = math.max(list[k] or 0, ends) end
  world.set_ends(hold, list)
end

local function hold_it(state, client, step, token)
  local hold = client.holds[step.side]
  hold.count, hold.token, client.waits = step.want, token, nil
  client.is_disturbed = nil
  extend(hold, step.want, state.server.now + step.lease)
  if not token then return end
  if step.want > 1 then
    return token < state.token and "its token shrinks" or nil
  elseif token <= state.token then
    return "its token does not grow"
  end
  state.token = token
end

-- It retries when the reply says, but within a lease: most clients poll sooner.
local function wait_for_it(client, step, now, ms)
  local before = client.waits
  local pause = ms < 0 and POLL or math.min(ms, math.max(step.lease, LEAST))
  client.waits = {
    side = step.side, retry = now + pause, lease = step.lease,
    is_late = client.place and before
      and (before.is_late or now > before.retry),
  }
end

function told.acquire(state, client, step, verdict, value)
  local hold = client.holds[step.side]
  if verdict == "held" then
    return hold_it(state, client, step, value)
  elseif verdict == "busy" and step.wait ~= 0 then
    wait_for_it(client, step, state.server.now, value)
  elseif verdict == "lost" then
    if state:believes(client, step.side) and not hold.is_forgiven then
      return "it is told that its hold is lost, which is still valid"
    end
    forget(hold)
  end
end

function told.renew(state, client, step, verdict)
  local hold = client.holds[step.side]
  if verdict == "held" then
    extend(hold, 1, state.server.now + step.lease)
    return
  end
  if state:believes(client, step.side) and not hold.is_forgiven then
    return "its hold is lost, which is still valid"
  end
  forget(hold)
end

function told.release(_, client, step, verdict, _, was_valid)
  local hold = client.holds[step.side]
  if verdict == "lost" and was_valid and not hold.is_forgiven then
    return "its hold is lost, which is still valid"
  elseif verdict == "freed" and step.want > 0 then
    return "freed, with holds left"
  elseif verdict == "kept" and step.want == 0 then
    return "kept, with no hold left"
  end
  if step.want == 0 or verdict == "lost" then forget(hold) end
end

function told.leave(_, client) client.waits, client.is_disturbed = nil, nil end

-- requests, done --------------------------------------------------------------

-- Verdicts of a second execution, if nothing is left to do. A break that finds
-- something may go on.
local AGAIN = { release = "lost", break_ = "free" }

local function twice(lock, side, op, first, is_turned)
  local second = steps.execute(lock, first.after, side, op, first.words,
    is_turned)
  if second.fault then return second.fault end
  if op == "break_" and second.verdict == "freed" then return end
  if second.after ~= first.after then
    return ("done twice, %s leaves other keys than done once"):format(op)
  elseif second.verdict ~= first.verdict and second.verdict ~= AGAIN[op] then
    return ("done twice, %s answers %q, then %q"):format(op, first.verdict,
      second.verdict)
  end
end

--- Is an operation done twice as done once?
-- @tparam table first the result of steps.execute, without a fault
-- @treturn string|nil a fault
function steps.check_twice(lock, side, op, first, is_turned)
  if not lock.faults.twice then return end
  if first.twice == nil then
    first.twice = twice(lock, side, op, first, is_turned) or false
  end
  return first.twice or nil
end

-- Keeps a copy of a request, which may be delivered once more at any time. The
-- list is shared with other states, so it is replaced, not changed.
local function remember(state, step, words)
  local text = step.op .. " " .. table.concat(words, " ")
  local copies = {}
  for _, copy in ipairs(state.copies or NONE) do
    if copy.text == text then return end
    copies[#copies + 1] = copy
  end
  copies[#copies + 1] =
    { text = text, side = step.side, op = step.op, words = words }
  state.copies = copies
end

-- Updates what the client believes when it sends a request.
local function before_request(state, client, step)
  local pending, hold = client.pending, client.holds[step.side]
  local was_valid = pending and pending.was_valid or false
  if step.op == "acquire" and not pending and not client.waits then
    client.left = client.left - 1
  elseif step.op == "release" then
    if not pending then was_valid = state:believes(client, step.side) end
    hold.count = step.want
    world.set_ends(hold, table.move(hold.ends, 1, step.want, 1, {}))
  end
  return was_valid
end

-- A release states the lease that the remaining holds need.
local function with_lease(state, client, step)
  if step.op ~= "release" or step.want == 0 or client.pending then
    return step
  end
  local most = state.server.now + LEAST
  for i = 1, step.want do
    most = math.max(most, client.holds[step.side].ends[i] or 0)
  end
  return setmetatable({ lease = most - state.server.now }, { __index = step })
end

local function stay_unanswered(client, step, was_valid)
  client.pending = {
    op = step.op, side = step.side, want = step.want, lease = step.lease,
    wait = step.wait, was_valid = was_valid,
    leaves = client.pending and client.pending.leaves,
  }
end

-- Keeps the client's place in a fair lock's order of arrival, as the server
-- knows it, even if the reply is lost.
local function take_place(lock, state, client, step, verdict)
  if not lock.is_fair then return end
  if step.op == "acquire" and verdict == "busy" then
    if step.wait == 0 or client.place then return end
    state.arrivals = state.arrivals + 1
    client.place = state.arrivals
  elseif step.op ~= "renew" then
    client.place = nil
  end
end

-- A request that is sent in the background until it is answered.
local function unanswered(op, side, leaves)
  return {
    op = op, side = side, want = 0, lease = 1, wait = 0, was_valid = false,
    leaves = leaves,
  }
end

-- The client gets the reply; returns a fault.
local function answer(state, client, step, result, was_valid)
  local was_pending, verdict = client.pending, result.verdict
  client.pending = was_pending and was_pending.leaves
    and unanswered("leave", step.side) or nil
  if was_pending and step.op == "release" and verdict == "lost" then
    verdict = step.want == 0 and "freed" or "lost"   -- freed by the first one
    was_valid = false
  end
  if step.op ~= "renew" then client.holds[step.side].is_unsure = nil end
  return told[step.op](state, client, step, verdict, result.value, was_valid)
end

-- what can be done ------------------------------------------------------------

local doing = {}

-- If the server has lost a key, an operation may repair one thing each time.
local function has_mishap(lock, state)
  return state.mishaps < lock.bounds.mishaps
end

-- The outcome of an acquire is unknown, so the client releases, and leaves the
-- queue.
local function give_up(lock, client, side)
  local hold = client.holds[side]
  client.pending, client.waits, client.place = nil, nil, nil
  client.is_disturbed = nil
  hold.is_unsure = true              -- until the next request states the count
  if hold.count == 0 then
    client.pending = unanswered("release", side,
      lock.sides[side].ops.leave ~= nil)
  end
end

function doing.request(lock, state, step)
  local client = state:change(step.client)
  step = with_lease(state, client, step)
  local was_valid = before_request(state, client, step)
  local words = steps.arguments(lock, client.name, step)
  if lock.faults.late then remember(state, step, words) end
  if step.reply == "dropped" then
    return give_up(lock, client, step.side)
  end
  local result = steps.execute(lock, state.server, step.side, step.op, words,
    step.is_turned)
  state.server = result.after
  if result.fault then return result, result.fault end
  take_place(lock, state, client, step, result.verdict)
  local fault
  if step.reply == "lost" then
    stay_unanswered(client, step, was_valid)
  else
    fault = answer(state, client, step, result, was_valid)
  end
  return result, fault or not has_mishap(lock, state)
    and steps.check_twice(lock, step.side, step.op, result, step.is_turned)
end

doing["give up"] = function(lock, state, step)
  local client = state:change(step.client)
  give_up(lock, client, client.pending.side)
end

function doing.die(_, state, step)
  local client = state:change(step.client)
  client.is_dead, client.pending, client.waits = true, nil, nil
  client.place = nil
end

function doing.tick(lock, state, step)
  state.server = state.server:later(step.ms or lock.tick)
  state.ticks = state.ticks - 1
end

-- From now on all holders may be wrong, and the server may have lost waiters.
local function forgive(state)
  for i = 1, #state.clients do
    local client = state:change(i)
    client.is_disturbed = (client.waits or client.pending) and true
    for _, hold in ipairs(client.holds) do
      if hold.count > 0 then hold.is_forgiven = true end
    end
    if client.pending then
      client.pending = setmetatable({ was_valid = false },
        { __index = client.pending })
    end
  end
end

doing["break"] = function(lock, state, step)
  state.breaks = state.breaks - 1
  forgive(state)
  local result = steps.execute(lock, state.server, step.side, "break_",
    { "", "publish" })
  state.server = result.after
  return result, result.fault
    or steps.check_twice(lock, step.side, "break_", result)
end

local function befall(state)
  state.mishaps = state.mishaps - 1
  forgive(state)
end

function doing.evict(_, state, step)
  befall(state)
  state.server = state.server:without(step.key)
end

doing.expire = doing.evict

-- Only the server's clock jumps, so the times of the clients move with it. If
-- it jumps back, all keys stay for longer.
function doing.jump(_, state, step)
  if step.ms > 0 then
    befall(state)
  else
    state.mishaps = state.mishaps - 1
  end
  state.server = state.server:later(step.ms)
  for i = 1, #state.clients do
    local client = state:change(i)
    for _, hold in ipairs(client.holds) do
      local ends = {}
      for k, one in ipairs(hold.ends) do ends[k] = one + step.ms end
      world.set_ends(hold, ends)
    end
    if client.waits then
      client.waits = setmetatable({ retry = client.waits.retry + step.ms },
        { __index = client.waits })
    end
  end
end

function doing.late(lock, state, step)
  local copy, left = state.copies[step.copy], {}
  for i, other in ipairs(state.copies) do
    if i ~= step.copy then left[#left + 1] = other end
  end
  state.copies = left
  local result = steps.execute(lock, state.server, copy.side, copy.op,
    copy.words)
  state.server = result.after
  return result
end

--- Does a step in a state, which it changes.
-- @tparam table lock
-- @tparam table state
-- @tparam table step
-- @treturn table|nil the result of an operation: `verdict`, `value`
-- @treturn string|nil a fault
function steps.take(lock, state, step)
  local result, fault = doing[step.what](lock, state, step)
  return result, fault or result and result.fault or nil
end

return steps
