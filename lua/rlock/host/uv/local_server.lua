--- The default server, `local:`: a private redis-server of this user on this
--- machine, on a unix socket in a folder with mode 700, never on TCP, its data
--- in memory only. The first process that needs it starts it, all processes of
--- the user share it, and it keeps running, because leases outlive processes.
---
--- A server is up if its socket accepts a connection, even if it is too busy to
--- reply: a second server would grant its locks again. A file lock resolves the
--- race to start it; the server inherits the lock and keeps it until it exits.

local local_server = {}

local START = 10            -- seconds for the server to come up
local STEP = 0.005          -- seconds between polls for the server
local PATIENCE = 3          -- seconds for a connection or a reply
local MAX_PATH = 107        -- bytes of a unix socket's path
local SERVERS = { "redis-server", "valkey-server" }

-- A folder from the environment; a relative one would depend on the process.
local function folder_of(variable)
  local folder = os.getenv(variable)
  if folder and folder:find("^/") then return (folder:gsub("(.)/+$", "%1")) end
end

--- The folder, socket and files.
---@param host table
function local_server.paths(host)
  local folder = folder_of("XDG_RUNTIME_DIR")
  folder = folder and folder .. "/rlock"
    or ("%s/rlock-%d"):format(folder_of("TMPDIR") or "/tmp", host.uid())
  return {
    folder = folder, socket = folder .. "/redis.sock",
    lock = folder .. "/start.lock", log = folder .. "/redis.log",
  }
end

local function refuse(text, ...)
  return nil, "connect", "local: " .. text:format(...)
end

--- Is the folder private to the user?
---@param make boolean create it if there is none
---@return any # true; false if there is none; nil, code, detail
local function check_folder(host, paths, make)
  if #paths.socket > MAX_PATH then
    return refuse("%s is too long for a socket; set XDG_RUNTIME_DIR or TMPDIR "
      .. "to a shorter path", paths.socket)
  end
  local is_private, code, detail
  if make then
    is_private, code, detail = host.private_dir(paths.folder)
  else
    is_private, code, detail = host.check_private(paths.folder, "directory")
  end
  if is_private then return true end
  if code == "missing" then return false end
  return refuse("%s; it must be your own folder, with mode 700, or set "
    .. "XDG_RUNTIME_DIR to another folder", detail)
end

-- A connection; false if there is no server; nil, code, detail if unknown.
local function reach(host, paths)
  local is_socket, why, fault = host.check_private(paths.socket, "socket")
  if why == "missing" then return false end
  if not is_socket then return refuse("%s", fault) end
  local connection, code, detail = host.connect {
    path = paths.socket, timeout = PATIENCE * 1000, silent = 0,
  }
  if connection then return connection end
  if code == "cancelled" then error(detail, 0) end
  if detail:find("connection refused$") or detail:find("no such file") then
    return false
  end
  return nil, code, "local: " .. detail
end

local function is_up(host, paths)
  local connection, code, detail = reach(host, paths)
  if not connection then return connection, code, detail end
  connection:close()
  return true
end

--- Sends one command to the server.
---@param host table
---@param ... any its words
---@return any # the reply; false if the server does not run
---@return rlock.failure? code, string? detail
function local_server.command(host, ...)
  local paths = local_server.paths(host)
  local ok, code, detail = check_folder(host, paths, false)
  if not ok then return ok, code, detail end
  local connection
  connection, code, detail = reach(host, paths)
  if not connection then return connection, code, detail end
  local reply
  reply, code, detail = connection:call(PATIENCE * 1000, ...)
  connection:close()
  if code == "cancelled" then error(detail, 0) end
  if reply == nil then
    if code == "connect" then code = "closed" end    -- lost before the request
    return nil, code, ("local: %s: %s"):format(paths.socket, detail)
  end
  return reply
end

local function spawn_server(host, paths, guard)
  local args = {
    "--port", "0", "--unixsocket", paths.socket, "--unixsocketperm", "700",
    "--save", "", "--appendonly", "no", "--dir", paths.folder,
    "--daemonize", "no", "--maxmemory-policy", "noeviction",
  }
  os.remove(paths.log)
  for _, file in ipairs(SERVERS) do
    local process, code, detail = host.process {
      file = file, args = args, detached = true,
      stdin = "null", stdout = paths.log, stderr = paths.log, keep = guard,
    }
    if process then return process end
    if not detail:find("not found$") then
      return nil, code, "local: " .. detail
    end
  end
  return refuse("there is no redis-server on PATH: install it (apt-get install "
    .. "redis-server), or name a server with --url or RLOCK_URL")
end

-- The last line of the server's log, without the time.
local function last_words(path)
  local file = io.open(path)
  if not file then return "it left no log" end
  ---@type any
  local last = "its log is empty"
  for line in file:lines() do
    ---@cast line string
    if line:find("%S") then last = line end
  end
  file:close()
  return last:match("^%d+:%a .- [#*%-.] (.*)$") or last
end

-- Starts the server and waits until it is up.
local function launch(host, paths, guard)
  local process, code, detail = spawn_server(host, paths, guard)
  if not process then return nil, code, detail end
  local deadline = host.now() + START
  while host.now() < deadline do
    if is_up(host, paths) then
      process:forget()
      return true
    elseif process.status then
      return refuse("redis-server exited at once: %s (%s)",
        last_words(paths.log), paths.log)
    end
    host.sleep(STEP)
  end
  process:kill(9)
  process:forget()
  return refuse("redis-server did not come up in %d s: %s (%s)", START,
    last_words(paths.log), paths.log)
end

-- The process that gets the file lock starts the server; the others wait.
local function start_once(host, paths)
  local deadline = host.now() + START
  while host.now() < deadline do
    local guard <close>, busy, why = host.lock_file(paths.lock)
    local up, code, detail = is_up(host, paths)
    if up or code then return up, code, detail end
    if guard then return launch(host, paths, guard) end
    if busy ~= "busy" then
      if not why:find("no such file", 1, true) then return refuse("%s", why) end
      up, code, detail = check_folder(host, paths, true)  -- `stop` removed it
      if not up then return nil, code, detail end
    end
    host.sleep(STEP)
  end
  return refuse("%s is locked by another process (a server, or one that starts "
    .. "it), but after %d s no server answers at %s", paths.lock, START,
    paths.socket)
end

--- Makes sure that the server runs.
---@param host table
---@param options? table gets the address
---@return any # options with `path`
---@return rlock.failure? code # "connect"
---@return string? detail
function local_server.start(host, options)
  local paths = local_server.paths(host)
  local ok, code, detail = check_folder(host, paths, true)
  if not ok then return nil, code, detail end
  ok, code, detail = is_up(host, paths)
  if ok == false then ok, code, detail = start_once(host, paths) end
  if not ok then return nil, code, detail end
  options = options or {}
  options.path, options.db = paths.socket, options.db or 0
  return options
end

--- Removes the folder, unless another process has started a server in it. A
--- server keeps the lock while it lives, so holding it proves that none runs.
---@return true?, rlock.failure? code, string? detail
local function clear(host, paths)
  local deadline = host.now() + START
  repeat
    local guard <close>, busy = host.lock_file(paths.lock)
    if guard and is_up(host, paths) == false then
      for _, path in ipairs { paths.socket, paths.log, paths.lock,
          paths.folder .. "/dump.rdb", paths.folder } do
        os.remove(path)
      end
    end
    if busy ~= "busy" or is_up(host, paths) then return true end
    host.sleep(STEP)
  until host.now() >= deadline
  return refuse("the server did not exit within %d s", START)
end

--- Stops the server; all its locks are lost. Leaves no files.
---@return any # true, or false if it was not running
---@return rlock.failure? code, string? detail
function local_server.stop(host)
  local paths = local_server.paths(host)
  if check_folder(host, paths, false) == false then return false end
  local was_up, code, detail =
    local_server.command(host, "SHUTDOWN", "NOSAVE")
  if was_up ~= false and code ~= "closed" then
    return nil, code or "redis", detail
  end
  local ok, why, text = clear(host, paths)
  if not ok then return nil, why, text end
  return was_up ~= false
end

return local_server
