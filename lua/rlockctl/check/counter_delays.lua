--- Delays and leaks of semaphore, permits and latch: a lost wake, a busy reply
--- whose time is too long, a key that lasts too long, a request that shortens a
--- lease. For locks, see delays.lua and leaks.lua.

local trail = require "rlockctl.check.trail"

local counter_delays = {}

local STRANGER = { name = "Z", taken = 0 }      -- a client that waits

--- Is the expected state of the server certain? See delays.is_sure.
local function is_sure(model, state)
  return state.server_faults == model.bounds.server_faults
    and not model.faults.late
end

-- lost wakes ------------------------------------------------------------------

-- Would a waiter succeed now? For a latch: is it open?
local function succeeds(model, server)
  local policy, keys = model.policy, model.keys
  local op = policy.ops.acquire or policy.ops.count
  ---@type any
  local words = {}
  if policy.ops.acquire then
    keys, words = model.kind.arguments(model, STRANGER,
      { op = "acquire", n = 1, number = 1 })
  end
  ---@type any
  local reply = trail.run(model, server, op, keys, words).reply
  return reply[1] == (policy.ops.acquire and "held" or "free")
end

-- Which waiters of each client the messages wake: nil, "one" or "all".
local function woken(model, sent)
  local policy, how = model.policy, nil
  for _, message in ipairs(sent) do
    if message[1] == policy.channel(model.keys) then
      how = policy.wakes and policy.wakes(message[2]) or how or "one"
    end
  end
  return how
end

local function check_wake(model, before, result)
  if succeeds(model, before) or not succeeds(model, result.after) then
    return
  end
  local how = woken(model, result.sent)
  if not how then
    return "lost wake: a waiter could go on now, but no message is published "
      .. "on its channel"
  elseif how == "one" and not model.policy.ops.acquire then
    return "lost wake: all waiters could go on now, but the message wakes only "
      .. "one of each client"
  end
end

-- the time in a busy reply ----------------------------------------------------

local function check_busy(model, state, ms)
  local first = math.huge
  for _, ends in pairs(state.leases) do
    if ends > state.server.now then first = math.min(first, ends) end
  end
  if model.kind.has_leases and ms > first - state.server.now + 1 then
    return ("busy for %gs, but a permit may be free in %gs"):format(ms / 1000,
      (first - state.server.now) / 1000)
  end
end

--- Checks a step that has executed an operation.
---@param model table
---@param before table the state before it
---@param result table
---@return string? # a fault
function counter_delays.check_step(model, before, result)
  if not is_sure(model, before) then return end
  if result.verdict == "busy" then
    return check_busy(model, before, result.reply[2])
  elseif result.after ~= before.server then
    if result.wake == nil then
      result.wake = check_wake(model, before.server, result) or false
    end
    return result.wake or nil
  end
end

-- leases and keys -------------------------------------------------------------

-- The number of permits in use just before a time.
local function used(model, server, time)
  local result = trail.run(model, server:later(time - 1 - server.now),
    model.policy.ops.count, model.keys, {})
  return result.reply[3]
end

local function shortens(model, server, client, op)
  local words = { client.name .. client.taken, "1", "1" }
  if op == "acquire" then words[4] = "publish" end
  local before = used(model, server, client.ends)
  local after =
    trail.run(model, server, model.policy.ops[op], model.keys, words).after
  return after ~= server and used(model, after, client.ends) < before
end

-- An acquire or renewal with a shorter lease must not shorten the current one.
local function check_leases(model, state)
  for _, client in ipairs(model.kind.has_leases and state.clients or {}) do
    if client.ends and not client.pending
        and client.ends > state.server.now then
      for _, op in ipairs { "renew", "acquire" } do
        if shortens(model, state.server, client, op) then
          return ("%s with a shorter lease shortens the lease of %s"):format(op,
            client.name), model.policy.ops[op]
        end
      end
    end
  end
end

-- The limit for the expiry of a key in ms, by the policy's `lasts`; or nil.
local function limit_of(model, key)
  for own, seconds in pairs(model.limits) do
    if key:sub(1, #own + 1) == own .. ":" then return seconds * 1000 end
  end
end

local function check_keys(model, server)
  for _, key in ipairs(server:keys()) do
    local expires = server.server:entry(key).expires
    local limit = limit_of(model, key)
    if expires and limit and expires > server.now + limit then
      return ("leaked: the key %s lasts for %gs; `lasts` of the policy permits "
        .. "%gs"):format(key, (expires - server.now) / 1000, limit / 1000)
    end
  end
end

--- Checks a state.
---@return string? # a fault
---@return table? # the faulty operation, if it is not that of the last step
function counter_delays.check(model, state)
  if not is_sure(model, state) then return end
  local fault = check_keys(model, state.server)
  if fault then return fault end
  return check_leases(model, state)
end

return counter_delays
