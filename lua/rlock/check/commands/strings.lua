--- Commands of strings.

local arguments = require "rlock.check.commands.arguments"

local strings = {}

local integer = arguments.integer

local function get(server, words)
  local entry = server:entry(words[2], "string")
  return entry and entry.value or false
end

strings.get = { 2, get }

strings.mget = { -2, function(server, words)
  local values = {}
  for i = 2, #words do
    local entry = server:entry(words[i])
    values[i - 1] = entry and entry.kind == "string" and entry.value or false
  end
  return values
end }

strings.strlen = { 2, function(server, words)
  return #(get(server, words) or "") + 0.0
end }

local function store(server, key, value, expires)
  server.entries[key] = {
    kind = "string", value = value, expires = expires, owner = server,
  }
end

-- When a key expires that is set with an option: EX, PX, EXAT or PXAT.
local UNITS = { ex = 1000, px = 1, exat = 1000, pxat = 1 }

local function deadline(server, option, text, command)
  local amount, unit = integer(text), UNITS[option]
  local now = option:find("at", 1, true) and 0 or server:ms()
  if amount <= 0 or amount > (math.maxinteger - now) // unit then
    arguments.fail(("ERR invalid expire time in '%s' command"):format(command))
  end
  return amount * unit + now
end

-- The options of SET.
local function set_options(server, words)
  local options, i = {}, 4
  while words[i] do
    local option = words[i]:lower()
    if UNITS[option] then
      if not words[i + 1] or options.expires or options.keepttl then
        arguments.syntax()
      end
      options.expires = { option, words[i + 1] }
      i = i + 1
    elseif option == "nx" or option == "xx" or option == "get"
        or option == "keepttl" then
      options[option] = true
    else
      arguments.syntax()
    end
    i = i + 1
  end
  if options.nx and options.xx or options.keepttl and options.expires then
    arguments.syntax()
  end
  local expires = options.expires
  options.at = expires and deadline(server, expires[1], expires[2], "set")
  return options
end

strings.set = { -3, function(server, words)
  local key, options = words[2], set_options(server, words)
  local before = server:entry(key, options.get and "string" or nil)
  local old = options.get and (before and before.value or false)
  if options.nx and before or options.xx and not before then
    return old or false
  end
  store(server, key, words[3], options.at or options.keepttl and before
    and before.expires or nil)
  if options.get then return old end
  return { ok = "OK" }
end }

strings.setnx = { 3, function(server, words)
  if server:entry(words[2]) then return 0.0 end
  store(server, words[2], words[3])
  return 1.0
end }

local function set_with(option)
  return { 4, function(server, words)
    local at = deadline(server, option, words[3], words[1]:lower())
    store(server, words[2], words[4], at)
    return { ok = "OK" }
  end }
end

strings.setex, strings.psetex = set_with "ex", set_with "px"

strings.getset = { 3, function(server, words)
  local old = get(server, words)
  store(server, words[2], words[3])
  return old
end }

strings.getdel = { 2, function(server, words)
  local old = get(server, words)
  server.entries[words[2]] = nil
  return old
end }

local function add(server, key, amount)
  local entry = server:entry(key, "string")
  local sum = arguments.add(integer(entry and entry.value or "0"), amount)
  server:change(key, "string", "").value = ("%d"):format(sum)
  return sum + 0.0
end

strings.incr = { 2, function(server, words)
  return add(server, words[2], 1)
end }
strings.decr = { 2, function(server, words)
  return add(server, words[2], -1)
end }
strings.incrby = { 3, function(server, words)
  return add(server, words[2], integer(words[3]))
end }
strings.decrby = { 3, function(server, words)
  local amount = integer(words[3])
  if amount == math.mininteger then
    arguments.fail "ERR decrement would overflow"
  end
  return add(server, words[2], -amount)
end }

strings.append = { 3, function(server, words)
  local entry = server:entry(words[2], "string")
  local value = (entry and entry.value or "") .. words[3]
  server:change(words[2], "string", "").value = value
  return #value + 0.0
end }

return strings
