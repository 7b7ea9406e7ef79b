--- Commands of hashes. Redis promises no order of fields.

local arguments = require "rlockctl.model.commands.arguments"

local hashes = {}

local integer, size, sorted =
  arguments.integer, arguments.size, arguments.sorted

local NONE = {}

local function fields_of(server, key)
  local entry = server:entry(key, "hash")
  return entry and entry.value or NONE
end

local function set_field(server, key, field, value)
  server:change(key, "hash", {}).value[field] = value
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
  return size(fields_of(server, words[2]))
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
  if #words % 2 ~= 0 then arguments.wrong_number(words) end
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
  set_field(server, words[2], words[3], words[4])
  return 1.0
end }

hashes.hdel = { -3, function(server, words)
  return arguments.remove(server, words[2], "hash",
    table.move(words, 3, #words, 1, {}))
end }

hashes.hincrby = { 4, function(server, words, by_client)
  local amount = integer(words[4])
  local before = fields_of(server, words[2])[words[3]] or "0"
  local sum = arguments.add(integer(before,
    "ERR hash value is not an integer"), amount)
  set_field(server, words[2], words[3], ("%d"):format(sum))
  return arguments.exactly(sum, by_client)
end }

hashes.hincrbyfloat = { 4, function(server, words)
  local amount = arguments.long_double(words[4])
  if amount.is_infinite then
    arguments.fail "ERR value is NaN or Infinity"
  end
  local before = fields_of(server, words[2])[words[3]] or "0"
  local sum = arguments.add_floats(arguments.long_double(before,
    "ERR hash value is not a float"), amount)
  set_field(server, words[2], words[3], sum)
  return sum
end }

hashes.hscan = { -3, function(server, words)
  return arguments.scan(server, words, "hash", function(list, field, value)
    list[#list + 1], list[#list + 2] = field, value
  end)
end }

return hashes
