--- A private master with replicas, and Sentinels that watch it: on free ports
--- of 127.0.0.1, ready within seconds. They end with the test process.
---
---   local sentinel = require "spec.tools.sentinel"
---   local set = sentinel.start { password = "x" }
---   set.url                           -- redis+sentinel://...
---   set:master()                      -- the server that the Sentinels name
---   set.sentinels[1]:pause()
---   set:stop()

local eventually = require "spec.tools.eventually"
local redis = require "spec.tools.redis"
local redis_cli = require "spec.tools.redis_cli"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"

local sentinel = {}

local Set = {}
Set.__index = Set

local PORT_TRIES = 20
local SECONDS = 30 * slow

-- The user of the other servers and the Sentinels, if the set can split.
local PEER = "peer"

-- the servers ----------------------------------------------------------------

-- The port by which the others know a server.
local function port_of(server, options)
  return options.tls == true and server.tls_port or server.port
end

local function start_server(options, primary)
  local args = {
    "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
    "--repl-timeout", "5",
  }
  for _, word in ipairs(options.args or {}) do args[#args + 1] = word end
  if options.password then
    args[#args + 1], args[#args + 2] = "--masterauth", options.password
  end
  if options.tls == true then
    args[#args + 1], args[#args + 2] = "--tls-replication", "yes"
  end
  if options.can_split then
    for _, word in ipairs { "--masteruser", PEER, "--masterauth", PEER } do
      args[#args + 1] = word
    end
  end
  if primary then
    args[#args + 1], args[#args + 2] = "--replicaof",
      "127.0.0.1 " .. ("%d"):format(port_of(primary, options))
  end
  return redis.start { port = true, args = args,
    password = options.password,
    users = options.can_split and { PEER .. " on >" .. PEER .. " ~* &* +@all" }
      or options.users,
    tls = options.tls and {
      certificates = primary and primary.certificates,
    } }
end

-- the Sentinels --------------------------------------------------------------

local CONF = [[
port %d
bind 127.0.0.1
sentinel monitor %s 127.0.0.1 %d %d
sentinel down-after-milliseconds %s %d
sentinel failover-timeout %s %d
sentinel parallel-syncs %s 2
%s]]

local Sentinel = {}
Sentinel.__index = Sentinel

local TLS_CONF = [[
tls-port %d
tls-cert-file %s/good.crt
tls-key-file %s/good.key
tls-ca-cert-file %s/ca.crt
tls-auth-clients no
tls-replication %s]]

local function tls_lines(self, set)
  local folder = set.servers[1].certificates
  return TLS_CONF:format(self.tls_port, folder, folder, folder,
    set.options.tls == true and "yes" or "no")
end

local function write_conf(self, set)
  local name, more = set.name, {}
  if set.options.password then
    more[#more + 1] = ("sentinel auth-pass %s %s"):format(name,
      set.options.password)
  end
  if set.options.can_split then
    more[#more + 1] = ("sentinel auth-user %s %s\nsentinel auth-pass %s %s")
      :format(name, PEER, name, PEER)
  end
  if set.options.sentinel_password then
    more[#more + 1] = "requirepass " .. set.options.sentinel_password
  end
  if set.options.tls then more[#more + 1] = tls_lines(self, set) end
  local file = assert(io.open(self.folder .. "/sentinel.conf", "w"))
  file:write(CONF:format(self.port, name,
    port_of(set.servers[1], set.options), set.quorum,
    name, set.down_after, name, set.failover_timeout, name,
    table.concat(more, "\n")), "\n")
  file:close()
end

function Sentinel:launch()
  local program = os.getenv("RLOCK_TEST_SERVER")
  if not program or program == "" then program = "redis-server" end
  local folder, pid = shell.daemon(self.folder, "Sentinel ID is",
    shell.quote(program) .. ' "$d/sentinel.conf" --sentinel')
  if not folder then return nil, pid end
  self.pid = pid
  -- Else it looks at the replicas every 10 s; since Redis 7.0.
  self:cli("SENTINEL", "DEBUG", "info-period", "1000")
  return true
end

local function start_sentinel(set)
  local folder = shell.run(('mktemp -d "%s/rlock-XXXXXX"'):format(
    os.getenv("TMPDIR") or "/tmp"))
  local self, why = setmetatable({ folder = folder, set = set }, Sentinel), nil
  for _ = 1, PORT_TRIES do
    self.port, self.tls_port = redis.choose_port(), redis.choose_port()
    write_conf(self, set)
    local ok
    ok, why = self:launch()
    if ok then return self end
  end
  error("no private Sentinel: " .. tostring(why), 0)
end

--- Runs a command; returns what redis-cli prints.
function Sentinel:cli(...)
  return redis_cli.run({
    port = self.port, password = self.set.options.sentinel_password,
    timeout = 1,
  }, { { ... } })
end

-- What it knows of the master: the names and values of SENTINEL MASTER.
function Sentinel:about()
  local known, name = {}, nil
  local text = self:cli("SENTINEL", "MASTER", self.set.name)
  for line in text:gmatch "[^\n]+" do
    if name then known[name], name = line, nil else name = line end
  end
  return known
end

-- The number of replicas that it has not seen as masters. It demotes one that
-- it has seen so twice, 8 s apart: also one that has been a replica in between,
-- and that another Sentinel is promoting.
local function replicas_of(self)
  local text = self:cli("SENTINEL", "REPLICAS", self.set.name)
  return select(2, text:gsub("role%-reported\nslave", ""))
end

--- Does it know all the others, and is the master up?
function Sentinel:is_ready()
  local known = self:about()
  return tonumber(known["num-slaves"]) == #self.set.servers - 1
    and tonumber(known["num-other-sentinels"]) == #self.set.sentinels - 1
    and known.flags == "master" and replicas_of(self) == #self.set.servers - 1
end

--- The port of the master that it names.
function Sentinel:named()
  local text = self:cli("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.set.name)
  return tonumber(text:match("\n(%d+)"))
end

function Sentinel:pause() shell.kill(self.pid, "STOP") end
function Sentinel:resume() shell.kill(self.pid, "CONT") end

function Sentinel:kill()
  if self.pid then shell.finish(self.pid) end
  self.pid = nil
end

--- Resumes it, or starts it again.
function Sentinel:mend()
  if self.pid then self:resume() else assert(self:launch()) end
end

function Sentinel:stop()
  self:kill()
  if self.folder then shell.run("rm -rf " .. shell.quote(self.folder)) end
  self.folder = nil
end

-- the set --------------------------------------------------------------------

-- Waits until fn() is true.
local function wait_for(self, what, fn)
  local deadline = os.time() + SECONDS
  while true do
    local result = fn()
    if result then return result end
    if os.time() > deadline then error("not in time: " .. what, 0) end
    self.sleep(0.02)
  end
end

local function block(seconds) shell.run("sleep " .. seconds) end

-- Have all replicas of a server caught up?
local function has_replicas(server, n)
  local text = server:cli("INFO", "replication")
  return select(2, text:gsub("state=online", "")) == n
end

-- Do all Sentinels name this server? One that has missed a failover names a
-- server that the others have left.
local function is_named(self, server)
  for _, each in ipairs(self.sentinels) do
    if self:on(each:named()) ~= server then return false end
  end
  return true
end

-- Makes replicas of the other servers, as the Sentinels do after 10 s.
local function demote(self, master)
  for _, server in ipairs(self.servers) do
    if server ~= master and server:info "role" == "master" then
      server:cli("REPLICAOF", "127.0.0.1",
        ("%d"):format(port_of(master, self.options)))
    end
  end
end

--- Resumes or restarts the servers that do not run. Waits until every replica
--- has caught up, and every Sentinel knows all servers.
function Set:settle()
  for _, each in ipairs(self.sentinels) do each:mend() end
  for _, server in ipairs(self.servers) do
    if server.pid then server:resume() else server:restart() end
  end
  wait_for(self, "every replica has caught up", function()
    local own = self:master()
    if not own or own:info "role" ~= "master" or not is_named(self, own) then
      return false
    end
    demote(self, own)
    return has_replicas(own, #self.servers - 1)
  end)
  for _, each in ipairs(self.sentinels) do
    wait_for(self, "the Sentinels know all", function()
      return each:is_ready()
    end)
  end
end

--- Starts a set. Options, all optional: `replicas` (2), `sentinels` (3),
--- `name` (mymaster), `quorum` (2), `down_after` (500 ms, times slow),
--- `failover_timeout` (2000 ms), `password` of the servers,
--- `sentinel_password`, `can_split` (not with passwords or users), `args` and
--- `users` as in redis.start, `sleep` (blocks by default); `tls`: "sentinels",
--- which then have TLS ports too; true: so do the servers, and all know each
--- other by these. The fields: `servers`, the first being the master;
--- `sentinels`; `url`.
function sentinel.start(options)
  options = options or {}
  local self = setmetatable({
    options = options, servers = {}, sentinels = {},
    name = options.name or "mymaster", quorum = options.quorum or 2,
    down_after = options.down_after or 500 * slow,
    failover_timeout = options.failover_timeout or 2000,
    sleep = options.sleep or block,
  }, Set)
  for i = 1, 1 + (options.replicas or 2) do
    self.servers[i] = start_server(options, self.servers[1])
  end
  wait_for(self, "every replica has caught up", function()
    return has_replicas(self.servers[1], #self.servers - 1)
  end)
  for i = 1, options.sentinels or 3 do
    self.sentinels[i] = start_sentinel(self)
  end
  self:settle()
  self.url = self:url_of(self.name)
  return self
end

--- The URL for a master's name; `host` replaces 127.0.0.1.
function Set:url_of(name, only)
  local hosts = {}
  for i, each in ipairs(only or self.sentinels) do
    local port = self.options.tls and each.tls_port or each.port
    hosts[i] = ("127.0.0.1:%d"):format(port)
  end
  local login = self.options.password and ":" .. self.options.password .. "@"
  return ("%s+sentinel://%s%s/%s"):format(
    self.options.tls == true and "rediss" or "redis", login or "",
    table.concat(hosts, ","), name)
end

--- The server on a port.
function Set:on(port)
  for _, server in ipairs(self.servers) do
    if port_of(server, self.options) == port then return server end
  end
end

--- The server that the first Sentinel that answers names.
function Set:master()
  for _, each in ipairs(self.sentinels) do
    local port = each.pid and each:named()
    if port then return self:on(port) end
  end
end

--- Cuts the replicas off from the master, until it is restarted.
function Set:cut(master)
  master:cli("ACL", "SETUSER", "default", "-psync", "-sync")
  master:cli("CLIENT", "KILL", "TYPE", "replica")
end

--- Partitions a server from the other servers and the Sentinels, by refusing
--- their user. Clients still reach it. Needs `can_split`.
function Set.split(_, server)
  server:cli("ACL", "SETUSER", PEER, "-@all")
  server:cli("CLIENT", "KILL", "USER", PEER)
end

--- Ends a partition.
function Set.join(_, server) server:cli("ACL", "SETUSER", PEER, "+@all") end

-- Asks the Sentinels in turn, until one begins a failover; returns it.
local function begin_failover(self)
  for _, each in ipairs(self.sentinels) do
    if each:cli("SENTINEL", "FAILOVER", self.name) == "OK" then return each end
  end
end

--- Makes a Sentinel fail over, and waits until it names another server. Repeats
--- a failover that the Sentinel gives up, because the replica is not promoted
--- in time.
function Set:fail_over()
  local before, asked = eventually(function() return self:master() end), nil
  local function is_done()
    local port = asked and asked:named()    -- nil if it does not answer in time
    return port and self:on(port) ~= before
  end
  eventually(function()
    if is_done() then return true end
    asked = begin_failover(self)
    return asked and pcall(eventually, is_done, 10 * slow)
  end, 60 * slow, "a Sentinel fails over")
end

function Set:stop()
  for _, each in ipairs(self.sentinels) do each:stop() end
  for _, server in ipairs(self.servers) do server:stop() end
end

Set.close = Set.stop

return sentinel
