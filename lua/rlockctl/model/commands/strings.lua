--- Commands of strings.

local arguments = require "rlockctl.model.commands.arguments"

local strings = {}

local integer = arguments.integer

local LONGEST = 512 * 1024 * 1024

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

strings.getrange = { 4, function(server, words)
  local first, last = integer(words[3]), integer(words[4])
  local value = get(server, words) or ""
  if first < 0 and last < 0 and first > last then return "" end
  ---@cast last -nil
  if last < 0 then last = math.max(last + #value, 0) end
  first, last = arguments.range(first, last, #value)
  return value:sub(first, last)
end }
strings.substr = strings.getrange

-- setting ---------------------------------------------------------------------

local function store(server, key, value, expires)
  server:entry(key)
  server.entries[key] = {
    kind = "string", value = value, expires = expires, owner = server.token,
  }
end

-- The options that set an expiry, and their units in milliseconds.
local UNITS = { ex = 1000, px = 1, exat = 1000, pxat = 1 }

-- The point in time of an option: { "px", "5" }.
local function deadline(server, expiry, words)
  local amount, unit = integer(expiry[2]), UNITS[expiry[1]]
  local now = expiry[1]:find("at", 1, true) and 0 or server:ms()
  ---@cast amount -nil
  if amount <= 0 or amount > math.maxinteger // unit
      or amount * unit > math.maxinteger - now then
    arguments.fail(("ERR invalid expire time in '%s' command"):format(
      words[1]:lower()))
  end
  ---@cast amount -nil
  return amount * unit + now
end

-- Of SET: these exclude each other.
local EXCLUDES = {
  nx = "xx", xx = "nx", keepttl = "expiry", persist = "expiry",
}

-- Options from word `i` on: those of `known`, and one expiry in `expiry`.
local function options_of(words, i, known)
  local options = {}
  while words[i] do
    local option = words[i]:lower()
    if UNITS[option] and words[i + 1] then
      local other = options.expiry
      if options.keepttl or options.persist
          or other and other[1] ~= option then
        arguments.syntax()
      end
      options.expiry, i = { option, words[i + 1] }, i + 1
    elseif known[option] and not options[EXCLUDES[option]] then
      options[option] = true
    else
      if option == "ifeq" then arguments.lacks "SET with IFEQ" end
      arguments.syntax()
    end
    i = i + 1
  end
  return options
end

local OF_SET = { nx = true, xx = true, get = true, keepttl = true }

strings.set = { -3, function(server, words)
  local key, options = words[2], options_of(words, 4, OF_SET)
  local at = options.expiry and deadline(server, options.expiry, words)
  local before = server:entry(key, options.get and "string" or nil)
  local old = options.get and before and before.value or false
  if options.nx and before or options.xx and not before then return old end
  store(server, key, words[3],
    at or options.keepttl and before and before.expires or nil)
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
    local at = deadline(server, { option, words[3] }, words)
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

strings.getex = { -2, function(server, words)
  local options = options_of(words, 3, { persist = true })
  local value, key = get(server, words), words[2]
  if not value then return false end
  local at = options.expiry and deadline(server, options.expiry, words)
  if at and at <= server:ms() then
    server.entries[key] = nil
  elseif at or options.persist then
    server:change(key, "string").expires = at
  end
  return value
end }

local function set_all(server, words)
  for i = 2, #words, 2 do store(server, words[i], words[i + 1]) end
end

strings.mset = { -3, function(server, words)
  if #words % 2 == 0 then arguments.wrong_number(words) end
  set_all(server, words)
  return { ok = "OK" }
end }

strings.msetnx = { -3, function(server, words)
  if #words % 2 == 0 then arguments.wrong_number(words) end
  for i = 2, #words, 2 do
    if server:entry(words[i]) then return 0.0 end
  end
  set_all(server, words)
  return 1.0
end }

-- changing --------------------------------------------------------------------

local function add(server, key, amount, by_client)
  local entry = server:entry(key, "string")
  local sum = arguments.add(integer(entry and entry.value or "0"), amount)
  server:change(key, "string", "").value = ("%d"):format(sum)
  return arguments.exactly(sum, by_client)
end

strings.incr = { 2, function(server, words, by_client)
  return add(server, words[2], 1, by_client)
end }
strings.decr = { 2, function(server, words, by_client)
  return add(server, words[2], -1, by_client)
end }
strings.incrby = { 3, function(server, words, by_client)
  return add(server, words[2], integer(words[3]), by_client)
end }
strings.decrby = { 3, function(server, words, by_client)
  local amount = integer(words[3])
  if amount == math.mininteger then
    arguments.fail "ERR decrement would overflow"
  end
  return add(server, words[2], -amount, by_client)
end }

strings.incrbyfloat = { 3, function(server, words)
  local before = get(server, words) or "0"
  local sum = arguments.add_floats(arguments.long_double(before),
    arguments.long_double(words[3]))
  server:change(words[2], "string", "").value = sum
  return sum
end }

local function check_length(n)
  if n > LONGEST then
    arguments.fail("ERR string exceeds maximum allowed size "
      .. "(proto-max-bulk-len)")
  end
end

strings.append = { 3, function(server, words)
  local value = (get(server, words) or "") .. words[3]
  check_length(#value)
  server:change(words[2], "string", "").value = value
  return #value + 0.0
end }

strings.setrange = { 4, function(server, words)
  ---@type any, string
  local offset, part = integer(words[3]), words[4]
  if offset < 0 then arguments.fail "ERR offset is out of range" end
  local value = get(server, words) or ""
  if part == "" then return #value + 0.0 end
  check_length(math.min(offset, LONGEST) + #part)
  ---@cast offset integer
  local result = value:sub(1, offset) .. ("\0"):rep(offset - #value) .. part
    .. value:sub(offset + #part + 1)
  server:change(words[2], "string", "").value = result
  return #result + 0.0
end }

return strings
