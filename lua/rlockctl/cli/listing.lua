--- Lists the locks of a server: `names` finds what looks like a lock, and
--- `states` inspects it. Read-only.

local stores = require "rlockctl.cli.stores"

local listing = {}

local AT_ONCE = 32           -- names that are inspected concurrently

--- The names of locks.
---@param client table
---@param options? table as for scan.names
---@return any # as stores.lua's `names`
function listing.names(client, options)
  return stores.of(client).names(client, options)
end

-- Is a state listed? The counter of a fenced lock, for example, stays after a
-- release. Unknown keys are listed if one of several has another type; with
-- `all`, if they are numbers.
local function exists(state, all)
  if not state.kind then return false end
  if state.kind == "unknown" then
    return state.type == "mixed" or all and state.count ~= nil
  end
  return state.state ~= "free" or state.queue ~= nil or state.count ~= nil
    or state.available ~= nil
end

-- A name that a cluster refuses, or a key of another kind, has no row.
local function inspect_one(client, name, rows, known)
  local states, code, detail = stores.of(client).at(client, name, known)
  if code == "refused" then return end
  if not states and not known.failed then
    rows.code, rows.detail = code, detail
  end
  for _, state in ipairs(states or {}) do
    if exists(state, known.all) then
      state.name = name
      rows[#rows + 1] = state
    end
  end
end

--- Adds the node and the holders' identities to the states of one name.
---@param client table
---@param name string
---@param states table from inspect.at
function listing.complete(client, name, states)
  for _, state in ipairs(states) do state.name = name end
  stores.of(client).complete(client, states)
end

-- Calls work(item) for each item, a few concurrently.
local function each(items, work)
  local spawn, tasks, next_item = require("rlock").spawn, {}, 0
  for i = 1, math.min(AT_ONCE, #items) do
    tasks[i] = spawn(function()
      while next_item < #items do
        next_item = next_item + 1
        work(items[next_item])
      end
    end)
  end
  for _, task in ipairs(tasks) do task:join() end
end

--- The states of locks.
---@param client table
---@param names table
---@param known table the third result of `names`; receives `clients`, as for
---  who.name
---@return table? # rows, sorted by name: states as in inspect.at, each with its
---  `name`, and `node`, `master` and `slot` as in `rlockctl status`; holders
---  and waiters have `who`, if known. A lock released since the scan has no row
---@return rlock.failure? code, string? detail
function listing.states(client, names, known)
  local rows = {}
  each(names, function(name) inspect_one(client, name, rows, known) end)
  if rows.code then return nil, rows.code, rows.detail end
  local ok, code, detail = stores.of(client).complete(client, rows, known)
  if not ok then return nil, code, detail end
  table.sort(rows, function(a, b)
    return a.name < b.name or a.name == b.name and a.kind < b.kind
  end)
  return rows
end

--- The locks of a client's servers.
---@param client table
---@param options? table as for scan.names
---@return table? # rows, as returned by `states`
---@return any # whether there are more
---@return table|string | nil # the third result of `names`; detail
function listing.of(client, options)
  local names, more, known = listing.names(client, options)
  if not names then return nil, more, known end
  local rows, code, why = listing.states(client, names, known)
  if not rows then return nil, code, why end
  return rows, more, known
end

return listing
