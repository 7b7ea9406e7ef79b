--- Looks up the lock that a command names.

local listing = require "rlockctl.cli.listing"
local stores = require "rlockctl.cli.stores"
local text = require "rlockctl.cli.text"

local lookup = {}

--- The one name among the operands.
---@param cli table
---@param command string its name, for messages
---@param operands table
---@return string?
---@return integer? # exit status
function lookup.name(cli, command, operands)
  local name = operands[1]
  if name and name ~= "" and not operands[2] then return name end
  return nil, cli.fault("usage", command .. ": give the name of one lock")
end

--- Opens a client for the one name among the operands.
---@param cli table
---@param command string its name, for messages
---@param operands table
---@param open? function instead of rlock.open
---@return table? # client
---@return string|integer | nil # name; exit status
function lookup.open(cli, command, operands, open)
  local name, status = lookup.name(cli, command, operands)
  if not name then return nil, status end
  local client, code, detail = (open or require("rlock").open)()
  if not client then return nil, cli.fault(code, detail) end
  return client, name
end

--- The states of a name.
---@param client table
---@param name string
---@param policy? string
---@return any # as inspect.at
function lookup.inspect(client, name, policy)
  local store = stores.of(client)
  if policy then return store.by(client, name, policy) end
  return store.at(client, name)
end

--- As `inspect`, with the node and the holders' identities.
function lookup.states(client, name, policy)
  local states, code, detail = lookup.inspect(client, name, policy)
  if not states then return nil, code, detail end
  listing.complete(client, name, states)
  return states
end

--- The reason why a command does not touch a key of unknown origin.
---@param state table
---@return string? # the key is a lock's; code
---@return string? detail
function lookup.refusal(state)
  if state.kind ~= "unknown" then return nil end
  local detail = (state.type == "node" and "it is " or "the key is ")
    .. state.title
  if not state.may_be[1] then return "refused", detail end
  return "usage", detail .. ": give --policy"
end

--- Prints why a command failed for a name; returns the exit status.
function lookup.fault(cli, command, name, code, detail)
  return cli.fault(code, ("%s: %s: %s"):format(command, text.show(name),
    detail))
end

--- The first state that is held, or else the first.
---@param states table
function lookup.held(states)
  for _, state in ipairs(states) do
    if state.state == "held" then return state end
  end
  return states[1]
end

--- Whether all are free.
---@param states table
function lookup.is_free(states)
  for _, state in ipairs(states) do
    if state.state ~= "free" then return false end
  end
  return true
end

return lookup
