--- Makes a process reproducible: `pairs` in an order that does not depend on
--- addresses or on Lua's random seed, and garbage that is collected at defined
--- moments only.

require "rlock.script"                  -- it ships no other `pairs` than that
                                        -- with which it was loaded
local order = {}

local plain_pairs, plain_collect = pairs, collectgarbage
local next, sort, type = next, table.sort, type
local globals = _G --[[@as table]]

local RANK = { number = 1, string = 2, boolean = 3, table = 4 }

-- What tells objects apart: a `serial`, of events and tasks; an address, of a
-- client's nodes; the uuid of a place, and the owner and lock of an entry
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

-- The next key and value of a table that did not lose them meanwhile. `keys`
-- has its keys, and beside them the table `of` and the last key's number `i`.
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

--- `pairs` for a user's program: keys that nothing tells apart come in the
--- order of their addresses.
---@param list table
---@param on_objects? function called if there are such keys
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

-- Collects what became garbage soon after it was made. A step with a size would
-- depend on all that was allocated before.
local function collect(what, ...)
  if what == "step" then return plain_collect("step") end
  return plain_collect(what, ...)
end

--- Calls fn(...) reproducibly; it must not yield.
---@return any ... # any ... # what fn returned
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
