--- The servers of a run, and how programs reach them. All servers of a run are
--- of one sort: the one that the options select, else the one that the first
--- URL asks for. A program may name any hosts: their URL is replaced by that of
--- the simulated servers. Each address of a single Redis has its own server,
--- for red locks; a cluster, Sentinels and ZooKeeper are the same at all
--- addresses.

local clusters = require "rlockctl.simulate.cluster"
local complete = require "rlock.client".complete
local ensembles = require "rlockctl.simulate.zookeeper.ensemble"
local sentinels = require "rlockctl.simulate.sentinels"
local urls = require "rlock.redis.url"

local values = require "rlockctl.model.lua51.values"

local servers = {}

local SHARDS, ENSEMBLE, TICK = 4, 3, 1  -- counts; seconds

-- Scheme of a URL -> sort of servers; the default is one Redis.
local SORTS = { zk = "zookeeper", zks = "zookeeper",
  ["redis+cluster"] = "cluster", ["rediss+cluster"] = "cluster",
  ["redis+sentinel"] = "sentinel", ["rediss+sentinel"] = "sentinel" }

-- creation --------------------------------------------------------------------

local function add(run, name)
  local server = run.network:server(name)
  run.servers[#run.servers + 1] = server
  return server
end

local make = {}                         -- sort -> function(run)

-- Each address has its own Redis, which is added when a client first opens it.
function make.redis() end

function make.sentinel(run)
  add(run, "redis")
  sentinels.add(run.network, run.servers)
end

function make.replicas(run)
  add(run, "redis").replicas = run.options.replicas
  sentinels.add(run.network, run.servers)
end

-- The last shard has no slots until some migrate there.
function make.cluster(run)
  for i = 1, SHARDS do add(run, "redis" .. i) end
  run.cluster = clusters.new(run.network, run.servers)
end

function make.zookeeper(run)
  run.ensemble = ensembles.new(run.network, { count = ENSEMBLE, tick = TICK })
  for i, server in ipairs(run.ensemble) do run.servers[i] = server end
  run.ensemble:warm_up()
end

-- data ------------------------------------------------------------------------

-- The server of a key.
local function server_of(run, key)
  if not run.cluster then return run.servers[1] end
  return run.cluster:servers_of({ name = key })[1]
end

-- Writes the initial data to one server of Redis; nil: to all servers.
local function fill(run, one)
  for name, value in pairs(run.options.data or {}) do
    local server = one or server_of(run, name)
    if run.ensemble then
      run.ensemble:put(name, value)
    elseif server then
      server:tick()
      server.redis:call { "SET", name, value }
    end
  end
end

local function seen(reply)
  if type(reply) == "number" then return math.tointeger(reply) or reply end
  if type(reply) ~= "table" then return reply end
  if reply.err then error(reply.err, 0) end
  if reply.ok then return reply.ok end
  local list = {}
  for i, item in ipairs(reply) do list[i] = seen(item) end
  return list
end

--- Reads the data of Redis for an invariant, from the server at the first
--- address. Before the first rlock.open, raises an error and sets
--- `run.reads_early`.
---@param run table of programs.lua
---@param ... any a command
function servers.read(run, ...)
  local words = { ... }
  for i, word in ipairs(words) do words[i] = tostring(word) end
  if not run.sort then
    run.reads_early = true
    error("redis(...) of rlock.simulate: there is no server yet; the first "
      .. "rlock.open makes it", 0)
  elseif run.ensemble then
    error("redis(...) of rlock.simulate: this run has ZooKeeper", 0)
  end
  local server = server_of(run, words[2] or "")
  server:tick()
  local ok, reply = pcall(server.redis.call, server.redis, words)
  if ok then return seen(reply) end
  run:lacks(values.lack_of(reply) or error(reply, 0))
end

-- choosing --------------------------------------------------------------------

local function note(run) run.moments[#run.moments + 1] = run.universe.now end

-- Records the time of each request, and the longest lease that a server grants.
local function observe_ensemble(run)
  function run.ensemble.on_request() note(run) end
  function run.ensemble.on_session(_, _, _, timeout)
    run.lease = math.max(run.lease, timeout / 1000)
  end
end

-- The same for a server of Redis.
local function observe(run, server)
  local execute = server.execute
  function server.execute(...)
    note(run)
    return execute(...)
  end
  function server.on_eval(its, _, _, keys)
    local entry = its.redis:entry(keys[1])
    local left = entry and entry.expires and entry.expires - its.redis:ms()
    run.lease = math.max(run.lease, (left or 0) / 1000)
  end
end

--- Creates the servers.
---@param run table of programs.lua; gets `sort`: "redis", "cluster",
---  "sentinel", "replicas" or "zookeeper"; and `cluster` or `ensemble`
---@param sort? string default: that of the options, or one Redis
function servers.choose(run, sort)
  run.sort = sort or run.options.servers or "redis"
  make[run.sort](run)
  fill(run)
  if not run.options.is_probe then return end
  if run.ensemble then return observe_ensemble(run) end
  for _, server in ipairs(run.servers) do observe(run, server) end
end

-- The server of Redis at an address. Adds it if the address is new.
local function server_at(run, url)
  local its = urls.parse(url) --[[@as table]]
  local place = its.is_local and "local:" or its.path or urls.host_port(its)
  if its.db ~= 0 then place = ("%s/%d"):format(place, its.db) end
  for _, server in ipairs(run.servers) do
    if server.place == place then return server end
  end
  local n = #run.servers
  local server = add(run, n == 0 and "redis" or "redis" .. n + 1)
  server.place = place
  fill(run, server)
  if run.options.is_probe then observe(run, server) end
  return server
end

-- The sort of servers for a URL: ZooKeeper if the URL asks for it, else the one
-- that the options select, else the one that the URL asks for.
local function sort_of(run, url)
  local named = SORTS[url:match "^([%a+]+):"]
  if named == "zookeeper" then return named end
  local chosen = run.options.servers
  if chosen == "zookeeper" and url ~= "local:" then chosen = nil end
  return chosen or named or "redis"
end

local function url_of(run, url)
  if run.ensemble then
    return run.ensemble:url(url:match "^%a+://[^/]*(/.+)$")
  elseif run.sort == "redis" then
    return "redis://" .. server_at(run, url).name
  end
  return run.cluster and run.cluster:url() or sentinels.url(run.servers[1])
end

--- The options with which a process opens a client of the run's servers.
---@param run table
---@param host table of the process
---@param given? string | table options of rlock.open
---@param default_url? string of the process; default: "local:"
---@return string | table | nil
function servers.options(run, host, given, default_url)
  local full = type(given) == "string" and { url = given } or given or {}
  if type(full) ~= "table" then return given end
  local url = full.url or default_url or "local:"
  if type(url) ~= "string" or not complete(full, url) then return given end
  local sort = sort_of(run, url)
  if not run.sort then servers.choose(run, sort) end
  if sort ~= run.sort then
    error(("%s: all servers of a simulation are of one sort, here %s"):format(
      url, run.sort), 0)
  end
  if run.ensemble and not host.frames then run.ensemble:connect(host) end
  local changed = setmetatable({}, getmetatable(full))
  for key, value in next, full do changed[key] = value end
  changed.url, changed.tls = url_of(run, url), nil
  changed.username, changed.password, changed.sentinel = nil, nil, nil
  changed.acl = nil                     -- it needs a login
  changed.replicas = full.replicas or run.options.replicas
  return changed
end

--- The functions that a run replaces, see patch.lua: a simulated cluster has
--- fewer slots.
servers.patches = {
  { "rlock.redis.slot", "count", function() return clusters.SLOTS end },
}

return servers
