--- The public client: one application's session with one server.

local check = require "rlock.util.options"
local colon = require "rlock.util.colon"
local kinds = require "rlock.lock.kinds"
local lock = require "rlock.lock.lock"
local naming = require "rlock.naming"
local session = require "rlock.session"

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

-- The options of open() on every host.
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
-- @tparam table own the options that only this host takes, and `tls`; modified
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
-- @tparam table given
-- @tparam string address a URL
-- @return[1] the options of client.open, a new table
-- @treturn[2] nil
-- @treturn[2] string "usage"
-- @treturn[2] string detail
function client.complete(given, address)
  local backend = require(backends[address:match "^(%a*)"] or backends.redis)
  local options, code, detail = backend.complete(given, address)
  if options then options.backend = backend end
  return options, code, detail
end

--- Opens a client. Connects at once, to report a wrong address or password
--  here; a lazy client connects on first use.
-- @tparam table host
-- @tparam table options from client.complete
-- @return[1] the client
-- @treturn[2] nil
-- @treturn[2] string "connect" or "redis"
-- @treturn[2] string detail
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
--  command may have been applied.
-- @param ...  the command and its arguments: strings and numbers
-- @return[1] the reply; false for a Redis nil
-- @treturn[2] nil
-- @treturn[2] string "redis", "timeout", "closed", "connect"; "usage" for a
--   command that would change or block the shared connection
-- @treturn[2] string detail
function client:call(...)
  local words, open = check.words("client:call", 2, ...), self.session
  local reply, code, detail = open.server:call(deadline_of(open), words)
  if code == "cancelled" then error(detail, 0) end
  if reply == nil then return nil, code, detail end
  return reply
end

--- Reads a node of ZooKeeper.
-- @tparam string path below the chroot
-- @treturn[1] string its value
-- @treturn[1] integer its version
-- @treturn[2] nil
-- @treturn[2] string "zookeeper": no such node, no permission; "connect",
--   "timeout"; "usage": no path, or this is Redis
-- @treturn[2] string detail
function client:get(path)
  check.path(path)
  local open = self.session
  local value, version, detail = open.server:get(deadline_of(open), path)
  if version == "cancelled" then error(detail, 0) end
  return value, version, detail
end

--- Sets the value of a node of ZooKeeper, once. To set it only while a lock is
--  held, use `hold:set`.
-- @tparam string path below the chroot
-- @tparam string value
-- @tparam[opt] integer version that the node must have; default: any
-- @treturn[1] boolean true
-- @treturn[1] integer the new version
-- @treturn[2] nil, code, detail as for `get`, and "zookeeper": another version;
--   "timeout": it may have been set
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

local of_lock = {
  owner = owner, fenced = check.type "boolean", replicas = check_replicas,
  replica_timeout = check.duration(0.001, day),
}
local SUCH_AS = 'a table such as { owner = "me" }'
local check_owner = check.table(of_lock, SUCH_AS)

-- The options of client:policy; `drift` is for red locks.
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
function Pair:read_lock() return (side_of(self, "read")) end

--- The write lock; it is exclusive.
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

local function counter_factory(kind)
  return function(self, name, options)
    check_name(name)
    if options ~= nil then
      error(("bad options of client:%s: it has none; `replicas` is an option "
        .. "of the client"):format(kind.factory), 2)
    end
    local driver = self.session.options.backend.load(kind.name, 3).driver
    return require("rlock." .. (driver or kind.driver)).new(self, name)
  end
end

-- What is built on locks: a module in recipes/, unless the back end has one of
-- its own in its table `recipes`.
local function recipe_factory(method)
  return function(self, name, ...)
    check_name(name)
    local own = self.session.options.backend.recipes
    local module = own and own[method] or "recipes." .. method
    return require("rlock." .. module).new(self, name, ...)
  end
end

--- The factories: lock, mutex, fair_lock and so on, one for each kind (see
--  "Kinds" in README.md). The factory of a lock takes a name and, optionally, a
--  table with owner = an explicit owner name instead of the calling task;
--  fenced = true: each hold, of a read/write lock each write hold, gets a
--  fencing token (policy/fencing.lua). With and without it, a task is a
--  different owner. The factory of a read/write lock returns a pair, whose
--  `:read_lock()` and `:write_lock()` are locks. That of a counter, such as a
--  semaphore, takes a name only, because counters have no owners.
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
-- @param definition the policy, or the name of the module that returns it
-- @tparam string name
-- @tparam[opt] table options owner, fenced, replicas, replica_timeout; and
--   those of the policy, if it has `extra`
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
--  `round_trip`, each { count =, sum = (seconds), buckets = { { bound, count up
--  to it }, ... } }.
-- @treturn table acquired, handed_over, busy, timeouts, errors, lost, asked,
--   late_renewals, computed, cached, stale, wait, hold, round_trip; the same
--   for each kind in `kinds`, and for each lock in the option `metrics` in
--   `locks`
function client:stats() return self.session.meter:stats() end

--- Releases everything the client holds and closes its connections.
-- @treturn boolean true
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
--  nothing.
function client:__gc()
  local open = self.session
  if not open.is_closed then
    open.host.daemon(function() open:close() end)
  end
end

colon.methods(Pair, "pair", "read_lock write_lock")
return colon.methods(client, "client", methods)
