--- rlockctl break: frees a lock by force.

local host = require "rlock.host.uv"
local inspect = require "rlock.cli.inspect"
local lookup = require "rlock.cli.lookup"
local status = require "rlock.cli.status"
local text = require "rlock.cli.text"

local command = {}

command.usage = [[
rlockctl break NAME [--token N] [--force] [--policy POLICY]

Frees a lock by force, and wakes its next waiter. The holder does not stop: it
is told by its next renewal or check that the lock is lost. On a terminal, shows
who holds it and asks first. Without a terminal, --force is needed. If the lock
changes hands in the meantime, the new hold is not broken.

  --token N   break it only if the hold with this fencing token still stands;
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

-- What a hold is compared by.
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

-- Asks on the terminal; then: is it still the same hold?
-- @return true, or nil, why
local function confirm(client, state, policy)
  status.print(state)
  io.stdout:flush()
  io.stderr:write("Break it? [y/N] ")
  local answer = (io.read("l") or ""):lower()
  if answer ~= "y" and answer ~= "yes" then return nil, "not broken" end
  local now, _, detail = lookup.inspect(client, state.name, policy)
  if not now then return nil, detail end
  if print_of(held_of(now)) ~= print_of(state) then
    return nil, "not broken: it has changed hands"
  end
  return true
end

-- The token by which only this hold is broken.
local function token_of(state, chosen)
  if chosen.token then return chosen.token end
  if state.token then return ("%d"):format(state.token) end
  return state.kind == "simple" and state.holders[1]
    and state.holders[1].owner or nil
end

-- @return whether it was held; or nil, code, detail
local function break_it(locks, token)
  local was_held, code, detail = false, nil, nil
  for _, lock in ipairs(locks) do
    was_held, code, detail = lock:break_lock(token)
    if was_held ~= false then break end
  end
  return was_held, code, detail
end

local function tell(state)
  local names = {}
  for i, holder in ipairs(state.holders) do names[i] = text.who(holder) end
  print(("%s is broken%s"):format(text.show(state.name), names[1]
    and ": it was held by " .. table.concat(names, ", ") or ""))
  return 0
end

local function run(cli, client, name, chosen)
  local function fault(code, detail)
    return lookup.fault(cli, "break", name, code, detail)
  end
  local states, code, detail = lookup.states(client, name, chosen.policy)
  if not states then return fault(code, detail) end
  local state, locks = held_of(states), nil
  if state.kind then
    locks = inspect.locks(client, state, name, chosen.policy)
    if not locks then
      return fault("refused", state.title .. ": there is no holder to break")
    end
  end
  if lookup.is_free(states) and not state.queue then
    status.print(state)
    return FREE
  elseif not chosen.force then
    local ok, why = confirm(client, state, chosen.policy)
    if not ok then return fault("refused", why) end
  end
  local was_held
  was_held, code, detail = break_it(locks, token_of(state, chosen))
  if was_held == nil then return fault(code, detail) end
  if was_held then return tell(state) end
  print(text.show(name) .. " is free")
  return FREE
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
