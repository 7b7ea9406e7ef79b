--- Commands of lists.

local arguments = require "rlock.check.commands.arguments"

local lists = {}

local integer = arguments.integer
local NONE = {}

local function items_of(server, key)
  local entry = server:entry(key, "list")
  return entry and entry.value or NONE
end

lists.llen = { 2, function(server, words)
  return #items_of(server, words[2]) + 0.0
end }

lists.lindex = { 3, function(server, words)
  local items, i = items_of(server, words[2]), integer(words[3])
  return items[i < 0 and #items + i + 1 or i + 1] or false
end }

lists.lrange = { 4, function(server, words)
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

local function pop(at_front)
  return { -2, function(server, words)
    if #words > 3 then arguments.syntax() end
    local count = words[3] and integer(words[3],
      "ERR value is out of range, must be positive")
    if count and count < 0 then
      arguments.fail "ERR value is out of range, must be positive"
    end
    if not server:entry(words[2], "list") then return false end
    local items, popped = server:change(words[2], "list").value, {}
    for i = 1, math.min(count or 1, #items) do
      popped[i] = table.remove(items, at_front and 1 or #items)
    end
    server:tidy(words[2])
    if count then return popped end
    return popped[1] or false
  end }
end

lists.lpop, lists.rpop = pop(true), pop(false)

lists.ltrim = { 4, function(server, words)
  local first, last = integer(words[3]), integer(words[4])
  local items = items_of(server, words[2])
  if items == NONE then return { ok = "OK" } end
  first, last = arguments.range(first, last, #items)
  server:change(words[2], "list").value = table.move(items, first, last, 1, {})
  server:tidy(words[2])
  return { ok = "OK" }
end }

lists.lrem = { 4, function(server, words)
  local count, removed = integer(words[3]), 0.0
  if not server:entry(words[2], "list") then return 0.0 end
  local items = server:change(words[2], "list").value
  local first, last, step = 1, #items, 1
  if count < 0 then first, last, step = #items, 1, -1 end
  local i = first
  while (last - i) * step >= 0 and (count == 0 or removed < math.abs(count)) do
    if items[i] == words[4] then
      table.remove(items, i)
      removed = removed + 1
      if step > 0 then last = last - 1 else i = i - 1 end
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
  local i = integer(words[3])
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

lists.lpos = { 3, function(server, words)
  for i, item in ipairs(items_of(server, words[2])) do
    if item == words[3] then return i - 1.0 end
  end
  return false
end }

return lists
