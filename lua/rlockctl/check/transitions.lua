--- The steps (steps.lua) that are possible next in a state of a lock.
---
--- Redundant steps are omitted. Each state is checked as if all clients but one
--- had died (invariants.lua), so "die" is not a choice. Nor is a lost reply of
--- renew or refresh: the client believes less, and may repeat it in any case. A
--- lost request that is retried is the same as one that is sent later. So the
--- only lost request that matters is a first acquire that is abandoned.

local transitions = {}

local MOST_CLIENTS = 8

local function add(list, step) list[#list + 1] = step end

local function with(step, reply)
  local result = { reply = reply }
  for key, value in pairs(step) do result[key] = result[key] or value end
  return result
end

local function add_request(lock, list, step)
  step.what, step.reply = "request", "received"
  add(list, step)
  if not lock.faults.lost then return end
  add(list, with(step, "lost"))
  if step.op == "acquire" and step.want == 1 then
    add(list, with(step, "dropped"))
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

local function may_enter(lock, state, client, side)
  local count = client.holds[side].count
  if client.left == 0 then return false end
  return count == 0 or lock.sides[side].reenter ~= false
    and count < lock.most_holds and state:believes(client, side)
end

local function add_of_hold(lock, list, i, side, hold)
  add_request(lock, list, {
    client = i, side = side, op = "release", lease = lock.leases[1],
    want = hold.count - 1, wait = 0,
  })
  if lock.sides[side].ops.renew then
    add(list, {
      what = "request", client = i, side = side, op = "renew",
      want = hold.count, wait = 0, lease = lock.leases[#lock.leases],
      reply = "received",
    })
  end
end

local function add_of_side(lock, list, state, i, side)
  local client = state.clients[i]
  local hold = client.holds[side]
  if may_enter(lock, state, client, side) then
    add_acquires(lock, list, i, side, hold.count + 1)
  end
  if hold.count > 0 then add_of_hold(lock, list, i, side, hold) end
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
  if lock.sides[waits.side].ops.refresh then
    add(list, {
      what = "request", client = i, side = waits.side, op = "refresh",
      want = 0, wait = 0, lease = waits.lease, reply = "received",
    })
  end
end

local function add_of_pending(list, i, pending)
  local step = { what = "request", client = i, reply = "received" }
  for _, key in ipairs { "op", "side", "want", "lease", "wait" } do
    step[key] = pending[key]
  end
  add(list, step)
  if pending.op == "acquire" then
    add(list, { what = "give up", client = i })
  end
end

local function steps_of_client(lock, state, i)
  local client, list = state.clients[i], {}
  if client.is_dead then return list end
  if client.pending then
    add_of_pending(list, i, client.pending)
  elseif client.waits then
    add_of_waiter(lock, list, i, client)
  else
    for side = 1, #lock.sides do add_of_side(lock, list, state, i, side) end
  end
  return list
end

-- A client with the same beliefs gets the same step objects. By these,
-- steps.take finds the effects that the steps had earlier.
local function add_of_client(lock, list, state, i)
  local key = state:number_of(state.clients[i]) * MOST_CLIENTS + i
  local known = lock.known_transitions[key]
  if not known then
    known = steps_of_client(lock, state, i)
    for _, step in ipairs(known) do step.is_shared = true end
    lock.known_transitions[key] = known
  end
  table.move(known, 1, #known, #list + 1, list)
end

-- Clients are alike until they act, so they act for the first time in order.
local function is_next(lock, state, i)
  if not lock.is_symmetric or i == 1 then return true end
  local before = state.clients[i - 1]
  return before.is_dead or before.left < lock.bounds.ops
end

--- The ms by which the clock of the server may jump.
---@param model table
---@return number
function transitions.jump(model)
  local leases = model.bounds.leases
  return model.faults.jump and math.max(leases[#leases], model.tick) or 0
end

-- The faults of the server: it loses a key, or its clock jumps.
local function add_server_faults(model, list, state)
  local server, faults = state.server, model.faults
  for _, key in ipairs(server:keys()) do
    if faults.evict then
      add(list, { what = "evict", key = key })
    elseif faults.expire and server.server:entry(key).expires then
      add(list, { what = "expire", key = key })
    end
  end
  if faults.jump then
    add(list, { what = "jump", ms = transitions.jump(model) })
    add(list, { what = "jump", ms = -transitions.jump(model) })
  end
end

--- Adds the steps of the server and the clock to a list of steps.
---@param model table `faults`, `bounds`, `tick`
---@param list table
---@param state table
function transitions.add_of_server(model, list, state)
  if state.ticks > 0 then add(list, { what = "tick" }) end
  if state.server_faults > 0 then add_server_faults(model, list, state) end
  for i = 1, state.copies and #state.copies or 0 do
    add(list, { what = "late", copy = i })
  end
end

local function add_breaks(lock, list, state)
  for side, policy in ipairs(lock.sides) do
    if state.breaks > 0 and policy.ops.break_ then
      add(list, { what = "break", side = side })
    end
  end
end

--- The steps that are possible in a state.
---@param lock table
---@param state table
---@return table
function transitions.of(lock, state)
  local list = {}
  for i = 1, #state.clients do
    if is_next(lock, state, i) then add_of_client(lock, list, state, i) end
  end
  transitions.add_of_server(lock, list, state)
  add_breaks(lock, list, state)
  return list
end

return transitions
