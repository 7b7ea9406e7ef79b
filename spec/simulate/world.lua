--- One simulated run: servers, processes with tasks, and faults, all from one
--  seed. First there are faults. Then nothing is broken any more, and every
--  task must get every lock. Then all clients are closed, and nothing may be
--  left.

local client = require "rlock.client"
local clusters = require "spec.simulate.cluster"
local faults = require "spec.simulate.faults"
local network = require "spec.simulate.network"
local oracle = require "spec.simulate.oracle"
local order = require "spec.simulate.order"
local sim = require "rlock.host.sim"
local sentinels = require "spec.simulate.sentinels"
local slot = require "rlock.redis.slot"
local uses = require "spec.simulate.uses"

local world = {}
world.__index = world

local SECONDS = 30        -- of faults
local EVERY = 0.25        -- seconds between them, on average
local BOUND = 15          -- seconds within which a lock must be had, at the end
local LEAST = 60          -- seconds within which all tasks must end
local REST = 12           -- seconds after which nothing of a lock is left
local LEASE = 2
local TASKS = 3           -- of a process
local PAUSE = 0.01        -- seconds between two uses, at most
local GARBAGE = 0.25      -- seconds between collections of young garbage
local ALL = 48            -- of so many, one collects all garbage

local KINDS = { "lock", "mutex", "simple_lock", "spin_lock", "fair_lock",
  "fenced_lock", "read_write_lock", "fair_read_write_lock" }
local COUNTERS = { "semaphore", "permits", "latch" }
local POLICIES = { "reentrant", "mutex", "spin", "simple" }
local SERVERS = { 1, 1, 1, 2, 3, 3, 5 }

-- the cast --------------------------------------------------------------------

local function one_of(list, random)
  return list[math.floor(random() * #list) + 1]
end

-- The servers of a thing with one. In a cluster, all its names share a slot.
local function place(self, thing, random)
  if not self.cluster then return { one_of(self.servers, random) } end
  if thing.use ~= "latch" then thing.name = "{" .. thing.name .. "}" end
  return self.cluster:servers_of(thing)
end

local function add_thing(self, thing, random)
  thing.name = ("%s%d"):format(thing.kind, #self.things + 1)
  thing.servers = thing.servers or place(self, thing, random)
  thing.holders, thing.users, thing.generations = {}, {}, {}
  thing.generation = 0
  self.things[#self.things + 1] = thing
  return thing
end

local function add_locks(self, random, count)
  local locks = {}
  for i = 1, count do
    local kind = self.only.kind or one_of(KINDS, random)
    locks[i] = add_thing(self, { use = "lock", kind = kind }, random)
  end
  return locks
end

local function add_counter(self, random)
  local kind = self.only.counter or one_of(COUNTERS, random)
  add_thing(self, { use = kind, kind = kind, most = kind ~= "latch"
    and 1 + math.floor(random() * 3) or nil }, random)
end

local function add_things(self, random)
  if self.only.counter then return add_counter(self, random) end
  local locks = add_locks(self, random, 2 + math.floor(random() * 2))
  if self.only.kind then return end
  if random() < 0.5 then
    add_thing(self, { use = "multi", kind = "multi", parts = locks,
      servers = {} })
  end
  if random() < 0.6 then add_counter(self, random) end
  if #self.servers >= 3 and not self.cluster then
    add_thing(self, { use = "red", kind = "red", servers = self.servers,
      policy = one_of(POLICIES, random) })
  end
end

local function add_servers(self, random)
  local count = self.only.servers or one_of(SERVERS, random)
  if self.only.cluster then count = math.max(count, 3) + 1 end
  for i = 1, count do
    local server = self.network:server("redis" .. i)
    server.refuses_kill = self.seal == "kill" and random() < 0.05
    server.hides_run_id = random() < 0.1
    server.has_aof = random() < 0.5
    server.is_nameless = self.only.cluster and random() < 0.2
    function server.on_eval(...) self:executed(...) end
    self.servers[i] = server
  end
  if self.only.sentinel then sentinels.add(self.network, self.servers) end
  if self.only.cluster then
    self.cluster = clusters.new(self.network, self.servers)
    function self.cluster.on_key(move) faults.key_moves(self, move) end
  end
end

-- tasks -----------------------------------------------------------------------

-- A round in a task of its own, which may be cancelled.
local function use_in_part(task, thing)
  local part = setmetatable({ may_end = true }, { __index = task })
  task.part = task.host.spawn(uses.use, part, thing)
  task.part:join()
end

local function work(task)
  local self, random = task.world, task.random
  while not self.is_ending and not task.process.is_closed do
    local thing = one_of(self.things, random)
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

local function start_worker(process, number)
  local self, host = process.world, process.host
  local task = {
    world = self, process = process, host = host, open = process.open,
    label = ("%s.%d"):format(host.label, number),
  }
  task.random = sim.stream(self.seed, task.label)
  process.workers[number] = task
  task.job = host.daemon(function()
    work(task)
    get_all(task)
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
    seal = process.world.seal, lazy = true, log = log_of(process),
  }, url))
  return assert(client.open(process.host, options))
end

-- One for each server, or one for all.
local function open_clients(process)
  local self = process.world
  if self.cluster then
    local one = open_client(process, self.cluster:url())
    process.open = setmetatable({ one }, {
      __index = function() return one end,
    })
    return
  end
  for _, server in ipairs(self.servers) do
    process.open[server.name] = open_client(process, self.only.sentinel
      and sentinels.url(server) or "redis://" .. server.name)
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
    number = number }
  host.process = process
  self.processes[number] = process
  host.daemon(function()
    open_clients(process)
    for i = 1, self.only.tasks or TASKS do start_worker(process, i) end
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

local headers = {}                      -- script -> { name, operation }

local function header_of(text)
  local header = headers[text]
  if not header then
    local name = text:match("^%-%- rlock (%S+)") or "?"
    header = { name = name, operation = name:match("%.([%a_]+)$") }
    headers[text] = header
  end
  return header
end

-- The key that has the owners: that of permits is their second one.
local function place_of(name, keys)
  return name:match("^permits%.") and keys[2] or keys[1]
end

local function knows(site, owner)
  for _, grant in next, site.grants do
    if grant.owner == owner then return true end
  end
  return site.taken and site.taken[owner] ~= nil
end

-- Does the client know that this owner has the lock, or is it about to release
-- it?
local function is_known(process, key, owner)
  for _, open in pairs(process.open) do
    local session = open.session
    if session.is_closed or session.pending > 0 then return true end
    for _, kind in next, session.kinds do
      for _, site in next, kind.sites do
        if place_of(site.policy.name .. ".", site.keys) == key
            and knows(site, owner) then
          return true
        end
      end
    end
  end
  return false
end

local function printable(owner) return (owner:gsub("[^%w:.-]", "?")) end

-- A lock that was granted to a request which its client had given up: it must
-- be released, or used.
local function look_for_orphan(self, server, process, key, owner, lease)
  local function look()
    if process.host.is_dead or process.is_closed
        or not server:holds(key, owner) then
      return
    end
    if process.host.stalls_until <= self.universe.now
        and not is_known(process, key, owner) then
      self.oracle:fault("orphan", "%s is held by %s of %s, which does not know "
        .. "it", key, printable(owner), process.host.label)
      return
    end
    lease = lease - 0.3
    if lease > 0 then self.universe:after(0.3, look) end
  end
  self.universe:after(0.3, look)
end

local function show(value)
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for i, item in ipairs(value) do parts[i] = show(item) end
  return value.err or value.ok or "{" .. table.concat(parts, " ") .. "}"
end

-- An orphan is granted by a late request, after the client has released it on a
-- newer connection.
local function granted(self, server, link, key, args)
  local owners, owner = server.granted[key] or {}, args[1]
  server.granted[key], owners[owner] = owners, self.universe.now
  local released = server.released[key] and server.released[key][owner]
  if link.is_closed and released and released > link.id
      and not link.host.is_dead then
    look_for_orphan(self, server, link.host.process, key, owner,
      tonumber(args[2]) / 1000)
  end
end

-- Somebody has broken a lock, which takes it from its holders.
local function broken(self, key)
  for _, thing in ipairs(self.things) do
    if thing.key == key then
      self.oracle:lost(thing, self.lease)
      thing.lost_at = self.universe.now
    end
  end
end

--- A server has executed a script.
function world:executed(server, link, text, keys, args, reply)
  local header = header_of(text)
  if self.log then
    self:tell("%s %s%s %s %s(%s) = %s", server.name, link.address,
      link.is_closed and " (closed)" or "", header.name, keys[1],
      table.concat(args, " "), show(reply))
  end
  local operation, key = header.operation, place_of(header.name, keys)
  if operation == "acquire" and reply[1] == "held" and not server.is_old then
    granted(self, server, link, key, args)
  elseif operation == "break_" and reply[1] == "freed" then
    broken(self, key)
  elseif operation == "release" then
    local released = server.released[key] or {}
    server.released[key], released[args[1]] = released, link.id
  end
end

-- the end ---------------------------------------------------------------------

-- From now on nothing is broken.
local function mend(self)
  self.is_ending = true
  if self.cluster then self.cluster:mend() end
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

local function check_semaphores(self)
  for _, thing in ipairs(self.things) do
    local one = thing.use == "semaphore" and thing.generations[("%s:%d")
      :format(thing.name, thing.generation)]
    local entry = one and thing.servers[1].redis.entries[one.name]
    if entry and tonumber(entry.value) > one.most then
      self.oracle:fault("too many permits", "%s: %s of %d are left", one.name,
        entry.value, one.most)
    end
  end
end

-- What may be left: counters, and the queues of waiters that have died.
local LASTING = { "^redisson_lock_token", "^{?semaphore", "^{?latch",
  "^{?permits", "^rlock_request", "^redisson_lock_queue",
  "^redisson_lock_timeout", "^rlock_fair_alive", "^rlock_frw_queue",
  "^rlock_frw_writers", "^rlock_frw_signs" }

local function is_lasting(key)
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
      if entry and not is_lasting(key) then
        self.oracle:fault("left", "%s has %s, for %s s more", server.name, key,
          entry.expires and ("%.1f"):format((entry.expires
            - server.redis:ms()) / 1000) or "ever")
      end
    end
  end
end

local function check_tasks(self)
  for _, process in ipairs(self.processes) do
    local host = process.host
    for _, fault in ipairs(host.faults) do
      self.oracle:fault("error", "%s: %s", host.label, fault)
    end
    for task in pairs(host.is_dead and {} or host.tasks) do
      self.oracle:fault("left", "a task of %s: %s", host.label,
        debug.traceback(task.co))
    end
  end
end

-- running ---------------------------------------------------------------------

--- Adds a line to the log.
function world:tell(text, ...)
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

-- Runs on, with collections of garbage.
local function run(self, deadline)
  local universe = self.universe
  while universe.now < deadline do
    universe:run(math.min(self.collects_at, deadline))
    if universe.now >= self.collects_at then collect(self) end
  end
end

local function new(seed, options)
  local universe = sim.new(seed)
  local self = setmetatable({
    seed = seed, universe = universe, network = network.new(universe),
    servers = {}, things = {}, processes = {}, coming = 0, lease = LEASE,
    oracle = oracle.new(universe), only = options.only or {},
    seconds = options.seconds or SECONDS, log = options.log and {},
    collects_at = 0, collections = 0,
  }, world)
  local random = sim.stream(seed, "world")
  local dice = random()
  self.seal = options.seal or dice < 0.2 and "time" or "kill"
  add_servers(self, random)
  add_things(self, random)
  self.plan = options.plan or world.plan(seed, options)
  return self, self.only.clients or 2 + math.floor(random() * 3)
end

--- The plan of a run.
-- @tparam integer seed
-- @tparam table options as for `simulate`
-- @treturn table as of faults.plan
function world.plan(seed, options)
  local only = options.only or {}
  return faults.plan(sim.stream(seed, "faults"), options.seconds or SECONDS,
    only.every or EVERY, only.faults
      or only.sentinel and faults.of_sentinel
      or only.cluster and faults.of_cluster)
end

local function schedule(self)
  for _, event in ipairs(self.plan) do
    self.universe:at(event[1], { fire = function()
      if self.log then self:tell("FAULT %s", faults.show(event)) end
      faults.inject(self, event)
    end })
  end
end

local function watch(self)
  function self.oracle.on_change(holder, verb)
    self:tell("%s %s %s (%s%s)", holder.label, verb, holder.thing.name,
      holder.style, holder.is_forgiven and ", forgiven" or "")
  end
  function self.oracle.on_fault(fault)
    self:tell("FOUND %s", fault.text)
  end
  function self.universe.on_log(host, level, text)
    self:tell("%s %s %s", host.label, level, text)
  end
end

local function finish(self)
  mend(self)
  local deadline = self.universe.now + LEAST
  while count_working(self) > 0 and self.universe.now < deadline do
    run(self, self.universe.now + 1)
  end
  report_the_stuck(self)
  check_semaphores(self)
  for _, process in ipairs(self.processes) do
    if not process.host.is_dead then self:close_client(process) end
  end
  run(self, self.universe.now + REST)
  check_tasks(self)
  check_keys(self)
end

local function simulate(seed, options)
  local self, clients = new(seed, options)
  self.universe.hook = options.hook
  if self.log then watch(self) end
  schedule(self)
  for _ = 1, clients do self:start_client() end
  run(self, self.seconds)
  finish(self)
  return self
end

--- Simulates a run.
-- @tparam integer seed
-- @tparam[opt] table options
--   seal: of the clients; default: by the seed, never "off"
--   plan: the faults, as of faults.plan; default: by the seed
--   only: kind, counter (its kind), style, owner ("task", "none"), leases (how
--     many of 1), servers, clients, tasks (of a client), pause (seconds between
--     two uses), every (seconds between faults), faults (their kinds), sentinel
--     (behind Sentinels, with failovers), cluster (with failovers, and slots
--     that move): restrict what is done
--   seconds: of faults; log: whether to keep a log
-- @treturn table world: oracle, network, plan, log
function world.simulate(seed, options)
  local count = slot.count
  if options and options.only and options.only.cluster then
    slot.count = clusters.SLOTS
  end
  local self = order.run(simulate, seed, options or {})
  slot.count = count
  return self
end

return world
