--- Commands of any key: existence, type and expiry.

local arguments = require "rlockctl.model.commands.arguments"

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

keys.del, keys.unlink = { -2, remove }, { -2, remove }

local function exists(server, words)
  local count = 0.0
  for i = 2, #words do
    if server:entry(words[i]) then count = count + 1 end
  end
  return count
end

keys.exists, keys.touch = { -2, exists }, { -2, exists }

keys.type = { 2, function(server, words)
  local entry = server:entry(words[2])
  return { ok = entry and entry.kind or "none" }
end }

-- expiry ----------------------------------------------------------------------

local LIMIT = math.maxinteger

local OPTIONS = { nx = true, xx = true, gt = true, lt = true }

-- A word as an error shows it.
local function shown(word)
  return (word:match("^[^\0]*"):gsub("[\r\n]+$", ""):gsub("[\r\n]", " "))
end

-- The options after the time.
local function options_of(words)
  local options = {}
  for i = 4, #words do
    local option = words[i]:lower()
    if not OPTIONS[option] then
      arguments.fail("ERR Unsupported option " .. shown(words[i]))
    end
    options[option] = true
  end
  if options.nx and (options.xx or options.gt or options.lt) then
    arguments.fail("ERR NX and XX, GT or LT options at the same time are not "
      .. "compatible")
  elseif options.gt and options.lt then
    arguments.fail("ERR GT and LT options at the same time are not compatible")
  end
  return options
end

-- Do the options permit this expiry?
local function permits(options, before, after)
  if options.nx and before or options.xx and not before then return false end
  if options.gt and (not before or after <= before) then return false end
  return not (options.lt and before and after >= before)
end

-- The point in time of a relative or absolute expiry, in milliseconds.
local function deadline(words, unit, now)
  local amount = integer(words[3])
  local limit = LIMIT // unit
  ---@cast amount -nil
  if unit > 1 and (amount > limit or amount < -limit)
      or amount * unit > LIMIT - now then
    arguments.fail(("ERR invalid expire time in '%s' command"):format(
      words[1]:lower()))
  end
  ---@cast amount -nil
  return amount * unit + now
end

local function expire(unit, is_absolute)
  return { -3, function(server, words)
    local key, options = words[2], #words > 3 and options_of(words)
    local at = deadline(words, unit, is_absolute and 0 or server:ms())
    local entry = server:entry(key)
    if not entry or options and not permits(options, entry.expires, at) then
      return 0.0
    end
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
  return { 2, function(server, words, by_client)
    local entry = server:entry(words[2])
    if not entry then return -2.0 end
    if not entry.expires then return -1.0 end
    return arguments.exactly(convert(entry.expires, server:ms()), by_client)
  end }
end

-- Milliseconds as seconds, rounded.
local function seconds(ms) return ms // 1000 + (ms % 1000 >= 500 and 1 or 0) end

keys.pttl = time_to_live(function(at, now) return at - now end)
keys.ttl = time_to_live(function(at, now) return seconds(at - now) end)
keys.pexpiretime = time_to_live(function(at) return at end)
keys.expiretime = time_to_live(seconds)

-- names -----------------------------------------------------------------------

local function existing(server, key)
  local entry = server:entry(key)
  if not entry then arguments.fail "ERR no such key" end
  return entry
end

keys.rename = { 3, function(server, words)
  local entry = existing(server, words[2])
  server:entry(words[3])
  server.entries[words[2]] = nil
  server.entries[words[3]] = entry
  return { ok = "OK" }
end }

keys.renamenx = { 3, function(server, words)
  local entry = existing(server, words[2])
  if server:entry(words[3]) then return 0.0 end
  server.entries[words[2]] = nil
  server.entries[words[3]] = entry
  return 1.0
end }

return keys
