--- rlockctl break: frees a lock by force.

local host = require "rlock.host.uv"
local inspect = require "rlock.cli.inspect"
local lookup = require "rlock.cli.lookup"
local status = require "rlock.cli.status"
local text = require "rlock.cli.text"

local command = {}

command.usage = [[
rlockctl break NAME [--token N] [--force] [--policy POLICY]

Frees a lock by force, and wakes its next waiter. The holder is not stopped: its
next renewal or check reports that the lock is lost. On a terminal, this command
shows the holder and asks for confirmation; otherwise it needs --force. If
another client acquires the lock in the meantime, the new hold is not broken.

  --token N   break the lock only if it is still held with this fencing token;
              for a simple lock, the token is its value
  --force     do not ask

Semaphores, permits and latches have no holders to break. --policy is as for
`rlockctl status`.

Exit status: 0 it was broken, 3 it is free, 1 it was not broken.
]]

command.options = {
  ["--token"] = { "token", "N" }, ["--force"] = { "force" },
  ["--policy"] = { "policy", "POLICY" },
}

local FREE = 3

-- Identifies a hold, to detect that another has replaced it.
local function print_of(state)
  local owners = {}
  for i, holder in ipairs(state.holders) do owners[i] = holder.owner end
  table.sort(owners)
  return ("%s %s %s"):format(state.kind, tostring(state.token),
    table.concat(owners, "\n"))
end

-- The first state that is held, or else the first.
local function held_of(states)
  for _, state in ipairs(states) do
    if state.state == "held" then return state end
  end
  return states[1]
end

--- Finds the hold to break.
-- @tparam table client
-- @tparam string name
-- @tparam[opt] string policy
-- @treturn[1] table hold: its `state`; `locks`, by which it can be broken;
--   `is_free`: there is nothing to break
-- @treturn[2] nil, code, detail
function command.find(client, name, policy)
  local states, code, detail = lookup.states(client, name, policy)
  if not states then return nil, code, detail end
  local state = held_of(states)
  local hold = { state = state, policy = policy,
    is_free = lookup.is_free(states) and not state.queue }
  if state.kind then
    hold.locks = inspect.locks(client, state, name, policy)
    if not hold.locks then
      return nil, "refused", state.title .. ": there is no holder to break"
    end
  end
  return hold
end

--- Checks that the hold is still the same.
-- @tparam table client
-- @tparam table hold
-- @treturn[1] boolean true
-- @treturn[2] nil, code, detail
function command.is_same(client, hold)
  local state = hold.state
  local now, code, detail = lookup.inspect(client, state.name, hold.policy)
  if not now then return nil, code, detail end
  if print_of(held_of(now)) ~= print_of(state) then
    return nil, "refused", "not broken: it has changed hands"
  end
  return true
end

-- The token by which only this hold is broken.
local function token_of(state, chosen)
  if chosen then return chosen end
  if state.token then return ("%d"):format(state.token) end
  return state.kind == "simple" and state.holders[1]
    and state.holders[1].owner or nil
end

--- Breaks it.
-- @tparam table hold
-- @tparam[opt] string token  only the hold with this one
-- @treturn[1] boolean whether it was held
-- @treturn[1] string a sentence about it
-- @treturn[2] nil, code, detail
function command.strike(hold, token)
  local was_held, code, detail = false, nil, nil
  for _, lock in ipairs(hold.locks) do
    was_held, code, detail = lock:break_lock(token_of(hold.state, token))
    if was_held ~= false then break end
  end
  if was_held == nil then return nil, code, detail end
  local name, names = text.show(hold.state.name), {}
  if not was_held then return false, name .. " is free" end
  for i, holder in ipairs(hold.state.holders) do names[i] = text.who(holder) end
  return true, ("%s is broken%s"):format(name, names[1]
    and ": it was held by " .. table.concat(names, ", ") or "")
end

-- Asks on the terminal.
-- @return true, or nil, code, detail
local function confirm(client, hold)
  status.print(hold.state)
  io.stdout:flush()
  io.stderr:write("Break it? [y/N] ")
  local answer = (io.read("l") or ""):lower()
  if answer == "y" or answer == "yes" then
    return command.is_same(client, hold)
  end
  return nil, "refused", "not broken"
end

local function run(cli, client, name, chosen)
  local function fault(code, detail)
    return lookup.fault(cli, "break", name, code, detail)
  end
  local hold, code, detail = command.find(client, name, chosen.policy)
  if not hold then return fault(code, detail) end
  if hold.is_free then
    status.print(hold.state)
    return FREE
  elseif not chosen.force then
    local ok, _, why = confirm(client, hold)
    if not ok then return fault("refused", why) end
  end
  local was_held
  was_held, code, detail = command.strike(hold, chosen.token)
  if was_held == nil then return fault(code, detail) end
  print(code)
  return was_held and 0 or FREE
end

function command.run(cli, operands, chosen)
  if not chosen.force and not host.is_terminal(0) then
    return cli.fault("usage", "break: without a terminal, give --force")
  end
  local client, name = lookup.open(cli, "break", operands)
  if not client then return name end
  return run(cli, client, name, chosen)
end

return command
