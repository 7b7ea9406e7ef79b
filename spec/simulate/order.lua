--- Makes a process reproducible: `pairs` in an order that does not depend on
--  addresses or on Lua's random seed, and garbage that is collected at defined
--  moments only.

local order = {}

local plain_pairs, plain_collect = pairs, collectgarbage

local RANK = { number = 1, string = 2, boolean = 3, table = 4 }

-- Events and tasks have a `serial`; nodes of one client, different addresses.
local function is_before(a, b)
  local one, two = type(a), type(b)
  if one ~= two then return RANK[one] < RANK[two] end
  if one == "table" then
    return assert(a.serial or a.where, "no serial") < (b.serial or b.where)
  elseif one == "boolean" then
    return a and not b
  end
  return a < b
end

-- The keys of a table in no order, how many, and whether all are texts.
local function keys_of(list)
  local keys, n, are_texts = {}, 0, true
  for key in next, list do
    n = n + 1
    keys[n], are_texts = key, are_texts and type(key) == "string"
  end
  return keys, n, are_texts
end

local function ordered(list)
  local first = next(list)
  if first == nil or next(list, first) == nil then return next, list, nil end
  local keys, n, are_texts = keys_of(list)
  if are_texts then
    table.sort(keys)
  else
    table.sort(keys, is_before)
  end
  local i = 0
  return function()
    while i < n do
      i = i + 1
      local value = list[keys[i]]
      if value ~= nil then return keys[i], value end
    end
  end
end

-- Collects what became garbage soon after it was made. A step with a size would
-- depend on all that was allocated before.
local function collect(what, ...)
  if what == "step" then return plain_collect("step") end
  return plain_collect(what, ...)
end

--- Calls fn(...) reproducibly; it must not yield.
-- @return what fn returned
function order.run(fn, ...)
  plain_collect("generational")
  plain_collect("stop")
  plain_collect("step")                 -- calls the finalizers of former runs
  pairs, collectgarbage = ordered, collect           -- luacheck: ignore
  local results = table.pack(xpcall(fn, debug.traceback, ...))
  pairs, collectgarbage = plain_pairs, plain_collect -- luacheck: ignore
  plain_collect("restart")
  plain_collect("incremental")
  if not results[1] then error(results[2], 0) end
  return table.unpack(results, 2, results.n)
end

return order
