--- rlockctl revoke: asks the holders of a lock to release it.

local lookup = require "rlockctl.cli.lookup"
local stores = require "rlockctl.cli.stores"
local text = require "rlockctl.cli.text"

local command = {}

command.usage = [[
rlockctl revoke NAME [--reason TEXT] [--policy POLICY]

Asks the holders of a lock to release it. The holder decides: a program in its
on_release_request callback, a command under `rlockctl run --on-revoke SIGNAL`
when it gets the signal, on ZooKeeper also a listener of Curator's
makeRevocable. Use `rlockctl wait NAME` to wait until the lock is free, and
`rlockctl break NAME` to free it by force.

  --reason TEXT  for the holders, at most 256 bytes; Curator's do not get it

Both sides of a read/write lock are asked. Counters have no holders to ask.
--policy is as for `rlockctl status`.

Exit status: 0 a holder is asked, 3 it is free, 1 no holder can be asked.
]]

command.options = {
  ["--reason"] = { "reason", "TEXT" }, ["--policy"] = { "policy", "POLICY" },
}

local FREE, LONGEST = 3, 256

-- The lock whose holders to ask, or nil, code, detail.
local function lock_of(client, state, name, policy)
  local code, why = lookup.refusal(state)
  if code then return nil, code, why end
  local locks = stores.of(client).locks(client, state, name, policy)
  if locks then return locks[1] end
  return nil, "refused", state.title .. ": there is no holder to ask"
end

--- Asks the holders.
---@return any # true and a message; false: it is free
---@return string? code, string? detail
local function ask(client, name, chosen)
  local states, code, detail = lookup.states(client, name, chosen.policy)
  if not states then return nil, code, detail end
  local state = lookup.held(states)
  if not state.kind then return false end
  local lock
  lock, code, detail = lock_of(client, state, name, chosen.policy)
  if not lock then return nil, code, detail end
  local ok, n, why = lock:request_release(chosen.reason)
  if ok then
    return true, ("%s is held by %s: %d asked to release it"):format(
      text.show(name), text.holders(state), n)
  elseif n == "not_held" then
    return false
  end
  return nil, n, why
end

function command.run(cli, operands, chosen)
  if #(chosen.reason or "") > LONGEST then
    return cli.fault("usage", ("revoke: --reason must have at most %d bytes")
      :format(LONGEST))
  end
  local client, name = lookup.open(cli, "revoke", operands)
  if not client then return name end
  local is_asked, message, detail = ask(client, name, chosen)
  if is_asked == nil then
    return lookup.fault(cli, "revoke", name, message, detail)
  end
  print(message or text.show(name) .. " is free")
  return is_asked and 0 or FREE
end

return command
