--- Maps owners to processes, by the names of the clients' connections
--- (identity.lua). Reads them from CLIENT LIST, once on each server. A server
--- that refuses CLIENT LIST adds none.

local identity = require "rlock.util.identity"

local who = {}

local function read(known, node, seconds)
  local list = node:call(node.host.now() + seconds, { "CLIENT", "LIST" }, 2)
  if type(list) ~= "string" then return end
  for name in list:gmatch("%sname=(%S+)") do
    local one = identity.decode(name)
    if one then
      known[one.id], known[identity.short(one.id)] = one, one
    end
  end
end

local id_of = identity.client_of

-- Calls fn for each holder and waiter of these states.
local function each(states, fn)
  for _, state in ipairs(states) do
    for _, holder in ipairs(state.holders) do fn(holder) end
    for _, waiter in ipairs(state.queue or {}) do fn(waiter) end
  end
end

-- The clients of these states that are not in `known`.
local function unknown(known, states)
  local ids = {}
  each(states, function(one)
    local id = id_of(one.owner)
    if id and known[id] == nil then ids[#ids + 1] = id end
  end)
  return ids
end

--- Adds `who` to those holders and waiters of states whose client is known.
--- Reads CLIENT LIST only if there is an owner that a client may have named.
---@param nodes table
---@param seconds number for each
---@param states table from inspect.at
---@param known? table client id -> identity (decoded), or false; is kept for
---  later calls
function who.name(nodes, seconds, states, known)
  known = known or {}
  local ids = unknown(known, states)
  if ids[1] then
    for _, node in ipairs(nodes) do read(known, node, seconds) end
    for _, id in ipairs(ids) do known[id] = known[id] or false end
  end
  each(states, function(one)
    local id = id_of(one.owner)
    one.who = id and known[id] or identity.decode(one.owner)
  end)
end

--- A holder as text, with its identity if that is known.
---@param holder table with `owner`; `who` or `address`, if that is known
---@return string # without escaping
function who.show(holder)
  return holder.who and identity.show(holder.who) or holder.address
    or holder.owner
end

return who
