--- rlockctl break: frees a lock by force.

local host = require "rlock.host.uv"
local lookup = require "rlockctl.cli.lookup"
local status = require "rlockctl.cli.status"
local stores = require "rlockctl.cli.stores"
local text = require "rlockctl.cli.text"

local command = {}

command.usage = [[
rlockctl break NAME [--token N] [--force] [--policy POLICY]
rlockctl break NAME --holder ID [--force] [--policy POLICY]

Frees a lock by force, and wakes its next waiter. The holder is not stopped: its
next renewal or check reports that the lock is lost. On a terminal, this command
shows the holder and asks for confirmation; otherwise it needs --force. If
another client acquires the lock in the meantime, the new hold is not broken.
With --holder, it frees only the hold of that holder: one permit, or one reader
of a read/write lock. `rlockctl status` shows the ids of holders.

  --holder ID  free only this holder
  --token N    break the lock only if it is still held with this fencing token;
               for a simple lock, the token is its value
  --force      do not ask

Permits, and a semaphore on ZooKeeper, are freed one at a time, with --holder.
In Redis, semaphores and latches have no holders, so they cannot be broken. A
key that may belong to another program is broken only with --policy, as in
`rlockctl status`.

Exit status: 0 it was broken, 3 it is free, 1 it was not broken.
]]

command.options = {
  ["--holder"] = { "holder", "ID" }, ["--token"] = { "token", "N" },
  ["--force"] = { "force" }, ["--policy"] = { "policy", "POLICY" },
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

-- The reason why a lock of this kind cannot be broken, or not as a whole.
local function obstacle(state)
  if state.in_use then
    return "permits are freed one at a time: name a holder with --holder"
  end
  return state.title .. ": there is no holder to break"
end

--- Finds the hold to break.
---@param client table
---@param name string
---@param policy? string
---@param owner? string the only holder to free
---@return table? # hold: its `state`; `locks`, by which it can be broken;
---  `is_free`: there is nothing to break; `free`, which frees the owner
---@return rlock.failure? code, string? detail
function command.find(client, name, policy, owner)
  local states, code, detail = lookup.states(client, name, policy)
  if not states then return nil, code, detail end
  local state = lookup.held(states)
  local hold = { state = state, policy = policy,
    is_free = lookup.is_free(states) and not state.queue }
  local _, why = lookup.refusal(state)
  why = why or state.doubt and state.doubt .. ": give --policy"
  if why then return nil, "refused", why end
  if not state.kind then return hold end
  local store = stores.of(client)
  hold.locks = store.locks(client, state, name, policy)
  if not hold.locks and not (state.in_use and owner) then
    return nil, "refused", obstacle(state)
  end
  hold.is_free = hold.is_free and hold.locks ~= nil
  function hold.free()
    return store.free(client, state, name, policy, owner)
  end
  return hold
end

-- The identity of an owner, if known, or else its id.
local function show_owner(state, owner)
  for _, holder in ipairs(state.holders) do
    if holder.owner == owner then return text.who(holder) end
  end
  return text.bare(owner)
end

--- Checks that the hold is still the same.
---@param client table
---@param hold table
---@return boolean? # true
---@return rlock.failure? code, string? detail
function command.is_same(client, hold)
  local state = hold.state
  local now, code, detail = lookup.inspect(client, state.name, hold.policy)
  if not now then return nil, code, detail end
  if print_of(lookup.held(now)) ~= print_of(state) then
    return nil, "refused", "not broken: it has changed hands"
  end
  return true
end

-- The token that identifies this hold.
local function token_of(state, chosen)
  if chosen then return chosen end
  if state.token then return ("%d"):format(state.token) end
  return state.kind == "simple" and state.holders[1]
    and state.holders[1].owner or nil
end

--- Breaks the hold.
---@param hold table
---@param token? string break only the hold with this token
---@return boolean? # whether it was held
---@return any # a message
---@return string? detail
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

--- Frees one holder.
---@return any ... # as command.strike
local function free(hold, owner)
  local ok, code, detail = hold.free()
  if not ok then return nil, code, detail end
  return true, ("%s is freed from %s"):format(text.show(hold.state.name),
    show_owner(hold.state, owner))
end

--- Asks for confirmation on the terminal.
---@return boolean?, rlock.failure? code, string? detail
local function confirm(client, hold, owner)
  status.print(hold.state)
  io.stdout:flush()
  io.stderr:write(owner
    and ("Free it from %s? [y/N] "):format(show_owner(hold.state, owner))
    or "Break it? [y/N] ")
  local answer = (io.read("l") or ""):lower()
  if answer ~= "y" and answer ~= "yes" then
    return nil, "refused", "not broken"
  end
  if owner then return true end
  return command.is_same(client, hold)
end

local function run(cli, client, name, chosen)
  local function fault(code, detail)
    return lookup.fault(cli, "break", name, code, detail)
  end
  local owner = chosen.holder
  local hold, code, detail = command.find(client, name, chosen.policy, owner)
  if not hold then return fault(code, detail) end
  if hold.is_free then
    status.print(hold.state)
    return FREE
  elseif not chosen.force then
    local ok, _, why = confirm(client, hold, owner)
    if not ok then return fault("refused", why) end
  end
  local was_held
  if owner then
    was_held, code, detail = free(hold, owner)
  else
    was_held, code, detail = command.strike(hold, chosen.token)
  end
  if was_held == nil then return fault(code, detail) end
  print(code)
  return was_held and 0 or FREE
end

function command.run(cli, operands, chosen)
  ---@type any, any
  local name, wrong = lookup.name(cli, "break", operands)
  if not name then
    return wrong
  elseif not chosen.force and not host.is_terminal(0) then
    return cli.fault("usage", "break: without a terminal, give --force")
  elseif chosen.holder and chosen.token then
    return cli.fault("usage", "break: give --holder or --token, not both")
  end
  ---@type any
  local client
  client, wrong = lookup.open(cli, "break", operands)
  if not client then return wrong end
  return run(cli, client, name, chosen)
end

return command
