--- Commands of sets. Redis promises no order of members.

local arguments = require "rlockctl.model.commands.arguments"

local sets = {}

local sorted = arguments.sorted

local NONE = {}

local function members_of(server, key)
  local entry = server:entry(key, "set")
  return entry and entry.value or NONE
end

sets.scard = { 2, function(server, words)
  return arguments.size(members_of(server, words[2]))
end }

sets.sismember = { 3, function(server, words)
  return members_of(server, words[2])[words[3]] and 1.0 or 0.0
end }

sets.smismember = { -3, function(server, words)
  local set, list = members_of(server, words[2]), {}
  for i = 3, #words do list[i - 2] = set[words[i]] and 1.0 or 0.0 end
  return list
end }

sets.smembers = { 2, function(server, words)
  return server:in_some_order(sorted(members_of(server, words[2])))
end }

sets.sadd = { -3, function(server, words)
  local set, added = server:change(words[2], "set", {}).value, 0.0
  for i = 3, #words do
    if not set[words[i]] then set[words[i]], added = true, added + 1 end
  end
  return added
end }

local function remove(server, key, members)
  return arguments.remove(server, key, "set", members)
end

sets.srem = { -3, function(server, words)
  return remove(server, words[2], table.move(words, 3, #words, 1, {}))
end }

sets.smove = { 4, function(server, words)
  local from, to, member = words[2], words[3], words[4]
  if not server:entry(from, "set") then return 0.0 end
  server:entry(to, "set")                -- raises WRONGTYPE
  if not members_of(server, from)[member] then return 0.0 end
  if from == to then return 1.0 end
  remove(server, from, { member })
  server:change(to, "set", {}).value[member] = true
  return 1.0
end }

-- Replies with the members of the first set that `keeps(all, member)` keeps,
-- where `all` are the sets.
local function combine(keeps)
  return { -2, function(server, words)
    local all, result = {}, {}
    for i = 2, #words do all[i - 1] = members_of(server, words[i]) end
    for member in pairs(all[1]) do
      if keeps(all, member) then result[member] = true end
    end
    return server:in_some_order(sorted(result))
  end }
end

local function is_in_all(all, member)
  for _, set in ipairs(all) do
    if not set[member] then return false end
  end
  return true
end

local function is_in_first(all, member)
  for i = 2, #all do
    if all[i][member] then return false end
  end
  return true
end

sets.sinter, sets.sdiff = combine(is_in_all), combine(is_in_first)

sets.sunion = { -2, function(server, words)
  local result = {}
  for i = 2, #words do
    for member in pairs(members_of(server, words[i])) do
      result[member] = true
    end
  end
  return server:in_some_order(sorted(result))
end }

sets.sscan = { -3, function(server, words)
  return arguments.scan(server, words, "set", function(list, member)
    list[#list + 1] = member
  end)
end }

return sets
