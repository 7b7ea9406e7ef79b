--- One simulated run: servers, processes with tasks, and faults, all from one
--- seed. First there are faults. Then nothing is broken any more, and every
--- task must get every lock. Then all clients are closed, and nothing may be
--- left.

local batched = require "rlockctl.simulate.batched"
local client = require "rlock.client"
local clusters = require "rlockctl.simulate.cluster"
local crowd = require "spec.simulate.crowd"
local faults = require "spec.simulate.faults"
local network = require "rlockctl.simulate.network"
local oracle = require "spec.simulate.oracle"
local order = require "rlockctl.simulate.order"
local permits = require "spec.simulate.permits"
local sim = require "rlockctl.model.host"
local sentinels = require "rlockctl.simulate.sentinels"
local slot = require "rlock.redis.slot"
local uses = require "spec.simulate.uses"
local watch = require "spec.simulate.watch"
local zookeeper = require "spec.simulate.zookeeper.scene"

local world = {}
world.__index = world

local SECONDS = 30        -- of faults
local EVERY = 0.25        -- seconds between them, on average
local ERRORS = 5          -- of servers in a run, about
local BOUND = 15          -- seconds within which a lock must be had, at the end
local LEAST = 60          -- seconds within which all tasks must end
local REST = 12           -- seconds after which nothing of a lock is left
local LEASE = 2
local SETTLED = LEASE + 1 -- seconds for what goes on in the background, and for
                          -- holds of tasks that were cancelled
local TASKS = 3           -- of a process
local COMPUTES = 0.2      -- of the runs
local IN_CLUSTER = 0.5    -- of those in a cluster
local KEEPERS = 2         -- processes with a task that keeps locks
local KEPT = 4            -- such locks
local PAUSE = 0.01        -- seconds between two uses, at most
local GARBAGE = 0.25      -- seconds between collections of young garbage
local ALL = 48            -- of so many, one collects all garbage

local KINDS = { "lock", "mutex", "simple_lock", "spin_lock", "fair_lock",
  "fenced_lock", "read_write_lock", "fair_read_write_lock" }
local COUNTERS = { "semaphore", "permits", "latch" }
local ON_ZOOKEEPER = { "lock", "mutex", "fair_lock", "fenced_lock",
  "read_write_lock", "fair_read_write_lock" }
local POLICIES = { "reentrant", "mutex", "spin", "simple" }
local SERVERS = { 1, 1, 1, 2, 3, 3, 4, 5 }

-- the cast --------------------------------------------------------------------

local function one_of(list, random)
  return list[math.floor(random() * #list) + 1]
end

-- The servers of a thing with one. In a cluster, all its names share a slot.
local function place(self, thing, random)
  if self.zookeeper then return { self.zookeeper } end
  if not self.cluster then return { one_of(self.servers, random) } end
  if thing.use ~= "latch" then
    thing.name = ("{%s}"):format(thing.tag or thing.name)
      .. (thing.tag and thing.name or "")
  end
  return self.cluster:servers_of(thing)
end

local function new_thing(thing)
  thing.holders, thing.users, thing.generations = {}, {}, {}
  thing.takers, thing.parts_on, thing.tokens = {}, {}, {}
  thing.generation = 0
  return thing
end

local function add_thing(self, thing, random)
  thing.name = ("%s%d"):format(thing.kind, #self.things + 1)
  thing.servers = thing.servers or place(self, thing, random)
  self.things[#self.things + 1] = new_thing(thing)
  return thing
end

local function add_locks(self, random, count)
  local locks = {}
  for i = 1, count do
    local kind = self.only.kind
      or one_of(self.zookeeper and ON_ZOOKEEPER or KINDS, random)
    locks[i] = add_thing(self, { use = "lock", kind = kind }, random)
  end
  return locks
end

-- Locks that one task of a process keeps.
local function add_kept(self)
  local random = sim.stream(self.seed, "kept")
  for i = 1, KEEPERS do
    local kept, servers = {}, nil
    for j = 1, KEPT do
      kept[j] = add_thing(self, { use = "lock", kind = "lock",
        tag = "kept" .. i, servers = servers }, random)
      if not self.cluster then servers = kept[1].servers end
    end
    self.kept[i] = kept
  end
end

local function add_counter(self, random)
  local kind = self.only.counter or self.zookeeper and "semaphore"
    or one_of(COUNTERS, random)
  add_thing(self, { use = kind, kind = kind, most = kind ~= "latch"
    and 1 + math.floor(random() * 3) or nil }, random)
end

-- A part of the runs has a computation, in a cluster a larger part, and the
-- others a double barrier. Nothing else of the same seed changes.
local function add_recipes(self)
  local only, random = self.only, sim.stream(self.seed, "compute")
  local is_any = not (only.kind or only.crowd or only.counter)
  local part = self.cluster and IN_CLUSTER or COMPUTES
  if only.compute or is_any and random() < part then
    add_thing(self, { use = "compute", kind = "compute", ttl = 0.1 + random(),
      stale = random() < 0.3 and random() or nil }, random)
  elseif is_any and self.cluster then
    add_thing(self, { use = "double_barrier", kind = "double_barrier",
      most = 1 + math.floor(random() * 3) }, random)
  end
end

-- `knowing`: the sessions that have identified a server; `restarted`: when one
-- has lost its data, and who knew it then.
local function add_red(self, random)
  local thing = add_thing(self, { use = "red", kind = "red",
    servers = self.servers, policy = one_of(POLICIES, random), restarted = {},
    knowing = {} })
  for _, server in ipairs(self.servers) do thing.knowing[server] = {} end
end

local function add_things(self, random)
  if self.only.compute then return end
  if self.only.kind == "red" then return add_red(self, random) end
  if self.only.counter then return add_counter(self, random) end
  local locks = add_locks(self, random, 2 + math.floor(random() * 2))
  if self.only.kind then return end
  if random() < 0.5 then
    add_thing(self, { use = "multi", kind = "multi", parts = locks,
      servers = {} })
  end
  if random() < 0.6 then
    add_counter(self, random)
  end
  if #self.servers >= 2 and not self.cluster and not self.only.replicas
      and not self.zookeeper then
    add_red(self, random)
  end
end

-- A request was refused by a fault: it may not be retried, so nobody is to
-- blame for what it leaves.
local function refused(self, server, words)
  if not batched.is(server.scripts[words[2]]) then
    self.excused[words[4 + tonumber(words[3])] or ""] = true
    return
  end
  for _, part in ipairs(batched.parts_of(words)) do
    self.excused[part.args[1]] = true
  end
end

local function add_servers(self, random)
  if self.only.zookeeper then
    self.zookeeper = zookeeper.new(self, random)
    self.ensemble = self.zookeeper.ensemble
    return
  end
  local count = self.only.servers or one_of(SERVERS, random)
  if self.only.cluster then count = math.max(count, 3) + 1 end
  for i = 1, count do
    local server = self.network:server("redis" .. i)
    server.refuses_kill = self.seal == "kill" and random() < 0.05
    server.replicas = self.only.replicas and 1
    server.hides_run_id = random() < 0.1
    server.has_aof = random() < 0.5
    server.is_nameless = self.only.cluster and random() < 0.2
    function server.on_eval(...) self:executed(...) end
    function server.on_refusal(...) refused(self, ...) end
    self.servers[i] = server
  end
  if self.only.sentinel or self.only.replicas then
    sentinels.add(self.network, self.servers)
  end
  if self.only.cluster then
    self.cluster = clusters.new(self.network, self.servers)
    function self.cluster.on_key(move) faults.key_moves(self, move) end
    function self.cluster.on_slot(move) faults.slot_moves(self, move) end
  end
end

-- tasks -----------------------------------------------------------------------

-- A round in a task of its own, which may be cancelled.
local function use_in_part(task, thing)
  local part = setmetatable({ may_end = true }, { __index = task })
  task.part = task.host.spawn(uses.use, part, thing)
  task.part:join()
  task.part = nil                       -- it may be the owner of a lost grant
end

local function work(task)
  local self, random = task.world, task.random
  while not self.is_ending and not task.process.is_closed do
    local thing = one_of(self.shared, random)
    if random() < 0.2 and thing.use ~= "latch" then
      use_in_part(task, thing)
    else
      uses.use(task, thing)
    end
    task.host.sleep(random() * (self.only.pause or PAUSE))
  end
end

-- At the end.
local function get_all(task)
  local self = task.world
  for _, thing in ipairs(self.things) do
    local must = uses.must[thing.use]
    if must and not task.process.is_closed then
      local began = self.universe.now
      local ok, code, detail = must(task, thing, BOUND)
      local took = self.universe.now - began
      self.oracle.longest = math.max(self.oracle.longest, took)
      if not ok then
        self.oracle:fault("stuck", "%s: %s after %.1f s: %s %s", task.label,
          thing.name, took, tostring(code), tostring(detail))
      end
    end
  end
end

-- Keeps the same locks again and again.
local function keep(task)
  local self = task.world
  while not self.is_ending and not task.process.is_closed do
    uses.keep(task, self.kept[task.process.number])
    task.host.sleep(task.random())
  end
end

local function start_worker(process, number, work_of)
  local self, host = process.world, process.host
  local task = {
    world = self, process = process, host = host, open = process.open,
    label = ("%s.%d"):format(host.label, number),
  }
  task.random = sim.stream(self.seed, task.label)
  process.workers[number] = task
  task.job = host.daemon(function()
    if work_of then
      work_of(task)
    else
      work(task)
      get_all(task)
    end
    task.is_done = true
  end)
end

-- Every other process gets its events by a function.
local function log_of(process)
  if process.number % 2 == 0 then return nil end
  return function(level, _, fields)
    process.host.log(level, fields.message)
  end
end

local function open_client(process, url)
  local options = assert(client.complete({
    timeout = 0.5, watchdog = LEASE, connect_timeout = 0.5,
    seal = not process.world.zookeeper and process.world.seal or nil,
    lazy = true, log = log_of(process),
    replicas = process.world.only.replicas and 1 or nil,
  }, url))
  return assert(client.open(process.host, options))
end

-- One for each server, or one for all.
local function open_clients(process)
  local self = process.world
  if self.zookeeper then self.zookeeper:connect(process.host) end
  local ensemble = self.cluster or self.zookeeper
  if ensemble then
    local one = open_client(process, ensemble:url())
    process.open = setmetatable({ one }, {
      __index = function() return one end,
    })
    return
  end
  for _, server in ipairs(self.servers) do
    process.open[server.name] = open_client(process, sentinels.of(server)
      or "redis://" .. server.name)
  end
end

--- Starts a process.
function world:start_client()
  local number = #self.processes + 1
  local random = sim.stream(self.seed, "client" .. number)
  local host = self.universe:host {
    name = "client" .. number, offset = random() * 1000,
    speed = 1 + (random() - 0.5) * 0.0008,
  }
  local process = { world = self, host = host, open = {}, workers = {},
    candidates = {}, number = number }
  host.process = process
  self.processes[number] = process
  host.daemon(function()
    open_clients(process)
    local tasks = self.only.tasks or TASKS
    for i = 1, tasks do start_worker(process, i) end
    if self.kept[number] then start_worker(process, tasks + 1, keep) end
  end)
end

-- What a crowd waits for: kinds, and their uses.
local CROWDED = { { "lock", "lock" }, { "mutex", "lock" },
  { "fenced_lock", "lock" }, { "fair_lock", "lock" },
  { "read_write_lock", "lock" }, { "fair_read_write_lock", "lock" },
  { "semaphore", "semaphore" }, { "permits", "permits" }, { "latch", "latch" } }

local function crowded(self)
  local things = {}
  for _, pair in ipairs(CROWDED) do
    local kind, use = pair[1], pair[2]
    local is_here = not self.zookeeper or kind ~= "permits" and kind ~= "latch"
    if is_here and (not self.only.crowd or self.only.crowd == kind) then
      things[#things + 1] = new_thing { use = use, kind = kind,
        name = "crowd " .. kind,
        servers = { self.zookeeper or self.servers[1] } }
    end
  end
  return things
end

-- Starts the process of a crowd, see crowd.lua.
local function start_crowd(self)
  local number = #self.processes + 1
  local process = { world = self, host = self.universe:host { name = "crowd" },
    open = {}, workers = {}, number = number, is_crowd = true }
  process.host.process = process
  self.processes[number], self.crowded = process, crowded(self)
  process.host.daemon(function()
    open_clients(process)
    crowd.start(self, process, self.crowded)
  end)
end

--- Starts a process after some seconds.
function world:start_client_later(seconds)
  self.coming = self.coming + 1
  self.universe:after(seconds, function()
    self.coming = self.coming - 1
    self:start_client()
  end)
end

--- Closes the clients of a process.
function world.close_client(_, process)
  process.is_closed = true
  for _, open in pairs(process.open) do
    process.host.daemon(open.close, open)
  end
end

-- what servers execute --------------------------------------------------------

-- Script -> its name, its operation, which of its keys has the owners (that of
-- permits is their second one), whether it is one of semaphores.
local headers = {}

local function header_of(text)
  local header = headers[text]
  if not header then
    local name = text:match("^%-%- rlock (%S+)") or "?"
    header = { name = name, operation = name:match("%.([%a_]+)$"),
      owners = name:find "^permits%." and 2 or 1,
      is_semaphore = name:find "^semaphore%." ~= nil }
    headers[text] = header
  end
  return header
end

local function show(value)
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for i, item in ipairs(value) do parts[i] = show(item) end
  return value.err or value.ok or "{" .. table.concat(parts, " ") .. "}"
end

-- Somebody has broken a lock, which takes it from its holders.
local function broken(self, key)
  for _, thing in ipairs(self.things) do
    if thing.key == key then
      self.oracle:lost(thing, self.lease, self.cluster and self.cluster.split)
      oracle.doubt(thing, self.universe.now)
      thing.moved_at = self.universe.now
    end
  end
end

--- A server has executed a script.
function world:executed(server, link, text, keys, args, reply)
  local header = header_of(text)
  if self.log then
    self:report("%s %s%s %s %s(%s) = %s", server.name, link.address,
      link.is_closed and " (closed)" or "", header.name, keys[1],
      table.concat(args, " "), show(reply))
  end
  local operation, key = header.operation, keys[header.owners] or keys[1]
  if server.is_old then return end
  if type(reply) ~= "table" then reply = { reply } end
  watch.executed(self, server, link, operation, key, args, reply)
  if header.is_semaphore then
    permits.executed(self, server, operation, keys, args, reply)
  end
  if operation == "break_" and reply[1] == "freed" then broken(self, key) end
end

-- the end ---------------------------------------------------------------------

-- From now on nothing is broken.
local function mend(self)
  self.is_ending, self.mended_at = true, self.universe.now
  if self.cluster or self.zookeeper then
    (self.cluster or self.zookeeper):mend()
  end
  collectgarbage()                      -- so that abandoned holds end
  for _, server in ipairs(self.servers) do
    server.ails_until = 0
  end
  for _, process in ipairs(self.processes) do
    for _, server in ipairs(self.servers) do
      local route = self.network:route(process.host, server)
      route.forth, route.back, route.refuses_until = 0, 0, 0
      for _, link in ipairs(route.links) do link.resets_after = nil end
    end
  end
end

local function report_the_stuck(self)
  for _, process in ipairs(self.processes) do
    for _, task in ipairs(process.workers) do
      if not task.is_done and not process.host.is_dead then
        self.oracle:fault("stuck", "%s has not ended: %s", task.label,
          debug.traceback(task.job.co))
      end
    end
  end
end

local function count_working(self)
  local count = self.coming
  for _, process in ipairs(self.processes) do
    for _, task in ipairs(process.workers) do
      if not task.is_done and not process.host.is_dead then
        count = count + 1
      end
    end
  end
  return count
end

-- The permits that were not returned, or perhaps not: killed tasks may have
-- had those that they asked for.
local function missing_of(one)
  local missing = one.missing or 0
  for _, user in pairs(one.users) do
    if user.one == one and user.host.is_dead then missing = missing + user.n end
  end
  return missing
end

local function check_semaphores(self)
  for _, thing in ipairs(self.things) do
    local one = thing.use == "semaphore" and thing.generations[("%s:%d")
      :format(thing.name, thing.generation)]
    local entry = one and thing.servers[1].redis.entries[one.name]
    local left = entry and tonumber(entry.value)
    if entry and left > one.most then
      self.oracle:fault("too many permits", "%s: %s of %d are left", one.name,
        entry.value, one.most)
    elseif entry and left < one.most - missing_of(one)
        and not one.is_doubtful and not one.lost_at then
      self.oracle:fault("too few permits", "%s: %s of %d are left, and %d were "
        .. "not returned", one.name, entry.value, one.most, missing_of(one))
    end
  end
end

-- Who waits in a queue, as the client of this uuid would.
local QUEUES = { "^redisson_lock_queue", "^redisson_lock_timeout",
  "^rlock_frw_queue", "^rlock_frw_writers", "^rlock_fair_alive",
  "^rlock_frw_signs" }

local function is_queue(key)
  for _, pattern in ipairs(QUEUES) do
    if key:find(pattern) then return true end
  end
  return false
end

-- May the place of this owner be left in a queue?
local function may_be_left(self, server, process, owner)
  return self.excused[owner] or not self.is_calm
    and watch.was_away(self, server, process.host, owner)
end

-- Does a process that runs have this place in a queue?
local function check_place(self, server, key, name)
  local owner = name:match("^[rw]:(.+)$") or name
  for _, process in ipairs(self.processes) do
    for _, open in pairs(process.open) do
      if not process.host.is_dead and not process.is_closed
          and owner:find(open.session.id, 1, true)
          and not may_be_left(self, server, process, owner) then
        self.oracle:fault("left", "%s of %s is in %s, and does not wait",
          name, process.host.label, key)
      end
    end
  end
end

-- No permit outlasts its owner and its lease. A late request of a process that
-- was killed may get one, for its lease.
local function check_permits(self, thing)
  local server = thing.servers[1]
  for _, one in pairs(thing.generations) do
    local entry = one.leases and not thing.went_back
      and server.redis:entry(one.leases)
    for id, ends in pairs(entry and entry.value or {}) do
      local taker = one.takers[id]
      if ends > server.redis.now / 1000
          and not (taker and taker.host.is_dead) then
        self.oracle:fault("left", "%s has a permit of %s, for %.3f s more",
          server.name, one.name, ends / 1000 - server.redis.now / 1000000)
      end
    end
  end
end

-- When no task holds or waits: nobody is left in a queue, and no lock is held.
local function check_released(self)
  for _, server in ipairs(self.servers) do
    server:tick()
    for key in pairs(server.redis.entries) do
      local entry = is_queue(key) and server.redis:entry(key)
      for at, item in pairs(entry and entry.value or {}) do
        check_place(self, server, key, entry.kind == "list" and item or at)
      end
      if self.is_calm and self.by_key[key] and self.by_key[key].key == key
          and self.by_key[key].use == "lock" and server.redis:entry(key) then
        self.oracle:fault("left", "%s has %s, which nobody holds", server.name,
          key)
      end
    end
  end
  for _, thing in ipairs(self.things) do
    if thing.use == "permits" then check_permits(self, thing) end
  end
end

-- The name of a lock whose record has something in this field. An expired grant
-- of a named owner does not count. It remains as long as the lock: another task
-- of the owner may still unlock it.
local function has_any(session, field)
  for _, kind in next, session.kinds do
    for name, record in next, kind.records do
      for owner, one in next, record[field] or {} do
        if field ~= "grants" or not owner.is_named or one:valid_for() > 0 then
          return name
        end
      end
    end
  end
end

-- What a client has left of its locks when no task holds or waits: a text. Lost
-- grants whose tasks have ended without an unlock may be garbage, with the
-- records of their locks. Channels may remain that a lost connection was to
-- unsubscribe.
local function left_of(session, is_calm)
  for field, what in pairs { undone = "an owner", taken = "a permit" } do
    local name = has_any(session, field)
    if name then return what .. " of " .. name end
  end
  if has_any(session, "grants") then
    for _ = 1, 2 do collectgarbage() end
    local name = has_any(session, "grants")
    if name then return "a grant of " .. name end
  end
  for name, channel in pairs(session.wakeup.channels) do
    if channel.first then return "a waiter of " .. name end
    if is_calm then return "the channel " .. name end
  end
  local asked = next(session.server.asked or {})
  if asked then return "the channel " .. asked end
  for _, line in next, session.heartbeats.lines do
    if line.first then return "a heartbeat" end
  end
  if session.watchdog:is_needed() then return "a grant to watch" end
  if session.pending > 0 then return "a request in flight" end
  if next(session.closing) then return "an event for its close" end
end

-- When all tasks have ended: the clients' own tables are empty.
local function check_tables(self)
  for _, process in ipairs(self.processes) do
    for _, open in pairs(process.open) do
      local what = not process.host.is_dead and not process.is_closed
        and left_of(open.session, self.is_calm)
      if what then
        self.oracle:fault("leaked", "%s has %s", process.host.label, what)
      end
    end
  end
end

-- What may be left: counters; and, if not calm, the queues of waiters that have
-- died.
local LASTING = { "^redisson_lock_token", "^{?semaphore", "^{?latch",
  "^{?permits", "^{?crowd semaphore", "^{?crowd permits", "^rlock_barrier",
  "^rlock_request" }

-- Have all the registered waiters had a request refused? Then they may not have
-- been able to leave.
local function are_excused(self, server, channel)
  local entry = server.redis:entry(channel .. ":waiters")
  for member in pairs(entry and entry.value or {}) do
    if not self.excused[member:match " (.*)$"] then return false end
  end
  return entry ~= nil
end

-- A killed process leaves its places in queues and its announced waits, until
-- they expire. No process is killed in a calm run.
local function is_lasting(self, server, key)
  if is_queue(key) or key:find "^rlock_waits" then return not self.is_calm end
  local channel = key:match "^(.*):wait[a-z]+$"
  if channel and (server.is_restored or are_excused(self, server, channel)) then
    return true
  end
  for _, pattern in ipairs(LASTING) do
    if key:find(pattern) then return true end
  end
  return false
end

local function check_keys(self)
  for _, server in ipairs(self.servers) do
    server.redis.now = math.floor(server:clock() * 1000000)
    for key in pairs(server.redis.entries) do
      local entry = server.redis:entry(key)
      if entry and not is_lasting(self, server, key) then
        self.oracle:fault("left", "%s has %s, for %s s more", server.name, key,
          entry.expires and ("%.1f"):format((entry.expires
            - server.redis:ms()) / 1000) or "ever")
      end
    end
  end
end

-- When all clients are closed: so are their connections.
local function check_links(self)
  for _, server in ipairs(self.network.servers) do
    for _, link in ipairs(server.links) do
      if not link.is_closed and not link.host.is_dead then
        self.oracle:fault("left", "%s is connected to %s", link.address,
          server.name)
      end
    end
  end
end

-- The test of a server, which pauses for up to a minute between attempts.
local PROOF = "redis/seal.lua"

local function check_tasks(self)
  for _, process in ipairs(self.processes) do
    local host = process.host
    for _, fault in ipairs(host.faults) do
      self.oracle:fault("error", "%s: %s", host.label, fault)
    end
    for task in pairs(host.is_dead and {} or host.tasks) do
      local where = debug.traceback(task.co)
      if not where:find(PROOF, 1, true) then
        self.oracle:fault("left", "a task of %s: %s", host.label, where)
      end
    end
  end
end

-- running ---------------------------------------------------------------------

--- Adds a line to the log.
function world:report(text, ...)
  self.log[#self.log + 1] = ("%10.6f "):format(self.universe.now)
    .. text:format(...)
end

local function collect(self)
  self.collections = self.collections + 1
  if self.collections % ALL == 0 then
    collectgarbage()
  else
    collectgarbage "step"
  end
  self.collects_at = self.universe.now + GARBAGE
end

-- Runs on, with collections of garbage; at most until a fault of the sort
-- `wanted` is reported.
local function run(self, deadline, wanted)
  local universe, reported = self.universe, self.oracle.reported
  while universe.now < deadline and not reported[wanted] do
    universe:run(math.min(self.collects_at, deadline))
    if universe.now >= self.collects_at then collect(self) end
  end
end

-- The surroundings of a run, by its seed: of so many, one each.
local SCENES = { {}, {}, {}, { calm = true }, { calm = true },
  { sentinel = true }, { cluster = true }, { cluster = true },
  { replicas = true } }

-- What to restrict: as given, or the surroundings.
local function only_of(seed, options)
  return options.only or one_of(SCENES, sim.stream(seed, "scene"))
end

local function new(seed, options)
  local universe = sim.new(seed)
  local self = setmetatable({
    seed = seed, universe = universe, network = network.new(universe),
    servers = {}, things = {}, kept = {}, processes = {}, coming = 0,
    lease = LEASE,
    oracle = oracle.new(universe), only = only_of(seed, options),
    seconds = options.seconds or SECONDS, log = options.log and {},
    collects_at = 0, collections = 0, by_key = {}, excused = {},
    waited = {}, counted = {},
  }, world)
  function universe.report(_, ...) self.oracle:fault(...) end
  local random = sim.stream(seed, "world")
  local dice = random()
  self.is_calm = self.only.calm
  self.seal = options.seal or dice < 0.2 and "time" or "kill"
  add_servers(self, random)
  add_things(self, random)
  add_recipes(self)
  self.shared = { table.unpack(self.things) }
  if not self.only.kind and not self.only.counter and not self.only.crowd
      and not self.only.compute then
    add_kept(self)
  end
  self.plan = options.plan or world.plan(seed, options)
  return self, self.only.clients or 2 + math.floor(random() * 3)
end

local function kinds_of(only)
  return only.faults or only.zookeeper and faults.of_zookeeper
    or only.calm and faults.of_calm
    or only.replicas and faults.of_replicas
    or only.sentinel and faults.of_sentinel
    or only.cluster and faults.of_cluster
end

--- The plan of a run.
---@param seed integer
---@param options table as for `simulate`
---@return table # as faults.plan returns it
function world.plan(seed, options)
  local only = only_of(seed, options)
  local plan = faults.plan(sim.stream(seed, "faults"),
    options.seconds or SECONDS, only.every or EVERY, kinds_of(only))
  faults.take_turns(plan, seed * ERRORS)
  return plan
end

local function schedule(self)
  for _, event in ipairs(self.plan) do
    self.universe:at(event[1], { fire = function()
      if self.log then self:report("FAULT %s", faults.show(event)) end
      faults.inject(self, event)
    end })
  end
end

local function keep_log(self)
  function self.oracle.on_change(holder, verb)
    self:report("%s %s %s (%s%s)", holder.label, verb, holder.thing.name,
      holder.style, holder.is_forgiven and ", forgiven" or "")
  end
  function self.oracle.on_fault(fault)
    self:report("FOUND %s", fault.text)
  end
  function self.universe.on_log(host, level, text)
    self:report("%s %s %s", host.label, level, text)
  end
end

local function finish(self)
  mend(self)
  local deadline = self.universe.now + LEAST
  while count_working(self) > 0 and self.universe.now < deadline do
    run(self, self.universe.now + 1)
  end
  report_the_stuck(self)
  run(self, self.universe.now + SETTLED)
  if self.zookeeper then
    self.zookeeper:check_released()
  else
    check_semaphores(self)
    check_released(self)
  end
  check_tables(self)
  self.is_over = true
  for _, process in ipairs(self.processes) do
    if not process.host.is_dead then self:close_client(process) end
  end
  run(self, self.universe.now + REST)
  check_tasks(self)
  check_links(self)
  if self.zookeeper then
    self.zookeeper:check_nodes()
  else
    check_keys(self)
  end
end

local function simulate(seed, options)
  local self, clients = new(seed, options)
  self.universe.hook = options.hook
  if self.log then keep_log(self) end
  schedule(self)
  if self.zookeeper then self.zookeeper:start() else watch.start(self) end
  for _ = 1, clients do self:start_client() end
  if self.is_calm then start_crowd(self) end
  local wanted = options.wanted
  run(self, self.seconds, wanted)
  if not self.oracle.reported[wanted] then finish(self) end
  return self
end

--- Simulates a run.
---@param seed integer
---@param options? table seal: of the clients; default: by the seed, never "off"
---  plan: the faults, as faults.plan returns them; default: by the seed only:
---  kind, counter (its kind), style, owner ("task", "none"), leases (how many
---  of 1), servers, clients, tasks (of a client), pause (seconds between two
---  uses), every (seconds between faults), faults (their kinds), drains (how
---  many of 1 uses of a semaphore), sentinel (behind Sentinels, with
---  failovers), zookeeper (its model instead of Redis; `tick` in seconds),
---  cluster (with failovers, and slots that move), replicas (that confirm, with
---  failovers to them), compute (only a computation), calm (without faults that
---  disturb a waiter or a holder), crowd (the kind for which its crowd waits):
---  restrict what is done. Without `only` the seed chooses one of sentinel,
---  cluster, replicas and calm, or none seconds: of faults; log: whether to
---  keep a log wanted: the sort of a fault that may end the run once it is
---  reported
---@return table # world: oracle, network, plan, log
function world.simulate(seed, options)
  local count = slot.count
  if only_of(seed, options or {}).cluster then
    slot.count = clusters.SLOTS
  end
  local self = order.run(simulate, seed, options or {})
  slot.count = count
  return self
end

return world
