--- Commands of sets.

local sets = {}

local NONE = {}

local function members_of(server, key)
  local entry = server:entry(key, "set")
  return entry and entry.value or NONE
end

local function sorted(set)
  local members = {}
  for member in pairs(set) do members[#members + 1] = member end
  table.sort(members)
  return members
end

sets.scard = { 2, function(server, words)
  return #sorted(members_of(server, words[2])) + 0.0
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

sets.srem = { -3, function(server, words)
  local removed = 0.0
  for i = 3, #words do
    if members_of(server, words[2])[words[i]] then
      server:change(words[2], "set").value[words[i]] = nil
      removed = removed + 1
    end
  end
  server:tidy(words[2])
  return removed
end }

return sets
