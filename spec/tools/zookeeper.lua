--- Private ZooKeeper servers for the specs: on loopback, with their data in a
--- folder that is removed. They end with the test process, even if that is
--- killed.
---
---   local zookeeper = require "spec.tools.zookeeper"
---   local server = zookeeper.start { tick = 200 }
---   server.url                                 -- zk://127.0.0.1:PORT
---   server:says "srvr"                         -- a four-letter word
---   server:stop()
---   local three = zookeeper.ensemble(3)        -- servers, and their `url`
---   three:leader()  three:follower()  three:stop()
---
--- Needs Debian's package libzookeeper-java (spec/tools/deps zookeeper).
--- Everything here blocks the process.

local clock = require "spec.tools.clock"
local shell = require "spec.tools.shell"
local switch = require "spec.tools.switch"

local zookeeper = {}

local Server = {}
Server.__index = Server

local here = shell.run(("cd %s && pwd"):format(shell.quote(shell.here())))
local JARS = "/usr/share/java"
local CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
-- What the server needs of the packages that libzookeeper-java pulls in.
local PARTS = [[zookeeper zookeeper-jute slf4j-api slf4j-simple
  netty-buffer netty-codec netty-common netty-handler netty-resolver
  netty-transport netty-transport-native-unix-common commons-cli commons-io
  metrics-core snappy-java jackson-core jackson-databind jackson-annotations]]
local TRIES = 5

--- Is it installed?
function zookeeper.is_installed()
  return shell.run(("test -e %s/zookeeper.jar && command -v java"):format(
    JARS)) ~= ""
end

local LOCAL = "127.0.0.1"

-- A port below the ephemeral ones.
local function choose_port()
  return 10000 + shell.run("od -An -N2 -tu2 /dev/urandom") % 22000
end

local function class_path()
  local list = {}
  for part in PARTS:gmatch("%S+") do
    list[#list + 1] = ("%s/%s.jar"):format(JARS, part)
  end
  return table.concat(list, ":")
end

local CONFIG = [[
tickTime=%d
dataDir=%s/data
clientPort=%d
clientPortAddress=%s
admin.enableServer=false
4lw.commands.whitelist=*
maxClientCnxns=0
]]

-- /dev/shm, because a server waits for its disk.
local function new_folder()
  local base = shell.run("test -w /dev/shm && echo /dev/shm || echo "
    .. (os.getenv "TMPDIR" or "/tmp")):gsub("%s+$", "")
  return (shell.run(("mktemp -d %s/rlock-XXXXXX"):format(base))
    :gsub("%s+$", ""))
end

-- A JVM reserves more memory than spec/mutate/one.lua allows the tests.
local UNLIMITED = [[sh -c 'ulimit -S -v $(ulimit -H -v); exec "$@"' sh ]]

function Server:launch()
  local folder = shell.quote(self.folder)
  shell.run(("cat > %s/zoo.cfg <<'END'\n%s%sEND"):format(folder,
    CONFIG:format(self.tick, self.folder, self.port, self.bind or LOCAL),
    self.more))
  local _, pid = shell.daemon(self.folder, self.ready, ((self.prefix or "")
    .. UNLIMITED .. "java -Xmx128m "
    .. "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto "
    .. "-Djute.maxbuffer=%d "
    .. "-Dznode.container.checkIntervalMs=1000 "
    .. "-Dorg.slf4j.simpleLogger.logFile=System.out -cp %s %s %s/zoo.cfg")
    :format(self.jute or 1048575, shell.quote(self.class_path), CLASS, folder))
  self.pid = tonumber(pid)
  return self.pid, pid
end

local TLS = [[
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
secureClientPort=%d
secureClientPortAddress=127.0.0.1
ssl.keyStore.type=PEM
ssl.keyStore.location=%s/good.pem
ssl.trustStore.type=PEM
ssl.trustStore.location=%s/ca.pem
ssl.clientAuth=none
]]

-- Makes its certificate with tls.sh; sets `tls_url`, and `ca`, a file.
local function add_tls(self)
  local port, folder = choose_port(), self.folder .. "/tls"
  shell.run(("cd %s && sh %s tls && cat tls/good.key tls/good.crt "
    .. ">tls/good.pem && cp tls/ca.crt tls/ca.pem"):format(self.folder,
    shell.quote(here .. "/tls.sh")))
  self.more = TLS:format(port, folder, folder)
  self.tls_url, self.ca = "zks://localhost:" .. port, folder .. "/ca.crt"
end

--- Starts a server. Options: tick (ms; 500); class_path (Debian's); tls; jute
--- (jute.maxbuffer); more (lines of its configuration).
---@return any # the server: url, port, folder, pid; tls_url and ca with TLS
function zookeeper.start(options)
  options = options or {}
  local self = setmetatable({ tick = options.tick or 500,
    class_path = options.class_path or class_path(),
    folder = new_folder(), jute = options.jute,
    more = options.more and options.more .. "\n" or "",
    ready = "checkIntervalMs=" }, Server)
  if options.tls then add_tls(self) end
  local output
  for _ = 1, TRIES do
    self.port = choose_port()
    local pid
    pid, output = self:launch()
    if pid then
      self.url = ("zk://%s:%d"):format(LOCAL, self.port)
      return self
    end
  end
  error("no private ZooKeeper: " .. output, 0)
end

--- Starts it again after `kill`, with its data.
function Server:restart() assert(self:launch()) end

--- Sends it a four-letter word; returns the answer, or "" after 2 seconds.
function Server:says(word)
  return (shell.run("timeout 2 bash -c " .. shell.quote(
    ("exec 3<>/dev/tcp/%s/%d; printf %s >&3; cat <&3"):format(
    self.address or LOCAL, self.port, word))))
end

--- Sends a signal by number or name.
function Server:signal(signal) return shell.kill(self.pid, signal) end

--- Sets its wall clock, see clock.lua. Needs `clocks`.
function Server:set_clock(seconds) clock.set(self.clock, seconds) end

--- Kills it.
Server.kill = shell.kill_daemon

--- Ends it, and removes its folder.
function Server:stop()
  self:kill()
  shell.run("rm -rf " .. shell.quote(self.folder))
end

-- An ensemble ----------------------------------------------------------------

local Ensemble = {}
Ensemble.__index = Ensemble

local OF_ENSEMBLE = "initLimit=20\nsyncLimit=4\nquorumListenOnAllIPs=%s\n"

-- A server of an ensemble, which is not started.
local function new_member(i, options)
  local self = setmetatable({ tick = options.tick or 500, folder = new_folder(),
    class_path = class_path(), ready = "lection bind port",
    address = options.alone and switch.address(i) or LOCAL,
    bind = options.alone and "0.0.0.0", port = choose_port() }, Server)
  self.url = ("zk://%s:%d"):format(self.address, self.port)
  self.prefix = options.alone and "unshare -n " or ""
  if options.clocks then
    self.clock = self.folder .. "/clock"
    self.prefix = self.prefix .. shell.words(clock.words(self.clock)) .. " "
  end
  shell.run(("mkdir %s/data && echo %d >%s/data/myid"):format(self.folder, i,
    self.folder))
  return self
end

--- Starts several servers.
---@param n integer
---@param options? table tick (ms; 500); alone: each in its own network
---  namespace, see switch.lua; clocks: whether set_clock works
---@return any # a list of servers, with the `url` of all, and with the
---  `network`
function zookeeper.ensemble(n, options)
  options = options or {}
  local self, hosts = setmetatable({}, Ensemble), {}
  local more = OF_ENSEMBLE:format(options.alone ~= nil)
  for i = 1, n do
    self[i] = new_member(i, options)
    more = ("%sserver.%d=%s:%d:%d\n"):format(more, i, self[i].address,
      choose_port(), choose_port())
    hosts[i] = self[i].url:sub(6)
  end
  for _, server in ipairs(self) do
    server.more = more
    local pid, output = server:launch()
    if not pid then error("no private ZooKeeper: " .. output, 0) end
  end
  self.url = "zk://" .. table.concat(hosts, ",")
  self.network = options.alone and switch.to(self)
  return self
end

--- The first server in this mode: "leader" or "follower"; nil: none yet.
function Ensemble:find(mode)
  for _, server in ipairs(self) do
    if server.pid and server:says "srvr":find("Mode: " .. mode, 1, true) then
      return server
    end
  end
end

function Ensemble:leader() return self:find "leader" end
function Ensemble:follower() return self:find "follower" end

function Ensemble:stop()
  for _, server in ipairs(self) do server:stop() end
end

return zookeeper
