--- Private nginx servers with ngx_lua for the specs. Each has its own folder, a
--- unix socket and a free port of 127.0.0.1; it is ready when start() returns
--- and ends with the test process, even if that is killed.
---
---   local nginx = require "spec.tools.nginx"
---   local server = nginx.start {
---     workers = 2,
---     http = [[ init_worker_by_lua_block { ... } ]],      -- inside http { }
---     locations = [[ location /x { content_by_lua_block { ... } } ]],
---   }
---   local status, body = server:get("/x")                 -- inside nginx
---   server:stop()
---
--- Does not depend on rlock, except that lua/ of this tree is in
--- lua_package_path. start and stop block the process for a few milliseconds.
--- `get` uses a cosocket, so specs that call it run in nginx (see in-nginx).

local files = require "spec.tools.files"
local shell = require "spec.tools.shell"

local nginx = {}

local Server = {}
Server.__index = Server

local PORT_TRIES = 20
local SECONDS = 30                     -- timeout of a request

local root = shell.run("cd " .. shell.quote(shell.here() .. "../..") .. "; pwd")

local CONF = [[
load_module ${modules}/ndk_http_module.so;
load_module ${modules}/ngx_http_lua_module.so;
${user}
daemon off;
worker_processes ${workers};
pid ${folder}/nginx.pid;
error_log stderr ${log};
worker_shutdown_timeout ${shutdown_timeout}s;
${main}
events { worker_connections ${connections}; }
http {
  access_log off;
  lua_socket_log_errors off;
  client_body_temp_path ${folder}/tmp;
  proxy_temp_path ${folder}/tmp;
  fastcgi_temp_path ${folder}/tmp;
  uwsgi_temp_path ${folder}/tmp;
  scgi_temp_path ${folder}/tmp;
  lua_package_path "${root}/lua/?.lua;${root}/?.lua;;";
  ${http}
  server {
    listen 127.0.0.1:${port};
    listen unix:${folder}/http.sock;
    ${server}
    ${locations}
  }
}
]]

local defaults = {
  workers = 1, log = "notice", shutdown_timeout = 10, connections = 1024,
  main = "", http = "", server = "", locations = "",
}

-- Replaces every ${name}, in one pass.
local function filled(text, values)
  return (text:gsub("%${([%w_]+)}", function(name)
    return tostring(values[name])
  end))
end

-- Adapts a given conf: replaces its port and the files that it writes.
local function adapted(text, values)
  local listens
  text, listens = text:gsub("listen 127%.0%.0%.1:%d+;",
    ("listen 127.0.0.1:%d; listen unix:%s/http.sock;"):format(values.port,
      values.folder))
  assert(listens == 1, "a conf that listens at one port of 127.0.0.1")
  return values.user .. text:gsub(" logs/", " " .. values.folder .. "/")
end

function Server:configure()
  local conf = self.options.conf
  local values = setmetatable({
    root = root, folder = self.folder, port = self.port,
    modules = "/usr/lib/nginx/modules",
    user = shell.run("id -u") == "0" and "user root;" or "",
  }, { __index = function(_, name)
    local value = self.options[name]
    if value == nil then value = defaults[name] end
    return value
  end })
  files.write(self.folder .. "/nginx.conf",
    conf and adapted(assert(files.read(conf)), values) or filled(CONF, values))
end

-- Not from math.random, which may start alike in several processes.
local function choose_port()
  local number = shell.run("od -An -N2 -tu2 /dev/urandom")
  return 10000 + number % 22000                  -- below the ephemeral ports
end

-- The command that runs the server.
function Server:command()
  local words = { "setsid", "env" }
  for name, value in pairs(self.options.env or {}) do
    words[#words + 1] = shell.quote(name .. "=" .. value)
  end
  local conf = self.options.conf
  words[#words + 1] = "nginx -e stderr -c \"$d/nginx.conf\" -p " ..
    (conf and shell.quote(conf:match("^(.*)/")) or '"$d"')
  return table.concat(words, " ")
end

function Server:launch()
  local output
  for _ = 1, PORT_TRIES do
    self.port = choose_port()
    self:configure()
    os.remove(self.socket)                       -- of a failed attempt
    local folder, pid = shell.daemon(self.folder, "start worker process ",
      self:command())
    if folder then
      self.pid = pid
      -- kill the master's whole process group
      shell.run(("echo -%d >%s/pid"):format(pid, shell.quote(folder)))
      return self
    end
    output = pid
    if not output:find("Address already in use", 1, true) then break end
  end
  error("no private nginx: " .. output, 0)
end

--- Starts a server. Options, all optional:
--- workers            1
--- main, http, server, locations    parts of nginx.conf in those contexts
--- log                level of its error log; "notice" or more verbose
--- connections        worker_connections, 1024
--- shutdown_timeout   seconds
--- conf               instead of the above: a conf file of this tree, run in
---                    place, with this server's port and logs/
--- env                its environment: name -> value
--- The server has these fields: pid (of the master), port, folder, socket.
function nginx.start(options)
  local self = setmetatable({ options = options or {} }, Server)
  self.folder = assert(shell.run(([[d=$(mktemp -d "%s/rlock-XXXXXX") &&
    mkdir "$d/tmp" && echo "$d"]]):format(os.getenv("TMPDIR") or "/tmp")))
  self.socket = self.folder .. "/http.sock"
  return self:launch()
end

--- Sends a signal to the master: "HUP" reloads, "QUIT" ends it gracefully.
function Server:signal(name) shell.kill(self.pid, name) end

--- Ends the server at once and removes its folder.
function Server:stop()
  if not self.pid then return end
  os.remove(self.folder .. "/pid")
  shell.run(("kill -KILL -%d"):format(self.pid))
  shell.finish(self.pid)
  shell.run("rm -rf " .. shell.quote(self.folder))
  self.pid = nil
end

--- Has it ended by itself?
function Server:has_ended()
  return not select(2, shell.run("kill -0 " .. self.pid))
    or shell.run("cat /proc/" .. self.pid .. "/stat"):find(") Z ", 1, true)
end

--- The pids of the current workers.
function Server:workers()
  local pids = {}
  for pid in shell.run("ps -o pid= --ppid " .. self.pid):gmatch("%d+") do
    pids[#pids + 1] = tonumber(pid)
  end
  return pids
end

--- The contents of its error log.
function Server:log()
  return (shell.run("cat " .. shell.quote(self.folder .. "/log")))
end

-- requests ------------------------------------------------------------------

--- Sends a request, GET by default; returns the socket, to read the response
--- from.
function Server:send(path, method)
  local socket = ngx.socket.tcp()
  socket:settimeouts(SECONDS * 1000, SECONDS * 1000, SECONDS * 1000)
  assert(socket:connect("unix:" .. self.socket))
  assert(socket:send(("%s %s HTTP/1.0\r\nHost: spec\r\n\r\n"):format(
    method or "GET", path)))
  return socket
end

--- Gets a page, or requests it by another method.
---@return number # the status; nil if the connection was closed without one
---@return string # the body
---@return string # the head
function Server:get(path, method)
  local socket = self:send(path, method)
  local text, why, part = socket:receive("*a")
  socket:close()
  text = text or part or error(why)
  local head, body = text:match("^(.-)\r\n\r\n(.*)$")
  return head and tonumber(head:match("^HTTP/%S+ (%d+)")), body, head
end

return nginx
