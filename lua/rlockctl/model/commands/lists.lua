--- Commands of lists.

local arguments = require "rlockctl.model.commands.arguments"

local lists = {}

local integer, positive = arguments.integer, arguments.positive
local NONE = {}

local function items_of(server, key)
  local entry = server:entry(key, "list")
  return entry and entry.value or NONE
end

lists.llen = { 2, function(server, words)
  return #items_of(server, words[2]) + 0.0
end }

lists.lindex = { 3, function(server, words)
  local items = items_of(server, words[2])
  if items == NONE then return false end
  local i = arguments.index(words[3])
  return items[i < 0 and #items + i + 1 or i + 1] or false
end }

lists.lrange = { 4, function(server, words)
  ---@type any, any
  local first, last = integer(words[3]), integer(words[4])
  local items = items_of(server, words[2])
  first, last = arguments.range(first, last, #items)
  return table.move(items, first, last, 1, {})
end }

local function push(at_front, needs_key)
  return { -3, function(server, words)
    if needs_key and not server:entry(words[2], "list") then return 0.0 end
    local items = server:change(words[2], "list", {}).value
    for i = 3, #words do
      table.insert(items, at_front and 1 or #items + 1, words[i])
    end
    return #items + 0.0
  end }
end

lists.lpush, lists.rpush = push(true), push(false)
lists.lpushx, lists.rpushx = push(true, true), push(false, true)

-- Removes up to n items from an end. The key may be left empty.
local function take(server, key, at_front, n)
  local items, taken = server:change(key, "list").value, {}
  for i = 1, math.min(n, #items) do
    taken[i] = table.remove(items, at_front and 1 or #items)
  end
  return taken
end

local function pop(at_front)
  return { -2, function(server, words)
    if #words > 3 then arguments.wrong_number(words) end
    local count = words[3] and positive(words[3])
    if not server:entry(words[2], "list") then return false end
    local taken = take(server, words[2], at_front, count or 1)
    server:tidy(words[2])
    return count and taken or taken[1]
  end }
end

lists.lpop, lists.rpop = pop(true), pop(false)

-- Moves an item from an end of a list to an end of another, or of the same.
local function move(server, from, to, from_front, to_front)
  if not server:entry(from, "list") then return false end
  server:entry(to, "list")               -- raises WRONGTYPE
  local item = take(server, from, from_front, 1)[1]
  local items = server:change(to, "list", {}).value
  table.insert(items, to_front and 1 or #items + 1, item)
  server:tidy(from)
  return item
end

local SIDES = { left = true, right = true }

lists.lmove = { 5, function(server, words)
  local from, to = words[4]:lower(), words[5]:lower()
  if not SIDES[from] or not SIDES[to] then arguments.syntax() end
  return move(server, words[2], words[3], from == "left", to == "left")
end }

lists.rpoplpush = { 3, function(server, words)
  return move(server, words[2], words[3], false, true)
end }

lists.ltrim = { 4, function(server, words)
  ---@type any, any
  local first, last = integer(words[3]), integer(words[4])
  local items = items_of(server, words[2])
  if items == NONE then return { ok = "OK" } end
  first, last = arguments.range(first, last, #items)
  server:change(words[2], "list").value = table.move(items, first, last, 1, {})
  server:tidy(words[2])
  return { ok = "OK" }
end }

lists.lrem = { 4, function(server, words)
  local count, removed = arguments.directed(words[3]), 0.0
  if not server:entry(words[2], "list") then return 0.0 end
  local items = server:change(words[2], "list").value
  local i, step = count < 0 and #items or 1, count < 0 and -1 or 1
  while items[i] and (count == 0 or removed < math.abs(count)) do
    if items[i] == words[4] then
      table.remove(items, i)
      removed = removed + 1
      if step < 0 then i = i - 1 end
    else
      i = i + step
    end
  end
  server:tidy(words[2])
  return removed
end }

lists.lset = { 4, function(server, words)
  local entry = server:entry(words[2], "list")
  if not entry then arguments.fail "ERR no such key" end
  local i = arguments.index(words[3])
  if i < 0 then i = i + #entry.value end
  if not entry.value[i + 1] then arguments.fail "ERR index out of range" end
  server:change(words[2], "list").value[i + 1] = words[4]
  return { ok = "OK" }
end }

lists.linsert = { 5, function(server, words)
  local where = words[3]:lower()
  if where ~= "before" and where ~= "after" then arguments.syntax() end
  local items = items_of(server, words[2])
  if items == NONE then return 0.0 end
  for i, item in ipairs(items) do
    if item == words[4] then
      items = server:change(words[2], "list").value
      table.insert(items, where == "before" and i or i + 1, words[5])
      return #items + 0.0
    end
  end
  return -1.0
end }

-- searching -------------------------------------------------------------------

---@type table<string, function>
local READ = {
  rank = function(text)
    local rank = arguments.directed(text)
    if rank == 0 then
      arguments.fail("ERR RANK can't be zero: use 1 to start from the first "
        .. "match, 2 from the second ... or use negative to start from the "
        .. "end of the list")
    end
    return rank
  end,
  count = function(text)
    return positive(text, "ERR COUNT can't be negative")
  end,
  maxlen = function(text)
    return positive(text, "ERR MAXLEN can't be negative")
  end,
}

local function pos_options(words)
  local options = { rank = 1, maxlen = 0 }
  for i = 4, #words, 2 do
    local option = words[i]:lower()
    if not READ[option] or not words[i + 1] then arguments.syntax() end
    options[option] = READ[option](words[i + 1])
  end
  return options
end

-- The indexes of an item, from 0: at most n, or all if n is 0.
local function places(items, item, options, n)
  local found, skip, step = {}, math.abs(options.rank) - 1, 1
  local i, looked = 1, 0
  if options.rank < 0 then i, step = #items, -1 end
  while items[i] and (options.maxlen == 0 or looked < options.maxlen)
      and (n == 0 or #found < n) do
    if items[i] == item then
      if skip == 0 then found[#found + 1] = i - 1.0 else skip = skip - 1 end
    end
    i, looked = i + step, looked + 1
  end
  return found
end

lists.lpos = { -3, function(server, words)
  local options = pos_options(words)
  local items = items_of(server, words[2])
  local found = places(items, words[3], options, options.count or 1)
  if options.count then return found end
  return found[1] or false
end }

return lists
