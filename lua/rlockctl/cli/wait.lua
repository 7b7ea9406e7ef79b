--- rlockctl wait: waits until a lock is free.

local host = require "rlock.host.uv"
local lookup = require "rlockctl.cli.lookup"
local stores = require "rlockctl.cli.stores"
local time_limit = require "rlockctl.cli.time_limit"
local seconds_of = require "rlockctl.cli.seconds"

local command = {}

command.usage = [[
rlockctl wait NAME [-w DURATION] [--policy POLICY]

Waits until a lock is free. Does not acquire it, so another client may acquire
it first. A semaphore or permits are free when a permit is available, a latch
when it is open. A release wakes this command unless the lock goes to its next
waiter, so this command also polls it every half second.

  -w, --wait DURATION   the longest wait for the lock and the server, including
                        the connection: 30s, 500ms, 2m, 1h; a bare number is
                        seconds; default: no limit. The server has at least 1 s
                        to reply; with 0 it has 2 s

--policy is as for `rlockctl status`. A number in Redis may be a semaphore or a
latch: --policy says which.

Exit status: 0 it is free, 201 it was not free in time, 202 the server did not
reply in time.
]]

command.options = {
  ["-w"] = { "wait", "DURATION" }, ["--wait"] = { "wait", "DURATION" },
  ["--policy"] = { "policy", "POLICY" },
}

local LATE = 201                        -- the exit status

-- The state to wait for: the first that is not free.
local function busy_of(states)
  for _, state in ipairs(states) do
    if state.state ~= "free" then return state end
  end
end

--- Inspects the lock and waits, until it is free.
---@return true?, string? code
---@return string? detail # "timeout" without a detail: the wait is over
local function stay(watch)
  while true do
    local states, code, detail =
      lookup.inspect(watch.client, watch.name, watch.policy)
    if not states then return nil, code, detail end
    local state = busy_of(states)
    if not state then return true end
    watch.was_busy = true
    code, detail = lookup.refusal(state)
    if code then return nil, code, detail end
    if not state.state then
      return nil, "usage", "it is a semaphore or a latch: give --policy"
    elseif host.now() >= watch.deadline then
      return nil, "timeout"
    end
    local woken
    woken, code, detail = watch.waiter:pause(state)
    if woken == nil then return nil, code, detail end
  end
end

-- Bounds the wait, even if a server does not reply.
local function bound(cli, watch, seconds)
  return time_limit.bound(time_limit.of(seconds), function()
    time_limit.leave(watch.client)
    if watch.was_busy then return LATE end
    return cli.fault("timeout", "wait: " .. time_limit.problem(seconds))
  end)
end

function command.run(cli, operands, chosen)
  ---@type any
  local seconds = math.huge
  if chosen.wait then seconds = seconds_of(chosen.wait) end
  if not seconds then
    return cli.fault("usage", "wait: --wait must be a duration, such as 30s")
  end
  local watch = { name = operands[1], policy = chosen.policy,
    deadline = host.now() + seconds }
  bound(cli, watch, seconds)
  local client, name = lookup.open(cli, "wait", operands, function()
    return time_limit.open({}, seconds)
  end)
  if not client then return name end
  watch.client = client
  watch.waiter = stores.of(client).waiter(client, name, chosen.policy,
    watch.deadline)
  local ok, code, detail = stay(watch)
  time_limit.leave(client)
  watch.waiter:leave()
  if ok then return 0 end
  if code == "timeout" and not detail then return LATE end
  if code == "cancelled" then error(detail, 0) end
  return lookup.fault(cli, "wait", name, code, detail)
end

return command
