--- Random calls of a policy's operations, by a few owners, on the model of
--- Redis and on a real server: see model.lua. The server's scripts get our own
--- clock: commands that depend on time are replaced by those with points in
--- time, and keys that have expired by that clock are deleted before each
--- script.
---
---   local calls = require "spec.tools.policy_calls"
---   calls.compare(pair, "fair", seed, 100)       -- raises at a difference

local commands = require "spec.tools.commands"
local few = require "spec.tools.few"
local kinds = require "spec.tools.kinds"
local model = require "spec.tools.model"
local policy = require "rlock.policy"
local replies = require "spec.tools.replies"

local calls = {}

-- Our own keys: published messages, and numbers of subscribers.
local OWN = model.OWN

-- Precedes a script, on its first line. The last argument is the time in
-- microseconds.
local CLOCK = ([[
local redis = (function(real, time)
  local now = math.floor(time / 1000)
  for _, key in ipairs(real.call("keys", "*")) do
    local at = real.call("pexpiretime", key)
    if at >= 0 and at <= now then real.call("del", key) end
  end
  local own = {}
  function own.time()
    local seconds = math.floor(time / 1000000)
    return { ("%d"):format(seconds), ("%d"):format(time - seconds * 1000000) }
  end
  function own.pexpireat(call, key, at, ...)
    if tonumber(at) and tonumber(at) <= now then return call("del", key) end
    return call("pexpireat", key, at, ...)
  end
  function own.pexpire(call, key, ms, ...)
    if not tonumber(ms) then return call("pexpire", key, ms) end
    return own.pexpireat(call, key, now + ms, ...)
  end
  function own.pttl(call, key)
    local at = call("pexpiretime", key)
    return at < 0 and at or at - now
  end
  function own.set(call, ...)
    local words = { ... }
    for i = 3, #words do
      if words[i] == "px" and tonumber(words[i + 1]) then
        words[i], words[i + 1] = "pxat", now + words[i + 1]
      end
    end
    return call("set", unpack(words))
  end
  local function heard(prefix, channel)
    local n = real.call("hget", OWN .. "listeners", prefix .. channel)
    return tonumber(n or 0)
  end
  function own.publish(call, channel, message)
    call("unlink", OWN .. "none")
    call("rpush", OWN .. "sent", channel, message)
    return heard("", channel)
  end
  function own.spublish(call, channel, message)
    call("unlink", OWN .. "none")
    call("rpush", OWN .. "sent", "s:" .. channel, message)
    return heard("s:", channel)
  end
  function own.pubsub(call, action, ...)
    local reply, prefix = {}, action == "numsub" and "" or "s:"
    for _, channel in ipairs { ... } do
      reply[#reply + 1] = channel
      reply[#reply + 1] = heard(prefix, channel)
    end
    return reply
  end
  local function replaced(call)
    return function(name, ...)
      if own[name] then return own[name](call, ...) end
      return call(name, ...)
    end
  end
  return setmetatable({
    call = replaced(real.call), pcall = replaced(real.pcall),
  }, { __index = real })
end)(redis, tonumber(table.remove(ARGV)))
]]):gsub("OWN", '"\\0spec:"'):gsub("\n%s*", " ")

-- Operation -> its arguments, for the policies of locks and for others.
local LOCK = {
  acquire = "owner lease want", renew = "owner lease want reasserts",
  release = "owner lease want publish", leave = "owner publish",
  refresh = "publish owner owner",
  peek = "owner", break_ = "token publish",
}
-- The same for a lock that is handed over, see policy/handover.lua.
local HANDED_OVER = setmetatable({
  acquire = "owner lease want client", leave = "owner passing client",
  release = "owner lease want passing entry", break_ = "token passing",
}, { __index = LOCK })
local ARGUMENTS = {
  semaphore = {
    acquire = "number memory n", release = "number memory n publish",
    undo = "number memory n publish number", drain = "number memory",
    set = "number memory n publish lease", count = "",
  },
  permits = {
    acquire = "owner lease want publish", renew = "owner lease",
    release = "owner lease want publish", set = "n publish", count = "",
    peek = "",
  },
  latch = {
    set = "number memory n publish", count_down = "number memory n publish",
    count = "", delete = "publish",
  },
}

-- Name -> the policy, or the two sides of one.
local function sides_of(name)
  if name == "few" then return { policy.load(assert(load(few))()) } end
  local definition = require("rlock.policy." .. name)
  if definition.server then return { policy.load(definition) } end
  return { policy.load(definition.read), policy.load(definition.write) }
end

--- The names of all policies: the built-in ones, and the README's.
calls.NAMES = { "few", table.unpack(kinds.policies) }

local make = {}

function make.owner(gen) return gen:pick { "A:1", "B:2", "C:3", "A:4" } end
function make.lease(gen) return gen:pick { "1000", "2500", "30000", "1" } end
function make.want(gen) return gen:pick { "0", "1", "1", "2", "3" } end
function make.reasserts(gen) return gen:chance(50) and "reasserts" or nil end
function make.publish(gen)
  return gen:pick { "publish", "publish", "spublish", "both" }
end
function make.passing(gen)
  return gen:chance(70) and "hand over" or make.publish(gen)
end
function make.client(gen)
  return gen:chance(70) and gen:pick { "X", "Y" } or nil
end
function make.entry(gen)
  if not gen:chance(20) then return nil end
  return gen:pick { "X", "Y" } .. " " .. make.owner(gen)
end
function make.token(gen) return gen:pick { "", "", "1", "2" } end
function make.number(gen) return ("%d"):format(gen:below(30)) end
function make.memory() return "600000" end
function make.n(gen) return gen:pick { "0", "1", "2", "5", "-1" } end

local function arguments_of(gen, name, side, op)
  local list = {}
  local lists = ARGUMENTS[name] or side.hands_over and HANDED_OVER or LOCK
  for kind in lists[op]:gmatch("%a+") do
    list[#list + 1] = make[kind](gen)
  end
  local extra = op == "acquire" and side.extra and side.extra {
    wait_ms = gen:pick { 0, -1, 1500 }, publish = make.publish(gen),
    options = { most = 2 },
  }
  for _, word in ipairs(extra or {}) do
    list[#list + 1] = type(word) == "number" and ("%d"):format(word) or word
  end
  if gen:chance(2) then list[gen:below(#list + 1) + 1] = "odd" end
  return list
end

-- The keys of a call; those of counters have a slot.
local function keys_of(gen, name, side)
  local keys = side.keys "lock"
  if name == "semaphore" or name == "latch" then
    keys[3] = keys[3] .. gen:pick { ":x:1", ":y:1" }
    keys[4] = keys[3] .. ":drained"
  end
  return keys
end

local function sorted_ops(side)
  local list = {}
  for op in pairs(side.server) do list[#list + 1] = op end
  table.sort(list)
  return list
end

-- Changes the number of subscribers of a channel, on both.
local function listen(pair, gen, side, keys)
  local owner = make.owner(gen)
  local channel = side.channel and side.channel(keys, owner)
  if not channel then return end
  local names = { channel, "s:" .. channel }
  if side.hands_over then
    names[3] = channel .. ":waiters"
    names[4], names[5] = names[3] .. ":X", names[3] .. ":Y"
  end
  for _, each in ipairs(names) do
    local n = gen:below(2)
    pair.model.listeners[each] = n
    pair:ask("HSET", OWN .. "listeners", each, n)
  end
end

local function compare_sent(pair, text)
  local got, sent = {}, pair:ask("LRANGE", OWN .. "sent", 0, -1)
  for _, message in ipairs(pair.model.sent) do
    got[#got + 1] = (message[3] and "s:" or "") .. message[1]
    got[#got + 1] = message[2]
  end
  if table.concat(got, "\n") ~= table.concat(sent, "\n") then
    error(("%s\nmodel:  %s\nserver: %s"):format(text,
      table.concat(got, " "), table.concat(sent, " ")), 0)
  end
end

-- Operations that a full server may refuse.
local TAKES = { acquire = true, set = true, drain = true }

-- Calls fn while both servers are over their maxmemory. It fails only if it
-- would otherwise fail, too.
local function while_full(pair, fn)
  pair.model.is_full = true
  pair:ask("CONFIG", "SET", "maxmemory", "1")
  local reply = fn()
  pair:ask("CONFIG", "SET", "maxmemory", "0")
  pair.model.is_full = nil
  if replies.show(reply):find("OOM ", 1, true) then
    local shown = replies.show(fn())
    if shown:sub(1, 2) ~= '"-' then error(reply .. ", not " .. shown, 0) end
  end
end

local function spoil(pair, gen, keys)
  local words = { "set", gen:pick(keys), "not a lock" }
  pair.model:call(words)
  pair:ask(table.unpack(words))
end

--- Calls operations of a policy on both, with a few seconds between them.
---@param pair table of model.open
---@param name string one of calls.NAMES
---@param seed integer
---@param count integer
function calls.compare(pair, name, seed, count)
  local gen, sides = commands.new(seed), sides_of(name)
  pair:reset()
  pair.model.now = commands.FUTURE * 1000 + gen:below(1000000)
  for _ = 1, count do
    local side = gen:pick(sides)
    local op, keys = gen:pick(sorted_ops(side)), keys_of(gen, name, side)
    local words = arguments_of(gen, name, side, op)
    pair.model.now = pair.model.now + gen:below(3) * gen:below(1500000)
    if gen:chance(20) then listen(pair, gen, side, keys) end
    if gen:chance(1) then spoil(pair, gen, keys) end
    local is_full = not TAKES[op] and gen:chance(20)
    local told = ("%s.%s of seed %d, with %s, at %d, %s"):format(side.name, op,
      seed, table.concat(words, " "), pair.model.now,
      is_full and "full" or "not full")
    local function call()
      return pair:script(side.ops[op].text, keys, words, {
        told = told, clock = CLOCK, is_unordered = op == "peek",
      })
    end
    if is_full then while_full(pair, call) else call() end
    compare_sent(pair, told)
  end
end

return calls
