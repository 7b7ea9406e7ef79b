--- Inspects what is stored under a name, of any kind. The kind is inferred from
--  the type of the key, its content, and related keys. Kinds that look the
--  same, such as a fair lock without waiters and a reentrant lock, are reported
--  as the plainest of them. Read-only, and bounded.

local policy = require "rlock.policy"
local once = require "rlock.counters.once"
local now = require("rlock.policy.shared").now

local inspect = {}

local MANY = 100           -- holders listed; every `peek` has such a limit
local LONGEST = 1024       -- bytes of an owner
local FOR_EVER = 86400000 * 36500

local server = {}                       -- these run inside Redis

-- Is the hash small enough for a lock, with whole numbers in all fields?
local function has_counts(lock)
  if redis.call("hlen", lock) > MANY then return false end
  for _, count in ipairs(redis.call("hvals", lock)) do
    if not count:find("^%d+$") then return false end
  end
  return true
end

local function kind_of_hash(keys)
  local lock, tokens, queue = keys[1], keys[2], keys[3]
  local mode = redis.call("hget", lock, "mode")
  if mode == "read" or mode == "write" then return "readwrite" end
  if not has_counts(lock) then return "hash" end
  if redis.call("exists", tokens) == 1 then return "fenced" end
  return redis.call("exists", queue) == 1 and "fair" or "reentrant"
end

-- A simple lock expires, and its value is an owner: letters, digits and
-- punctuation. A latch differs from a semaphore only in its waiters' channel.
local function kind_of_string(keys, channels)
  local lock, leases = keys[1], keys[4]
  if redis.call("strlen", lock) > LONGEST then return "string" end
  if redis.call("exists", leases) == 1 then return "permits" end
  local value = redis.call("get", lock)
  if #value > 11 or not value:find("^%-?%d+$") then
    local is_owner = value:find("^[%w%-_.:+/=@]+$")
      and redis.call("pttl", lock) >= 0
    return is_owner and "simple" or "string"
  end
  local heard = redis.call("pubsub", "numsub", channels[1], channels[2])
  if heard[2] > 0 then return "semaphore" end
  return heard[4] > 0 and "latch" or "semaphore or latch"
end

-- The kind of a free lock, by the keys that remain.
local function kind_of_rest(keys)
  if redis.call("exists", keys[3]) == 1 then return "fair" end
  if redis.call("exists", keys[2]) == 1 then return "fenced" end
end

--- The kinds under the name, that of the key itself first. A key that is no
--  lock is reported by its type.
--  @return "kinds", then a list of them
function server.kinds(keys, channels)
  local kinds, of = {}, redis.call("type", keys[1]).ok
  if of == "hash" then
    kinds[1] = kind_of_hash(keys)
  elseif of == "string" then
    kinds[1] = kind_of_string(keys, channels)
  elseif of ~= "none" then
    kinds[1] = of
  else
    kinds[1] = kind_of_rest(keys)
  end
  if redis.call("exists", keys[5], keys[6]) > 0 then
    kinds[#kinds + 1] = "fair_readwrite"
  end
  return { "kinds", kinds }
end

--- @return "permits", then how many are free, how many are in use, and some of
--    those in use: id, milliseconds left, ...
function server.permits(keys)
  local permits, leases, time = keys[1], keys[4], now()
  local used = redis.call("zrangebyscore", leases, "(" .. time, "inf",
    "withscores", "limit", 0, MANY)
  for i = 2, #used, 2 do used[i] = used[i] - time end
  local over = redis.call("zcount", leases, "-inf", time)
  return {
    "permits", (redis.call("get", permits) or 0) + over,
    redis.call("zcard", leases) - over, used,
  }
end

local function of(name) return require("rlock.policy." .. name) end

local definition = {
  name = "status",
  needs = { kinds = { kinds = "t" }, permits = { permits = "nnt" } },
  keys = function(name)
    local fair_readwrite = of("fair_readwrite").read.keys(name)
    return {
      name, of("fenced").keys(name)[3], of("fair").keys(name)[2],
      of("permits").keys(name)[2], fair_readwrite[1], fair_readwrite[4],
    }
  end,
  server = server,
}

-- the client's side -----------------------------------------------------------

local function same(reply) return reply end

-- Runs one of the functions above.
local function ask(client, name, op, ...)
  return once.tell(same, once.run({
    session = client.session,
    site = client.session:site(client, policy.load(definition), name),
  }, op, ...))
end

-- Kind -> function(client, name) -> its state, or nil, code, detail.
local looks = {}

local function peek(lock)
  local state, code, detail = lock:peek()
  if not state then return nil, code, detail end
  state.count = nil                     -- our own hold count
  local queue = type(state.queue) == "table" and state.queue or {}
  for i, owner in ipairs(queue) do
    queue[i] = { owner = tostring(owner) }
  end
  state.queue = queue[1] and queue
  return state
end

local function look_at_lock(method)
  return function(client, name) return peek(client[method](client, name)) end
end

looks.reentrant = look_at_lock "lock"
looks.simple = look_at_lock "simple_lock"
looks.fair = look_at_lock "fair_lock"
looks.fenced = look_at_lock "fenced_lock"

local function add_holders(state, side, mode)
  for _, holder in ipairs(side.holders) do
    holder.mode = mode
    table.insert(state.holders, holder)
  end
end

-- One state of both sides, where each holder and waiter has a mode.
local function look_at_sides(method)
  return function(client, name)
    local pair = client[method](client, name)
    local writer, code, detail = pair:write_lock():peek()
    if not writer then return nil, code, detail end
    local readers
    readers, code, detail = pair:read_lock():peek()
    if not readers then return nil, code, detail end
    local some = writer.state == "held" and writer or readers
    local state = { state = some.state, ttl = some.ttl, holders = {} }
    add_holders(state, writer, "write")
    add_holders(state, readers, "read")
    for i, who in ipairs(readers.queue or {}) do
      state.queue = state.queue or {}
      state.queue[i] = { owner = who:sub(3),
        mode = who:find("^w") and "write" or "read" }
    end
    return state
  end
end

looks.readwrite = look_at_sides "read_write_lock"
looks.fair_readwrite = look_at_sides "fair_read_write_lock"

function looks.semaphore(client, name)
  local n, code, detail = client:semaphore(name):available()
  if not n then return nil, code, detail end
  return { state = n > 0 and "free" or "held", available = n, holders = {} }
end

function looks.latch(client, name)
  local n, code, detail = client:latch(name):count()
  if not n then return nil, code, detail end
  return { state = n > 0 and "held" or "free", count = n, holders = {} }
end

looks["semaphore or latch"] = function(client, name)
  local n, code, detail = client:semaphore(name):available()
  if not n then return nil, code, detail end
  return { count = n, holders = {} }
end

local function hex(bytes)
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

function looks.permits(client, name)
  local reply, code, detail = ask(client, name, "permits")
  if not reply then return nil, code, detail end
  local available, in_use, list = table.unpack(reply, 2)
  local state = { state = available > 0 and "free" or "held",
    available = available, in_use = in_use, holders = {} }
  for i = 1, #list, 2 do
    local ms = tonumber(list[i + 1])
    table.insert(state.holders, { owner = hex(list[i]),
      ttl = ms < FOR_EVER and ms / 1000 or nil })
  end
  return state
end

--- Inspects a lock by the `peek` of its policy.
-- @tparam table client
-- @tparam string name
-- @tparam string which the policy's module
-- @return as `at`
function inspect.by(client, name, which)
  local ok, lock = pcall(client.policy, client, which, name)
  if not ok then return nil, "usage", tostring(lock) end
  local state, code, detail = peek(lock)
  if not state then return nil, code, detail end
  state.kind = lock.site.policy.name
  return { state }
end

--- Inspects a name.
-- @tparam table client
-- @tparam string name
-- @treturn[1] table a list of states, usually one: `kind`, nil if there is
--   nothing; `state`, "held" or "free"; `ttl` in seconds; `holders`, and for
--   some kinds `queue`: { { owner =, count =, mode =, ttl = }, ... }; `token`,
--   `available`, `in_use`, `count`
-- @treturn[2] nil, code, detail
function inspect.at(client, name)
  local reply, code, detail = ask(client, name, "kinds",
    client:semaphore(name).site.keys[2], client:latch(name).site.keys[2])
  if not reply then return nil, code, detail end
  local kinds = reply[2]
  local states = {}
  for _, kind in ipairs(kinds) do
    local state = looks[kind]
    if state then
      state, code, detail = state(client, name)
      if not state then return nil, code, detail end
      state.kind = kind
      states[#states + 1] = state
    end
  end
  if not states[1] and kinds[1] then
    return nil, "refused", ("the key is a %s, not one of rlock's own locks")
      :format(kinds[1])
  end
  return states[1] and states or { { state = "free", holders = {} } }
end

return inspect
