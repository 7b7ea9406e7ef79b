--- Makes a process reproducible (deterministic): the order of `pairs` depends
--- neither on addresses nor on Lua's random seed, and garbage is collected only
--- at defined moments.

require "rlock.script"                  -- loaded now: it ships only the
                                        -- `pairs` with which it was loaded
local order = {}

local plain_pairs, plain_collect = pairs, collectgarbage
local next, sort, type = next, table.sort, type
local globals = _G --[[@as table]]

local RANK = { number = 1, string = 2, boolean = 3, table = 4 }

-- A key by which to sort objects: the `serial` of events and tasks; the address
-- of a client's nodes; the uuid of a place, and the owner and lock of an entry
-- (rlock.zookeeper.place, rlock.zookeeper.target).
local function id_of(object)
  local target = object.target
  return object.serial or object.where or object.uuid or object.id
    or target and object.owner .. target.policy.name .. target.path
    or error "nothing tells it apart"
end

local function is_before(a, b)
  local one, two = type(a), type(b)
  if one ~= two then return RANK[one] < RANK[two] end
  if one == "table" then
    return id_of(a) < id_of(b)
  elseif one == "boolean" then
    return a and not b
  end
  return a < b
end

-- Iterates over a table, and skips keys that have been removed meanwhile.
-- `keys` has the sorted keys; `of`, the table; and `i`, the index of the last
-- key.
local function step(keys)
  local i, of = keys.i, keys.of
  while true do
    i = i + 1
    local key = keys[i]
    if key == nil then return nil end
    local value = of[key]
    if value ~= nil then
      keys.i = i
      return key, value
    end
  end
end

-- The keys of a table, sorted.
local function keys_of(list)
  ---@type any, integer, boolean
  local keys, n, are_texts = { i = 0, of = list }, 0, true
  for key in next, list do
    n = n + 1
    keys[n], are_texts = key, are_texts and type(key) == "string"
  end
  if are_texts then
    sort(keys)
  else
    sort(keys, is_before)
  end
  return keys
end

local function ordered(list)
  local first = next(list)
  if first == nil or next(list, first) == nil then return next, list, nil end
  return step, keys_of(list), nil
end

--- `pairs` for a user's program. A table keyed by objects is iterated in the
--- order of their addresses, which is not reproducible.
---@param list table
---@param on_objects? function called for such a table
function order.pairs(list, on_objects)
  local meta = getmetatable(list)
  if type(list) ~= "table" or meta and meta.__pairs then
    return plain_pairs(list)
  end
  for key in next, list do
    local kind = type(key)
    if kind == "table" or not RANK[kind] then
      if on_objects then on_objects() end
      return next, list, nil
    end
  end
  return ordered(list)
end

-- Collects young garbage. The size of a step is ignored, because its effect
-- would depend on all that was allocated before.
local function collect(what, ...)
  if what == "step" then return plain_collect("step") end
  return plain_collect(what, ...)
end

--- Calls fn(...) reproducibly; it must not yield.
---@return any ... # the results of fn
function order.run(fn, ...)
  plain_collect("generational")
  plain_collect("stop")
  plain_collect("step")                 -- calls the finalizers of former runs
  globals.pairs, globals.collectgarbage = ordered, collect
  local results = table.pack(xpcall(fn, debug.traceback, ...))
  globals.pairs, globals.collectgarbage = plain_pairs, plain_collect
  plain_collect("restart")
  plain_collect("incremental")
  if not results[1] then error(results[2], 0) end
  return table.unpack(results, 2, results.n)
end

return order
