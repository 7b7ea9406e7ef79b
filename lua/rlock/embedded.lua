--- The embedded default, `local:`: a private redis-server of this user on this
--  machine. On a unix socket in a folder that only the user can open, memory
--  only, never on TCP. Started by the first who needs it, shared by all
--  processes of the user, and left running, because leases outlive processes.

local embedded = {}

local START = 10            -- seconds for the server to come up
local STEP = 0.005          -- between looks whether it is there
local MAX_PATH = 107        -- bytes of a unix socket's path
local SERVERS = { "redis-server", "valkey-server" }

--- The folder, socket and files.
-- @tparam table host
function embedded.places(host)
  local folder = os.getenv("XDG_RUNTIME_DIR")
  if folder and folder ~= "" then
    folder = folder .. "/rlock"
  else
    local temp = os.getenv("TMPDIR")
    if not temp or temp == "" then temp = "/tmp" end
    folder = ("%s/rlock-%d"):format(temp, host.uid())
  end
  return {
    folder = folder, socket = folder .. "/redis.sock",
    lock = folder .. "/start.lock", log = folder .. "/redis.log",
  }
end

-- Talks to a server that is there already.
local function reach(host, places, timeout)
  local connection = host.connect {
    path = places.socket, timeout = timeout or 1000, silent = 0,
  }
  if not connection then return false end
  local reply = connection:call(1000, "PING")
  connection:close()
  return reply == "PONG"
end

--- Is the embedded server up?
function embedded.is_up(host)
  return reach(host, embedded.places(host))
end

local function arguments(places)
  return {
    "--port", "0", "--unixsocket", places.socket, "--unixsocketperm", "700",
    "--save", "", "--appendonly", "no", "--dir", places.folder,
    "--logfile", places.log, "--daemonize", "no",
    "--maxmemory-policy", "noeviction",
  }
end

local function spawn_server(host, places)
  local code, detail
  for _, file in ipairs(SERVERS) do
    local process
    process, code, detail = host.process {
      file = file, args = arguments(places), detached = true,
      stdin = "null", stdout = "null", stderr = "null",
    }
    if process then return process end
  end
  return nil, code, detail
end

local function last_line(path)
  local file = io.open(path)
  if not file then return "no log" end
  local last = "empty log"
  for line in file:lines() do if line ~= "" then last = line end end
  file:close()
  return last
end

-- Starts the server and waits until it answers.
local function launch(host, places, give_up)
  local process, _, detail = spawn_server(host, places)
  if not process then
    return nil, "connect", "local: no redis-server on this machine ("
      .. detail .. "): install it (apt-get install redis-server), or name a "
      .. "server with --url or RLOCK_URL"
  end
  while host.now() < give_up do
    if reach(host, places) then
      process:forget()
      return true
    end
    if process.status then
      return nil, "connect", ("local: redis-server ended at once: %s (see %s)")
        :format(last_line(places.log), places.log)
    end
    host.sleep(STEP)
  end
  process:kill(15)
  return nil, "connect", ("local: redis-server did not come up in %d s (see "
    .. "%s)"):format(START, places.log)
end

-- One process starts the server, the others wait for it.
local function start_once(host, places, give_up)
  local guard, code, detail = host.lock_file(places.lock)
  while not guard do
    if code ~= "busy" then return nil, "connect", "local: " .. detail end
    if host.now() > give_up then
      return nil, "connect", "local: another process has been starting the "
        .. "server for too long (" .. places.lock .. " is locked)"
    end
    host.sleep(STEP)
    guard, code, detail = host.lock_file(places.lock)
  end
  local ok = reach(host, places)
  if not ok then ok, code, detail = launch(host, places, give_up) end
  guard:close()
  if not ok then return nil, code, detail end
  return true
end

--- Makes sure that the server runs.
-- @tparam table host
-- @tparam[opt] table options where the address goes
-- @return[1] options with `path`
-- @treturn[2] nil
-- @treturn[2] string "connect"
-- @treturn[2] string detail
function embedded.start(host, options)
  local places = embedded.places(host)
  if #places.socket > MAX_PATH then
    return nil, "connect", ("local: %s is too long for a socket; set "
      .. "XDG_RUNTIME_DIR or TMPDIR to a shorter path"):format(places.socket)
  end
  local private, _, detail = host.private_dir(places.folder)
  if not private then return nil, "connect", "local: " .. detail end
  if not reach(host, places) then
    local ok, code
    ok, code, detail = start_once(host, places, host.now() + START)
    if not ok then return nil, code, detail end
  end
  options = options or {}
  options.path, options.db = places.socket, options.db or 0
  return options
end

--- Stops the server; every lock it has is gone.
-- @return[1] true, or false if it was not running
-- @treturn[2] nil, code, detail
function embedded.stop(host)
  local places = embedded.places(host)
  local connection = host.connect { path = places.socket, timeout = 1000,
    silent = 0 }
  if not connection then return false end
  local _, code, detail = connection:call(3000, "SHUTDOWN", "NOSAVE")
  connection:close()
  if code ~= "closed" then return nil, code, "local: " .. tostring(detail) end
  return true
end

return embedded
