--- rlockctl wait: waits until a lock is free.

local inspect = require "rlock.cli.inspect"
local lookup = require "rlock.cli.lookup"
local time = require "rlock.cli.time"
local waiting = require "rlock.waiting"

local command = {}

command.usage = [[
rlockctl wait NAME [-w DURATION] [--policy POLICY]

Waits until a lock is free. Does not acquire it, so another client may acquire
it first. A semaphore or permits are free when one is available, a latch when it
is open. A release wakes this command; a fair lock wakes only its next waiter,
so this command also polls it every half second.

  -w, --wait DURATION   wait at most so long: 30s, 500ms, 2m, 1h; a bare number
                        is seconds; default: for ever

--policy is as for `rlockctl status`. A number in Redis may be a semaphore or a
latch: --policy says which.

Exit status: 0 it is free, 201 it was not free in time.
]]

command.options = {
  ["-w"] = { "wait", "DURATION" }, ["--wait"] = { "wait", "DURATION" },
  ["--policy"] = { "policy", "POLICY" },
}

local LATE = 201                        -- the exit status

-- Kinds that may wake only their next waiter, and seconds between two polls. A
-- fair lock without waiters looks like a reentrant one.
local QUIET = { reentrant = true, fair = true, fair_readwrite = true }
local LOOK = 0.5

-- The state to wait for: the first that is not free.
local function busy_of(states)
  for _, state in ipairs(states) do
    if state.state ~= "free" then return state end
  end
end

-- Joins the waiters of a channel; leaves those of another. On return it is
-- subscribed, if it can be.
-- @return as waiting.pause
local function join(watch, channel)
  local session = watch.client.session
  watch.leave()
  watch.channel, watch.waiter = channel, waiting.join(session, channel)
  watch.waiter.wait_deadline = watch.deadline
  return waiting.pause(session, watch.waiter, nil)
end

-- Waits for a message about the lock, the end of its lease, or the next poll.
-- @return as waiting.pause
local function pause(watch, state)
  local channel =
    inspect.channel(watch.client, state, watch.name, watch.policy)
  if not watch.waiter or watch.channel ~= channel then
    return join(watch, channel)
  end
  return waiting.pause(watch.client.session, watch.waiter,
    state.ttl and math.ceil(state.ttl * 1000) or -1,
    QUIET[state.kind] and LOOK or nil)
end

-- Looks, then waits, until it is free.
-- @return true; or nil, code, detail: "timeout" without a detail: the wait
--   is over
local function stay(watch)
  local host = watch.client.session.host
  while true do
    local states, code, detail =
      lookup.inspect(watch.client, watch.name, watch.policy)
    if not states then return nil, code, detail end
    local state = busy_of(states)
    if not state then return true end
    if not state.state then
      return nil, "usage", "it is a semaphore or a latch: give --policy"
    elseif host.now() >= watch.deadline then
      return nil, "timeout"
    end
    local woken
    woken, code, detail = pause(watch, state)
    if woken == nil then return nil, code, detail end
  end
end

local function new_watch(client, name, policy, seconds)
  local watch = { client = client, name = name, policy = policy,
    deadline = client.session.host.now() + seconds }
  function watch.leave()
    if watch.waiter then waiting.leave(client.session, watch.waiter) end
    watch.waiter = nil
  end
  return watch
end

function command.run(cli, operands, chosen)
  local seconds = math.huge
  if chosen.wait then seconds = time.seconds(chosen.wait) end
  if not seconds then
    return cli.fault("usage", "wait: --wait must be a duration, such as 30s")
  end
  local client, name = lookup.open(cli, "wait", operands)
  if not client then return name end
  local watch = new_watch(client, name, chosen.policy, seconds)
  local ok, code, detail = stay(watch)
  watch.leave()
  if ok then return 0 end
  if code == "timeout" and not detail then return LATE end
  if code == "cancelled" then error(detail, 0) end
  return lookup.fault(cli, "wait", name, code, detail)
end

return command
