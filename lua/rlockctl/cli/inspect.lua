--- Inspects the lock or counter of a name, of any kind. Its kind is inferred
--- from the type of the key, its content, and related keys (recognise.lua). Of
--- kinds that look the same, such as a fair lock without waiters and a
--- reentrant lock, the simplest is reported. Read-only, and bounded.

local kinds = require "rlockctl.cli.all_kinds"
local naming = require "rlock.naming"
local deduplication = require "rlock.counters.deduplication"
local recognise = require "rlockctl.cli.recognise"
local reentrant = require "rlock.policy.reentrant"
local remote = require "rlock.redis.remote"
local scan = require "rlockctl.cli.scan"
local verdicts = require "rlock.lock.verdicts"
local script = require "rlock.script"

local inspect = {}

-- recognising ----------------------------------------------------------------

-- The policy of a built-in kind; and the one of its read side, or itself.
local function policy_of(kind)
  local policy = require("rlock.policy." .. kind.name)
  return policy, policy.read or policy
end

local function kind_named(name)
  for _, kind in ipairs(kinds) do
    if kind.name == name then return kind end
  end
end

-- A lock or counter of a kind; with fencing tokens, if it `is_fenced`.
local function open(client, kind, name, is_fenced)
  return client[kind.factory](client, name, is_fenced and { fenced = true }
    or nil)
end

-- The kinds that can be recognised: name, factory, policy, keys, channel.
local function kinds_of(name)
  local all = {}
  for _, kind in ipairs(kinds) do
    local policy, lock = policy_of(kind)
    if recognise[kind.name] then
      local keys = lock.keys(name)
      all[#all + 1] = {
        name = kind.name, title = kind.title, factory = kind.factory,
        driver = kind.driver, policy = policy, keys = keys,
        channel = lock.channel and lock.channel(keys, "") or "",
      }
    end
  end
  return all
end

local HEAD = [[
-- rlock status.recognise
local ranks = {}
local function arguments(channel, first, last)
  local keys = { unpack(KEYS, first, last) }
  return keys, { redis.call("type", keys[1]).ok, channel }
end
]]
local CALL = "ranks[%d] = (function(KEYS, ARGV)\n%s"
  .. "end)(arguments(ARGV[%d], %d, %d)) or 0\n"
local TAIL = 'return { "ranks", redis.call("type", KEYS[1]).ok, ranks }\n'

---@type any
local composed                          -- the script, the same for all names

--- The functions of recognise.lua in one script, for one round trip.
---@return any # the script, as returned by script.compile
local function compose(all)
  local text, n = { HEAD }, 1
  for i, kind in ipairs(all) do
    local first = n + 1
    n = n + #kind.keys
    text[i + 1] = CALL:format(i, script.compile(kind.name, "recognise",
      recognise[kind.name]).text, i, first, n)
  end
  return { name = "status.recognise", op = "recognise", where = "status",
    text = table.concat(text) .. TAIL, lines = {} }
end

-- The script's keys and arguments. A channel may be in another slot.
local function operands_of(all, name)
  local keys, channels = { name }, {}
  for i, kind in ipairs(all) do
    for _, key in ipairs(kind.keys) do
      keys[#keys + 1] = key == kind.channel and name or key
    end
    channels[i] = kind.channel
  end
  return keys, channels
end

---@return any # the type of the name's key, and the rank of each kind, 0 if it
---  is not of that kind
---@return string? code, string? detail
local function ranks_of(client, all, name)
  local session = client.session
  local now, keys, channels = session.host.now(), operands_of(all, name)
  composed = composed or compose(all)
  local reply, code, detail = remote.run(session.server.node, composed,
    now + session.timeout, now, keys, nil, nil, nil, nil, channels)
  if code == "cancelled" then error(detail, 0) end
  if reply ~= nil then
    reply, code, detail = verdicts.shaped(composed, reply, { ranks = "st" })
  end
  if not reply then return nil, code, detail end
  return reply[2], reply[3]
end

-- The kinds with the highest rank of those that begin with the same key. Those
-- of the same rank look alike. The kind of the name's own key comes first.
local function best_of(all, ranks, name)
  local best, list = {}, {}
  for i, kind in ipairs(all) do
    local key = kind.keys[1]
    local other = best[key] or { rank = 1 }
    kind.rank = type(ranks[i]) == "number" and ranks[i] or 0
    if kind.rank >= other.rank then best[key] = kind end
    if kind.rank == other.rank and other.name then
      kind.alike = kind.name .. " or " .. other.name
    end
  end
  for _, kind in ipairs(all) do
    local is_own = kind.keys[1] == name
    if best[kind.keys[1]] == kind then
      table.insert(list, is_own and 1 or #list + 1, kind)
    end
  end
  return list
end

-- the state -------------------------------------------------------------------

local function peek(lock)
  local state, code, detail = lock:peek()
  if not state then return nil, code, detail end
  local queue = {}
  for i, owner in ipairs(state.queue or {}) do queue[i] = { owner = owner } end
  -- Nothing else: a reply may have fields of any name.
  return { state = state.state, ttl = state.ttl, holders = state.holders,
    token = state.token, mode = state.mode, queue = queue[1] and queue }
end

local function add_holders(state, side, mode)
  for _, holder in ipairs(side.holders) do
    holder.mode = mode
    table.insert(state.holders, holder)
  end
end

-- The state of both sides as one; each holder and waiter has a mode.
local function peek_at_sides(pair)
  local writer, code, detail = pair:write_lock():peek()
  if not writer then return nil, code, detail end
  local readers
  readers, code, detail = pair:read_lock():peek()
  if not readers then return nil, code, detail end
  local some = writer.state == "held" and writer or readers
  local state = { state = some.state, ttl = some.ttl, holders = {},
    token = writer.token }
  add_holders(state, writer, "write")
  add_holders(state, readers, "read")
  for i, who in ipairs(readers.queue or {}) do
    state.queue = state.queue or {}
    state.queue[i] = { owner = who:sub(3),
      mode = who:find("^w") and "write" or "read" }
  end
  return state
end

-- The number of clients subscribed to the release channel; nil if unknown. A
-- client of a cluster may be subscribed twice.
local function listeners(client, kind)
  if kind.channel == "" then return nil end
  local session, count = client.session, nil
  local replies = session.server:node_of(kind.keys):pipeline(
    session.host.now() + session.timeout, {
      { "PUBSUB", "NUMSUB", kind.channel },
      { "PUBSUB", "SHARDNUMSUB", kind.channel },
    })
  for i = 1, 2 do
    local reply = replies and replies[i]
    if type(reply) == "table" and type(reply[2]) == "number" then
      count = math.max(count or 0, reply[2])
    end
  end
  return count
end

local function peek_at_counter(counter) return counter:peek() end

-- The state of a key of unknown origin.
local function unknown(type_, title, may_be, count)
  return { kind = "unknown", state = "unknown", type = type_, holders = {},
    title = title, may_be = may_be, count = count }
end

local function number(state)
  return unknown("string",
    "a whole number, which may be a semaphore, a latch or permits",
    { "semaphore", "latch", "permits" }, state.available or state.count)
end

local function hash(kind)
  return unknown("hash", ("a hash %s, which may be a lock"):format(
    kind == "reentrant" and "of counts" or "with a mode"), { kind })
end

local function string_()
  return unknown("string", "a string that expires, which may be a simple lock",
    { "simple" })
end

-- Is it held without a token, by owners that have no id of a client?
local function has_other_owners(state)
  for _, holder in ipairs(state.holders) do
    if scan.is_owner(holder.owner) then return false end
  end
  return state.state ~= "free" and not state.token
end

local DOUBT = "no owner has an id of rlock or Redisson, so it may belong to "
  .. "another program"

-- The state of what looks like a lock, or unknown if other programs have such
-- keys, too. A hash with the id of a client is a lock. One that expires and has
-- a single owner, or a mode, may be a lock: then there is a `doubt`.
local function judged(state)
  local kind, first = state.kind, state.holders[1]
  if kind == "simple" then
    local is_lock = not first or state.token or scan.is_token(first.owner)
    return is_lock and state or string_()
  elseif kind ~= "reentrant" and kind ~= "readwrite"
      or not has_other_owners(state) then
    return state
  elseif not state.ttl or kind == "reentrant" and state.holders[2] then
    return hash(kind)
  end
  if state.waiters == 0 then state.doubt = DOUBT end
  return state
end

local function state_of(client, kind, name)
  local read = kind.policy.read and peek_at_sides
    or kind.driver and peek_at_counter or peek
  local is_fenced = not kind.driver and kind.name ~= "reentrant"
  local state, code, detail = read(open(client, kind, name, is_fenced))
  if not state then return nil, code, detail end
  state.kind, state.title = kind.name, kind.title
  state.waiters = state.queue and #state.queue or listeners(client, kind)
  if kind.alike and not kind.is_proven then
    return number(state)
  elseif kind.alike and (state.available or 1) > 0 then
    -- Only its waiters would show which. At 0, there is no latch.
    return { kind = kind.alike, title = kind.alike, holders = {},
      waiters = state.waiters, count = state.available }
  end
  return state
end

-- An error if the keys of a lock are in different slots; else nil.
local function misnamed(client, name, keys)
  local node = client.session.server.node
  local ok, problem = pcall(node.check_keys, node, name, keys)
  return not ok and problem or nil
end

-- Inspects a name as a given counter, or as both sides of a read/write lock.
local function by_kind(client, name, kind)
  local policy, lock = policy_of(kind)
  local keys = lock.keys(name)
  local state, code, detail = state_of(client, { name = kind.name,
    title = kind.title, factory = kind.factory, driver = kind.driver,
    policy = policy, keys = keys, channel = lock.channel(keys, "") }, name)
  if not state then return nil, code, detail end
  return { state }
end

--- Inspects a lock by the `peek` of its policy.
---@param client table
---@param name string
---@param which string the policy's module, or a built-in kind
---@return any ... # as `at`
function inspect.by(client, name, which)
  local kind = kind_named(which)
  if kind and (kind.driver or kind.pair) then
    return by_kind(client, name, kind)
  end
  local ok, lock = pcall(client.policy, client, which, name)
  if not ok then return nil, "usage", tostring(lock) end
  local state, code, detail = peek(lock)
  if not state then return nil, code, detail end
  local policy = lock.record.policy
  state.kind, state.title = policy.name,
    kind and kind.title or policy.title or policy.name
  return { state }
end

-- As inspect.at, or an error if a key has another type than those of the kind.
local function states_at(client, name, is_proven)
  local all, states = kinds_of(name), {}
  local problem = misnamed(client, name, reentrant.keys(name))
  if problem then return nil, "refused", problem end
  local type_, ranks, detail = ranks_of(client, all, name)
  if not type_ then return nil, ranks, detail end
  for _, kind in ipairs(best_of(all, ranks, name)) do
    problem = misnamed(client, name, kind.keys)
    if problem then return nil, "refused", problem end
    kind.is_proven = is_proven
    if kind.alike and is_proven == nil then
      kind.is_proven = scan.proves(client, name, kind.keys)
    end
    local state, code, why = state_of(client, kind, name)
    if not state then return nil, code, why end
    states[#states + 1] = judged(state)
  end
  if states[2] and states[1].kind == "fenced" and states[1].state == "free" then
    table.remove(states, 1)             -- its last token is that of the other
  end
  if states[1] then return states end
  if type_ == "none" then return { { state = "free", holders = {} } } end
  local shown = naming.printable(type_)
  return { unknown(shown,
    ("a %s, not one of rlock's own locks"):format(shown), {}) }
end

--- Inspects a name.
---@param client table
---@param name string
---@param is_proven? boolean whether a whole number is a semaphore or a latch;
---  default: searches for a proof
---@return table? # a list of states, usually one: `kind` and its `title`, nil
---  if there is nothing; `state`, "held" or "free"; `ttl` in seconds;
---  `holders`, and for some kinds `queue`: { { owner =, count =, mode =, ttl =
---  }, ... }; `token`, `available`, `in_use`, `count`. A key of unknown origin
---  has the kind and state "unknown", its `type`, "mixed" if one of several
---  keys is of another program, and in `may_be` the kinds that it may have. A
---  `doubt` says why it may be of another program although it looks like a lock
---@return string? code, string? detail
function inspect.at(client, name, is_proven)
  local states, code, detail = states_at(client, name, is_proven)
  if code ~= "redis" or not detail:find("WRONGTYPE", 1, true) then
    return states, code, detail
  end
  return { unknown("mixed", "not a lock: one of its keys has another type",
    {}) }
end

--- The locks by which a state's holders can be broken.
---@param client table
---@param state table from `at` or `by`
---@param name string
---@param which? string as for `by`
---@return table? # a list; nil if it is no lock
function inspect.locks(client, state, name, which)
  local kind = kind_named(state.kind)
  if kind and kind.pair then
    local pair = open(client, kind, name, state.token)
    return { pair:write_lock(), pair:read_lock() }
  elseif kind and kind.driver or state.kind == "unknown"
      or state.kind:find(" or ", 1, true) then
    return nil
  elseif which or not kind then
    return { client:policy(which, name) }
  end
  return { open(client, kind, name, state.token) }
end

-- The lock, or the sides of the pair, that an owner holds.
local function held_by(locks, state, owner)
  local modes, found = { write = locks[1], read = locks[2] }, {}
  for _, holder in ipairs(state.holders) do
    if holder.owner == owner then
      found[#found + 1] = modes[holder.mode] or locks[1]
    end
  end
  return found[1] and found or { locks[2] }    -- one of more than 100 readers
end

local function same_word(reply) return reply[1] end

--- Releases all holds of an owner.
---@return any # "freed" or "lost"
---@return rlock.failure? code, string? detail
local function release_of(lock, owner)
  local session, record = lock.session, lock.record
  local policy = {
    ops = record.policy.ops,
    needs = { release = { freed = "", kept = "", lost = "" } },
  }
  local handle = {
    session = session, record = { target = record.target, policy = policy },
  }
  return deduplication.result(same_word,
    deduplication.run(handle, "release", owner, session.lease_ms, "0"))
end

--- Releases all holds of one holder of a lock, or one permit.
---@param client table
---@param state table as for `locks`
---@param name table
---@param which table
---@param owner string a holder's owner, as in a state
---@return boolean? # true
---@return rlock.failure? code, string? detail
function inspect.free(client, state, name, which, owner)
  local freed, code, detail = nil, "refused", "there is no such holder"
  if state.kind == "permits" then
    if #owner ~= 32 or owner:find("%X") then return nil, code, detail end
    local why, text
    freed, why, text = client:permits(name):release(owner)
    if freed or why ~= "lost" then return freed, why, text end
    return nil, code, detail
  end
  ---@diagnostic disable-next-line: param-type-mismatch
  local locks = inspect.locks(client, state, name, which)
  for _, lock in ipairs(held_by(locks, state, owner)) do
    local word, why, text = release_of(lock, owner)
    if not word then return nil, why, text end
    freed = freed or word == "freed"
  end
  if freed then return true end
  return nil, code, detail
end

--- The channel on which a release is published. A fair lock has one for each
--- waiter: this is that of the first.
---@param client any as for `locks`
---@return string?
---@return any ...
function inspect.channel(client, state, name, which)
  local kind, first = kind_named(state.kind), state.queue and state.queue[1]
  local policy, lock
  if kind then
    policy, lock = policy_of(kind)
    lock = first and policy[first.mode] or lock
  else
    lock = client:policy(which, name).record.policy
  end
  return lock.channel
    and lock.channel(lock.keys(name), first and first.owner or "") or nil,
    lock.hands_over
end

return inspect
