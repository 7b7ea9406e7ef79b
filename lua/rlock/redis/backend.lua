--- The Redis back end: the interface for clients, locks and counters. See "The
--- back end contract" in ../README.md. A back end has one server: a node
--- (node.lua) or a cluster (cluster.lua).
---
--- A kind of lock and a name are bound to a *target*: the keys of the lock,
--- with the operations that run on them. Its fields `replicas` and `slot` are
--- those of replicas.lua and cluster.lua.

local channels = require "rlock.redis.channels"
local duration = require "rlock.util.duration"
local errors = require "rlock.redis.errors"
local naming = require "rlock.naming"
local node = require "rlock.redis.node"
local policies = require "rlock.policy"
local remote = require "rlock.redis.remote"
local url = require "rlock.redis.url"

---@class rlock.redis.backend
---@field host rlock.host
---@field options table
---@field hooks table
---@field node rlock.redis.node | rlock.redis.cluster
---@field hands_over boolean
---@field classes table
---@field channels rlock.redis.channels
local backend = {}
backend.__index = backend

local Target = {}

local max, min = math.max, math.min

backend.name = "redis"

--- Finds a kind of lock, see policy.lua.
backend.load, backend.sides = policies.load, policies.sides

--- A user's policy with fencing tokens.
---@param loaded table from `load`
---@param level integer as in error()
---@return table # as `load`
function backend.fenced(loaded, level)
  local of_user = require("rlock.policy.token_key").of_user
  ---@type any
  local kind = of_user(getmetatable(loaded).__index, level + 1)
  return (policies.load(kind, level))
end

--- Its servers may be those of a red lock.
backend.is_for_red_locks = true

-- options ---------------------------------------------------------------------

local defaults = { watchdog = 30, timeout = 3, connect_timeout = 3 }

--- Adds to checked options those in a URL and the defaults.
---@param given table
---@param address string a URL
---@return any # the options of `open`, a new table
---@return rlock.failure? code # "usage"
---@return string? detail
function backend.complete(given, address)
  local options, code, detail = url.parse(address)
  if not options then return nil, code, detail end
  if given.tls and not options.tls then
    return nil, "usage", "bad option tls: only rediss:// goes over TLS"
  end
  if given.sentinel and not options.sentinels then
    return nil, "usage", "bad option sentinel: only for redis+sentinel://"
  end
  if given.nat and not options.seeds then
    return nil, "usage", "bad option nat: only for redis+cluster://"
  end
  if given.acl then
    return nil, "usage", "bad option acl: only for zk://"
  end
  options.tls = options.tls and {} or nil
  for name, value in pairs(defaults) do options[name] = value end
  options.publish = options.seeds and "both" or "publish"
  for name, value in pairs(given) do options[name] = value end
  return options
end

-- the server ------------------------------------------------------------------

-- Reconnects at once while something is held: after a failover, the new server
-- may lack it. In a cluster, another node may have its slot.
local function come_back(self, its)
  while not its.connection and not its.is_closed and self.node:uses(its)
      and self.hooks.is_needed() do
    self.node:suspect(its)
    its:connect(self.host.now() + self.options.connect_timeout)
  end
end

-- Sets the hooks of a node.
local function attend(self, its)
  function its.on_lost()
    if its.is_closed or not self.hooks.is_needed() then return end
    its.singleflight:start("come back", come_back, self, its)
  end
  function its.on_left(why) self.channels:reconnect(its, why) end
  function its.on_replaced(why)
    self.channels:follow(its, why)
    self.hooks.on_replaced(why, function(target)
      return self:node_of(target) == its
    end)
  end
end

-- Sets the hook for slots of a cluster that move to other nodes.
local function follow_slots(self)
  function self.node.on_moved(old)
    self.channels:rehome()
    self.hooks.on_replaced("its slot has moved to another node",
      function(target) return old[target.slot] ~= nil end)
  end
end

--- Opens a back end. Connects on first use.
---@param host table
---@param options table from `complete`, with `connection_name`
---@param hooks table is_needed(): whether something is held; on_replaced(why,
---  is_there): another server has answered, or the same after a restart;
---  is_there(target) is whether a target was on it
function backend.open(host, options, hooks)
  -- A cluster is loaded on first use.
  local server = options.seeds and require "rlock.redis.cluster" or node
  local self = setmetatable({
    host = host, options = options, hooks = hooks,
    node = server.new(host, options),
    -- In a cluster, a server knows only its own subscribers.
    hands_over = options.publish == "publish" and not options.seeds
      and options.handover ~= false,
    classes = setmetatable({}, { __mode = "k" }),   -- policy -> of its targets
  }, backend)
  self.where = self.node.where
  self.channels = channels.new(self.node, options.publish)
  self.node:each(function(its) attend(self, its) end)
  follow_slots(self)
  return self
end

-- Is a retry useful? Yes if the server has not answered, or has dropped a new
-- connection because it is stopping or restarting. A server that is unreachable
-- or refuses is not retried.
local function may_connect(its, code, detail)
  return code ~= "cancelled"
    and (its.fell or errors.is_silence(tostring(detail)))
end

--- Connects, to report a wrong address or login. Ignores transient errors of
--- the server.
---@param seconds number
---@return true?, rlock.failure? code
---@return string? detail # for "cancelled", the value to raise
function backend:connect(seconds)
  local deadline = self.host.now() + seconds
  ---@type any, any, any
  local connection, code, detail
  repeat
    connection, code, detail = self.node:connect(deadline)
  until connection or not may_connect(self.node, code, detail)
    or self.host.now() >= deadline
  if connection or code == "redis" and errors.is_passing(detail) then
    return true
  end
  if code == "redis" then code = errors.classify(detail).code end
  ---@cast code rlock.failure
  return nil, code, detail
end

--- The node that has a target now.
---@param target table or a list of keys
function backend:node_of(target)
  return self.node:of(target) or self.node:any()
end

--- May a retry after this failure of a request succeed?
---@param code string
---@param detail string
---@return boolean
function backend.is_retried(_, code, detail)
  if code == "redis" then return errors.classify(detail).retry end
  return code ~= "refused" and code ~= "usage"
end

--- The time until which a lease requested at `sent` is certainly valid. The
--- allowance for clock drift is the lease times `drift`, plus 2 ms. For a lease
--- below 20 ms, a tenth of it, at least 1 ms, replaces the 2 ms: a policy that
--- compares whole milliseconds may end it that much early.
---@param sent number by host.now()
---@param seconds number
---@param drift? number default: 0.001
function backend.valid_until(sent, seconds, drift)
  local margin = 0.002
  if seconds < 0.02 then margin = max(seconds / 10, 0.001) end
  return sent + seconds * (1 - (drift or 0.001)) - margin
end

--- Stops background work until the next request.
function backend:rest()
  self.channels:wind_down()
  self.node:rest()
end

--- Closes all connections for good.
function backend:close() self.node:close() end

-- commands of users -----------------------------------------------------------

-- Commands that would change or block the connection, which all tasks share.
local unfit = {}
for word in ([[select multi exec discard watch unwatch hello reset quit auth
  wait waitaof blpop brpop brpoplpush blmove blmpop bzpopmin bzpopmax bzmpop
  subscribe psubscribe ssubscribe unsubscribe punsubscribe sunsubscribe monitor
  sync psync]]):gmatch("%S+") do unfit[word] = true end

-- XREAD and XREADGROUP block on request; CLIENT REPLY ends all replies.
local function is_unfit(words)
  local command, action = tostring(words[1]):lower(), tostring(words[2]):lower()
  if unfit[command] or command == "client" and action == "reply" then
    return true
  elseif command ~= "xread" and command ~= "xreadgroup" then
    return false
  end
  for i = command == "xread" and 2 or 5, #words do   -- after GROUP g consumer
    local word = tostring(words[i]):lower()
    if word == "streams" then return false end
    if word == "block" then return true end
  end
end

-- SCRIPT KILL and FUNCTION KILL, which a busy server obeys.
local function is_interrupt(command, action)
  command = tostring(command):lower()
  return (command == "script" or command == "function")
    and tostring(action):lower() == "kill"
end

--- Sends a command once.
---@param deadline number by host.now()
---@param words table the command and its arguments: strings and numbers
---@return any # the reply, false for a Redis nil
---@return rlock.failure? code
---@return string? detail # for "cancelled", the value to raise
function backend:call(deadline, words)
  local command, action = words[1], words[2]
  if is_unfit(words) then
    return nil, "usage", command .. " would change or block the connection "
      .. "that all tasks of the client share"
  end
  local send = is_interrupt(command, action) and self.node.interrupt
    or self.node.call
  return send(self.node, deadline, words, #words)
end

local NO_NODES = "get and set are for the nodes of ZooKeeper, and this is "
  .. "Redis: use client:call, and a token that the resource checks"

--- Redis has no nodes.
function backend.get() return nil, "usage", NO_NODES end

backend.set = backend.get

-- targets ---------------------------------------------------------------------

-- How many replicas must confirm, for replicas.connection; nil: none.
local function wanted_by(self, options)
  local own = self.options
  local count = options.replicas or own.replicas
  if not count then return nil end
  local seconds = options.replica_timeout or own.replica_timeout
    or min(1, own.watchdog / 3)
  -- A connection that is silent for `timeout` counts as lost.
  return { count = count, ms = duration.ms(min(seconds, own.timeout / 2)) }
end

-- The position of the publish command among an operation's arguments.
local PUBLISHES = {
  lock = { release = 4, leave = 2, break_ = 2, refresh = 1 },
  permits = { acquire = 4, release = 4, set = 2 },
  semaphore = { acquire = 4, release = 4, set = 4, drain = 4, undo = 4 },
  latch = { set = 4, count_down = 4, delete = 1 },
  barrier = { enter = 4, leave = 4, withdraw = 4, remove = 4, release = 4,
    look = 2 },
}

-- The metatable of a policy's targets, with their methods and common fields.
local function class_of(self, policy)
  ---@type any
  local class = self.classes[policy]
  if not class then
    class = {}
    for name, method in pairs(Target) do class[name] = method end
    class.server, class.node, class.ops = self, self.node, policy.ops
    class.policy = policy
    class.channel_of, class.publish = policy.channel, self.options.publish
    class.hands_over = policy.hands_over and self.hands_over
    if class.hands_over then class.publish = "hand over" end
    ---@cast class any
    class.leaves = policy.ops.leave
      and (class.hands_over or not policy.hands_over)
    class.publishes = PUBLISHES[policy.needs and policy.name or "lock"]
    class.__index = class
    self.classes[policy] = class
  end
  return class
end

--- Binds a kind and a name. Raises an error if the server cannot have such a
--- lock.
---@param policy table
---@param name string
---@param options? table replicas, replica_timeout; default: the client's
---@return table # target
function backend:bind(policy, name, options)
  local target = setmetatable({}, class_of(self, policy))
  for i, key in ipairs(policy.keys(name)) do target[i] = key end
  target.replicas = wanted_by(self, options or {})
  -- It shares the channel, and so the waiters, of the name without braces.
  if target.hands_over and name:find("^{[^{}]*}$") then
    target.hands_over, target.leaves = false, false
    target.publish = self.options.publish
  end
  self.node:check_keys(name, target, policy.keys)
  return target
end

--- Raises an error if a target was bound with other options.
---@param name string of the lock
---@param options table
function Target:check(name, options)
  local its, wanted = self.replicas, wanted_by(self.server, options or {})
  if its == wanted or its and wanted and its.count == wanted.count
      and its.ms == wanted.ms then
    return
  end
  error(("bad replicas of %s: this client has a lock of that name with other "
    .. "ones"):format(naming.show(name)), 0)
end

--- Runs an operation. Retries it until the deadline, unless the failure is
--- permanent: operations are idempotent.
---@param name string of the operation; the policy must have it
---@param deadline number by host.now()
---@param now number by host.now()
---@param a any its arguments, up to the first nil, without the command that
---  publishes
---@param extra? table more arguments
---@return any ... # as remote.run
function Target:run(name, deadline, now, a, b, c, extra)
  local index = self.publishes[name]
  if index == 4 then
    return remote.run(self.node, self.ops[name], deadline, now, self, a, b, c,
      self.publish, extra)
  elseif index == 2 then
    b = self.publish
  elseif index then
    a = self.publish
  end
  return remote.run(self.node, self.ops[name], deadline, now, self, a, b, c,
    nil, extra)
end

--- Sends a request of "acquire" or "release" once, without waiting, if
--- `standing` has found its server ready.
---@type fun(self, name: string, receiver: table, deadline: number,
--- now: number, a: any, b: any, c: any): boolean
Target.post = remote.post

--- What carries posted requests now. To be called when one has failed, for
--- `retry`.
function Target:carrier() return self.node.connection end

--- Goes on with a request that was posted and has failed.
---@param connection any as `carrier` returned it
---@param name string
---@param deadline number by host.now()
---@param now number when it was sent, by host.now()
---@param code any of the failure
---@param a any as for `post`
---@return any # as remote.run
function Target:retry(connection, name, deadline, now, code, detail, a, b, c)
  return remote.retry(self.node, connection, self.ops[name], deadline, now,
    code, detail, self, a, b, c, self.publishes[name] == 4 and self.publish)
end

--- Runs commands that the user's holds guard, see effects.run.
---@param holds table
---@param commands table
---@param deadline number by host.now()
function Target.effect(_, holds, commands, deadline)
  return require("rlock.redis.effects").run(holds, commands, deadline)
end

--- The module that delivers release requests: ask, listen.
function Target.requests() return require "rlock.redis.release_requests" end

--- The arguments of an operation, with the command that publishes.
---@param name string of the operation
---@param a any as for `run`
---@return any ... # a, b, c, d
function Target:arguments(name, a, b, c, d)
  local index = self.publishes[name]
  if index == 4 then return a, b, c, self.publish end
  if index == 2 then return a, self.publish end
  if index == 1 then return self.publish, b, c, d end
  return a, b, c, d
end

--- The channel on which releases are published, or nil.
---@param owner_name? string
function Target:channel(owner_name)
  local channel_of = self.channel_of
  return channel_of and channel_of(self, owner_name)
end

--- The same target, with one more key for a counter's request.
---@param suffix string of the third key
function Target:with(suffix)
  local target = setmetatable({}, getmetatable(self))
  for i = 1, 3 do target[i] = self[i] end
  target[3] = target[3] .. suffix
  target.slot, target.replicas = self.slot, self.replicas
  return target
end

-- The node that has it now.
local function node_of(self) return self.server:node_of(self) end

--- The address of its server, for messages.
function Target:where() return node_of(self).where end

--- Its server and key, by which several locks are put in order.
---@return string, string
function Target:address()
  return ("%s/%d"):format(node_of(self).where, self.server.options.db or 0),
    self[1]
end

--- Is there a connection to its server now?
function Target:is_connected() return node_of(self).connection ~= nil end

--- Has the client been closed?
function Target:is_closed() return node_of(self).is_closed end

--- Waits for any answer of its server.
---@param deadline number by host.now()
---@return any # the answer
---@return rlock.failure? code, string? detail
function Target:ping(deadline)
  return node_of(self):call(deadline, { "PING" }, 1)
end

--- Announces a wait to other processes, see lock/deadlock.lua. The key is in
--- the slot of the lock: rlock_waits:{name}:<owner>.
---@param deadline number by host.now()
---@param owner_name string
---@param text? string default: the wait is over
---@param seconds? integer after which the server forgets it
---@return any # a value
---@return rlock.failure? code, string? detail
function Target:announce(deadline, owner_name, text, seconds)
  local key = naming.prefix("rlock_waits", self[1]) .. ":" .. owner_name
  local words = text and { "SET", key, text, "EX", seconds } or { "DEL", key }
  return node_of(self):call(deadline, words, #words)
end

--- What carries its requests: a node, or a dedicated connection of it. Batches
--- for different routes do not delay each other.
---@param owner_name string
---@return table
function Target:route(owner_name)
  local its = node_of(self)
  if not self.replicas then return its end
  return remote.dedicated(its, self, owner_name)
end

--- Are there several routes, of which one may be slow?
function backend:has_routes()
  return self.node:size() > 1 or next(self.node.dedicated or {}) ~= nil
end

--- Makes a table a batch, see batch.lua.
---@param fields table
function backend.batch(_, fields)
  return require("rlock.redis.batch").new(fields)          -- on first use
end

-- servers of red locks --------------------------------------------------------

-- These are loaded on first use.
---@type any, any
local identity, availability

local function identities()
  identity = identity or require "rlock.redis.server_identity"
  return identity
end

local function available()
  availability = availability or require "rlock.redis.availability"
  return availability
end

--- Identifies the server, once for each connection.
---@param deadline number by host.now()
---@return table? # identity
---@return rlock.failure? code, string? detail
function Target:identify(deadline)
  return identities().identify(node_of(self), deadline)
end

--- The server's identity, if `identify` has run on its current connection.
function Target:identity()
  local connection = self.node.connection               -- a cluster has none
  if connection and identity then return identity.at(connection) end
  return identities().of(node_of(self))
end

--- Seconds until a server that has lost its data counts again.
---@param lease number seconds
function Target:quarantine(lease)
  return identities().quarantine(node_of(self), lease, self.server.host.now())
end

--- Why the server is not independent of those of other locks, or nil.
---@param locks table its own is skipped
---@return string?
function Target:clash(locks)
  local own, clash = node_of(self), identities().clash
  for _, lock in ipairs(locks) do
    local other = node_of(lock.record.target)
    local why = other ~= own and clash(own, other)
    if why then return why end
  end
end

--- The identity of the server, if requests can be posted to it now, and it
--- certainly counts: `identify`, `clash`, `quarantine` and `why_away` would not
--- wait, and find no fault.
---@param lease number seconds, for `quarantine`
---@param now number by host.now()
---@param locks table for `clash`
---@return table?
function Target:standing(lease, now, locks)
  ---@type any
  local its = self.node                   -- a cluster has no connection
  if not identity or not its.connection
      or its.away and available().why_away(its) then
    return nil
  end
  local found = identity.standing(its, lease, now)
  if found and found.is_shared and self:clash(locks) then return nil end
  return found
end

--- Why the server should be skipped now, or nil.
---@return string?
function Target:why_away() return available().why_away(node_of(self)) end

--- Skips the server until it answers.
---@param why string for messages
function Target:mark_away(why) available().mark_away(node_of(self), why) end

return backend
