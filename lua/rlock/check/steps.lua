--- What can happen next in a state, and doing it. A step is a plain table, so
--  that a trace of them can be stored and replayed:
--    { what = "request", client =, side =, op =, lease =, want =, wait =,
--      reply = "told" or "lost" }
--    { what = "give up" | "die", client = }
--    { what = "tick" }  { what = "break", side = }  { what = "remove", key = }
--    { what = "late", copy = }   an old request, executed again

local verdicts = require "rlock.verdicts"

local steps = {}

local POLL = 5000        -- ms until a waiter retries when it is told no time

-- requests --------------------------------------------------------------------

local function arguments(lock, client, step)
  local name, op, publish = client.name, step.op, "publish"
  if op == "leave" then return { name, publish } end
  local words = { name, ("%d"):format(step.lease), ("%d"):format(step.want) }
  if op == "release" then words[4] = publish end
  local extra = op == "acquire" and lock.sides[step.side].extra
  for _, word in ipairs(extra and extra {
    wait_ms = step.wait, publish = publish, options = lock.options,
  } or {}) do
    words[#words + 1] = word
  end
  return words
end

--- Executes an operation on the server.
-- @tparam table lock  see explore.lua
-- @tparam table server
-- @tparam integer side
-- @tparam string op
-- @tparam table words its arguments
-- @treturn[1] string the verdict, and its value
-- @treturn[2] nil
-- @treturn[2] string the fault
function steps.execute(lock, server, side, op, words)
  local policy = lock.sides[side]
  local compiled = policy.ops[op]
  local reply = server:eval(compiled.text, lock.keys, words)
  if type(reply) == "table" and reply.err then
    return nil, ("%s fails: %s"):format(compiled.name, reply.err)
  end
  if op == "leave" then return "left" end
  local check = op == "peek" and verdicts.of_peek or verdicts.of
  local verdict, value, detail = check(compiled, reply)
  if not verdict then return nil, detail end
  return verdict, op == "peek" and reply or value
end

-- what a reply tells ----------------------------------------------------------

local told = {}

local function forget(hold)
  hold.count, hold.valid, hold.token, hold.is_forgiven = 0, 0, nil, nil
end

function told.acquire(state, client, step, verdict, value)
  local hold, now = client.holds[step.side], state.server:ms()
  if verdict == "held" then
    hold.count, hold.valid = step.want, math.max(hold.valid, now + step.lease)
    hold.token, client.waits = value, nil
    if step.want == 1 and value then
      if value <= state.token then return "its token does not grow" end
      state.token = value
    end
  elseif verdict == "busy" and step.wait ~= 0 then
    local waits = client.waits
    if not waits then state.arrivals = state.arrivals + 1 end
    client.waits = {
      side = step.side, place = waits and waits.place or state.arrivals,
      retry = now + (value < 0 and POLL or value), lease = step.lease,
    }
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
    hold.valid = math.max(hold.valid, state.server:ms() + step.lease)
    return
  end
  if state:believes(client, step.side) and not hold.is_forgiven then
    return "its hold is lost, which is still valid"
  end
  forget(hold)
end

function told.release(_, client, step, verdict)
  local hold = client.holds[step.side]
  if verdict == "lost" and step.was_valid and not hold.is_forgiven then
    return "its hold is lost, which is still valid"
  elseif verdict == "freed" and step.want > 0 then
    return "freed, with holds left"
  elseif verdict == "kept" and step.want == 0 then
    return "kept, with no hold left"
  end
  if step.want == 0 or verdict == "lost" then forget(hold) end
end

function told.leave(_, client) client.waits = nil end

-- doing -----------------------------------------------------------------------

local doing = {}

-- A client stops to believe when it sends a release.
local function before_release(state, client, step)
  local hold = client.holds[step.side]
  step.was_valid = step.was_valid == nil
    and state:believes(client, step.side) or step.was_valid or false
  if step.want == 0 then
    hold.count = 0
  else
    hold.count = step.want
  end
end

-- Is the operation done twice as done once?
local function check_twice(lock, state, step, words, first)
  local again = state.server:fork()
  local verdict, value = steps.execute(lock, again, step.side, step.op, words)
  if not verdict then return value end
  if again:text() ~= state.server:text() then
    return ("done twice, %s leaves other keys than done once"):format(step.op)
  end
  local is_release = step.op == "release"
  if verdict ~= first and not (is_release and verdict == "lost") then
    return ("done twice, %s answers %q, then %q"):format(step.op, first,
      verdict)
  end
end

-- Keeps a copy of a request, which may be delivered once more at any time. The
-- list is shared with earlier states, so it is replaced, not changed.
local function remember(state, step, words)
  local text = step.op .. " " .. table.concat(words, " ")
  local copies = {}
  for _, copy in ipairs(state.copies or {}) do
    if copy.text == text then return end
    copies[#copies + 1] = copy
  end
  copies[#copies + 1] =
    { text = text, side = step.side, op = step.op, words = words }
  state.copies = copies
end

function doing.request(lock, state, step)
  local client = state.clients[step.client]
  if step.op == "acquire" and not client.pending and not client.waits then
    client.left = client.left - 1
  end
  step = setmetatable({ was_valid = client.pending
    and client.pending.was_valid }, { __index = step })
  if step.op == "release" then before_release(state, client, step) end
  local words = arguments(lock, client, step)
  local verdict, value =
    steps.execute(lock, state.server, step.side, step.op, words)
  if not verdict then return nil, value end
  local fault = check_twice(lock, state, step, words, verdict)
  if lock.faults.late then remember(state, step, words) end
  if fault then return verdict, fault end
  if step.reply == "lost" then
    client.pending = {
      op = step.op, side = step.side, want = step.want, lease = step.lease,
      wait = step.wait, was_valid = step.was_valid or false,
    }
    return verdict
  end
  local was_pending = client.pending
  client.pending = nil
  if was_pending and step.op == "release" and verdict == "lost" then
    verdict = step.want == 0 and "freed" or "lost"   -- freed by the first one
    step.was_valid = false
  end
  if step.op ~= "renew" then client.holds[step.side].is_unsure = nil end
  fault = told[step.op](state, client, step, verdict, value)
  return verdict, fault, value
end

-- An acquire is given up: its outcome is unknown, so the client releases.
doing["give up"] = function(_, state, step)
  local client = state.clients[step.client]
  local pending = client.pending
  client.pending, client.waits = nil, nil
  local hold = client.holds[pending.side]
  hold.is_unsure = true              -- until the next request states the count
  if hold.count == 0 then
    client.pending = {
      op = "release", side = pending.side, want = 0, lease = 1, wait = 0,
      was_valid = false,
    }
  end
end

function doing.die(_, state, step)
  local client = state.clients[step.client]
  client.is_dead, client.pending, client.waits = true, nil, nil
end

function doing.tick(lock, state, step)
  state.server.now = state.server.now + (step.ms or lock.tick) * 1000
  state.ticks = state.ticks - 1
end

local function forgive(state)
  for _, client in ipairs(state.clients) do
    for _, hold in ipairs(client.holds) do
      if hold.count > 0 then hold.is_forgiven = true end
    end
    local pending = client.pending
    if pending then pending.was_valid = false end
  end
end

doing["break"] = function(lock, state, step)
  state.breaks = state.breaks - 1
  forgive(state)
  local verdict, fault = steps.execute(lock, state.server, step.side, "break_",
    { "", "publish" })
  if not verdict then return nil, fault end
  return verdict
end

function doing.remove(_, state, step)
  state.evictions = state.evictions - 1
  forgive(state)
  state.server.entries[step.key] = nil
end

function doing.late(lock, state, step)
  local copy, left = state.copies[step.copy], {}
  for i, other in ipairs(state.copies) do
    if i ~= step.copy then left[#left + 1] = other end
  end
  state.copies = left
  local verdict, fault = steps.execute(lock, state.server, copy.side, copy.op,
    copy.words)
  return verdict, not verdict and fault or nil
end

--- Does a step in a state, which it changes.
-- @treturn[1] string|nil the verdict of an operation
-- @treturn[1] string|nil a fault
-- @return[1] the verdict's value
function steps.take(lock, state, step)
  return doing[step.what](lock, state, step)
end

-- what is possible ------------------------------------------------------------

local function add(list, step) list[#list + 1] = step end

local function add_request(lock, list, step)
  step.what, step.reply = "request", "told"
  add(list, step)
  if lock.faults.lost then
    local lost = { reply = "lost" }
    for key, value in pairs(step) do lost[key] = lost[key] or value end
    add(list, lost)
  end
end

local function add_acquires(lock, list, i, side, want)
  local waits = lock.sides[side].ops.leave and { 0, -1 } or { 0 }
  for _, lease in ipairs(lock.leases) do
    for _, wait in ipairs(waits) do
      add_request(lock, list, {
        client = i, side = side, op = "acquire", lease = lease, want = want,
        wait = wait,
      })
    end
  end
end

local function add_of_side(lock, list, state, i, side)
  local client = state.clients[i]
  local hold, policy = client.holds[side], lock.sides[side]
  local may_enter = hold.count == 0
    or policy.reenter ~= false and hold.count < lock.most_holds
      and state:believes(client, side)
  if client.left > 0 and may_enter then
    add_acquires(lock, list, i, side, hold.count + 1)
  end
  if hold.count == 0 then return end
  add_request(lock, list, {
    client = i, side = side, op = "release", lease = lock.leases[1],
    want = hold.count - 1, wait = 0,
  })
  if policy.ops.renew then
    add_request(lock, list, {
      client = i, side = side, op = "renew", want = hold.count, wait = 0,
      lease = lock.leases[#lock.leases],
    })
  end
end

local function add_of_waiter(lock, list, i, client)
  local waits = client.waits
  add_request(lock, list, {
    client = i, side = waits.side, op = "acquire", want = 1, wait = -1,
    lease = waits.lease,
  })
  add_request(lock, list, {
    client = i, side = waits.side, op = "leave", want = 0, wait = 0, lease = 1,
  })
end

local function add_of_pending(lock, list, i, pending)
  local step = { what = "request", client = i, reply = "told" }
  for _, key in ipairs { "op", "side", "want", "lease", "wait" } do
    step[key] = pending[key]
  end
  add(list, step)
  if pending.op == "acquire" then
    add(list, { what = "give up", client = i })
  end
end

local function add_of_client(lock, list, state, i)
  local client = state.clients[i]
  if client.is_dead then return end
  if client.pending then
    add_of_pending(lock, list, i, client.pending)
  elseif client.waits then
    add_of_waiter(lock, list, i, client)
  else
    for side = 1, #lock.sides do add_of_side(lock, list, state, i, side) end
  end
  if lock.faults.crash then add(list, { what = "die", client = i }) end
end

-- Clients are alike until they act, so they act for the first time in order.
local function is_next(lock, state, i)
  if not lock.is_symmetric or i == 1 then return true end
  local before = state.clients[i - 1]
  return before.is_dead or before.left < lock.bounds.ops
end

--- The steps that are possible in a state.
-- @treturn table
function steps.of(lock, state)
  local list = {}
  for i = 1, #state.clients do
    if is_next(lock, state, i) then add_of_client(lock, list, state, i) end
  end
  if state.ticks > 0 then add(list, { what = "tick" }) end
  for side, policy in ipairs(lock.sides) do
    if state.breaks > 0 and policy.ops.break_ then
      add(list, { what = "break", side = side })
    end
  end
  if state.evictions > 0 then
    for key in pairs(state.server.entries) do
      add(list, { what = "remove", key = key })
    end
  end
  for i = 1, state.copies and #state.copies or 0 do
    add(list, { what = "late", copy = i })
  end
  return list
end

return steps
