--- Finds what rlock needs and the user of a Redis server may not do. Tries each
--- command in a form that changes nothing, because the ACL commands that list
--- permissions are restricted themselves. EVALSHA of an unknown script tries a
--- key, and a subscription tries a channel.

local common = require "rlockctl.doctor.common"
local kinds = require "rlockctl.cli.all_kinds"
local naming = require "rlock.naming"
local sorted = require "rlock.util.sorted"

local permissions = {}

local quoted = common.quoted

local NAME = "rlock:doctor"       -- an unused key and channel
local SECONDS = 5                 -- to wait for the reply to SUBSCRIBE

--- The commands that rlock sends, and those of its scripts for each key type.
local needs = {
  { "EVALSHA", ("0"):rep(40), 0 }, { "SCRIPT", "LOAD", "return 0" },
  { "TIME" }, { "PUBLISH", NAME, "" }, { "EXISTS", NAME },
  { "GET", NAME }, { "SET", NAME, "", "XX" }, { "HGET", NAME, "" },
  { "HDEL", NAME, "" }, { "ZSCORE", NAME, "" }, { "ZREM", NAME, "" },
  { "LRANGE", NAME, 0, 0 }, { "LREM", NAME, 0, "" }, { "PTTL", NAME },
  { "PEXPIRE", NAME, 1 }, { "DEL", NAME }, { "INFO", "server" },
  { "CLIENT", "ID" }, { "CLIENT", "KILL", "ID", 0 },
  { "DECRBY", NAME, "" }, { "HEXISTS", NAME, "" }, { "HGETALL", NAME },
  { "HLEN", NAME }, { "HMGET", NAME, "" }, { "HSCAN", NAME, 0 },
  { "HSET", NAME, "", "", "" }, { "HVALS", NAME }, { "INCRBY", NAME, "" },
  { "LINDEX", NAME, 0 }, { "LLEN", NAME }, { "LPOS", NAME, "" },
  { "LTRIM", NAME, 0, 0 }, { "MGET", NAME }, { "PEXPIREAT", NAME, 1 },
  { "PUBSUB", "NUMSUB" }, { "STRLEN", NAME }, { "TYPE", NAME },
  { "UNLINK", NAME }, { "ZADD", NAME, "XX", 1, "" }, { "ZCARD", NAME },
  { "ZCOUNT", NAME, 0, 0 }, { "ZRANGE", NAME, 0, 0 },
  { "ZRANGEBYSCORE", NAME, 0, 0 }, { "ZREMRANGEBYSCORE", NAME, 0, 0 },
  { "ZREVRANGE", NAME, 0, 0 },
}

--- Commands that would write a key. Only ACL DRYRUN can try them.
local writing = {
  { "INCR", NAME }, { "DECR", NAME }, { "LPUSH", NAME, "" },
  { "RPUSH", NAME, "" },
}

--- Further commands for a cluster. CLUSTER SLOTS has succeeded already.
local cluster_needs = {
  { "ASKING" }, { "SPUBLISH", NAME, "" }, { "COMMAND", "INFO", "GET" },
  { "COMMAND", "GETKEYS", "GET", NAME },
}

local containers = { script = true, client = true, command = true,
  pubsub = true }

local function name_of(words)
  local name = words[1]:lower()
  if containers[name] then
    name = name .. "|" .. words[2]:lower()
  end
  return name
end

-- Was the command itself refused, rather than its key or channel?
local function is_forbidden(detail)
  return detail:find("NOPERM .* to run ") ~= nil
    or detail:find("unknown command", 1, true) ~= nil
end

--- Tries commands together: a refusal such as READONLY ends the connection. A
--- connection for each would take seconds.
---@return any # the detail of each that has failed
---@return rlock.failure? code, string? detail
local function try_all(client, commands)
  local session = client.session
  local replies, codes, details = session.server.node:pipeline(
    session.host.now() + session.timeout, commands)
  if not replies then return nil, codes, details end
  local failures = {}
  for i = 1, #commands do
    if replies[i] == nil and codes[i] ~= "redis" then
      return nil, codes[i], details[i]
    end
    failures[i] = replies[i] == nil and details[i] or nil
  end
  return failures
end

--- Tries SUBSCRIBE on a separate connection, because a refusal closes it.
---@return any # true; false and the refusal
---@return rlock.failure? code, string? detail
local function subscribe(client, verb, channel)
  local session, refusal = client.session, nil
  local answered = session.host.event()
  local connection, code, detail = session.server.node:open(function(why)
    refusal = why
    answered:set()
  end, function() answered:set() end)
  if not connection then return nil, code, detail end
  connection:listen(verb, channel)
  if not answered:wait(SECONDS) then
    return nil, "timeout", "no reply to " .. verb:upper()
  end
  connection:close()
  if refusal then return false, refusal end
  return true
end

-- The user of the connection.
local function user_of(client)
  local user = client:call("ACL", "WHOAMI")
  return type(user) == "string" and user
    or client.session.options.username or "default"
end

---@return any # the refused commands
---@return rlock.failure? code, string? detail
local function probe_commands(client, is_cluster)
  local refused = {}
  local function note(name, is_permitted)
    if not is_permitted then refused[#refused + 1] = name end
  end
  local more = is_cluster and cluster_needs or {}
  local commands =
    table.move(more, 1, #more, #needs + 1, { table.unpack(needs) })
  local failures, code, detail = try_all(client, commands)
  if not failures then return nil, code, detail end
  for i, words in ipairs(commands) do
    note(name_of(words), not failures[i] or not is_forbidden(failures[i]))
  end
  local user = user_of(client)
  for _, words in ipairs(writing) do
    local reply = client:call("ACL", "DRYRUN", user, table.unpack(words))
    if type(reply) == "string" then
      note(name_of(words), not reply:find(" to run the ", 1, true))
    end
  end
  local ok, why, problem = subscribe(client, "subscribe", NAME)
  if ok == nil then return nil, why, problem end
  note("subscribe", ok or not is_forbidden(why))
  return refused
end

-- the keys and channels of a name ---------------------------------------------

-- The index of the key that is only used with a suffix after a colon.
local LONGER = { barrier = 3, semaphore = 3, latch = 3, readwrite = 4 }

-- The policies whose tokens have a key of their own, see token_key.lua.
local WITH_TOKEN_KEY = { "simple", "readwrite.write", "fair_readwrite.write" }

-- The locks of a kind: one, or the sides of a pair. @return nil: unknown kind
local function locks_of(client, kind, which)
  if not kind then return { client:policy(which, NAME).record.policy } end
  local policy = require("rlock.policy." .. kind.name)
  return policy.read and { policy.read, policy.write } or { policy }
end

local function add(set, list, one, kind)
  if not set[one] then
    set[one] = {}
    list[#list + 1] = one
  end
  set[one][kind] = true
end

-- Adds the keys of tokens, for all kinds or one.
local function add_tokens(set, list, name, which)
  for _, policy in ipairs(WITH_TOKEN_KEY) do
    local kind = "fenced_" .. policy:match "^[%a_]+"
    if not which or which == kind then
      local key = naming.prefix("redisson_lock_token", name)
      add(set, list, key .. ":" .. policy, kind)
    end
  end
end

-- The keys and channels of a name, for all kinds or one, each with its kinds.
local function needed(client, name, which)
  local keys, channels = {}, {}
  local key_kinds, channel_kinds, is_known = {}, {}, false
  local function take(kind_name, kind)
    is_known = true
    for _, lock in ipairs(locks_of(client, kind, which)) do
      local its = lock.keys(name)
      for i, key in ipairs(its) do
        local longer = LONGER[kind_name] == i and ":x" or ""
        add(key_kinds, keys, key .. longer, kind_name)
      end
      if lock.channel then
        add(channel_kinds, channels, lock.channel(its, "x"), kind_name)
      end
    end
  end
  for _, kind in ipairs(kinds) do
    if not which or kind.name == which then take(kind.name, kind) end
  end
  if not is_known then take(which) end
  add_tokens(key_kinds, keys, name, which)
  return keys, key_kinds, channels, channel_kinds
end

local function is_refused(detail) return detail:find("NOPERM", 1, true) end

---@return any # for each key, whether the user may use it
---@return rlock.failure? code, string? detail
local function may_use(client, keys)
  local commands, allowed = {}, {}
  for _, key in ipairs(keys) do
    table.insert(commands, { "EVALSHA", ("0"):rep(40), 1, key })
    table.insert(commands, { "EXISTS", key })
  end
  local failures, code, detail = try_all(client, commands)
  if not failures then return nil, code, detail end
  for i = 1, #commands, 2 do
    local why = failures[i]
    if why and is_forbidden(why) then why = failures[i + 1] end
    allowed[#allowed + 1] = not why or not is_refused(why)
      or is_forbidden(why)
  end
  return allowed
end

-- As may_use, for channels.
local function may_subscribe(client, channels)
  local options, allowed = client.session.server.options, {}
  local verb = options.publish == "spublish" and "ssubscribe"
    or "subscribe"
  for i, channel in ipairs(channels) do
    local ok, why, detail = subscribe(client, verb, channel)
    if ok == nil then return nil, why, detail end
    allowed[i] = ok or not is_refused(why) or is_forbidden(why)
  end
  return allowed
end

-- A pattern that matches this key or channel. ACL SETUSER refuses spaces.
local function pattern_of(whole, name)
  local function exactly(part)
    return (part:gsub("[%[%]*?\\]", "\\%0"):gsub("[%s%c]", "?"))
  end
  if whole == name then return exactly(name) end
  return "*" .. exactly(name:find("{", 1, true) and name or "{" .. name .. "}")
    .. "*"
end

-- Adds what is refused to the list `missing`.
local function probe(client, missing, what, list, users, may, name)
  local allowed, code, detail = may(client, list)
  if not allowed then return nil, code, detail end
  local patterns = {}
  for i, one in ipairs(list) do
    local ok, pattern = allowed[i], pattern_of(one, name)
    local entry = patterns[pattern]
    if not ok and not entry then
      entry = { what = what, pattern = pattern, kinds = {}, names = {} }
      patterns[pattern], missing[#missing + 1] = entry, entry
    end
    if not ok then
      ---@cast entry -nil
      entry.names[#entry.names + 1] = one
      ---@cast entry -nil
      for kind in pairs(users[one]) do entry.kinds[kind] = true end
    end
  end
  return true
end

--- The keys and channels of a name that the user may not use.
---@return any # a list: what ("key" or "channel"), pattern, names, kinds
---@return rlock.failure? code, string? detail
local function missing_for(client, name, which)
  local missing = {}
  local fits, keys, key_kinds, channels, channel_kinds =
    pcall(needed, client, name, which)
  if not fits then return nil, "usage", tostring(keys) end
  local ok, code, detail =
    probe(client, missing, "key", keys, key_kinds, may_use, name)
  if ok then
    ok, code, detail = probe(client, missing, "channel", channels,
      channel_kinds, may_subscribe, name)
  end
  if not ok then return nil, code, detail end
  for _, entry in ipairs(missing) do entry.kinds = sorted(entry.kinds) end
  return missing
end

-- The command that permits what is missing.
local function grant_of(client, state)
  ---@type string[]
  local words = { "redis-cli acl setuser", quoted(user_of(client)) }
  for _, entry in ipairs(state.missing or {}) do
    words[#words + 1] =
      quoted((entry.what == "key" and "~" or "&") .. entry.pattern)
  end
  for _, command in ipairs(state.refused) do
    words[#words + 1] = quoted("+" .. command)
  end
  return words[3] and table.concat(words, " ") or nil
end

-- The id of the client's connection. Reconnects if that was killed.
local function id_of(client)
  local id, code, detail = client:call("CLIENT", "ID")
  if code == "closed" then id, code, detail = client:call("CLIENT", "ID") end
  if id == nil then return nil, code, detail end
  if type(id) ~= "number" then
    return nil, "redis", "the reply to CLIENT ID is no number"
  end
  return id
end

-- Can one connection kill another by its id? A proxy that replies to CLIENT
-- itself may wrongly claim so.
local function can_kill(client, victim)
  local seals = client.session.server.node.seals
  if seals.mode == "time" then return false, seals.why end
  local id, _, detail = id_of(victim)
  if not id then return false, detail end
  local killed
  killed, _, detail = client:call("CLIENT", "KILL", "ID", id)
  if not killed then return false, detail end
  if killed == 1 and id_of(victim) ~= id then return true end
  return false, "CLIENT KILL by id left the connection open"
end

--- Inspects the permissions on one server.
---@param client table
---@param victim table another client of the same server, whose connection is
---  killed as a test
---@param is_cluster boolean whether it is a node of a cluster
---@param name? string of a lock, to try its keys and channels, too
---@param which? string its kind, or the module of its policy; default: all
---  kinds
---@return table? # refused (names of commands), sealed ("kill" or "time"), why;
---  with a name, missing (keys and channels); grant, a command, if anything is
---  not permitted
---@return rlock.failure? code, string? detail
function permissions.inspect(client, victim, is_cluster, name, which)
  local refused, code, detail = probe_commands(client, is_cluster)
  if not refused then return nil, code, detail end
  local can_seal, why = can_kill(client, victim)
  local state = { refused = refused, sealed = can_seal and "kill" or "time",
    why = why }
  if name then
    state.missing, code, detail = missing_for(client, name, which)
    if not state.missing then return nil, code, detail end
  end
  state.grant = grant_of(client, state)
  return state
end

return permissions
