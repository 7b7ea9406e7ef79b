--- Who holds a lock, for people. Reads the names that clients gave to their
--  connections (identity.lua) from CLIENT LIST, once on each server. Where that
--  is refused, nobody is known.

local identity = require "rlock.identity"

local who = {}

local function read(known, node, seconds)
  local list = node:call(node.host.now() + seconds, { "CLIENT", "LIST" }, 2)
  if type(list) ~= "string" then return end
  for name in list:gmatch("%sname=(%S+)") do
    local one = identity.decode(name)
    if one then known[one.id] = one end
  end
end

--- The client of an owner.
-- @tparam table known  as of `read`
-- @tparam string owner
-- @treturn table|nil as of identity.decode
local function client_of(known, owner)
  local id = owner:match("^([^:]+):%d+$")
  return id and known[id]
end

--- Reads who is connected.
-- @tparam table nodes
-- @tparam number seconds for each
-- @treturn table client id -> as of identity.decode
function who.read(nodes, seconds)
  local known = {}
  for _, node in ipairs(nodes) do read(known, node, seconds) end
  return known
end

--- Adds `who` to the holders and waiters of a state, where they are known.
-- @tparam table known  as of `read`
-- @tparam table state  as of inspect.at
function who.name(known, state)
  for _, list in ipairs { state.holders, state.queue or {} } do
    for _, one in ipairs(list) do one.who = client_of(known, one.owner) end
  end
end

--- Says who it is: web3: invoice.lua (pid 412).
-- @tparam table holder  with `owner`, and `who` if that is known
-- @treturn string not yet fit for a terminal
function who.show(holder)
  local one = holder.who
  if not one then return holder.owner end
  local text = ("%s: %s"):format(one.host or "?", one.program or "?")
  if one.name then text = ("%s %s"):format(text, one.name) end
  return one.pid and ("%s (pid %d)"):format(text, one.pid) or text
end

return who
