--- Guarded effects: commands of the user that run only while a hold lasts. One
--- script checks the hold on the server and runs them, so a holder that was
--- paused beyond its lease changes nothing. It is sent once, because the
--- commands need not be idempotent.

local command_keys = require "rlock.redis.command_keys"
local effect = require "rlock.policy.effect"
local naming = require "rlock.naming"
local remote = require "rlock.redis.remote"
local slot = require "rlock.redis.slot"

local effects = {}

local MOST_KEYS = 99     -- of a script
local MOST_WORDS = 5000  -- of a command: the stack of Lua in Redis has 8000

-- server.peek of a kind -> the compiled operation
local compiled = setmetatable({}, { __mode = "k" })

local function op_of(policy)
  local peek = policy.server.peek
  if not compiled[peek] then
    compiled[peek] = require("rlock.script").compile(policy.name, "call",
      effect.guarded(peek))
    compiled[peek].is_once = true
  end
  return compiled[peek]
end

local function replicas_of(hold)
  return hold.target.replicas and hold.target.replicas.count
end

-- Why these holds cannot guard a command together, or nil.
local function unfit(holds)
  local first = holds[1]
  if not first.policy.server.peek then
    return ("policy %s has no server.peek, needed here"):format(
      naming.show(first.policy.name))
  end
  for i = 2, #holds do
    local its = holds[i]
    if its.target.server ~= first.target.server then
      return "the locks belong to several clients, so no script sees them all"
    elseif its.policy ~= first.policy then
      return "the locks are of several kinds, so no script sees them all"
    elseif replicas_of(its) ~= replicas_of(first) then
      return "the locks want different numbers of replicas"
    elseif its.target.slot ~= first.target.slot then
      return ("in a cluster, the locks must be in one slot: use names such as "
        .. "{%s}:1 and {%s}:2"):format(its.name, its.name)
    end
  end
end

--- Appends the keys of the commands to those of the locks.
---@return boolean? # true
---@return rlock.failure? code, string? detail
local function add_keys(keys, server, commands, deadline)
  for _, words in ipairs(commands) do
    local list, code, detail =
      command_keys.of(server, deadline, words, #words)
    if not list then
      -- Nothing was sent, so the outcome is known.
      local is_broken = code == "timeout" or code == "closed"
      return nil, is_broken and not server.is_closed and "connect" or code,
        detail
    end
    for _, key in ipairs(list) do
      if keys.slot and slot.of(key) ~= keys.slot then
        return nil, "usage", ("%s is not in the slot of the lock; with a "
          .. "lock named {%s}, use keys such as {%s}:value"):format(
          naming.show(key), slot.tag(keys[1]), slot.tag(keys[1]))
      end
      keys[#keys + 1] = key
    end
  end
  if #keys <= MOST_KEYS then return true end
  return nil, "usage", ("%d keys, including those of the locks; at most "
    .. "%d"):format(#keys, MOST_KEYS)
end

-- The arguments of the script after the first owner.
local function arguments_of(holds, commands)
  local list = { ("%d"):format(#holds), ("%d"):format(#holds[1].target) }
  for i = 2, #holds do list[#list + 1] = holds[i].owner_name end
  for _, words in ipairs(commands) do
    local n = #list + 1
    list[n] = ("%d"):format(#words)
    for i, word in ipairs(words) do list[n + i] = word end
  end
  return list
end

local UNKNOWN = "; its outcome is unknown, and it is not retried"

-- The name of a command, for messages; in quotes if it is none of Redis.
local function name_of(words)
  local name = tostring(words[1])
  return name:find("^[%w_.-]+$") and name or naming.show(name)
end

-- The result of a reply; see effects.run.
local function interpret(op, reply, commands)
  local verdict = type(reply) == "table" and reply[1]
  if verdict == "lost" then
    return nil, "lost", "the server no longer has the hold; nothing has "
      .. "changed"
  elseif verdict == "done" and type(reply[2]) == "table" then
    return reply[2]
  elseif verdict == "failed" and type(reply[2]) == "number"
      and commands[reply[2]] then
    local why = ("%s: %s"):format(name_of(commands[reply[2]]),
      naming.printable(tostring(reply[3])))
    if #commands > 1 then
      why = ("%s (command %d of %d; those before it were executed)"):format(why,
        reply[2], #commands)
    end
    return nil, "redis", why
  end
  return nil, "redis", op.where .. ": a malformed reply"
end

--- Runs commands if the owners hold their locks on the server, atomically.
---@param holds table of locks of one kind, server and slot: array of { target
---  =, policy =, owner_name =, name = }
---@param commands table array of arrays of strings and numbers
---@param deadline number by host.now()
---@return table? # the reply of each command, false for a Redis nil
---@return string? code # "lost": nothing was changed; "redis": a command
---  failed; "timeout": they may have been executed; "replicas": the same, and
---  too few replicas have confirmed it; "connect", "closed", "usage": nothing
---  was sent; "cancelled"
---@return string? detail # for "cancelled", the value to raise
function effects.run(holds, commands, deadline)
  local why = unfit(holds)
  if why then return nil, "usage", why end
  local first = holds[1].target
  local node, op = first.node, op_of(holds[1].policy)
  local keys = { slot = first.slot, replicas = first.replicas }
  for _, hold in ipairs(holds) do
    for _, key in ipairs(hold.target) do keys[#keys + 1] = key end
  end
  for _, words in ipairs(commands) do
    if #words > MOST_WORDS then
      return nil, "usage", ("%s has %d words; at most %d"):format(
        name_of(words), #words, MOST_WORDS)
    end
  end
  ---@type any, any, any
  local ok, code, detail = add_keys(keys, node, commands, deadline)
  if not ok then return nil, code, detail end
  ---@type any, any
  local reply, is_unknown
  reply, code, detail, is_unknown = remote.run(node, op, deadline,
    node.host.now(), keys, holds[1].owner_name, nil, nil, nil,
    arguments_of(holds, commands))
  if reply ~= nil then return interpret(op, reply, commands) end
  if is_unknown and (code == "closed" or code == "timeout") then
    return nil, "timeout", detail .. UNKNOWN
  end
  return nil, code, detail
end

return effects
