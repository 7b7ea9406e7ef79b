--- The ZooKeeper back end: the interface for clients and locks. See "The back
--- end contract" in ../README.md, and README.md here. A back end has one
--- session (connection.lua).

local batch = require "rlock.zookeeper.batch"
local channels = require "rlock.zookeeper.channels"
local codec = require "rlock.zookeeper.codec"
local connection = require "rlock.zookeeper.connection"
local errors = require "rlock.zookeeper.errors"
local heap = require "rlock.util.heap"
local kinds = require "rlock.zookeeper.kinds"
local naming = require "rlock.naming"
local nodes = require "rlock.zookeeper.nodes"
local target = require "rlock.zookeeper.target"
local url = require "rlock.zookeeper.url"

---@class rlock.zookeeper.backend
---@field host rlock.host
---@field options table
---@field hooks table
---@field where string
---@field channels rlock.channels
---@field access any
---@field targets table
---@field entries table
---@field doomed table
---@field leases rlock.heap
---@field fresh table
---@field foreign any
---@field bound number
---@field connection any
local backend = {}
backend.__index = backend

local huge, min = math.huge, math.min

backend.name = "zookeeper"

--- Find a kind of lock, see kinds.lua.
backend.load, backend.sides = kinds.load, kinds.sides
backend.fenced, backend.elections = kinds.fenced, kinds.elections

--- Its own modules of what is built on locks, see client.lua.
backend.recipes = { compute = "zookeeper.compute" }

local UNCONFIRMED = "its session was not confirmed in time"
-- Seconds after which the node of a hold is watched: most holds end sooner.
local SHORT = 0.1
-- Seconds beyond the time for all servers, to learn why the last one failed.
local LATE = 0.1

-- options ---------------------------------------------------------------------

local defaults = { watchdog = 30, timeout = 3, connect_timeout = 3 }

local OF_REDIS = { "publish", "seal", "replicas", "replica_timeout", "nat",
  "sentinel" }

--- Adds to checked options those in a URL and the defaults.
---@param given table
---@param address string a URL
---@return any # the options of `open`, a new table
---@return rlock.failure? code # "usage"
---@return string? detail
function backend.complete(given, address)
  local options, code, detail = url.parse(address)
  if not options then return nil, code, detail end
  for _, name in ipairs(OF_REDIS) do
    if given[name] ~= nil then
      return nil, "usage", ("bad option %s: only for Redis"):format(name)
    end
  end
  if given.tls and not options.tls then
    return nil, "usage", "bad option tls: only zks:// uses TLS"
  end
  options.tls = options.tls and {} or nil
  for name, value in pairs(defaults) do options[name] = value end
  for name, value in pairs(given) do options[name] = value end
  if options.password and not options.username then
    return nil, "usage", "bad option password: a login needs a username, too"
  end
  if options.acl and not options.username then
    return nil, "usage", "bad option acl: \"creator\" needs a login, "
      .. "user:password@ in the URL"
  end
  return options
end

-- events of the session -------------------------------------------------------

local function always() return true end

-- Reports losses, in a task of its own: a callback of the program may wait.
local function lose(self, why, is_it)
  self.host.service(self.hooks.on_lost, why, is_it)
end

-- The connection was lost, and with it all watches.
local function drop_watches(self)
  for entry in pairs(self.entries) do
    entry.place:dropped()
    if entry.gate then entry.gate:dropped() end
  end
end

-- Drops each hold by drop(entry), and reports their loss.
local function lose_all(self, why, drop)
  local was_held = false
  for entry in pairs(self.entries) do
    if entry.is_held then
      was_held = true
      drop(entry)
    end
  end
  if was_held then lose(self, why, always) end
end

-- The session has ended: drops all holds. Waiters, and requests to acquire,
-- continue with the next session.
local function forget_all(self, why)
  drop_watches(self)
  lose_all(self, why, function(entry) entry.target:forget(entry) end)
end

-- The node of a hold was deleted, but not by this client.
local function broken(self, entry)
  if not entry.is_held then return end
  entry.target:forget(entry)
  lose(self, "its node was deleted", function(grant)
    return grant.lock.record.target == entry.target
      and grant.owner_name == entry.owner
  end)
end

-- Watches the node of a hold. The reply also tells whether it exists.
local function watch(self, entry)
  local path, epoch = entry.place:path(), entry.place.epoch
  local link = self.connection
  if entry.watched == link.link then return end
  entry.watched = link.link
  local function on_change(is_deleted)
    entry.watched = nil
    if entry.is_held and entry.place.epoch == epoch then
      if is_deleted then return broken(self, entry) end
      watch(self, entry)
    end
  end
  link:watch(path, on_change)
  link:post(codec.ops.get, codec.read(path, true), function(call)
    if call.err == errors.NO_NODE then link:unwatch(path, on_change) end
    if call.err == errors.NO_NODE and entry.place.epoch == epoch then
      broken(self, entry)
    elseif call.err == 0 and entry.heard then
      require("rlock.zookeeper.revoker").seen(self, entry, call.its)
    end
  end)
end

-- Deletes what could not be deleted before, if it is due.
local function clean(self, due)
  local again = self.host.now() + self.options.timeout
  for place, at in pairs(self.doomed) do
    if at <= due then
      self.doomed[place] = again
      self.host.daemon(place.leave, place, again)
    end
  end
end

local function on_ready(self, is_new)
  if is_new then
    self.doomed = {}
    forget_all(self, "its session has ended")
  else
    clean(self, huge)
    for entry in pairs(self.entries) do
      if entry.is_held then watch(self, entry) end
    end
  end
  self.bound = self.connection.validity.ends
  self.channels:wake_all()
end

local function on_dropped(self, why)
  drop_watches(self)
  if self.hooks.is_needed() then
    self.host.service(self.hooks.on_replaced, why, always)
  end
end

--- Watches the nodes of holds that have lasted SHORT.
---@return number # when the next one is due
local function watch_fresh(self, now)
  local fresh, link = self.fresh, self.connection
  local entry = fresh[fresh.first]
  while entry and entry.watch_at <= now do
    if entry.is_held and link.is_ready and entry.place.epoch == link.epoch then
      watch(self, entry)
    end
    fresh[fresh.first] = nil
    fresh.first = fresh.first + 1
    entry = fresh[fresh.first]
  end
  return entry and entry.watch_at or huge
end

-- Does what is due. Returns when to call this again.
local function on_tick(self, now)
  self.bound = self.connection.validity.ends
  if self.bound <= now then
    -- The session may have ended: its holds count as lost. If it is resumed
    -- after all, their nodes are deleted.
    lose_all(self, UNCONFIRMED, function(entry) self:leave_later(entry) end)
  end
  if self.connection.is_ready then clean(self, now) end
  local first = self.leases:peek()
  while first and first.deadline <= now do
    self:leave_later(first)
    first = self.leases:peek()
  end
  return min(watch_fresh(self, now), first and first.deadline or huge,
    first and self.bound > now and self.bound or huge)
end

-- the server ------------------------------------------------------------------

--- Opens a back end. Connects on first use.
---@param host table
---@param options table from `complete`, with `connection_name`
---@param hooks table is_needed(), on_replaced(why, is_there), see the contract;
---  on_lost(why, is_it): each grant with is_it(grant) is lost
function backend.open(host, options, hooks)
  local self = setmetatable({
    host = host, options = options, hooks = hooks,
    where = url.show(options), channels = channels.new(),
    access = options.acl and codec.CREATOR,     -- of new nodes; nil: anyone
    targets = setmetatable({}, { __mode = "v" }),
    entries = {},             -- the set of all entries, see target.lua
    doomed = {},              -- place that is to be deleted -> when to retry
    leases = heap.new(),      -- entries that are held, by the end of the lease
    fresh = { first = 1, last = 0 },  -- entries to be watched, in order
    -- The nodes below the path of a semaphore or mutex, which is no queue.
    foreign = { locks = "locks", leases = "leases" },
    bound = 0,                -- until when the session is certainly alive
  }, backend)
  self.connection = connection.new(host, options, {
    on_ready = function(is_new) on_ready(self, is_new) end,
    on_dropped = function(why) on_dropped(self, why) end,
    on_ended = function(why) forget_all(self, why) end,
    on_tick = function(now) return on_tick(self, now) end,
    is_needed = function() return next(self.entries) ~= nil end,
  })
  return self
end

--- Connects, to report a wrong address or login.
---@param seconds number
---@return true?, rlock.failure? code
---@return string? detail # for "cancelled", the value to raise
function backend:connect(seconds)
  return self.connection:connect(self.host.now()
    + seconds * #self.options.hosts + LATE)
end

--- May a retry after this failure of a request succeed?
function backend.is_retried(_, code)
  return code ~= "zookeeper" and code ~= "refused" and code ~= "usage"
end

--- Until when a lease that was requested at `sent` lasts. A hold is valid until
--- then, but no longer than the session: see `bound`.
function backend.valid_until(sent, seconds) return sent + seconds end

--- Sends a sync, whose reply proves that the session is alive.
---@param deadline number by host.now()
---@return any # true, nil, nil, when it was sent
---@return rlock.failure? code, string? detail
---@return any ...
function backend:sync(deadline)
  local link = self.connection
  while true do
    local ok, code, detail = link:reach(deadline)
    if not ok then return nil, code, detail end
    local call = link:sync()
    local err
    err, code, detail = nodes.answer(call, deadline, "sync")
    if err == nil then return nil, code, detail end
    if err == 0 then
      self.bound = link.validity.ends
      if self.bound > self.host.now() then return true, nil, nil, call.sent end
      link:leave(UNCONFIRMED)
    end
  end
end

-- The deadline for ending the session.
local function end_of(self)
  return self.host.now() + min(1, self.options.timeout)
end

--- Ends the session until the next request, because keeping it alive is
--- background work.
function backend:rest() self.connection:rest(end_of(self)) end

--- Lets only the timeout end the session, even after `close`.
function backend:outlive() self.connection:outlive() end

--- Ends the session, which frees all its nodes.
function backend:close() self.connection:close(end_of(self)) end

--- There are no commands to send.
function backend.call()
  return nil, "usage",
    "client:call sends commands of Redis, and this is ZooKeeper"
end

--- Is one server slower than another? There is one session.
function backend.has_routes() return false end

--- Makes a table a batch, see batch.lua.
function backend:batch(fields)
  fields.server = self
  return batch.new(fields)
end

-- paths and values ------------------------------------------------------------

--- The path below the chroot; or nil and why it cannot be one.
function backend:path_of(name)
  local path = name:sub(1, 1) == "/" and name or "/" .. name
  local fault = path == "/" and "it is the root" or url.fault(path)
  if fault then
    return nil, ("%s: on ZooKeeper it is a path, and %s"):format(
      naming.show(name), fault)
  end
  return self.options.chroot .. path
end

-- Returns the path and connects; or nil, code, detail.
local function reach(self, path, deadline)
  local full, fault = self:path_of(path)
  if not full then return nil, "usage", "bad path " .. fault end
  local ok, code, detail = self.connection:reach(deadline)
  if not ok then return nil, code, detail end
  return full
end

--- Reads a node.
---@param deadline number by host.now()
---@param path string below the chroot
---@return string | true | nil # its value
---@return any # its version
---@return string? detail
function backend:get(deadline, path)
  local full, code, detail = reach(self, path, deadline)
  if not full then return nil, code, detail end
  local value, version, why = nodes.get(self, deadline, full)
  if value then return value, version end
  if value == nil then return nil, version, why end
  return nil, "zookeeper", errors.says(errors.NO_NODE, full)
end

--- Sets the value of a node, once.
---@param deadline number by host.now()
---@param path string below the chroot
---@param value string
---@param version? integer that it must have; default: any
---@param grant? table set it only while the node of this grant exists
---@return integer? # its new version
---@return rlock.failure? code
---@return string? detail # "timeout": it may have been set
function backend:set(deadline, path, value, version, grant)
  local entry = grant and grant.lock.record.target:held_by(grant.owner_name)
  if grant and not entry then
    return nil, "lost", grant.lost_because or "its node is gone"
  end
  local full, code, detail = reach(self, path, deadline)
  if not full then return nil, code, detail end
  if entry and not entry.is_held then     -- perhaps another's grant by now
    return nil, "lost", "its hold has ended in the meantime"
  end
  local made
  made, code, detail = nodes.set(self, deadline, full, value, version,
    entry and entry.place:path())
  if code == "lost" then broken(self, entry) end
  return made, code == "closed" and "timeout" or code, detail
end

-- locks -----------------------------------------------------------------------

--- Binds a kind and a name.
---@param policy table from `load`
---@param name string the path below the chroot
---@param options? table
---@return table # target
function backend:bind(policy, name, options)
  local path, fault = self:path_of(name)
  if not path then error("bad name " .. fault, 0) end
  local class = policy.class and require("rlock.zookeeper." .. policy.class)
  local bound = target.new(self, policy, path, class)
  bound:check(name, options)
  self.targets[policy.name .. path] = bound
  return bound
end

--- The target of a kind and a path, if there is one.
function backend:target_of(policy, path)
  return self.targets[policy.name .. path]
end

--- The data of an owner's node. It begins with our address, as Curator's.
function backend:data(owner)
  local name = self.options.connection_name
  if not name then return self.connection.address end
  return ("%s %s %s"):format(self.connection.address,
    (owner:gsub("[%s%c]", "_")), name)
end

--- Watches the node of a hold, unless the hold ends soon.
---@param entry table
function backend:attend(entry)
  local fresh = self.fresh
  entry.watch_at = self.host.now() + SHORT
  fresh.last = fresh.last + 1
  fresh[fresh.last] = entry
  self.connection:wake(entry.watch_at)
end

--- Asks whether the node of a hold exists; if not, the hold is lost. The sync
--- lets a server that lags behind catch up first.
---@param entry table
---@param deadline number by host.now()
---@return any # whether it is there
---@return any code, string? detail
function backend:is_there(entry, deadline)
  local path = entry.place:path()
  self.connection:sync()
  local err, its, detail = nodes.ask(self, deadline, codec.ops.exists, path,
    codec.read(path))
  if not err then return nil, its, detail end
  if err ~= 0 then broken(self, entry) end
  return err == 0
end

--- Deletes a node in the background.
---@param place table
function backend:leave_place(place)
  if place:abandon() then return end
  self.host.daemon(place.leave, place, self.host.now() + self.options.timeout)
end

--- Drops an entry, and deletes its node in the background.
---@param entry table
function backend:leave_later(entry)
  entry.target:forget(entry)
  self:leave_place(entry.place)
  if entry.gate then self:leave_place(entry.gate) end
end

return backend
