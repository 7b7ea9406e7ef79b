--- The state shared by all locks of a client: node, owners, watchdog, waiters.
--  client.lua is its public object, which can be garbage collected while
--  background tasks still refer to the session.

local duration = require "rlock.util.duration"
local events = require "rlock.util.events"
local heartbeats = require "rlock.lock.heartbeats"
local identity = require "rlock.util.identity"
local metrics = require "rlock.util.metrics"
local naming = require "rlock.naming"
local node = require "rlock.redis.node"
local remote = require "rlock.redis.remote"
local wakeup = require "rlock.lock.wakeup"
local watchdog = require "rlock.lock.watchdog"

local session = {}
session.__index = session

local BATCH = 256           -- releases sent at once when closing

-- A random UUID (RFC 9562, version 4).
local function uuid(host)
  local bytes = { host.random(16):byte(1, 16) }
  bytes[7] = bytes[7] % 16 + 64
  bytes[9] = bytes[9] % 64 + 128
  local hex = {}
  for i, byte in ipairs(bytes) do hex[i] = ("%02x"):format(byte) end
  local text = table.concat(hex)
  return text:sub(1, 8) .. "-" .. text:sub(9, 12) .. "-" .. text:sub(13, 16)
    .. "-" .. text:sub(17, 20) .. "-" .. text:sub(21)
end

-- The name of the client's connections; nil: its own name only.
local function connection_name(host, id, options)
  if options.identity == false or not host.process_identity then return nil end
  local who = host.process_identity()
  who.id, who.name = id, options.name
  return identity.encode(who)
end

-- Reconnects at once while something is held: after a failover, the new server
-- may lack it. In a cluster, another node may have its slot.
local function come_back(self, its_node)
  while not its_node.connection and not its_node.is_closed
      and self.node:uses(its_node) and self.watchdog:is_needed() do
    self.node:suspect(its_node)
    its_node:connect(self.host.now() + self.options.connect_timeout)
  end
end

-- Sets the hooks of a node.
local function attend(self, its_node)
  function its_node.on_lost()
    if its_node.is_closed or not self.watchdog:is_needed() then return end
    its_node.singleflight:start("come back", come_back, self, its_node)
  end
  function its_node.on_left(why) self.wakeup:reconnect(its_node, why) end
  function its_node.on_replaced(why)
    self.wakeup:follow(its_node, why)
    self.watchdog:suspect(why, function(grant)
      return self:node_of(grant.lock.site.keys) == its_node
    end)
  end
end

-- Sets the hook for slots of a cluster that move to other nodes.
local function follow_slots(self)
  function self.node.on_moved(old)
    self.wakeup:rehome()
    self.watchdog:suspect("its slot has moved to another node", function(grant)
      return old[grant.lock.site.keys.slot] ~= nil
    end)
  end
end

-- The class of the client's server. A cluster is loaded on first use.
local function server_of(options)
  return options.seeds and require "rlock.redis.cluster" or node
end

--- @tparam table host
-- @tparam table options  complete: what node.new wants, watchdog (seconds),
--   timeout (seconds), publish; gets its `connection_name`
function session.new(host, options)
  local id = uuid(host)
  options.connection_name = connection_name(host, id, options)
  local self = setmetatable({
    host = host, options = options, id = id,
    lease = options.watchdog, timeout = options.timeout,
    lease_ms = ("%d"):format(duration.ms(options.watchdog)),
    publish = options.publish,
    node = server_of(options).new(host, options),
    -- policy -> kind, see kind_of(); weak, because kinds refer to the client
    kinds = setmetatable({}, { __mode = "v" }),
    meter = metrics.new(options.name, options.metrics),
    -- whether events of level info are reported
    is_heard = options.log ~= nil or host.verbosity == 2,
    last_number = 0,
    families = {},                  -- name of a kind of lock -> a key of owners
    -- explicit name -> owner
    owners = setmetatable({}, { __mode = "v" }),
    spares = {},                                -- grants for reuse
    pending = 0,                                -- requests and background work
  }, session)
  self.wakeup = wakeup.new(self.node, options.publish)
  self.heartbeats = heartbeats.new(self)
  self.watchdog = watchdog.new(self)
  self.node:each(function(its_node) attend(self, its_node) end)
  follow_slots(self)
  return self
end

--- The time until which a lease requested at `sent` is certainly ours. The
--  allowance for clock drift is a thousandth of the lease (or `drift`) plus
--  2 ms; for a lease below 20 ms, instead of 2 ms, a tenth of it but at least
--  1 ms: a policy that compares whole milliseconds may end it that much early.
-- @tparam number sent    by host.now()
-- @tparam number seconds
-- @tparam[opt=0.001] number drift
function session.valid_until(sent, seconds, drift)
  local margin = 0.002
  if seconds < 0.02 then margin = math.max(seconds / 10, 0.001) end
  return sent + seconds * (1 - (drift or 0.001)) - margin
end

--- The node that has these keys now.
-- @tparam table keys
function session:node_of(keys)
  return self.node:of(keys) or self.node:any()
end

--- What pipelines a grant's requests: its node, or a lane of it.
-- @tparam table grant
-- @return something with node:pipeline
-- @treturn table the node
function session:route_of(grant)
  local keys = grant.lock.site.keys
  local its = self:node_of(keys)
  if not keys.replicas then return its, its end
  return remote.lane(its, keys, grant.owner_name), its
end

-- locks -------------------------------------------------------------------

-- The metatable of a policy's sites: their common fields client, policy,
-- family and series.
local function kind_of(self, client, policy)
  local kind = self.kinds[policy]
  if not kind then
    kind = {
      client = client, policy = policy, family = self:family(policy),
      series = self.meter:series(policy.name),
      sites = setmetatable({}, { __mode = "v" }),
    }
    kind.__index = kind
    self.kinds[policy] = kind
  end
  return kind
end

-- Raises an error if a lock of this name has other `replicas`.
local function check_replicas(site, wanted)
  local its = site.keys.replicas
  if its == wanted or its and wanted and its.count == wanted.count
      and its.ms == wanted.ms then
    return
  end
  error(("bad replicas of %s: this client has a lock of that name with other "
    .. "ones"):format(naming.show(site.name)), 0)
end

-- How many replicas must confirm, for replicas.lane; nil: none.
local function wanted_by(self, options)
  local count = options.replicas or self.options.replicas
  if not count then return nil end
  local seconds = options.replica_timeout or self.options.replica_timeout
    or math.min(1, self.lease / 3)
  -- A connection that is silent for `timeout` counts as lost.
  return {
    count = count, ms = duration.ms(math.min(seconds, self.timeout / 2)),
  }
end

--- The site shared by all handles of one lock: policy, name, keys, and `grants`
--  (owner -> grant). Grants come and go, so they have a table of their own:
--  LuaJIT compiles a field access anew for each new layout of its table.
-- @tparam table client the public object; its locks keep it alive
-- @tparam table policy
-- @tparam string name
-- @tparam[opt] table options replicas, replica_timeout; default: the client's
function session:site(client, policy, name, options)
  local kind, wanted = kind_of(self, client, policy), nil
  local site = kind.sites[name]
  if self.options.replicas or options then
    wanted = wanted_by(self, options or {})
  end
  if site then check_replicas(site, wanted) end
  if not site then
    local keys = policy.keys(name)
    keys.replicas = wanted
    self.node:check_keys(name, keys, policy.keys)
    site = setmetatable({ name = name, keys = keys, grants = {},
      series = self.meter:series(policy.name, name) or kind.series }, kind)
    kind.sites[name] = site
  end
  return site
end

--- The site, if it exists.
function session:known_site(policy, name)
  local kind = self.kinds[policy]
  return kind and kind.sites[name]
end

--- The family of a policy: the key of a task's name in Redis for it, see
--  owner.lua. The sides of a read/write lock are of one family:
--  "readwrite.read" and ".write".
function session:family(policy)
  local name = policy.name:match("^[^.]*")
  self.families[name] = self.families[name] or {}
  return self.families[name]
end

-- work in the background --------------------------------------------------

--- Runs fn as a background task that `close` waits for, up to `timeout`. It
--  runs once, even if it raises an error. If the host refuses the task, it
--  runs later: the caller may have a turn that fn ends, and waits for nothing.
function session:background(fn)
  local has_begun
  self.pending = self.pending + 1
  self.host.service(function()
    if has_begun then return end
    has_begun = true
    self.host.guard(self.work_done, self, fn)
    self:work_done()
  end)
end

--- Decrements `pending`: a background task or a lock's request has ended.
function session:work_done()
  self.pending = self.pending - 1
  if self.settled and self.pending == 0 then self.settled:set() end
end

--- Reports an event of this client, see events.lua.
function session:tell(level, event, message, fields)
  events.tell(self.host, self.options, level, event, message, fields)
end

--- Reports an event of a lock or permit.
-- @tparam table lock with `site` and `show`
-- @tparam[opt] table fields modified
function session:tell_of(lock, level, event, message, fields)
  fields = fields or {}
  fields.kind, fields.lock = lock.site.policy.name, lock.site.name
  self:tell(level, event, message, fields)
end

-- closing -----------------------------------------------------------------

-- Prepares the node to release a batch, which may wait. Removes grants that are
-- released in the meantime from the batch.
-- @return as remote.ready
local function prepare(self, batch, deadline)
  local word = ""
  for i = #batch, 1, -1 do
    if self.watchdog:has(batch[i]) then
      local code, detail
      word, code, detail = remote.ready(batch.node,
        batch[i].lock.site.policy.ops.release, deadline)
      if not word then return nil, code, detail end
    end
  end
  for i = #batch, 1, -1 do
    if not self.watchdog:has(batch[i]) then table.remove(batch, i) end
  end
  return word
end

-- Sends the releases of a batch.
-- @return as node:pipeline
local function send_batch(self, batch, deadline)
  local word, code, detail = prepare(self, batch, deadline)
  if not word then return nil, code, detail end
  local commands = {}
  for i, grant in ipairs(batch) do
    local site = grant.lock.site
    commands[i] = remote.command(batch.node, site.policy.ops.release, word,
      site.keys, grant.owner_name, "1", "0", self.publish)
  end
  if not commands[1] then return {}, {}, {} end
  return batch.route:pipeline(deadline, commands, true)
end

-- The grants whose request used an outdated script or clock, which is fetched
-- again: see `forget` in errors.lua.
local function outdated(batch, codes, details)
  local again = { node = batch.node, route = batch.route }
  for i, grant in ipairs(batch) do
    local site, class = grant.lock.site, nil
    local op = site.policy.ops.release
    if codes[i] then
      class = remote.classify(batch.node, op, codes[i], details[i], site.name)
    end
    if remote.forget(batch.node, op, class) then again[#again + 1] = grant end
  end
  return again
end

local function release_batch(self, batch, deadline, is_second)
  local replies, codes, details = send_batch(self, batch, deadline)
  if replies and not is_second then
    batch = outdated(batch, codes, details)
    if batch[1] then release_batch(self, batch, deadline, true) end
  elseif not replies then
    local why = tostring(details or codes)
    self:tell("warn", "not_released", ("%d locks could not be released; their "
      .. "leases end them (%s)"):format(#batch, why),
      { count = #batch, reason = why })
  end
end

-- Releases the grants of one node.
local function release_on(self, list, deadline)
  for first = 1, #list, BATCH do
    local batch = { node = list.node, route = list.route }
    for i = first, math.min(first + BATCH - 1, #list) do
      batch[#batch + 1] = list[i]
    end
    release_batch(self, batch, deadline)
  end
end

-- Releases the grants of all nodes concurrently.
local function release_by_node(self, lists, deadline)
  local all, left = self.host.event(), #lists
  local function run(list)
    release_on(self, list, deadline)
    left = left - 1
    if left == 0 then all:set() end
  end
  for i = 2, #lists do
    if not self.host.daemon(run, lists[i]) then run(lists[i]) end
  end
  if lists[1] then run(lists[1]) end
  if left > 0 then all:pause(deadline - self.host.now()) end
end

-- A list of grants for each node, or lane.
local function by_node(self, grants)
  local lists, of = {}, {}
  for _, grant in ipairs(grants) do
    local route, its = self:route_of(grant)
    local list = of[route] or { node = its, route = route }
    if not of[route] then lists[#lists + 1] = list end
    of[route], list[#list + 1] = list, grant
  end
  return lists
end

-- Releases everything that is still held, best effort. No task counts it as
-- held from now on: another client may get it before the reply arrives here.
local function release_all(self, deadline, why)
  local batch = self.watchdog:all()
  for _, grant in ipairs(batch) do
    grant.valid_until, grant.batch = 0, nil  -- ignores a renewal in flight
  end
  release_by_node(self, by_node(self, batch), deadline)
  for _, grant in ipairs(batch) do
    if self.watchdog:has(grant) then grant:end_it(why) end
  end
end

--- Called when no task is left and the program is about to end: releases what
--  is held and lets background work finish. The session stays usable.
function session:wind_down()
  if self.is_closed then return end
  self.wakeup:wind_down()
  self.node:rest()
  release_all(self, self.host.now() + self.timeout, "the program ends")
  self.watchdog:retire()
end

--- Releases what is held, waits for requests in flight, closes the connections.
--  Takes at most `timeout`.
function session:close()
  if self.is_closed then return end
  self.is_closed = true
  local owner = self.host.current().owner
  for _, family in pairs(owner and self.families or {}) do
    owner:renumber(family)
  end
  local deadline = self.host.now() + self.timeout
  self.wakeup:close()
  self.watchdog:close()
  release_all(self, deadline, "the client was closed")
  self.host.sleep(0)                    -- lets the woken waiters leave
  self.settled = self.host.event()
  while self.pending > 0 and self.host.now() < deadline do
    self.settled:wait(deadline - self.host.now())
  end
  self.node:close()
  self.meter:close()
end

return session
