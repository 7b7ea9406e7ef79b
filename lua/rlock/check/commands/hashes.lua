--- Commands of hashes. The order of fields is that in which they were added;
--  Redis promises none.

local arguments = require "rlock.check.commands.arguments"

local hashes = {}

local integer = arguments.integer

local NONE = {}

local function fields_of(server, key)
  local entry = server:entry(key, "hash")
  return entry and entry.value or NONE
end

local function sorted(hash)
  local fields = {}
  for field in pairs(hash) do fields[#fields + 1] = field end
  table.sort(fields)
  return fields
end

hashes.hget = { 3, function(server, words)
  return fields_of(server, words[2])[words[3]] or false
end }

hashes.hmget = { -3, function(server, words)
  local hash, values = fields_of(server, words[2]), {}
  for i = 3, #words do values[i - 2] = hash[words[i]] or false end
  return values
end }

hashes.hexists = { 3, function(server, words)
  return fields_of(server, words[2])[words[3]] and 1.0 or 0.0
end }

hashes.hstrlen = { 3, function(server, words)
  return #(fields_of(server, words[2])[words[3]] or "") + 0.0
end }

hashes.hlen = { 2, function(server, words)
  return #sorted(fields_of(server, words[2])) + 0.0
end }

-- Replies with the fields, the values or both.
local function all(wants_fields, wants_values)
  return { 2, function(server, words)
    local hash, list = fields_of(server, words[2]), {}
    for _, field in ipairs(server:in_some_order(sorted(hash))) do
      if wants_fields then list[#list + 1] = field end
      if wants_values then list[#list + 1] = hash[field] end
    end
    return list
  end }
end

hashes.hgetall = all(true, true)
hashes.hkeys, hashes.hvals = all(true, false), all(false, true)

local function set(server, words)
  if #words % 2 ~= 0 then
    arguments.fail(("ERR wrong number of arguments for '%s' command")
      :format(words[1]:lower()))
  end
  local hash, added = server:change(words[2], "hash", {}).value, 0.0
  for i = 3, #words, 2 do
    if not hash[words[i]] then added = added + 1 end
    hash[words[i]] = words[i + 1]
  end
  return added
end

hashes.hset = { -4, set }
hashes.hmset = { -4, function(server, words)
  set(server, words)
  return { ok = "OK" }
end }

hashes.hsetnx = { 4, function(server, words)
  if fields_of(server, words[2])[words[3]] then return 0.0 end
  server:change(words[2], "hash", {}).value[words[3]] = words[4]
  return 1.0
end }

hashes.hdel = { -3, function(server, words)
  local count = 0.0
  for i = 3, #words do
    if fields_of(server, words[2])[words[i]] then
      server:change(words[2], "hash").value[words[i]] = nil
      count = count + 1
    end
  end
  server:tidy(words[2])
  return count
end }

hashes.hincrby = { 4, function(server, words)
  local amount = integer(words[4])
  local before = fields_of(server, words[2])[words[3]] or "0"
  local sum = arguments.add(integer(before,
    "ERR hash value is not an integer"), amount)
  server:change(words[2], "hash", {}).value[words[3]] = ("%d"):format(sum)
  return sum + 0.0
end }

-- Small hashes are replied whole.
hashes.hscan = { -3, function(server, words)
  integer(words[3], "ERR invalid cursor")
  for i = 4, #words, 2 do
    if words[i]:lower() ~= "count" or not words[i + 1] then
      error("the model of Redis has no HSCAN with " .. words[i], 0)
    end
    integer(words[i + 1])
  end
  return { "0", hashes.hgetall[2](server, words) }
end }

return hashes
