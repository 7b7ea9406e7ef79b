--- Differential test of the model of Redis in lua/rlockctl/model and a real
--- server: the same random commands or scripts must give the same replies and
--- the same keys. Runs in a task of rlockctl.
---
---   local model = require "spec.tools.model"
---   local pair = model.open(server)               -- a server of redis.lua
---   pair:commands(seed, 100)                      -- raises at a difference
---   pair.ran, pair.lacks        how many commands or scripts were compared;
---                               what the model lacked -> how often
---   pair:close()

local chance = require "spec.tools.chance"
local commands = require "spec.tools.commands"
local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local host = require "rlockctl.model.host"
local modelled = require "rlockctl.model.redis"
local replies = require "spec.tools.replies"
local sorted = require "rlock.util.sorted"

local model = {}

local Pair = {}
Pair.__index = Pair

local show, tagged = replies.show, replies.tagged

local LACKS = "the model of Redis has no "
local MARGIN = 500              -- ms; times above 2^53 are rounded, for example

--- Keys of the tests themselves begin with this.
model.OWN = "\0spec:"

-- What the servers execute: the commands of ARGV, each after the number of its
-- words. The replies are tagged as by replies.lua.
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
  stream = { "xrange", "-", "+" },
}
local list = {}
for i, key in ipairs(redis.call("keys", "*")) do
  local kind = redis.call("type", key).ok
  local read = READ[kind]
  list[i] = { key, kind, (":%.17g"):format(redis.call("pexpiretime", key)),
    redis.call(read[1], key, unpack(read, 2)) }
end
return list]]

-- opening ---------------------------------------------------------------------

---@param server table of spec/tools/redis.lua, empty
function model.open(server)
  local self = setmetatable({
    server = server, lacks = {}, ran = 0, evals = 0,
  }, Pair)
  self.version = self:ask("INFO", "server"):match("redis_version:(%d+%.%d+)")
  commands.choose(self.version)
  self:reset()
  return self
end

function Pair:ask(...) return control.ask(self.server, ...) end

-- The server's clock, in microseconds.
function Pair:now()
  local time = self:ask("TIME")
  return math.tointeger(tonumber(time[1])) * 1000000
    + math.tointeger(tonumber(time[2]))
end

local MOST_SCRIPTS = 200                 -- that the server remembers

--- Empties both, and sets the model's clock. Each time, the model turns the
--- order of what has none.
function Pair:reset()
  self:ask("FLUSHALL")
  if self.evals >= MOST_SCRIPTS then
    self:ask("SCRIPT", "FLUSH", "SYNC")
    self.evals = 0
  end
  local turned = not (self.model and self.model.turned)
  self.model = modelled.new()
  self.model.now, self.model.turned = self:now(), turned
  self.model.random = host.stream(1, "model")
end

function Pair:close() control.close(self.server) end

--- Calls a method of the model.
---@return boolean # whether the model does not lack what that needs
---@return any # the result
function Pair:try(method, ...)
  local ok, result = pcall(self.model[method], self.model, ...)
  if ok then return true, result end
  assert(type(result) == "string" and result:sub(1, #LACKS) == LACKS, result)
  self.lacks[result] = (self.lacks[result] or 0) + 1
  return false
end

-- keys ------------------------------------------------------------------------

local READ = {
  string = { "get" }, hash = { "hgetall" }, list = { "lrange", "0", "-1" },
  set = { "smembers" }, zset = { "zrange", "0", "-1", "withscores" },
  stream = { "xrange", "-", "+" },
}

-- A key of the model, as DUMP has it.
local function dumped(server, key)
  local entry = server:entry(key)
  if not entry then return end
  local read = READ[entry.kind]
  return { key, entry.kind, (":%.17g"):format(entry.expires or -1),
    server:call { read[1], key, table.unpack(read, 2) } }
end

-- The tagged replies to a command.
function Pair:same(name, got, want, slack)
  if replies.same(name, got, want, slack) then return true end
  return self.version == "7.0" and name:find("^z")
    and replies.same(name, replies.rounded(got), replies.rounded(want), slack)
end

function Pair:same_key(got, want, slack)
  return want ~= nil and got[2] == want[2]
    and (got[3] == want[3] or replies.same_time(got[3], want[3], slack))
    and self:same(READ[got[2]][1], tagged(got[4]), tagged(want[4]), 0)
end

--- The milliseconds by which expiries may differ now, if a command sets them
--- relative to the clock: at least 1000 s. Absolute ones must be equal.
---@return integer
function Pair:slack() return (self:now() - self.model.now) // 1000 + MARGIN end

--- Raises if a key differs.
---@param slack integer by how many milliseconds expiries may differ
function Pair:compare_keys(slack)
  local wanted = {}
  for _, item in ipairs(self:ask("EVAL", DUMP, 0)) do
    if item[1]:sub(1, #model.OWN) ~= model.OWN then wanted[item[1]] = item end
  end
  for key in pairs(self.model.entries) do
    local got, want = dumped(self.model, key), wanted[key]
    wanted[key] = nil
    if got and not self:same_key(got, want, slack) then
      error(("the key %s is %s in the model, %s in the server"):format(
        show(key), show(tagged(got)), want and show(tagged(want))), 0)
    end
  end
  local key = next(wanted)
  if key then error(("the model has no key %q"):format(key), 0) end
end

-- commands --------------------------------------------------------------------

-- Runs commands on the model; drops those for which it lacks something.
function Pair:run_model(list)
  local kept, got = {}, {}
  for _, words in ipairs(list) do
    local is_known, reply = self:try("call", words)
    if is_known then kept[#kept + 1], got[#got + 1] = words, tagged(reply) end
  end
  return kept, got
end

local function flattened(list)
  local words = {}
  for _, command in ipairs(list) do
    words[#words + 1] = ("%d"):format(#command)
    table.move(command, 1, #command, #words + 1, words)
  end
  return words
end

local function differ(words, got, want)
  error(("%s\nmodel:  %s\nserver: %s"):format(show(words), show(got),
    show(want)), 0)
end

-- Runs commands on both, and compares the replies.
function Pair:compare_some(list, slack)
  local kept, got = self:run_model(list)
  if not kept[1] then return end
  local want = self:ask("EVAL", RUN, 0, table.unpack(flattened(kept)))
  slack = slack or self:slack()
  self.ran = self.ran + #kept
  for i, words in ipairs(kept) do
    local name = words[1]:lower()
    if name ~= "time" and not self:same(name, got[i], want[i], slack) then
      differ(words, got[i], want[i])
    end
  end
end

-- Runs a command on both whose reply is random, and lets the model lose what
-- the server has popped.
function Pair:compare_random(words)
  local before = self.model
  self.model = before:fork()
  local is_known, got = self:try("call", words)
  local after = self.model
  self.model = before
  if not is_known then return end
  self.ran = self.ran + 1
  local want = self:ask("EVAL", RUN, 0, table.unpack(flattened { words }))[1]
  if not chance.same(before, words, tagged(got), want) then
    differ(words, tagged(got), want)
  end
  chance.check(before, after, words, tagged(got))
  chance.follow(before, words, want)
end

--- Runs commands on both, and compares the replies and then all keys.
---@param list table
---@param is_absolute boolean nothing depends on when it is run
function Pair:compare(list, is_absolute)
  local slack, some = is_absolute and 0 or nil, {}
  for _, words in ipairs(list) do
    if chance.is_random(words) then
      self:compare_some(some, slack)
      self:compare_random(words)
      some = {}
    else
      some[#some + 1] = words
    end
  end
  self:compare_some(some, slack)
  self:compare_keys(slack or self:slack())
end

-- Runs `n` commands of a seed on both.
function Pair:run(seed, n, is_absolute)
  local gen, list = commands.new(seed), {}
  if is_absolute == nil then is_absolute = gen:chance(50) end
  for i = 1, n do list[i] = gen:command(is_absolute) end
  local ok, fault = pcall(self.compare, self, list, is_absolute)
  if not ok then error(("RLOCK_SEED=%d: %s"):format(seed, fault), 0) end
  return gen
end

--- Runs `n` commands of a seed on both, which begin empty.
---@param seed integer
---@param n integer
function Pair:commands(seed, n)
  self:reset()
  self:run(seed, n)
end

-- clients ---------------------------------------------------------------------

--- Sends a command to both as a client does, and compares the replies, with all
--- digits of integers. Raises if they differ.
---@return string | table # the reply, with its type
function Pair:client(words)
  local is_known, got = self:try("call", words)
  if not is_known then error("the model lacks " .. words[1], 0) end
  local ok, want = pcall(self.ask, self, table.unpack(words))
  if not ok then want = { err = want } end
  got, want = replies.plain(got), replies.plain(want)
  if show(got) ~= show(want) then differ(words, got, want) end
  return got
end

-- All that a scan finds, sorted.
local function scanned(call, words)
  local found, cursor = {}, "0"
  local at = words[1] == "scan" and 2 or 3
  repeat
    local all = { table.unpack(words) }
    table.insert(all, at, cursor)
    local reply = call(all)
    cursor = reply[1]
    for _, name in ipairs(reply[2]) do found[name] = true end
  until cursor == "0"
  return sorted(found)
end

--- Scans both to the end. Raises if they find other texts.
---@param words table without a cursor
---@return table # those texts
function Pair:scan(words)
  local got = scanned(function(all) return self.model:call(all) end, words)
  local want = scanned(function(all)
    return self:ask(table.unpack(all))
  end, words)
  if show(got) ~= show(want) then differ(words, got, want) end
  return got
end

-- expiry ----------------------------------------------------------------------

local SOON, SPREAD = 50, 50              -- ms until keys expire

--- Lets half of the keys expire soon, on both.
---@return any # whether the server has done it in time, and when all will be
---  gone
function Pair:let_expire(gen)
  local now, list = self:now() // 1000, {}
  for key in pairs(self.model.entries) do
    if gen:chance(50) then
      local at = now + SOON + gen:below(SPREAD)
      list[#list + 1] = { "pexpireat", key, ("%d"):format(at) }
    end
  end
  local ok, fault = pcall(self.compare, self, list, true)
  local is_in_time = self:now() // 1000 < now + SOON
  if is_in_time and not ok then error(fault, 0) end
  return is_in_time, now + SOON + SPREAD
end

--- Runs commands of a seed on both, lets some keys expire, waits until they
--- have, and runs more.
function Pair:expiry(seed, n)
  local is_in_time, gone
  repeat
    self:reset()
    is_in_time, gone = self:let_expire(self:run(seed, n, true))
  until is_in_time
  eventually(function()
    self.model.now = self:now()
    return self.model.now // 1000 > gone
  end)
  self:run(seed + 1, n, true)
end

-- scripts ---------------------------------------------------------------------

-- Runs a script on the model; undoes it if the model lacks something.
function Pair:eval_model(text, keys, args)
  local before = self.model:fork()
  before.sent = table.move(self.model.sent, 1, #self.model.sent, 1, {})
  local is_known, reply = self:try("eval", text, keys, args)
  if is_known then return replies.plain(reply) end
  self.model = before
end

function Pair:eval(text, keys, args)
  self.evals = self.evals + 1
  local words = { "EVAL", text, #keys }
  table.move(keys, 1, #keys, #words + 1, words)
  table.move(args, 1, #args, #words + 1, words)
  local ok, reply = pcall(self.ask, self, table.unpack(words))
  if not ok then return replies.plain { err = reply } end
  return replies.plain(reply)
end

-- The script and arguments for a server with our own clock.
local function with_clock(clock, text, args, now)
  args = table.move(args, 1, #args, 1, {})
  args[#args + 1] = ("%d"):format(now)
  return clock .. text, args
end

--- Runs a script on both, and compares the replies and all keys. Nothing is
--- run if the model lacks what the script needs.
---@param text string
---@param keys table
---@param args table
---@param options? table told what errors name instead of the text clock
---  precedes the text on the server, and gets the model's time as the last
---  argument is_unordered lists in the reply may have any order
---@return string|table|nil # the reply, with its type
function Pair:script(text, keys, args, options)
  options = options or {}
  local got, told = self:eval_model(text, keys, args), options.told or text
  if got == nil then return end
  if options.clock then
    text, args = with_clock(options.clock, text, args, self.model.now)
  end
  local want = self:eval(text, keys, args)
  local shown = options.is_unordered and replies.show_sorted or show
  self.ran = self.ran + 1
  if shown(got) ~= shown(want) then
    error(("%s\nmodel:  %s\nserver: %s"):format(told, show(got), show(want)), 0)
  end
  local ok, fault = pcall(self.compare_keys, self, 0)
  if not ok then error(told .. "\n" .. fault, 0) end
  return got
end

return model
