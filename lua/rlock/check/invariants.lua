--- What must be true in every state. Each check returns a fault, in words, or
--  nothing. Checks that execute operations do so on a copy of the server.

local steps = require "rlock.check.steps"

local invariants = {}

local POLL = 5000         -- ms: the longest that a waiter sleeps

-- Whoever believes to hold, by its own clock.
local function holders_of(lock, state)
  local holders = {}
  for _, client in ipairs(state.clients) do
    for side, policy in ipairs(lock.sides) do
      local hold = client.holds[side]
      if state:believes(client, side) and not hold.is_forgiven then
        holders[#holders + 1] = {
          owner = client.name, count = hold.count,
          mode = policy.name:match("%.(.*)$"),
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

-- Does the server still know every hold that is certain?
local function check_survival(lock, state)
  for _, client in ipairs(state.clients) do
    for side, policy in ipairs(lock.sides) do
      local hold = client.holds[side]
      if policy.ops.renew and state:believes(client, side)
          and not hold.is_forgiven and not client.pending then
        local verdict, fault = steps.execute(lock, state.server:fork(), side,
          "renew", { client.name, "1", ("%d"):format(hold.count) })
        if not verdict then return fault end
        if verdict ~= "held" then
          return client.name .. " believes to hold it, but the server has "
            .. "freed it"
        end
      end
    end
  end
end

local function check_count(lock, state)
  for _, client in ipairs(state.clients) do
    for side, policy in ipairs(lock.sides) do
      local hold = client.holds[side]
      if policy.ops.peek and not client.pending and not hold.is_unsure
          and state:believes(client, side) and not hold.is_forgiven then
        local verdict, reply = steps.execute(lock, state.server:fork(), side,
          "peek", { client.name })
        if not verdict then return reply end
        if reply[3] ~= hold.count then
          return ("%s holds it %d times, but peek tells %d"):format(
            client.name, hold.count, reply[3])
        end
      end
    end
  end
end

-- Is it one of `keys`, or one of these followed by ":" and more?
local function is_own(lock, key)
  if lock.is_own[key] then return true end
  for own in pairs(lock.is_own) do
    if key:sub(1, #own + 1) == own .. ":" then return true end
  end
  return false
end

local function check_expiry(lock, state)
  for key, entry in pairs(state.server.entries) do
    if not entry.expires and not lock.keeps[key] then
      return ("the key %s has no expiry"):format(key)
    elseif not is_own(lock, key) then
      return ("the key %s is not among those of `keys`"):format(key)
    end
  end
end

-- From here on one client is left, which wants the lock: does it get it in
-- time?
local function wait_alone(lock, server, name, side, most)
  local deadline = server:ms() + most
  local lease = ("%d"):format(lock.leases[1])
  local extra = lock.sides[side].extra
  while true do
    local words = { name, lease, "1" }
    for _, word in ipairs(extra and extra { wait_ms = -1, publish = "publish",
        options = lock.options } or {}) do
      words[#words + 1] = word
    end
    local verdict, value = steps.execute(lock, server, side, "acquire", words)
    if not verdict then return value end
    if verdict == "held" or verdict == "refused" then return end
    if server:ms() >= deadline then
      return ("stuck: %s alone wants it, but does not get it within %.1f s")
        :format(name, most / 1000)
    end
    local pause = value and value >= 0 and math.min(value + 1, POLL) or POLL
    server.now = server.now + math.max(math.floor(pause), 1) * 1000
  end
end

local function check_progress(lock, state)
  for i, client in ipairs(state.clients) do
    local is_idle = not client.is_dead and not client.pending
    for side in ipairs(lock.sides) do
      for _, hold in ipairs(client.holds) do
        is_idle = is_idle and hold.count == 0
      end
      if is_idle then
        local known = lock.progress[i * 8 + side]
        local text = state.server:text(lock.is_absolute)
        if not known[text] then
          known[text] = true
          local fault = wait_alone(lock, state.server:fork(), client.name, side,
            lock.leases[#lock.leases] + POLL + lock.slack)
          if fault then return fault end
        end
      end
    end
  end
end

local checks = {
  check_exclusion, check_expiry, check_survival, check_count, check_progress,
}

--- Checks a state.
-- @treturn string|nil the first fault
function invariants.check(lock, state)
  for _, check in ipairs(checks) do
    local fault = check(lock, state)
    if fault then return fault end
  end
end

--- Checks that a fair lock is granted in order of arrival: a client that has
--  just got it was not ahead of a waiter that retries in time.
-- @tparam table before the state before the step
-- @tparam table step   which was granted
function invariants.check_order(lock, before, step)
  if not lock.is_fair or step.what ~= "request" or step.op ~= "acquire"
      or step.want ~= 1 or before.clients[step.client].pending then
    return                              -- a retry may have got it before
  end
  local own = before.clients[step.client].waits
  local now = before.server:ms()
  for i, client in ipairs(before.clients) do
    local waits = client.waits
    if i ~= step.client and waits and now <= waits.retry
        and (not own or waits.place < own.place) then
      return ("%s gets it, but %s has waited for longer"):format(
        before.clients[step.client].name, client.name)
    end
  end
end

return invariants
