--- Commands of any key: existence, type and expiry.

local arguments = require "rlock.check.commands.arguments"

local keys = {}

local integer = arguments.integer

local function remove(server, words)
  local count = 0.0
  for i = 2, #words do
    if server:entry(words[i]) then
      server.entries[words[i]], count = nil, count + 1
    end
  end
  return count
end

keys.del = { -2, remove }
keys.unlink = { -2, remove }

keys.exists = { -2, function(server, words)
  local count = 0.0
  for i = 2, #words do
    if server:entry(words[i]) then count = count + 1 end
  end
  return count
end }

keys.type = { 2, function(server, words)
  local entry = server:entry(words[2])
  return { ok = entry and entry.kind or "none" }
end }

local LIMIT = math.maxinteger

-- Does the option (NX, XX, GT, LT) permit this expiry?
local function permits(option, before, after)
  if option == "nx" then return before == nil end
  if option == "xx" then return before ~= nil end
  if option == "gt" then return before ~= nil and after > before end
  if option == "lt" then return before == nil or after < before end
  arguments.fail(("ERR Unsupported option %s"):format(option))
end

local function expire(unit, is_absolute)
  return { -3, function(server, words)
    local name, key, amount = words[1]:lower(), words[2], integer(words[3])
    local now = is_absolute and 0 or server:ms()
    if amount > LIMIT // unit or amount < -(LIMIT // unit)
        or amount * unit > LIMIT - now then
      arguments.fail(("ERR invalid expire time in '%s' command"):format(name))
    end
    local entry, at = server:entry(key), amount * unit + now
    for i = 4, #words do
      if not permits(words[i]:lower(), entry and entry.expires, at) then
        return 0.0
      end
    end
    if not entry then return 0.0 end
    if at <= server:ms() then
      server.entries[key] = nil
    else
      server:change(key, entry.kind).expires = at
    end
    return 1.0
  end }
end

keys.expire, keys.pexpire = expire(1000), expire(1)
keys.expireat, keys.pexpireat = expire(1000, true), expire(1, true)

keys.persist = { 2, function(server, words)
  local entry = server:entry(words[2])
  if not entry or not entry.expires then return 0.0 end
  server:change(words[2], entry.kind).expires = nil
  return 1.0
end }

local function time_to_live(convert)
  return { 2, function(server, words)
    local entry = server:entry(words[2])
    if not entry then return -2.0 end
    if not entry.expires then return -1.0 end
    return convert(entry.expires, server:ms()) + 0.0
  end }
end

keys.pttl = time_to_live(function(at, now) return at - now end)
keys.ttl = time_to_live(function(at, now) return (at - now + 500) // 1000 end)
keys.pexpiretime = time_to_live(function(at) return at end)
keys.expiretime = time_to_live(function(at) return (at + 500) // 1000 end)

keys.rename = { 3, function(server, words)
  local entry = server:entry(words[2])
  if not entry then arguments.fail "ERR no such key" end
  server.entries[words[2]] = nil
  server.entries[words[3]] = entry
  return { ok = "OK" }
end }

return keys
