--- The public client: one application's session with one Redis.

local colon = require "rlock.colon"
local duration = require "rlock.duration"
local errors = require "rlock.redis.errors"
local kinds = require "rlock.kinds"
local lock = require "rlock.lock"
local policy = require "rlock.policy"
local session = require "rlock.session"

local client = {}
client.__index = client

local MAX_NAME = 1048576           -- bytes

local defaults = { watchdog = 30, timeout = 3, connect_timeout = 3 }
local LEAST = { watchdog = 0.03, timeout = 0.001, connect_timeout = 0.001 }
local seals = { kill = true, time = true, off = true }
local publishers = { publish = true, spublish = true, both = true }

-- Checks the options of open(), except the address.
local function checked(options, level)
  local result = {}
  for key, value in pairs(options) do result[key] = value end
  for key, default in pairs(defaults) do
    if result[key] == nil then result[key] = default end
    result[key] = duration.check(result[key], key, LEAST[key], 86400,
      level + 1)
  end
  result.publish = result.publish or "publish"
  if not publishers[result.publish] then
    error('bad publish: must be "publish", "spublish" or "both"', level + 1)
  end
  result.seal = result.seal or "kill"
  if not seals[result.seal] then
    error('bad seal: must be "kill", "time" or "off"', level + 1)
  end
  if result.name ~= nil and (type(result.name) ~= "string"
      or result.name:find("[^%w%-_.:@/]")) then
    error("bad name: must be letters, digits and -_.:@/ only", level + 1)
  end
  if result.lazy ~= nil and type(result.lazy) ~= "boolean" then
    error("bad lazy: must be true or false", level + 1)
  end
  return result
end

-- Retries if the server drops a new connection, because it is stopping or
-- restarting. An unreachable server, or one that refuses, is not retried.
local function connect(node, seconds)
  local deadline = node.host.now() + seconds
  local connection, code, detail
  repeat
    connection, code, detail = node:connect(deadline)
  until connection or not node.fell or node.host.now() >= deadline
  return connection, code, detail
end

--- Opens a client. Connects at once, to report a wrong address or password
--  here; a lazy client connects on first use.
-- @tparam table host
-- @tparam table options address (host, port or path), username, password, db,
--   tls, watchdog, timeout, connect_timeout, name, publish, lazy
-- @return[1] the client
-- @treturn[2] nil
-- @treturn[2] string "connect" or "redis"
-- @treturn[2] string detail
function client.open(host, options)
  local self = setmetatable({}, client)
  self.session = session.new(host, checked(options, 3))
  if options.lazy then return self end
  local connection, code, detail = connect(self.session.node,
    self.session.options.connect_timeout)
  local is_redis = code == "redis"
  if not connection and not (is_redis and errors.is_passing(detail)) then
    self.session:close()
    if is_redis then code = errors.classify(detail).code end
    return nil, code, detail
  end
  return self
end

-- Commands that would change or block the connection, which all tasks share.
local unfit = {}
for word in ([[select multi exec discard watch unwatch hello reset quit auth
  wait waitaof blpop brpop brpoplpush blmove blmpop bzpopmin bzpopmax bzmpop
  subscribe psubscribe ssubscribe unsubscribe punsubscribe sunsubscribe monitor
  sync psync]]):gmatch("%S+") do unfit[word] = true end

-- SCRIPT KILL and FUNCTION KILL, which a busy server obeys.
local function is_interrupt(command, action)
  command = tostring(command):lower()
  return (command == "script" or command == "function")
    and tostring(action):lower() == "kill"
end

--- Sends any Redis command. It is sent once: when nothing came back, nobody
--  knows whether it was applied.
-- @tparam string command
-- @param ... its arguments: strings and numbers
-- @return[1] the reply; false for a Redis nil
-- @treturn[2] nil
-- @treturn[2] string "redis", "timeout", "closed", "connect"; "usage" for a
--   command that the shared connection cannot take
-- @treturn[2] string detail
function client:call(command, ...)
  if command == nil then error("client:call: which command?", 2) end
  for i = 0, select("#", ...) do
    local kind = type(i == 0 and command or (select(i, ...)))
    if kind ~= "string" and kind ~= "number" then
      error(("bad argument #%d of client:call: must be a string or a number, "
        .. "is a %s"):format(i + 1, kind), 2)
    end
  end
  local node = self.session.node
  node.host.current()
  if unfit[tostring(command):lower()] then
    return nil, "usage", command .. " would change or block the connection "
      .. "that all tasks of the client share"
  end
  local send = is_interrupt(command, ...) and node.interrupt or node.call
  local reply, code, detail = send(node,
    node.host.now() + self.session.timeout, { command, ... },
    select("#", ...) + 1)
  if code == "cancelled" then error(detail, 0) end
  if reply == nil then return nil, code, detail end
  return reply
end

local function check_name(name)
  if type(name) ~= "string" or name == "" then
    error("bad name: must be a string that is not empty, is "
      .. (name == "" and "empty" or type(name)), 3)
  elseif #name > MAX_NAME then
    error(("bad name: longer than %d bytes"):format(MAX_NAME), 3)
  end
end

local function check_owner(options, takes_more)
  if options == nil then return end
  if type(options) ~= "table" then
    error("bad options: must be a table such as { owner = \"me\" }", 3)
  end
  for key in pairs(options) do
    if key ~= "owner" and not takes_more then
      error(("bad option %s: must be owner"):format(tostring(key)), 3)
    end
  end
  local owner = options.owner
  if owner ~= nil and (type(owner) ~= "string" or owner == ""
      or #owner > 1024) then
    error("bad owner: must be a string of 1 to 1024 bytes", 3)
  end
end

-- Not to be tail-called: its errors are reported at its caller's caller.
local function make_lock(self, definition, name, options)
  local loaded = policy.load(definition, 4)
  if loaded.needs then
    error(("policy %q is not a lock; it has its own driver"):format(
      loaded.name), 3)
  end
  return lock.new(self, loaded, name, options)
end

-- The factories below load their modules on first use.

local function lock_factory(kind)
  local loaded
  return function(self, name, options)
    check_name(name)
    check_owner(options)
    loaded = loaded or policy.load(kind.name, 3)
    return lock.new(self, loaded, name, options)
  end
end

local Pair = {}

-- Only its two sides are locks.
function Pair.__index(_, key)
  if Pair[key] then return Pair[key] end
  error(("no %s here: a read/write lock is two locks, its :read_lock() and its "
    .. ":write_lock()"):format(tostring(key)), 2)
end

--- The read lock; readers share it.
function Pair:read_lock()
  return (make_lock(self.client, self.policies.read, self.name, self.options))
end

--- The write lock; it is exclusive.
function Pair:write_lock()
  return (make_lock(self.client, self.policies.write, self.name, self.options))
end

local function pair_factory(kind)
  return function(self, name, options)
    check_name(name)
    check_owner(options)
    return setmetatable({ client = self, name = name, options = options or {},
      policies = require("rlock.policy." .. kind.name) }, Pair)
  end
end

local function counter_factory(kind)
  return function(self, name)
    check_name(name)
    return require("rlock." .. kind.driver).new(self, name)
  end
end

--- The factories: lock, mutex, fair_lock and so on, one for each kind (see
--  "Kinds" in README.md). A lock's takes a name and, optionally, a table with
--  owner = an explicit owner name instead of the calling task. A read/write
--  lock's returns a pair, whose `:read_lock()` and `:write_lock()` are locks. A
--  counter, such as a semaphore, has no owner: its factory takes a name only.
local methods = "call policy close"
for _, kind in ipairs(kinds) do
  local factory = kind.driver and counter_factory or kind.pair and pair_factory
    or lock_factory
  client[kind.factory] = factory(kind)
  methods = methods .. " " .. kind.factory
end

--- A lock with a custom policy.
-- @param definition the policy, or the name of the module that returns it
-- @tparam string name
-- @tparam[opt] table options owner
function client:policy(definition, name, options)
  check_name(name)
  check_owner(options, true)            -- the others are for its `extra`
  return (make_lock(self, definition, name, options))
end

--- Releases everything the client holds and closes its connections.
-- @treturn boolean true
function client:close()
  self.session:close()
  return true
end

client.__close = client.close

--- The server's address, for messages.
function client:__tostring()
  return "rlock client of " .. self.session.node.where
end

--- Closes a client that is garbage: nothing refers to it, so it holds nothing.
function client:__gc()
  local open = self.session
  if not open.is_closed then
    open.host.daemon(function() open:close() end)
  end
end

colon.methods(Pair, "pair", "read_lock write_lock")
return colon.methods(client, "client", methods)
