--- The invariants of every state. Each check returns a fault, as text, or
--- nothing. Checks that execute operations do so on a copy of the server, and
--- return the faulty operation after the fault.

local delays = require "rlockctl.check.delays"
local leaks = require "rlockctl.check.leaks"
local ownership = require "rlockctl.check.ownership"
local steps = require "rlockctl.check.steps"

local invariants = {}

-- The clients that believe they hold it, by their own clocks.
local function holders_of(lock, state)
  local holders = {}
  for _, client in ipairs(state.clients) do
    for side, policy in ipairs(lock.sides) do
      local hold = client.holds[side]
      if state:believes(client, side) and not hold.is_forgiven then
        holders[#holders + 1] = {
          owner = client.name, count = hold.count,
          mode = policy.name:match("%.(.*)$"),
          options = lock.options_of[client.name] or lock.options,
        }
      end
    end
  end
  return holders
end

local function names_of(holders)
  local names = {}
  for i, holder in ipairs(holders) do
    names[i] = holder.owner .. (holder.mode and " (" .. holder.mode .. ")"
      or "")
  end
  return table.concat(names, " and ")
end

local function check_exclusion(lock, state)
  local holders = holders_of(lock, state)
  if #holders > 1 and not lock.allows(holders, lock.options) then
    return names_of(holders) .. " hold it at the same time"
  end
end

local CLIENTS, CHECKS = 8, 4            -- limits
local SURVIVAL, COUNT, OTHERS = 1, 2, 3 -- the checks of certain holds

-- Calls check(client, side, hold) for each certain hold of a client, which the
-- server must know. Returns the first result.
local function of_client(lock, state, client, check)
  if client.pending then return end
  for side in ipairs(lock.sides) do
    local hold = client.holds[side]
    if state:believes(client, side) and not hold.is_forgiven then
      local fault, op = check(client, side, hold)
      if fault then return fault, op end
    end
  end
end

-- The same for all clients. The result depends only on a client and the server,
-- so a check that has found nothing is not repeated in another state.
local function each_certain(lock, state, server, kind, check)
  for i, client in ipairs(state.clients) do
    local key = (state:number_of(client) * CLIENTS + i) * CHECKS + kind
    if not server.fine[key] then
      local fault, op = of_client(lock, state, client, check)
      if fault then return fault, op end
      server.fine[key] = true
    end
  end
end

-- Does a server know a hold until its lease ends? Returns a fault; `what` is
-- appended to its message.
local function check_kept(lock, server, client, side, count, what)
  local left = client.holds[side].valid - server.now
  local result = steps.execute(lock, server:probe(left - 1), side, "renew",
    { client.name, "1", ("%d"):format(count) })
  if result.fault or result.verdict == "held" then return result.fault end
  return ("%s may rely on its hold for %gs, but the server frees it "
    .. "earlier%s"):format(client.name, left / 1000, what)
end

-- The same after an operation with a shorter lease, unless it is refused.
local function check_shorter(lock, server, client, side, op, count)
  local words = steps.arguments(lock, client.name, {
    op = op, side = side, lease = 1, want = count, wait = 0,
  })
  local result = steps.execute(lock, server, side, op, words)
  if result.fault or result.verdict ~= "held" then
    return result.fault, result.op
  end
  return check_kept(lock, result.after, client, side, count,
    (", after %s with a shorter lease"):format(op)), result.op
end

local function check_survival(lock, state)
  local server = state.server
  return each_certain(lock, state, server, SURVIVAL, function(client, side,
      hold)
    local policy = lock.sides[side]
    if not policy.ops.renew then return end
    local fault = check_kept(lock, server, client, side, hold.count, "")
    if fault or policy.reenter == false then return fault end
    local op
    fault, op = check_shorter(lock, server, client, side, "renew", hold.count)
    if fault then return fault, op end
    return check_shorter(lock, server, client, side, "acquire", hold.count + 1)
  end)
end

local function check_count(lock, state)
  return each_certain(lock, state, state.server, COUNT, function(client, side,
      hold)
    if not lock.sides[side].ops.peek or hold.is_unsure then return end
    local result = steps.execute(lock, state.server, side, "peek",
      { client.name })
    if result.fault then return result.fault, result.op end
    if result.reply[3] ~= hold.count then
      return ("%s holds it %d times, but peek reports %d"):format(client.name,
        hold.count, result.reply[3]), result.op
    end
  end)
end

local function fault_of_keys(lock, snapshot)
  for _, key in ipairs(snapshot:keys()) do
    local entry = snapshot.server:entry(key)
    if not entry.expires and not lock.keeps[key] then
      return ("the key %s has no expiry"):format(key)
    end
  end
end

-- Does no client hold it, wait or expect a reply?
local function is_deserted(state)
  for _, client in ipairs(state.clients) do
    if client.pending or client.waits then return false end
    for side in ipairs(client.holds) do
      if state:believes(client, side) then return false end
    end
  end
  return true
end

-- If clients may die, all may be dead at any time.
local function check_keys(lock, state)
  local snapshot = state.server
  if not lock.faults.crash and not is_deserted(state) then return end
  if snapshot.fault_of_keys == nil then
    snapshot.fault_of_keys = fault_of_keys(lock, snapshot) or false
  end
  return snapshot.fault_of_keys or nil
end

-- Does the server know all holds for as long as before?
local function check_others(lock, state, server, what)
  return each_certain(lock, state, server, OTHERS, function(client, side, hold)
    if lock.sides[side].ops.renew then
      return check_kept(lock, server, client, side, hold.count, what)
    end
  end)
end

-- A server that has lost a key, or whose clock has jumped, may know holds that
-- have ended.
local function check_ownership(lock, state)
  if state.server_faults < lock.bounds.server_faults then return end
  for _, client in ipairs(state.clients) do
    for side, hold in ipairs(client.holds) do
      if not client.is_dead and not client.pending and not client.waits
          and hold.count == 0 and not hold.is_unsure then
        local fault, trial = ownership.check(lock, state.server, {
            name = client.name, is_new = client.left == lock.bounds.ops,
          }, side, function(server, op)
            return check_others(lock, state, server,
              (", after %s by %s, which holds nothing"):format(op, client.name))
          end)
        if fault then return fault, trial end
      end
    end
  end
end

local checks = {
  check_exclusion, check_keys, check_survival, check_count, check_ownership,
  delays.check_progress, delays.check_peek, leaks.check,
}

--- Checks a state.
---@return string? # the first fault
---@return table? # the faulty operation, if it is not that of the last step
function invariants.check(lock, state)
  for _, check in ipairs(checks) do
    local fault, op = check(lock, state)
    if fault then return fault, op end
  end
end

-- Does a client wait, and retry in time? A client with a pending request may
-- have had its turn, or have left.
local function is_waiting(client, now)
  local waits = client.waits
  return waits and client.position and now <= waits.retry and not waits.is_late
    and not client.pending and not client.is_disturbed
end

--- Checks that a fair lock is granted in order of arrival: a client that has
--- just got it was not ahead of a waiter that retries in time.
---@param lock table
---@param before table the state before the step
---@param step table which was granted
---@return string? # a fault
function invariants.check_order(lock, before, step)
  local own = before.clients[step.client]         -- none: a late copy
  if not lock.is_fair or not own or own.pending or step.op ~= "refresh"
      and (step.op ~= "acquire" or step.want ~= 1) then
    return                              -- a retry may have got it before
  end
  for i, client in ipairs(before.clients) do
    if i ~= step.client and is_waiting(client, before.server.now)
        and (not own.position or client.position < own.position) then
      return ("%s gets it, but %s has waited longer"):format(own.name,
        client.name)
    end
  end
end

return invariants
