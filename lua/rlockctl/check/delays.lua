--- Delays are faults: a lock that the server keeps beyond the last lease, a
--- lost wake, a busy reply with too long a time, a holder that `peek` lists
--- after its lease. Each check returns a fault as text, or nothing. `due`
--- (state.lua) is the time until which the server must know a hold.

local naming = require "rlock.naming"
local transitions = require "rlockctl.check.transitions"
local steps = require "rlockctl.check.steps"

local delays = {}

local POLL = 5000         -- ms: the longest that a waiter sleeps by default
local ROUND = 1           -- ms: a retry comes after the lease, not with it

--- The longest wait of the only waiter after the last lease, in ms. Without a
--- queue (`leave`), only a lease can block it.
---@param policy table
function delays.patience(policy)
  local slack = (policy.slack or 0) * 1000
  if not policy.ops.leave or policy.hands_over then return slack + ROUND end
  return policy.slack and (policy.poll or POLL / 1000) * 1000 + slack or POLL
end

--- Is the expected state of the server certain? It is not after the server lost
--- a key, its clock jumped, or an old request was executed again.
function delays.is_sure(lock, state)
  return state.server_faults == lock.bounds.server_faults and not state.copies
end

-- When the server must have freed the lock: now, or the end of the last lease.
local function due_of(state)
  local last = state.server.now
  for _, client in ipairs(state.clients) do
    for _, hold in ipairs(client.holds) do
      if hold.due and hold.due > last then last = hold.due end
    end
  end
  return last
end

local function acquire(lock, server, name, side, lease)
  return steps.execute(lock, server, side, "acquire",
    steps.arguments(lock, name, {
      op = "acquire", side = side, lease = lease, want = 1,
      wait = lock.hands_over and 0 or -1,         -- no waiter registers
    }))
end

-- the only waiter -------------------------------------------------------------

-- The next request of a waiter: a heartbeat, and a retry if its reply names the
-- waiter; without heartbeats, a retry.
local function next_of_waiter(lock, server, name, side, is_first)
  if not is_first and lock.sides[side].ops.refresh then
    local result = steps.execute(lock, server, side, "refresh",
      steps.arguments(lock, name, { op = "refresh" }))
    if result.fault or not steps.is_named(result.reply, name) then
      return result
    end
    server = result.after or server
  end
  return acquire(lock, server, name, side, lock.leases[1])
end

--- Retries as a waiter does, until it gets the lock.
---@return any # { fault = }, or { at = the time of the grant, may_poll =
---  whether a busy reply gave no time for the retry }
local function wait_alone(lock, server, name, side)
  local most = lock.leases[#lock.leases] + POLL + lock.slack
    + transitions.jump(lock)
  local deadline, may_poll, now = server.now + most, nil, server.now
  local is_first = true
  while true do
    local result = next_of_waiter(lock, server, name, side, is_first)
    is_first = false
    if result.fault then
      return { fault = ("when %s retries: %s"):format(name, result.fault) }
    elseif result.verdict ~= "busy" then
      return { at = now, may_poll = may_poll }
    end
    if now >= deadline then
      return { fault = ("stuck: %s is the only waiter, but does not get it "
        .. "within %.1f s"):format(name, most / 1000) }
    end
    local ms = result.value
    may_poll = may_poll or ms < 0
    local poll = math.floor(lock.poll or POLL)
    if ms >= 0 then poll = math.min(math.floor(ms) + 1, poll) end
    if result.after then
      server = result.after:probe(poll)
    else
      server:wait(poll)
    end
    now = server.now
  end
end

local function alone(lock, server, name, side)
  local key, known = name .. side, server.lonely
  if not known[key] then
    known[key] = wait_alone(lock, server, name, side)
  end
  return known[key]
end

local function is_idle(client)
  if client.is_dead or client.pending then return false end
  for _, hold in ipairs(client.holds) do
    if hold.count > 0 then return false end
  end
  return true
end

-- A fault if a waiter gets the lock too late.
local function lateness(lock, name, waited, last)
  local most = lock.patience + (waited.may_poll and POLL or 0)
  if waited.at - last <= most then return end
  return ("delayed: %s is the only waiter, but gets it %gs after the last "
    .. "lease; the limit is %gs"):format(name, (waited.at - last) / 1000,
    most / 1000)
end

--- If all other clients die, does a client without the lock get it in time?
function delays.check_progress(lock, state)
  if not lock.faults.crash then return end
  local is_sure, last = delays.is_sure(lock, state), nil
  for _, client in ipairs(state.clients) do
    for side = 1, is_idle(client) and #lock.sides or 0 do
      local waited = alone(lock, state.server, client.name, side)
      last = last or due_of(state)
      local fault = waited.fault
        or is_sure and lateness(lock, client.name, waited, last)
      if fault then return fault, lock.sides[side].ops.acquire end
    end
  end
end

-- the reply of peek -----------------------------------------------------------

-- The holders of a side that the server must know, sorted.
local function holders_of(state, side)
  local names = {}
  for _, client in ipairs(state.clients) do
    local due = client.holds[side].due
    if due and due > state.server.now then names[#names + 1] = client.name end
  end
  return table.concat(names, " ")
end

-- The holders that `peek` lists, sorted.
local function peeked(lock, server, side)
  local result = steps.execute(lock, server, side, "peek", { "Z" })
  if result.fault then return nil, result end
  local names, list = {}, result.reply[4] or {}
  for i = 1, #list, 2 do
    if list[i] ~= "" then names[#names + 1] = list[i] end
  end
  table.sort(names)
  return table.concat(names, " "), result
end

local function show(names) return names == "" and "none" or names end

-- A key of the cache `fine`: the expected holders, and the end of the last
-- lease. It is negative, unlike the keys of invariants.lua.
local function key_of(state, last)
  local key = last - state.server.now
  for _, client in ipairs(state.clients) do
    for _, hold in ipairs(client.holds) do
      key = key * 2
      if hold.due and hold.due > state.server.now then key = key + 1 end
    end
  end
  return -1 - key
end

--- Does `peek` list the right holders, and none after the last lease?
function delays.check_peek(lock, state)
  if not delays.is_sure(lock, state) then return end
  local last = due_of(state)
  local key, fine = key_of(state, last), state.server.fine
  if fine[key] then return end
  for side, policy in ipairs(lock.sides) do
    if policy.ops.peek then
      local listed, result = peeked(lock, state.server, side)
      if result.fault then return result.fault, result.op end
      local right = holders_of(state, side)
      if listed ~= right then
        return ("peek lists the wrong holders: %s instead of %s"):format(
          show(listed), show(right)), result.op
      end
      listed, result = peeked(lock, state.server:probe(last - state.server.now),
        side)
      if listed ~= "" then
        ---@cast result any
        return ("kept too long: peek lists the holder %s after the end of all "
          .. "leases"):format(listed), result.op
      end
    end
  end
  fine[key] = true
end

-- the time in a busy reply ----------------------------------------------------

local function check_busy(lock, before, step, result)
  local now, last = before.server.now, due_of(before)
  local has_queue = lock.sides[step.side].ops.leave
  if last <= now and not has_queue and lock.slack == 0 then
    return "it is busy, but has no holder"
  end
  local most = has_queue and math.max(last - now + ROUND, lock.patience)
    or last - now + lock.patience
  if result.value > most then
    return ("busy for %gs, but it may be free in %gs"):format(
      result.value / 1000, math.max(last - now, 0) / 1000)
  end
end

-- lost wakes ------------------------------------------------------------------

-- Which of a client's waiters a step's messages wake: nil, "one" or "all".
local function woken(lock, result, side, name)
  local policy, how = lock.sides[side], nil
  local channel = policy.channel(lock.keys, name)
  for _, message in ipairs(result.sent) do
    if message[1] == naming.inbox(channel, name) then
      return "one"
    elseif message[1] == channel then
      how = how == "all" and how
        or policy.wakes and policy.wakes(message[2]) or "one"
    end
  end
  return how
end

-- Could a second waiter on the same channel enter, too?
local function has_room(lock, entered, side, name)
  local channel = lock.sides[side].channel
  return channel(lock.keys, name) == channel(lock.keys, "Y")
    and acquire(lock, entered.after, "Y", side, lock.leases[1]).verdict
      == "held"
end

---@param waiter any name, side, lease; it waits before the step
local function check_wake(lock, server, result, waiter)
  local name, side = waiter.name, waiter.side
  if acquire(lock, server, name, side, waiter.lease).verdict ~= "busy" then
    return
  end
  local entered = acquire(lock, result.after, name, side, waiter.lease)
  if entered.verdict ~= "held" then return end
  local how = woken(lock, result, side, name)
  if not how then
    return ("lost wake: %s waits, and could get it now, but no message is "
      .. "published on its channel"):format(name)
  elseif how == "one" and has_room(lock, entered, side, name) then
    return ("lost wake: several waiters like %s could get it now, but the "
      .. "message wakes only one of each client"):format(name)
  end
end

-- If the server keeps no queue, or a client of another kind is subscribed, any
-- client may be waiting.
local function strangers_of(lock)
  local list = {}
  for side, policy in ipairs(lock.sides) do
    if policy.channel and (not policy.ops.leave or lock.has_strangers) then
      list[#list + 1] =
        { name = "Z", number = 0, side = side, lease = lock.leases[1] }
    end
  end
  return list
end

-- The waiters that rely on a message now. The server may drop a late one.
local function waiters_of(lock, state, except)
  lock.strangers = lock.strangers or strangers_of(lock)
  local list, now = lock.strangers, state.server.now
  for i, client in ipairs(state.clients) do
    local waits = client.waits
    if waits and i ~= except and not client.pending
        and not client.is_disturbed and lock.sides[waits.side].channel
        and now <= math.min(waits.retry, waits.since + (lock.poll or POLL)) then
      if list == lock.strangers then list = { table.unpack(list) } end
      list[#list + 1] = {
        name = client.name, number = i, side = waits.side, lease = waits.lease,
      }
    end
  end
  return list
end

-- A client of another kind, which does not register, must hear of a release,
-- even if the lock is reserved for a waiter.
local function check_stranger(lock, step, result)
  if not lock.has_strangers or step.op ~= "release"
      or result.verdict ~= "freed" or woken(lock, result, step.side, "Z") then
    return
  end
  return "lost wake: Z waits without registering, but no message is published "
    .. "on its channel"
end

local function check_wakes(lock, before, step, result)
  local known = result.wakes or {}
  result.wakes = known
  for _, waiter in ipairs(waiters_of(lock, before, step.client)) do
    local key = (waiter.lease * 8 + waiter.number) * 2 + waiter.side
    if known[key] == nil then
      known[key] = check_wake(lock, before.server, result, waiter) or false
    end
    if known[key] then return known[key] end
  end
end

--- Checks a step that has executed an operation.
---@param lock table
---@param before table the state before it
---@param step table
---@param result table
---@return string? # a fault
function delays.check_step(lock, before, step, result)
  if not delays.is_sure(lock, before) or step.what == "late" then return end
  local fault = step.op == "acquire" and result.verdict == "busy"
    and check_busy(lock, before, step, result)
  if fault then return fault end
  if result.after ~= before.server then
    return check_stranger(lock, step, result)
      or check_wakes(lock, before, step, result)
  end
end

return delays
