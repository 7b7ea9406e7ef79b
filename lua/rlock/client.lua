--- The public client: one application's session with one server.

local check = require "rlock.util.options"
local colon = require "rlock.util.colon"
local kinds = require "rlock.lock.kinds"
local lock = require "rlock.lock.lock"
local naming = require "rlock.naming"
local session = require "rlock.lock.session"

---@class rlock.client: rlock.factories
---@field session rlock.session internal
local client = {}
client.__index = client

local text, day = check.type "string", 86400

local check_replicas = check.that('a whole number from 1, "majority" or "all"',
  function(count)
    return count == "majority" or count == "all" or type(count) == "number"
      and count >= 1 and count <= 100 and count % 1 == 0
  end)

local check_nat = check.that('a function, or a table such as { '
  .. '["10.0.0.5:6379"] = "db1:7001" }', function(nat)
    if type(nat) ~= "table" then return type(nat) == "function" end
    for from, to in pairs(nat) do
      local pair = tostring(from) .. " " .. tostring(to)
      if not pair:find("^%S+:%d+ %S+:%d+$") then return false end
    end
    return true
  end)

-- Returns the check that a value is one of these words.
local function one_of(must, ...)
  local known = {}
  for _, word in ipairs { ... } do known[word] = true end
  return check.that(must, function(value) return known[value] end)
end

-- Returns the check of the options for Sentinels, which may differ from those
-- of the master.
local function check_sentinel(check_tls)
  return check.group({
    username = text, password = text,
    tls = function(tls, name, level)
      if type(tls) ~= "boolean" then check_tls(tls, name, level + 1) end
    end,
  }, 'a table such as { password = "secret" }')
end

---@class rlock.options.open
---@field url? string default: RLOCK_URL, else "local:"
---@field username? string default: that of the URL
---@field password? string default: that of the URL
---@field name? string of the client, for `rlockctl ls` and metrics
---@field identity? boolean false: the name of the connection omits host and
--- program
---@field handover? boolean false: waiters race for a free lock
---@field watchdog? number seconds: the lease of locks that the watchdog renews,
--- three times per lease; default: 30
---@field timeout? number seconds for one command; default: 3
---@field connect_timeout? number seconds; default: 3
---@field publish? "publish" | "spublish" | "both" the command that wakes
--- waiters; default: "publish", in a cluster "both"
---@field seal? "kill" | "time" | "off" against late delivery of an abandoned
--- request; see redis/seal.lua and redis/expiry.lua
---@field log? rlock.log
---@field metrics? string[] names of locks with metrics of their own
---@field replicas? rlock.count that must confirm each grant
---@field replica_timeout? number seconds to wait for them
---@field nat? table<string, string> | fun(host: string, port: integer): ...any
--- where a server is that Redis calls "host:port"
---@field sentinel? rlock.options.sentinel how to reach the Sentinels of
--- redis+sentinel://; default: as the master
---@field acl? "creator" on ZooKeeper: only this login has access to the nodes

---@class rlock.options.sentinel
---@field username? string
---@field password? string
---@field tls? boolean | rlock.options.tls

--- A whole number from 1, or which part of them.
---@alias rlock.count integer | "majority" | "all"

--- Gets each event (util/events.lua); it must not wait.
---@alias rlock.log
---| fun(level: "warn"|"info", event: string, fields: table<string, any>)

-- The options of open() on every host.
---@type table<string, any>
local known = {
  url = text, username = text, password = text,
  name = text, identity = check.type "boolean",
  handover = check.type "boolean",
  watchdog = check.duration(0.03, day), timeout = check.duration(0.001, day),
  connect_timeout = check.duration(0.001, day),
  publish = one_of('"publish", "spublish" or "both"', "publish", "spublish",
    "both"),
  seal = one_of('"kill", "time" or "off"', "kill", "time", "off"),
  log = check.type "function",
  metrics = check.that("an array of names of locks", function(names)
    if type(names) ~= "table" then return false end
    for key, name in pairs(names) do
      if type(key) ~= "number" or type(name) ~= "string" then return false end
    end
    return true
  end),
  replicas = check_replicas, replica_timeout = check.duration(0.001, day),
  nat = check_nat,
  acl = one_of('"creator"', "creator"),
}

--- Returns the check of the options of a host's open(), see options.table.
---@param own table<string, any> the options that only this host takes, and
---  `tls`; modified
function client.options(own)
  for name, its_check in pairs(known) do own[name] = its_check end
  own.sentinel = check_sentinel(own.tls)
  return check.table(own, "a URL or a table", "rlock.open")
end

-- The back ends: the scheme of a URL, up to a "+", and the module.
local backends = {
  redis = "rlock.redis.backend", rediss = "rlock.redis.backend",
  unix = "rlock.redis.backend", zk = "rlock.zookeeper.backend",
  zks = "rlock.zookeeper.backend",
}

--- Adds to checked options those in a URL and the defaults.
---@param given table
---@param address string a URL
---@return any # the options of client.open, a new table
---@return rlock.failure? code # "usage"
---@return string? detail
function client.complete(given, address)
  local backend = require(backends[address:match "^(%a*)"] or backends.redis)
  local options, code, detail = backend.complete(given, address)
  if options then options.backend = backend end
  return options, code, detail
end

--- Opens a client. Connects at once, to report a wrong address or password
--- here; a lazy client connects on first use.
---@param host rlock.host
---@param options rlock.session_options from client.complete
---@return rlock.client?
---@return rlock.code? code "connect" or "redis"
---@return string? detail
function client.open(host, options)
  local self = setmetatable({}, client)
  self.session = session.new(host, options)
  if options.lazy then return self end
  local ok, code, detail =
    self.session.server:connect(options.connect_timeout)
  if ok then return self end
  self.session:close()
  if code == "cancelled" then error(detail, 0) end
  return nil, code, detail
end

-- The deadline of a request.
local function deadline_of(open)
  open.host.current()
  return open.host.now() + open.timeout
end

--- Sends any Redis command, once. It is not retried: if the reply is lost, the
--- command may have been applied.
---@param ... string | number the command and its arguments
---@return any # the reply; false for a Redis nil
---@return rlock.code? code "redis", "timeout", "closed", "connect";
---  "usage" for a command that would change or block the shared connection
---@return string? detail
function client:call(...)
  local words, open = check.words("client:call", 2, ...), self.session
  local reply, code, detail = open.server:call(deadline_of(open), words)
  if code == "cancelled" then error(detail, 0) end
  if reply == nil then return nil, code, detail end
  return reply
end

--- Reads a node of ZooKeeper.
---@param path string below the chroot
---@return string? # its value
---@return integer | rlock.code # its version. Or "zookeeper": no such node, no
---  permission; "connect", "timeout"; "usage": no path, or this is Redis
---@return string? detail
function client:get(path)
  check.path(path)
  local open = self.session
  local value, version, detail = open.server:get(deadline_of(open), path)
  if version == "cancelled" then error(detail, 0) end
  return value, version, detail
end

--- Sets the value of a node of ZooKeeper, once. To set it only while a lock is
--- held, use `hold:set`.
---@param path string below the chroot
---@param value string
---@param version? integer that the node must have; default: any
---@return boolean? # true
---@return integer | rlock.code # the new version; or the code
---@return string? detail # as for `get`, and "zookeeper": another version;
---  "timeout": it may have been set
function client:set(path, value, version)
  version = check.node(path, value, version)
  local open = self.session
  local made, code, detail =
    open.server:set(deadline_of(open), path, value, version)
  if code == "cancelled" then error(detail, 0) end
  if not made then return nil, code, detail end
  return true, made
end

local check_name = check.name

local owner = check.that("a string of 1 to 1024 bytes", function(owner)
  return type(owner) == "string" and owner ~= "" and #owner <= 1024
end)

---@class rlock.options.owner
---@field owner? string an explicit owner name, for all tasks that use it;
--- default: the calling task
---@field fenced? boolean each hold has a fencing token
---@field replicas? rlock.count that must confirm each grant; default: the
--- client's
---@field replica_timeout? number seconds to wait for them

---@alias rlock.owner_options rlock.options.owner & { owner?: any, fenced?: any,
---   replicas?: any, replica_timeout?: any, [string]: nil }

local of_lock = {
  owner = owner, fenced = check.type "boolean", replicas = check_replicas,
  replica_timeout = check.duration(0.001, day),
}
local SUCH_AS = 'a table such as { owner = "me" }'
local check_owner = check.table(of_lock, SUCH_AS)

-- The options of client:policy; `drift` is for red locks.
---@type table<string, rlock.check>
local of_policy = { drift = check.drift }
for option, its_check in pairs(of_lock) do of_policy[option] = its_check end
local check_options = check.table(of_policy, SUCH_AS)

-- The name of the policy of a kind with fencing tokens.
local function fenced_name(kind)
  return kind.fenced or "fenced_" .. kind.name
end

local built_in = {}
for _, kind in ipairs(kinds) do built_in[kind.name] = kind end

-- The factories below load their modules on first use.

local function lock_factory(kind)
  local bare, fenced = {}, {}                   -- back end -> policy
  return function(self, name, options)
    check_name(name)
    check_owner(options)
    local backend = self.session.options.backend
    local loaded = options and options.fenced and fenced or bare
    loaded[backend] = loaded[backend]
      or backend.load(loaded == bare and kind.name or fenced_name(kind), 3)
    return lock.new(self, loaded[backend], name, options)
  end
end

---@class rlock.pair
local Pair = {}

-- Only its two sides are locks.
function Pair.__index(_, key)
  if Pair[key] then return Pair[key] end
  error(("no %s here: a read/write lock is two locks, its :read_lock() and its "
    .. ":write_lock()"):format(tostring(key)), 2)
end

local function side_of(self, side)
  local load = self.client.session.options.backend.load
  return lock.new(self.client, load(self.policies[side], 4), self.name,
    self.options)
end

--- The read lock; readers share it, so it has no fencing token.
---@return rlock.lock
function Pair:read_lock() return (side_of(self, "read")) end

--- The write lock; it is exclusive.
---@return rlock.lock
function Pair:write_lock() return (side_of(self, "write")) end

local function pair_factory(kind)
  return function(self, name, options)
    check_name(name)
    check_owner(options)
    local which = options and options.fenced and fenced_name(kind) or kind.name
    return setmetatable({ client = self, name = name, options = options or {},
      policies = self.session.options.backend.sides(which) }, Pair)
  end
end

-- Raises an error for options of what has none.
local function refuse_options(options, method)
  if options == nil then return end
  error(("bad options of client:%s: it has none; `replicas` is an option of "
    .. "the client"):format(method), 3)
end

local function counter_factory(kind)
  return function(self, name, options)
    check_name(name)
    refuse_options(options, kind.factory)
    local driver = self.session.options.backend.load(kind.name, 3).driver
    return require("rlock." .. (driver or kind.driver)).new(self, name)
  end
end

-- Where options would be, after the name.
local without_options = { barrier = 1, double_barrier = 2 }

-- What is built on locks: a module in recipes/, unless the back end has one of
-- its own in its table `recipes`.
local function recipe_factory(method)
  local place = without_options[method]
  return function(self, name, ...)
    check_name(name)
    if place then refuse_options(select(place, ...), method) end
    local own = self.session.options.backend.recipes
    local module = own and own[method] or "recipes." .. method
    return require("rlock." .. module).new(self, name, ...)
  end
end

--- The factories: lock, mutex, fair_lock and so on, one for each kind (see
--- "Kinds" in README.md). The factory of a lock takes a name and, optionally, a
--- table with owner = an explicit owner name instead of the calling task;
--- fenced = true: each hold, of a read/write lock each write hold, gets a
--- fencing token (policy/fencing.lua). With and without it, a task is a
--- different owner. The factory of a read/write lock returns a pair, whose
--- `:read_lock()` and `:write_lock()` are locks. That of a counter, such as a
--- semaphore, takes a name only, because counters have no owners.
local methods = "call get set policy stats close"
for _, kind in ipairs(kinds) do
  local factory = kind.driver and counter_factory or kind.pair and pair_factory
    or lock_factory
  client[kind.factory] = factory(kind)
  methods = methods .. " " .. kind.factory
end
for _, method in ipairs { "barrier", "double_barrier", "election",
    "compute" } do
  client[method] = recipe_factory(method)
  methods = methods .. " " .. method
end

--- A lock with a custom policy.
---@param definition rlock.policy | string the policy, or the name of the
---  module that returns it
---@param name string
---@param options? rlock.options.owner | table<string, any> those of the policy,
---  if it has `extra`, are allowed as well
---@return rlock.lock
function client:policy(definition, name, options)
  check_name(name)
  local backend, kind = self.session.options.backend, built_in[definition]
  local loaded, checked = backend.load(definition, 3), options
  if loaded.needs then
    error(("policy %s is not a lock; it has its own driver"):format(
      naming.show(loaded.name)), 2)
  elseif loaded.extra and not kind and type(options) == "table" then
    checked = {}                        -- `extra` checks its own options
    for option in pairs(of_policy) do checked[option] = options[option] end
  end
  check_options(checked)
  if options and options.fenced then
    loaded = kind and backend.load(fenced_name(kind), 3)
      or backend.fenced(loaded, 3)
  end
  return lock.new(self, loaded, name, options)
end

--- The metrics of this client: counters, and the histograms `wait`, `hold` and
--- `round_trip`, each { count =, sum = (seconds), buckets = { { bound, count up
--- to it }, ... } }.
---@return table # acquired, handed_over, busy, timeouts, errors, lost, asked,
---  late_renewals, computed, cached, stale, wait, hold, round_trip; the same
---  for each kind in `kinds`, and for each lock in the option `metrics` in
---  `locks`
function client:stats() return self.session.meter:stats() end

--- Releases everything the client holds and closes its connections.
---@return boolean # true
function client:close()
  self.session:close()
  return true
end

client.__close = client.close

--- The server's address, for messages.
function client:__tostring()
  return "rlock client of " .. self.session.server.where
end

--- Closes a client when it is collected: nothing refers to it, so it holds
--- nothing.
function client:__gc()
  local open = self.session
  if not open.is_closed then
    open.host.daemon(function() open:close() end)
  end
end

colon.methods(Pair, "pair", "read_lock write_lock")
return colon.methods(client, "client", methods)
