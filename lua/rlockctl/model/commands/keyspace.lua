--- Commands of all keys.

local arguments = require "rlockctl.model.commands.arguments"
local glob = require "rlockctl.model.commands.glob"
local sorted = require "rlock.util.sorted"

local keyspace = {}

-- The names of all keys, sorted.
local function names_of(server)
  local names = {}
  for _, name in ipairs(sorted(server.entries)) do
    if server:entry(name) then names[#names + 1] = name end
  end
  return names
end

keyspace.dbsize = { 1, function(server) return #names_of(server) + 0.0 end }

keyspace.keys = { 2, function(server, words)
  local list, matches = {}, glob.compile(words[2])
  for _, name in ipairs(names_of(server)) do
    if matches(name) then list[#list + 1] = name end
  end
  return server:in_some_order(list)
end }

local KINDS = { string = true, list = true, set = true, zset = true,
  hash = true, stream = true }

keyspace.scan = { -2, function(server, words)
  local cursor = arguments.cursor(words[2])
  local options = arguments.scan_options(words, 3, { type = true })
  local kind = options.type and options.type:lower()
  if kind and not KINDS[kind] then
    arguments.lacks "SCAN with a TYPE that does not exist"
  end
  return arguments.scanned(server, names_of(server), cursor, options,
    function(list, name)
      if not kind or server:entry(name).kind == kind then
        list[#list + 1] = name
      end
    end)
end }

keyspace.randomkey = { 1, function(server, words)
  local names = names_of(server)
  return names[1] and names[arguments.random(server, words)(#names)] or false
end }

keyspace.copy = { -3, function(server, words)
  local is_replacing = false
  for i = 4, #words do
    local option = words[i]:lower()
    if option == "db" then arguments.lacks "COPY with DB" end
    if option ~= "replace" then arguments.syntax() end
    is_replacing = true
  end
  if words[2] == words[3] then
    arguments.fail "ERR source and destination objects are the same"
  end
  local entry, other = server:entry(words[2]), server:entry(words[3])
  if not entry or other and not is_replacing then return 0.0 end
  entry.owner = nil                      -- two keys have it: neither changes it
  server.entries[words[3]] = entry
  return 1.0
end }

local function flush(server, words)
  local mode = (words[2] or "sync"):lower()
  if #words > 2 or mode ~= "sync" and mode ~= "async" then
    arguments.syntax()
  end
  server.entries = {}
  return { ok = "OK" }
end

keyspace.flushdb, keyspace.flushall = { -1, flush }, { -1, flush }

return keyspace
