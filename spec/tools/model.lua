--- Compares the model of Redis in lua/rlock/check with a real server: the same
--- random commands or scripts on both must give the same replies and the same
--- keys. Runs in a task of rlockctl.
--
--    local model = require "spec.tools.model"
--    local pair = model.open(server)               -- a server of redis.lua
--    pair:commands(seed, 100)                      -- raises at a difference
--    pair:close()

local commands = require "spec.tools.commands"
local control = require "spec.tools.control"
local modelled = require "rlock.check.redis"

local model = {}

local Pair = {}
Pair.__index = Pair

local LACKS = "the model of Redis has no "

-- What the servers execute: the commands of ARGV, each after the number of its
-- words. A reply is a string with a sign of its type, or a list of such.
local RUN = [[
local function tagged(value)
  local kind = type(value)
  if kind == "number" then return (":%.17g"):format(value) end
  if kind == "string" then return "$" .. value end
  if kind ~= "table" then return "_" end
  if value.err then return "-" .. value.err end
  if value.ok then return "+" .. value.ok end
  local list = { "*" }
  for i, item in ipairs(value) do list[i + 1] = tagged(item) end
  return list
end
local replies, i = {}, 1
while ARGV[i] do
  local n = tonumber(ARGV[i])
  replies[#replies + 1] = tagged(redis.pcall(unpack(ARGV, i + 1, i + n)))
  i = i + n + 1
end
return replies]]

-- All keys: name, type, expiry, value.
local DUMP = [[
local READ = {
  string = { "get" }, hash = { "hgetall" }, list = { "lrange", 0, -1 },
  set = { "smembers" }, zset = { "zrange", 0, -1, "withscores" },
}
local list = {}
for i, key in ipairs(redis.call("keys", "*")) do
  local kind = redis.call("type", key).ok
  local read = READ[kind]
  list[i] = { key, kind, ("%.17g"):format(redis.call("pexpiretime", key)),
    redis.call(read[1], key, unpack(read, 2)) }
end
return list]]

local function tagged(value)
  local kind = type(value)
  if kind == "number" then return (":%.17g"):format(value) end
  if kind == "string" then return "$" .. value end
  if kind ~= "table" then return "_" end
  if value.err then return "-" .. value.err end
  if value.ok then return "+" .. value.ok end
  local list = { "*" }
  for i, item in ipairs(value) do list[i + 1] = tagged(item) end
  return list
end

-- opening ---------------------------------------------------------------------

--- @tparam table server  of spec/tools/redis.lua, empty
function model.open(server)
  local self = setmetatable({ server = server, lacks = {}, ran = 0 }, Pair)
  self.version = self:ask("INFO", "server"):match("redis_version:(%d+%.%d+)")
  self:reset()
  return self
end

function Pair:ask(...) return control.ask(self.server, ...) end

local function microseconds(time)
  return math.tointeger(time[1]) * 1000000 + math.tointeger(time[2])
end

--- Empties both, and sets the model's clock.
function Pair:reset()
  self:ask("FLUSHALL")
  self.model = modelled.new()
  self.model.now = microseconds(self:ask("TIME"))
end

function Pair:close() control.close(self.server) end

-- comparing -------------------------------------------------------------------

local function show(reply)
  if type(reply) ~= "table" then return ("%q"):format(reply) end
  local parts = {}
  for i, item in ipairs(reply) do parts[i] = show(item) end
  return "{" .. table.concat(parts, " ") .. "}"
end

local UNORDERED = { smembers = 1, sinter = 1, sunion = 1, sdiff = 1, hkeys = 1,
  hvals = 1, hgetall = 2, sscan = 1, hscan = 2, zscan = 2 }

-- Sorts a list of items, each of `n` strings.
local function sorted(list, n)
  local items = {}
  for i = 2, #list, n do
    items[#items + 1] = show(table.move(list, i, i + n - 1, 1, {}))
  end
  table.sort(items)
  return items
end

-- Scores are shown with 17 digits before 7.2.
local function same_score(a, b)
  local one, two = a:match("^%$(.*)$"), b:match("^%$(.*)$")
  return one and two and tonumber(one) and tonumber(one) == tonumber(two)
end

-- What Valkey says in other words.
function model.neutral(text)
  return (text:gsub("Redis command", "command")
    :gsub("Lua redis lib command arg", "Command arg"))
end

-- Scripts are told of a wrong number of words in other terms than clients.
local function normal(fault)
  if fault:lower():find("^%-err wrong number of arg") then return "-arity" end
  if fault:find("^%-ERR Error compiling script") then return "-compile" end
  return model.neutral(fault)
end

local TIMES = { pttl = 1, pexpiretime = 1, ttl = 1000, expiretime = 1000 }

function Pair:same(name, got, want)
  if type(got) ~= type(want) then return false end
  if type(got) == "table" then
    local n = UNORDERED[name]
    if n and got[2] ~= nil and type(got[3]) == "table" then
      return show(sorted(got[3], n)) == show(sorted(want[3], n))
    elseif n then
      return show(sorted(got, n)) == show(sorted(want, n))
    end
    if #got ~= #want then return false end
    for i = 1, #got do
      if not self:same(name, got[i], want[i]) then return false end
    end
    return true
  end
  if got == want then return true end
  if got:find("^%-") and want:find("^%-") then
    return normal(got) == normal(want)
  end
  if name:find("^z") and self.version == "7.0" then
    return same_score(got, want)
  end
  return TIMES[name] and self:same_time(TIMES[name], got, want)
end

-- Both `:milliseconds`, at most as far apart as the commands have taken.
function Pair:same_time(unit, got, want)
  local a, b = tonumber(got:match("^:(%d+)$")), tonumber(want:match("^:(%d+)$"))
  return a and b and math.abs(a - b) * unit <= (self.slack + unit - 1)
end

-- The keys of the model, as DUMP has them.
local function dump(server)
  local list = {}
  for key in pairs(server.entries) do
    local entry = server:entry(key)
    if entry then
      local value
      if entry.kind == "string" then value = entry.value
      elseif entry.kind == "hash" then value = server:call { "hgetall", key }
      elseif entry.kind == "list" then value = entry.value
      elseif entry.kind == "set" then value = server:call { "smembers", key }
      else value = server:call { "zrange", key, "0", "-1", "withscores" }
      end
      list[#list + 1] = {
        key, entry.kind, ("%.17g"):format(entry.expires or -1), value,
      }
    end
  end
  return list
end

local READ = { hash = "hgetall", set = "smembers", zset = "zrange",
  list = "lrange", string = "get" }

function Pair:compare_keys()
  local got, want = dump(self.model), self:ask("EVAL", DUMP, 0)
  local by_key = {}
  for _, item in ipairs(want) do by_key[item[1]] = item end
  for _, item in ipairs(got) do
    local other = by_key[item[1]]
    by_key[item[1]] = nil
    local is_same = other and item[2] == other[2]
      and self:same(READ[item[2]], tagged(item[4]), tagged(other[4]))
      and (item[3] == other[3]
        or self:same_time(1, ":" .. item[3], ":" .. other[3]))
    if not is_same then
      error(("the key %s is %s in the model, %s in the server"):format(
        show(item[1]), show(tagged(item)), other and show(tagged(other))), 0)
    end
  end
  local key = next(by_key)
  if key then error(("the model has no key %q"):format(key), 0) end
end

-- commands --------------------------------------------------------------------

-- Runs commands on the model; drops those that it lacks from the list.
function Pair:run_model(list)
  local replies, kept = {}, {}
  for _, words in ipairs(list) do
    local ok, reply = pcall(self.model.call, self.model, words)
    if ok then
      kept[#kept + 1], replies[#replies + 1] = words, tagged(reply)
    elseif type(reply) == "string" and reply:sub(1, #LACKS) == LACKS then
      self.lacks[reply] = (self.lacks[reply] or 0) + 1
    else
      error(show(words) .. ": " .. tostring(reply), 0)
    end
  end
  return kept, replies
end

local function flattened(list)
  local words = {}
  for _, command in ipairs(list) do
    words[#words + 1] = ("%d"):format(#command)
    table.move(command, 1, #command, #words + 1, words)
  end
  return words
end

--- Runs `n` commands of a seed on both.
-- @tparam integer seed
-- @tparam integer n
function Pair:commands(seed, n)
  self:reset()
  local gen, list = commands.new(seed), {}
  local is_absolute = gen:chance(50)
  for i = 1, n do list[i] = gen:command(is_absolute) end
  local kept, got = self:run_model(list)
  local want = self:ask("EVAL", RUN, 0, table.unpack(flattened(kept)))
  local now = microseconds(self:ask("TIME"))
  self.slack = is_absolute and 0 or (now - self.model.now) // 1000 + 2
  self.ran = self.ran + #kept
  for i, words in ipairs(kept) do
    local name = words[1]:lower()
    if name ~= "time" and not self:same(name, got[i], want[i]) then
      error(("seed %d, command %d: %s\nmodel:  %s\nserver: %s"):format(seed, i,
        show(words), show(got[i]), show(want[i])), 0)
    end
  end
  local ok, fault = pcall(self.compare_keys, self)
  if not ok then error(("seed %d: %s"):format(seed, fault), 0) end
end

return model
