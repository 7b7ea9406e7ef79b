--- Private Redis servers for the specs: in memory, on a unix socket in a 0700
--- folder, ready within milliseconds. They end with the test process, even if
--- that is killed.
---
---   local redis = require "spec.tools.redis"
---   local server = redis.shared()              -- one for the whole run
---   local server = redis.start{ password = "x", port = true }
---   server:cli("SET", "key", "value")          -- "OK", through redis-cli
---   server:stop()
---
--- Does not depend on rlock, so that specs arrange and check independently of
--- what they test. Everything here blocks the process for a few milliseconds.
---
--- RLOCK_TEST_SERVER and RLOCK_TEST_CLI replace the programs redis-server and
--- redis-cli (if those are missing, valkey-server and valkey-cli).

local redis_cli = require "spec.tools.redis_cli"
local shell = require "spec.tools.shell"

local redis = {}

local Server = {}
Server.__index = Server

local SHARED = "rlock.spec.tools.redis"
local PORT_TRIES = 20

local found = {}

-- The programs that a variable names, or those of `names` that are installed.
local function find(variable, names)
  local paths = os.getenv(variable) or ""
  if paths == "" then
    found[variable] = found[variable] or shell.run(
      ("for name in %s; do command -v $name; done"):format(names))
    paths = found[variable]
  end
  local list = {}
  for path in paths:gmatch("%S+") do list[#list + 1] = path end
  assert(list[1], "none of these programs is installed: " .. names)
  return list
end

--- The server programs of this machine; RLOCK_TEST_SERVER may name others.
function redis.programs()
  return find("RLOCK_TEST_SERVER", "redis-server valkey-server")
end

local function cli_program()
  return find("RLOCK_TEST_CLI", "redis-cli valkey-cli")[1]
end

local function add(words, ...)
  for _, word in ipairs({ ... }) do words[#words + 1] = shell.quote(word) end
end

--- The command line that starts `self`, for shell.daemon.
function Server:command()
  local words = {
    shell.quote(self.options.program or redis.programs()[1]), "--dir", '"$d"',
    "--unixsocket", '"$d/redis.sock"', "--port", self.port or 0,
  }
  if self.options.alone then
    table.insert(words, 1, "unshare -n")
    add(words, "--bind", "*", "--protected-mode", "no")
  else
    add(words, "--bind", "127.0.0.1", "-::1")
  end
  add(words, "--save", "", "--appendonly", "no", "--daemonize", "no")
  add(words, "--enable-debug-command", "yes")
  if self.password then add(words, "--requirepass", self.password) end
  for _, user in ipairs(self.options.users or {}) do
    words[#words + 1] = "--user"
    for word in user:gmatch("%S+") do add(words, word) end
  end
  if self.tls_port then
    local tls = self.options.tls
    local pair = self.certificates .. "/" .. (tls.name or "good")
    add(words, "--tls-ca-cert-file", self.certificates .. "/ca.crt")
    add(words, "--tls-cert-file", pair .. ".crt")
    add(words, "--tls-key-file", pair .. ".key")
    add(words, "--tls-port", self.tls_port)
    add(words, "--tls-auth-clients", tls.clients or "no")
  end
  add(words, (table.unpack or unpack)(self.options.args or {}))
  return table.concat(words, " ")
end

local here = shell.here()

--- Makes the certificates of tls.sh in a new folder; returns the folder.
local function make_certificates()
  local folder, ok = shell.run(([[
    d=$(mktemp -d "%s/rlock-XXXXXX") && echo "$d" && sh %s "$d/tls"]]):format(
    os.getenv("TMPDIR") or "/tmp", shell.quote(here .. "tls.sh")))
  assert(ok, folder)
  return folder
end

--- A port below the ephemeral ones. Not from math.random, which may start alike
--- in several processes.
function redis.choose_port()
  return 10000 + shell.run("od -An -N2 -tu2 /dev/urandom") % 22000
end

local function port_of(wanted)
  if wanted ~= true then return wanted or nil end
  return redis.choose_port()
end

--- Starts the process of `self`. Tries further ports if one that we chose is in
--- use.
function Server:launch()
  local options, output = self.options, nil
  if options.tls and not self.certificates then
    self.certificates = options.tls.certificates
    if not self.certificates then
      self.folder = make_certificates()
      self.certificates = self.folder .. "/tls"
    end
  end
  for _ = 1, PORT_TRIES do
    self.port = self.port or port_of(options.port)
    self.tls_port = self.tls_port or options.tls
      and port_of(options.tls.port or true)
    local folder, pid = shell.daemon(self.folder, "eady to accept conn",
      self:command())
    if folder then
      self.folder, self.pid = folder, pid
      return self
    end
    output = pid
    if not output:find("Address already in use", 1, true) then break end
    if options.port == true then self.port = nil end
    if options.tls then self.tls_port = nil end
  end
  error("no private Redis: " .. output, 0)
end

local function percent(text)
  return (text:gsub("[^%w%-._~]", function(char)
    return ("%%%02X"):format(char:byte())
  end))
end

--- Starts a private server. Options, all optional:
--- program   one of redis.programs(); the first
--- args      more words for its command line: { "--maxmemory", "2mb" }
--- password  of the default user
--- users     ACL rules: { "alice on >secret ~* &* +@all -eval" }
--- port      also listen on this TCP port of 127.0.0.1; true: a free one
--- tls       also listen for TLS. { name = "good", port = true, clients =
---           "no" }: its certificate, one of those of tls.sh; the port; whether
---           clients must present one; `certificates`, the folder of another
---           server
--- alone     in its own network namespace, reachable through link.lua
--- The server has these fields, besides .pid:
--- url       unix://..., with the password if it has one
--- socket    the path of its socket         folder   that of the socket
--- port, tls_port                           certificates   folder of tls.sh
function redis.start(options)
  options = options or {}
  local self = setmetatable({
    options = options, password = options.password,
  }, Server):launch()
  self.socket = self.folder .. "/redis.sock"
  assert(#self.socket < 100, "TMPDIR is too long for a unix socket in it")
  local login = self.password and ":" .. percent(self.password) .. "@" or ""
  self.url = "unix://" .. login .. self.socket
  return self
end

--- The server shared by all spec files of this run; started on first use, and
--- again if a spec has stopped it. It keeps its data.
function redis.shared()
  -- busted reloads modules for each file, but keeps the registry.
  local registry = debug.getregistry()
  local server = registry[SHARED]
  if not server or not server.pid then
    server = redis.start()
    registry[SHARED] = server
  end
  return server
end

--- Ends the server and removes its folder.
function Server:stop()
  self:kill()
  if self.folder then shell.run("rm -rf " .. shell.quote(self.folder)) end
  self.folder = nil
end

--- Kills the server, as a power failure would. :restart() brings it back.
Server.kill = shell.kill_daemon

--- Kills the server if it runs and starts it on the same socket and ports,
--- empty (unless its args say otherwise).
function Server:restart()
  self:kill()
  return self:launch()
end

--- Suspends the server: it answers nothing until :resume().
function Server:pause()
  shell.kill(self.pid, "STOP")
end

function Server:resume()
  shell.kill(self.pid, "CONT")
end

--- The words that run redis-cli, for shell commands.
function Server:cli_words()
  local words = { cli_program(), "-s", self.socket }
  if self.password then
    words[#words + 1] = "--no-auth-warning"
    words[#words + 1] = "-a"
    words[#words + 1] = self.password
  end
  return words
end

--- Runs one command, given as words of any bytes; returns what redis-cli
--- prints: a string, a number's digits, "" for nil, a line for each element of
--- an array, or an error's text.
function Server:cli(...)
  return self:script({ { ... } })
end

--- Runs a list of commands, each a list of words, over one connection; returns
--- what redis-cli prints.
function Server:script(commands)
  return redis_cli.run({ path = self.socket, password = self.password },
    commands)
end

--- Starts one command, given as words without NUL, in the background.
function Server:background(...)
  local words = self:cli_words()
  for _, word in ipairs({ ... }) do words[#words + 1] = word end
  shell.run(shell.words(words) .. " </dev/null >/dev/null 2>&1 &")
end

--- A field of INFO, as a number if it is one: server:info("evicted_keys").
function Server:info(field)
  local text = "\n" .. self:cli("INFO", "all"):gsub("\r", "")
  local value = text:match("\n" .. field .. ":([^\n]*)")
  return tonumber(value) or value
end

--- The server's calls of command `name` so far, and its microseconds in them.
function Server:stat(name)
  local calls, usec = self:cli("INFO", "commandstats"):match(
    "cmdstat_" .. name:lower() .. ":calls=(%d+),usec=(%d+)")
  return tonumber(calls or 0), tonumber(usec or 0)
end

--- Does another server follow this one, and have every write so far?
function Server:has_reached(replica)
  local written = self:info "master_repl_offset"
  return (replica:info "slave_repl_offset" or -1) >= written
end

return redis
