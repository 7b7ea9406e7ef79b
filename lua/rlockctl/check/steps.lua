--- What a step does to a state of a lock. A step is a plain table, so that a
--- trace of them can be stored and replayed:
---   { what = "request", client =, side =, op =, lease =, want =, wait =,
---     reply = "received", "lost" or "dropped" }
---   { what = "give up" | "die", client = }
---   { what = "tick" }  { what = "break", side = }
---   { what = "evict" | "expire", key = }   { what = "jump", ms = }
---   { what = "late", copy = }   an old request, executed again
--- "dropped": the request itself is lost, and abandoned.
--- `is_turned`: replies without a defined order are reversed.

local snapshot = require "rlockctl.check.snapshot"
local trail = require "rlockctl.check.trail"
local verdicts = require "rlock.lock.verdicts"
local State = require "rlockctl.check.state"

local steps = {}

local LEAST = 2          -- ms: the shortest lease that clients request
local POLL = 5000        -- ms until a waiter retries when a reply names no time

-- requests --------------------------------------------------------------------

local NONE = {}

local function extra_words(lock, name, side, wait)
  local extra = lock.sides[side].extra
  return extra and extra {
    wait_ms = wait, publish = "publish",
    options = lock.options_of[name] or lock.options,
  } or NONE
end

--- The arguments of an operation.
---@param lock table
---@param name string the owner
---@param step table
---@return table
function steps.arguments(lock, name, step)
  if step.op == "leave" then
    return { name, lock.publish, lock.hands_over and name or nil }
  end
  if step.op == "refresh" then return { "publish", name } end
  ---@type any[]
  local words = { name, ("%d"):format(step.lease), ("%d"):format(step.want) }
  if step.op == "release" then words[4] = lock.publish end
  if step.op == "acquire" then
    if lock.hands_over and step.wait ~= 0 then words[4] = name end
    for _, word in ipairs(extra_words(lock, name, step.side, step.wait)) do
      words[#words + 1] = word
    end
  end
  return words
end

-- Adds to a result what its reply means: verdict, value; or fault.
local function judge(result, compiled, op)
  result.is_judged = true
  result.fault = snapshot.fault_of(result)
  if result.fault then return end
  if op == "leave" then
    result.verdict = "left"
    return
  end
  local check = op == "peek" and verdicts.of_peek or verdicts.of
  local verdict, value, detail = check(compiled, result.reply)
  result.verdict, result.value = verdict, value
  if not verdict then result.fault = detail end
end

--- Executes an operation.
---@param lock table
---@param server table a snapshot
---@param side integer
---@param op string
---@param words table its arguments
---@param is_turned? boolean
---@return table # as snapshot:run; and `verdict`, `value`, or `fault`
function steps.execute(lock, server, side, op, words, is_turned)
  local compiled = lock.sides[side].ops[op]
  local result = trail.run(lock, server, compiled, lock.keys, words, is_turned)
  if not result.is_judged then judge(result, compiled, op) end
  return result
end

-- received replies ----------------------------------------------------------

local received = {}

local function clear(hold)
  hold.count, hold.token, hold.is_forgiven = 0, nil, nil
  State.set_ends(hold, {})
end

-- Extends the leases of some holds, from the i-th on; never shortens them.
local function extend(hold, i, ends)
  local list = table.move(hold.ends, 1, #hold.ends, 1, {})
  for k = i, hold.count do list[k] = math.max(list[k] or 0, ends) end
  State.set_ends(hold, list)
end

local function record_hold(state, client, step, token)
  local hold = client.holds[step.side]
  local former = not hold.is_forgiven and hold.token
  hold.count, hold.token, client.waits = step.want, token, nil
  client.is_disturbed = nil
  extend(hold, step.want, state.server.now + step.lease)
  if not token then return end
  if step.want > 1 then
    return former and token ~= former and "its token changes" or nil
  elseif token <= state.token then
    return "its token does not grow"
  end
  state.token = token
end

-- The waiter retries at the time in the reply, but at most a lease later.
local function record_wait(client, step, now, ms)
  local before = client.waits
  local pause = ms < 0 and POLL or math.min(ms, math.max(step.lease, LEAST))
  client.waits = {
    side = step.side, retry = now + pause, lease = step.lease, since = now,
    is_late = client.position and before
      and (before.is_late or now > before.retry),
  }
end

function received.acquire(state, client, step, verdict, value)
  local hold = client.holds[step.side]
  if verdict == "held" then
    return record_hold(state, client, step, value)
  elseif verdict == "busy" and step.wait ~= 0 then
    record_wait(client, step, state.server.now, value)
  elseif verdict == "lost" then
    if state:believes(client, step.side) and not hold.is_forgiven then
      return "its valid hold is reported lost"
    end
    clear(hold)
  end
end

function received.renew(state, client, step, verdict)
  local hold = client.holds[step.side]
  if verdict == "held" then
    extend(hold, 1, state.server.now + step.lease)
    return
  end
  if state:believes(client, step.side) and not hold.is_forgiven then
    return "its valid hold is reported lost"
  end
  clear(hold)
end

function received.release(_, client, step, verdict, _, was_valid)
  local hold = client.holds[step.side]
  if verdict == "lost" and was_valid and not hold.is_forgiven then
    return "its valid hold is reported lost"
  elseif verdict == "freed" and step.want > 0 then
    return "freed, with holds left"
  elseif verdict == "kept" and step.want == 0 then
    return "kept, with no hold left"
  end
  if step.want == 0 or verdict == "lost" then clear(hold) end
end

function received.refresh(state, client, _, _, ms)
  local waits = client.waits
  if waits then record_wait(client, waits, state.server.now, ms) end
end

function received.leave(_, client)
  client.waits, client.is_disturbed = nil, nil
end

-- idempotence -----------------------------------------------------------------

-- Verdicts of a second execution, if nothing is left to do. A break that finds
-- something may continue.
local AGAIN = { release = "lost", break_ = "free" }

local function twice(lock, side, op, first, is_turned)
  local second = steps.execute(lock, first.after, side, op, first.words,
    is_turned)
  if second.fault then return second.fault end
  if op == "break_" and second.verdict == "freed" then return end
  if second.after ~= first.after then
    return ("run twice, %s leaves other keys than run once"):format(op)
  elseif second.verdict ~= first.verdict and second.verdict ~= AGAIN[op] then
    return ("run twice, %s returns %q, then %q"):format(op, first.verdict,
      second.verdict)
  elseif first.verdict == "held" and second.value ~= first.value then
    return ("run twice, %s returns another token"):format(op)
  end
end

--- Is an operation idempotent?
---@param first table the result of steps.execute, without a fault
---@return string? # a fault
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
    State.set_ends(hold, table.move(hold.ends, 1, step.want, 1, {}))
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

local function keep_pending(client, step, was_valid)
  client.pending = {
    op = step.op, side = step.side, want = step.want, lease = step.lease,
    wait = step.wait, was_valid = was_valid,
    is_late = client.pending and client.pending.is_late,
    leaves = client.pending and client.pending.leaves,
  }
end

-- Records what the server must know, by its reply, even if the reply is lost:
-- when the lease of the last hold ends, and whether the server may still have
-- a hold or a queue entry of this client.
local function keep_account(state, hold, step, verdict)
  if step.op == "refresh" then return end
  local ends = state.server.now + step.lease
  if verdict == "held" then
    hold.due = math.max(hold.due or 0, ends)
  elseif verdict == "kept" then
    hold.due = ends
  elseif verdict ~= "refused" then
    hold.due = nil
  end
  state.last_due = math.max(state.last_due, hold.due or 0)
  if verdict == "held" then
    hold.parts = "hold"
  elseif verdict == "busy" and step.wait ~= 0 then
    hold.parts = hold.parts or "place"
  elseif verdict == "freed" or verdict == "left" and hold.parts == "place" then
    hold.parts = nil
  end
end

-- Operations that state no hold count, and change no position in a queue.
local KEEPS = { renew = true, refresh = true }

-- Tracks the client's position in a fair lock's order of arrival, as the server
-- knows it, even if the reply is lost.
local function take_position(lock, state, client, step, verdict)
  if not lock.is_fair then return end
  if step.op == "acquire" and verdict == "busy" then
    if step.wait == 0 or client.position then return end
    state.arrivals = state.arrivals + 1
    client.position = state.arrivals
  elseif not KEEPS[step.op] then
    client.position = nil
  end
end

-- A request that is retried in the background until a reply arrives.
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
  if not KEEPS[step.op] then client.holds[step.side].is_unsure = nil end
  local fault =
    received[step.op](state, client, step, verdict, result.value, was_valid)
  if client.waits and client.position and was_pending
      and was_pending.is_late then
    client.waits.is_late = true
  end
  return fault
end

-- steps ----------------------------------------------------------------------

local doing = {}

-- If the server has lost a key, each execution of an operation may repair
-- something.
local function has_server_fault(lock, state)
  return state.server_faults < lock.bounds.server_faults
end

-- The outcome of an acquire is unknown, so the client releases, and leaves the
-- queue.
local function give_up(lock, client, side)
  local hold = client.holds[side]
  client.pending, client.waits, client.position = nil, nil, nil
  client.is_disturbed = nil
  hold.is_unsure = true              -- until the next request states the count
  if hold.count == 0 then
    client.pending = unanswered("release", side,
      lock.sides[side].ops.leave ~= nil)
  end
end

--- Does the reply of a heartbeat name this waiter, which then retries?
---@param reply table
---@param name string
function steps.is_named(reply, name)
  for i = 3, #reply do
    if reply[i] == name then return true end
  end
  return false
end

-- What a waiter does when the reply of its heartbeat names it.
local function retry_of(step)
  return setmetatable({ op = "acquire", want = 1, wait = -1 },
    { __index = step })
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
  if step.op == "refresh" and client.waits
      and steps.is_named(result.reply, client.name) then
    local fault = steps.check_twice(lock, step.side, "refresh", result)
    if fault then return result, fault end
    return doing.request(lock, state, retry_of(step))
  end
  take_position(lock, state, client, step, result.verdict)
  keep_account(state, client.holds[step.side], step, result.verdict)
  local fault
  if step.reply == "lost" then
    keep_pending(client, step, was_valid)
  else
    fault = answer(state, client, step, result, was_valid)
  end
  return result, fault or not has_server_fault(lock, state)
    and steps.check_twice(lock, step.side, step.op, result, step.is_turned)
end

doing["give up"] = function(lock, state, step)
  local client = state:change(step.client)
  give_up(lock, client, client.pending.side)
end

function doing.die(_, state, step)
  local client = state:change(step.client)
  client.is_dead, client.pending, client.waits = true, nil, nil
  client.position = nil
end

-- A waiter that gets no reply and does not retry at once may be evicted.
local function mark_late(state)
  for i, client in ipairs(state.clients) do
    if client.position and client.pending and not client.pending.is_late then
      state:change(i).pending =
        setmetatable({ is_late = true }, { __index = client.pending })
    end
  end
end

function doing.tick(lock, state, step)
  mark_late(state)
  state.server = state.server:later(step.ms or lock.tick)
  state.ticks = state.ticks - 1
end

-- After this, all holders may be wrong, and the server may have lost waiters.
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

local function free_all(state)
  for _, client in ipairs(state.clients) do
    for _, hold in ipairs(client.holds) do hold.due = nil end
  end
end

-- A break that names a token frees only the hold with that token.
local function check_break(lock, server, state, step)
  if (state.token or 0) < 1 then return nil end      -- a kind without tokens
  local older = ("%.0f"):format(state.token - 1)
  local result = steps.execute(lock, server, step.side, "break_",
    { older, lock.publish })
  return result.verdict == "freed"
    and ("break_ with the older token %s frees it"):format(older) or nil
end

doing["break"] = function(lock, state, step)
  local before = state.server
  state.breaks = state.breaks - 1
  forgive(state)
  local result = steps.execute(lock, before, step.side, "break_",
    { "", lock.publish })
  state.server = result.after
  local fault = check_break(lock, before, state, step)
  if result.verdict == "freed" then free_all(state) end
  return result, fault or result.fault
    or steps.check_twice(lock, step.side, "break_", result)
end

local function take_server_fault(state)
  state.server_faults = state.server_faults - 1
  forgive(state)
end

function doing.evict(_, state, step)
  take_server_fault(state)
  state.server = state.server:without(step.key)
end

doing.expire = doing.evict

-- Only the server's clock jumps, so the times of the clients move with it. If
-- it jumps back, all keys stay for longer.
function doing.jump(_, state, step)
  if step.ms > 0 then
    take_server_fault(state)
  else
    state.server_faults = state.server_faults - 1
  end
  state.server = state.server:later(step.ms)
  for i = 1, #state.clients do
    local client = state:change(i)
    for _, hold in ipairs(client.holds) do
      local ends = {}
      for k, one in ipairs(hold.ends) do ends[k] = one + step.ms end
      State.set_ends(hold, ends)
    end
    if client.waits then
      client.waits = setmetatable({ retry = client.waits.retry + step.ms,
        since = client.waits.since + step.ms }, { __index = client.waits })
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

-- Does the effect of a step depend only on its client and the server? A fair
-- lock also counts arrivals.
local function is_plain(lock, state, step)
  return step.is_shared and not step.is_turned and not lock.is_fair
    and step.what == "request" and not lock.faults.late
    and not has_server_fault(lock, state)
end

-- Applies the effect that a step had in an earlier state with the same server
-- and client, or takes the step and caches its effect. Tokens must grow, so a
-- step with a token is not cached.
local function take_shared(lock, state, step)
  local before, i = state.server, step.client
  local known = before.taken[step]
  if known then
    state.server, state.clients[i] = known.after, known.client
    state.last_due = math.max(state.last_due, known.due)
    return known.result, known.fault
  end
  ---@type any, any
  local result, fault = doing[step.what](lock, state, step)
  if not result or result.verdict ~= "held" or not result.value then
    before.taken[step] = {
      after = state.server, client = state.clients[i], result = result,
      fault = fault, due = state.clients[i].holds[step.side].due or 0,
    }
  end
  return result, fault
end

--- Takes a step in a state, which it changes.
---@param lock table
---@param state table
---@param step table
---@return table? # the result of an operation: `verdict`, `value`
---@return string? # a fault
function steps.take(lock, state, step)
  local take = is_plain(lock, state, step) and take_shared or doing[step.what]
  local result, fault = take(lock, state, step)
  return result, fault or result and result.fault or nil
end

return steps
