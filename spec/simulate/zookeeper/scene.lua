--- A world whose servers are ZooKeeper's: clients reach them by frames. Checks
--- from outside of the clients what their nodes must be.

local codec = require "rlock.zookeeper.codec"
local ensembles = require "rlockctl.simulate.zookeeper.ensemble"
local oracle = require "spec.simulate.oracle"
local place = require "rlock.zookeeper.place"

local scene = {}
scene.__index = scene

local TICKS = { 0.2, 0.5, 1 }           -- seconds
local LIMITS = { 2, 5 }                 -- ticks, the servers' syncLimit
local COUNTS = { 1, 3, 3, 3, 5 }        -- servers
local EVERY = 0.1                       -- seconds between two looks
local POLL = 6                          -- seconds of a poll and a round trip

local ops = codec.ops

local function one_of(list, random)
  return list[math.floor(random() * #list) + 1]
end

--- Makes the servers of a world. It stands for all of them where one is asked
--- for: `name`, `granted`.
function scene.new(world, random)
  local self = setmetatable({
    world = world, name = "zookeeper", granted = {}, seen = 0,
    chroot = random() < 0.5 and "/app" or "",
    owners = {},                        -- ephemeral node -> session
    broken = {},                        -- node -> when somebody else deleted it
    hosts = {},                         -- session -> process
  }, scene)
  self.ensemble = ensembles.new(world.network, {
    count = world.only.servers or one_of(COUNTS, random),
    tick = world.only.tick or one_of(TICKS, random),
    limit = one_of(LIMITS, random) })
  for i, server in ipairs(self.ensemble) do
    world.servers[i], world.network.servers[i] = server, server
  end
  for _, name in ipairs { "apply", "request", "session" } do
    self.ensemble["on_" .. name] = function(...) self[name](self, ...) end
  end
  return self
end

--- The address of all servers.
function scene:url() return self.ensemble:url(self.chroot) end

function scene:connect(host) self.ensemble:connect(host) end

-- what clients know -----------------------------------------------------------

-- The back end of a process.
local function backend_of(process)
  local open = process.open[1]
  return open and open.session.server
end

--- The node of a grant, and its session.
function scene:given(thing, lock, granted)
  local target = lock.record.target
  local entry = granted and target.entries[granted.owner_name]
  local token = granted and math.tointeger(granted.token)
  if token and not thing.tokens[token] then
    thing.tokens[token] = { owner = granted.owner_name,
      at = self.world.universe.now }
  end
  if entry and entry.place.node then
    return entry.place:path(), target.server.connection.session.id
  end
end

--- May a client not have heard yet that somebody else deleted its node? Until
--- then it grants its owner further holds.
function scene:may_be_unaware(node)
  local at = self.broken[node]
  return at ~= nil and self.world.universe.now < at + self.world.lease
end

-- How many entries of clients that run satisfy is_it(entry).
local function count(self, is_it)
  local n = 0
  for _, process in ipairs(self.world.processes) do
    local backend = not process.host.is_dead and backend_of(process)
    for entry in next, backend and backend.entries or {} do
      if is_it(entry) then n = n + 1 end
    end
  end
  return n
end

--- Does a client count this owner as the writer of a read/write lock?
function scene:is_writer(path, owner)
  return count(self, function(entry)
    return entry.owner == owner and entry.target.path == path
      and entry.place.mark == "__WRIT__" and entry.is_held
  end) > 0
end

--- Counts how often a client has lost what it held.
---@param semaphore table one of its
function scene:losses(semaphore)
  local backend = semaphore.session.server
  if not backend.losses then
    local on_lost = backend.hooks.on_lost
    backend.losses = 0
    function backend.hooks.on_lost(...)
      backend.losses = backend.losses + 1
      on_lost(...)
    end
  end
  return backend.losses
end

--- How long the permits of a task are certain.
---@param holder table losses: of its client, before
function scene:permits_are_valid_for(holder, semaphore)
  local backend = semaphore.session.server
  if holder.losses ~= self:losses(semaphore)
      or backend.connection.is_closed then
    return 0
  end
  return backend.bound - backend.host.now()
end

-- what servers do -------------------------------------------------------------

local OPS = {}
for name, op in next, ops do OPS[op] = name end

local function show(body)
  return ((body or ""):gsub("[^%w/_.-]+", " "):gsub("world anyone", ""))
end

--- A server answers a request.
function scene:request(server, item)
  if self.world.log and item.link and item.op ~= ops.sync then
    self.world:report("%s %s %s%s %s = %d %s", server.name, item.link.address,
      item.link.is_closed and "(closed) " or "", OPS[item.op] or "?",
      show(item.body), item.err, show(item.reply))
  end
end

--- A server gives or resumes a session, or refuses it.
function scene:session(server, link, session, timeout)
  self.hosts[session] = link.host
  if self.world.log then
    self.world:report("%s %s session %d: %d ms", server.name, link.address,
      codec.number(session), timeout)
  end
end

-- The thing of a node, by the path above it.
local function thing_of(self, path)
  local above = path:match "^(.*)/"
  return self.world.by_key[above] or self.world.by_key[above:match "^(.*)/"]
end

-- Somebody else has deleted a node.
local function broken(self, path)
  local thing, lost = thing_of(self, path), {}
  self.broken[path] = self.world.universe.now
  for _, holder in ipairs(thing and thing.holders or {}) do
    if holder.node == path then lost[#lost + 1] = holder end
  end
  if lost[1] then
    self.world.oracle:lost({ holders = lost }, self.world.lease)
    thing.moved_at = self.world.universe.now
  elseif thing then
    oracle.doubt(thing, self.world.universe.now)      -- a grant is under way
  end
end

-- Nobody may count on a session that has ended.
local function check_ended(self, session)
  for _, thing in ipairs(self.world.things) do
    for _, holder in ipairs(thing.holders) do
      if holder.session == session and not holder.is_forgiven
          and not holder.host.is_dead and holder.valid_for() > 0 then
        holder.is_forgiven = true
        self.world.oracle:fault("believed", "%s counts on %s for %.3f s, and "
          .. "its session has ended", holder.label, thing.name,
          holder.valid_for())
      end
    end
  end
end

-- The end of a node wakes one waiter. One whose own node was deleted does not
-- know that yet.
local function check_herd(self, server, path)
  if place.parse(path) ~= "lock-" then return end
  local function is_woken(at)
    return at and at.watching == path and at.node
      and server.tree.nodes[at:path()]
  end
  local woken = count(self, function(entry)
    return not entry.is_held and (is_woken(entry.place) or is_woken(entry.gate))
  end)
  if woken > 1 then
    self.world.oracle:fault("herd", "the end of %s wakes %d", path, woken)
  end
end

-- A node has ended, with a session or by a request of it. A client that deletes
-- its own node does not count on it any more, unless it breaks its own lock.
-- Then an entry still has this node, and may yet be granted.
local function ended(self, server, path, session, is_deleted)
  if not self.owners[path] then return end
  check_herd(self, server, path)
  if self.owners[path] ~= session or is_deleted
      and count(self, function(entry)
        return entry.place.node and entry.place:path() == path
      end) > 0 then
    broken(self, path)
  end
  self.owners[path] = nil
end

--- A server applies a transaction. The first one that does so counts.
function scene:apply(server, txn, err, reply)
  if txn.zxid <= self.seen or err ~= 0 then return end
  self.seen = txn.zxid
  local path = codec.reader(txn.op == ops.delete and txn.body or reply):text()
  if txn.op == ops.delete then
    ended(self, server, path, txn.session, true)
  elseif txn.op == ops.create2
      and server.tree.nodes[path].owner == txn.session then
    self.owners[path] = txn.session
  elseif txn.op == ops.close then
    if self.world.log then
      self.world:report("%s session %d %s", server.name,
        codec.number(txn.session), txn.is_expired and "expired" or "closed")
    end
    if txn.is_expired then check_ended(self, txn.session) end
    for node, session in pairs(self.owners) do
      if session == txn.session then ended(self, server, node, session) end
    end
  end
end

-- looking ---------------------------------------------------------------------

-- Counts a holder on a node that is not there?
local function check_holders(self, thing, nodes)
  for _, holder in ipairs(thing.holders) do
    if holder.node and not nodes[holder.node] and not holder.is_forgiven
        and not holder.host.is_dead and holder.valid_for() > 0 then
      holder.is_forgiven = true
      self.world.oracle:fault("believed", "%s counts on %s for %.3f s, and %s "
        .. "is gone", holder.label, thing.name, holder.valid_for(),
        holder.node)
    end
  end
end

-- Nobody waits for longer than a session of the dead, and a poll, while nobody
-- gets the thing or gives it back.
local function check_waiters(self, thing)
  local world = self.world
  local now, most = world.universe.now, world.lease + POLL
    + 2 * self.ensemble.tick
  if not world.mended_at or thing.holders[1] then return end
  for _, user in pairs(thing.users) do
    local since = math.max(user.waits or now, thing.moved_at or 0,
      world.mended_at, user.host.stalls_until)
    if now - since > most and not user.host.is_dead
        and not user.process.is_closed then
      user.waits = nil
      world.oracle:fault("delayed", "%s waits for %s, which nobody holds, for "
        .. "%.3f s", user.label, thing.name, now - since)
    end
  end
end

local function look(self)
  local nodes = self.ensemble:newest().tree.nodes
  for _, thing in ipairs(self.world.things) do
    check_holders(self, thing, nodes)
    if thing.use == "lock" or thing.use == "compute" then
      check_waiters(self, thing)
    end
  end
end

--- Begins to look, until the world's `is_over`.
function scene:start()
  local universe = self.world.universe
  universe:at(universe.now + EVERY, { fire = function(item)
    if self.world.is_over then return end
    look(self)
    universe:at(universe.now + EVERY, item)
  end })
end

-- the end ---------------------------------------------------------------------

--- From now on nothing is broken.
function scene:mend()
  for _, server in ipairs(self.ensemble) do self.ensemble.cuts[server] = {} end
end

--- When no task holds or waits: no process that runs has a node. Permits may be
--- left by cancelled tasks, and by those whose client has lost a hold.
function scene:check_released()
  local nodes = self.ensemble:newest().tree
  for _, path in ipairs(nodes:ephemerals()) do
    local host, thing = self.hosts[nodes.nodes[path].owner],
      thing_of(self, path)
    local lost = place.parse(path) == "lease-" and thing and thing.missing or 0
    if lost > 0 then
      thing.missing = lost - 1
    elseif not host.is_dead and not host.process.is_closed then
      self.world.oracle:fault("left", "%s of %s, which does not hold or wait",
        path, host.label)
    end
  end
  for _, process in ipairs(self.world.processes) do
    local backend = backend_of(process)
    local is_up = not process.host.is_dead and not process.is_closed
    if backend and is_up and next(backend.doomed) then
      self.world.oracle:fault("leaked", "%s has doomed", process.host.label)
    end
    for entry in next, backend and is_up and backend.entries or {} do
      if entry.place.mark ~= "lease-" or entry.target.policy.most then
        self.world.oracle:fault("leaked", "%s has an entry of %s",
          process.host.label, entry.target.path)
      end
    end
  end
end

--- Checks the nodes once all clients are closed. These may be left: values, the
--- numbers of permits, latches and the logs of double barriers, with their
--- parents; `ready`, if the last member has died; and unused containers.
function scene:check_nodes()
  local nodes = self.ensemble:newest().tree.nodes
  for path, node in pairs(nodes) do
    local is_lasting = path == "/" or path == self.chroot
      or node.creates == 0 and not self.owners[path]
      or nodes[path .. "/limit"] or nodes[path .. "/latch"]
      or path:find "/double_barrier%d+:%d+$"
      or path:find "/compute/value$" or nodes[path .. "/value"]
      or nodes[path .. "/compute/value"]
    if not is_lasting then
      self.world.oracle:fault("left", "%s", path)
    end
  end
end

return scene
