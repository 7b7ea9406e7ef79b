--- The public module of a program, `require "rlock"`, made for the host that
--- runs it. Modules of two hosts share no state. `open` loads its modules
--- lazily, so that programs without clients start fast.

-- A variable of the environment, unless it is empty.
local function variable(name)
  local value = os.getenv(name)
  if value ~= "" then return value end
end

-- The default of the option `sentinel`, from the environment.
local function sentinel_login()
  local password = variable "RLOCK_SENTINEL_PASSWORD"
  return password
    and { username = variable "RLOCK_SENTINEL_USERNAME", password = password }
end

-- Starts the server of `local:`; returns options with its address.
local function start_local(host, options)
  local start = host.start_local or require("rlock.host.uv.local_server").start
  return start(host, options)
end

-- The options of client.open.
local function complete(host, rlock, client, given)
  local environment = variable "RLOCK_URL"
  local chosen = given.url or rlock.default_url
  local options, code, detail =
    client.complete(given, chosen or environment or "local:")
  if not options then
    return nil, code, chosen and detail or "RLOCK_URL: " .. detail
  elseif options.is_local and (given.url or not rlock.default_tls) then
    return start_local(host, options)
  end
  if rlock.default_tls and not given.tls then
    if not options.tls and not given.url then
      return nil, "usage", "TLS options need rediss:// or --tls"
    end
    options.tls = options.tls and rlock.default_tls
  end
  if options.sentinels and not options.sentinel then
    options.sentinel = sentinel_login()
  end
  return options
end

local check_options

-- The options of rlock.open, checked.
local function checked(client, given)
  local check = require "rlock.util.options"
  check_options = check_options or client.options {
    lazy = check.type "boolean", tls = check.group({
      ca = check.type "string", cert = check.type "string",
      key = check.type "string", server_name = check.type "string",
      verify = check.type "boolean",
    }, 'a table such as { ca = "ca.pem" }'),
  }
  if type(given) == "string" then given = { url = given } end
  return (check_options(given, 3))           -- no tail call: the level
end

---@class rlock.options.local_open: rlock.options.open
---@field tls? rlock.options.tls
---@field lazy? boolean connects on first use, so that opening does not fail if
--- the server is unreachable (for the servers of a red lock)

---@class rlock.options.tls
---@field ca? string the name of a file; default: the system's certificates
---@field cert? string the name of a file
---@field key? string the name of a file
---@field server_name? string default: the host of the URL
---@field verify? boolean default: true

---@alias rlock.open_options rlock.options.local_open & {
---   url?: any, watchdog?: any, timeout?: any, connect_timeout?: any,
---   name?: any, identity?: any, username?: any, password?: any,
---   handover?: any, publish?: any, seal?: any, tls?: any, sentinel?: any,
---   replicas?: any, replica_timeout?: any, nat?: any, acl?: any, log?: any,
---   metrics?: any, lazy?: any, [string]: nil }

---@param host table see "The host contract" in README.md
---@return rlock # the module
---@return function # closes every client; it waits, so it is for a task
return function(host)
  ---@class rlock: rlock.entry_point
  ---@field spawn fun(fn: function, ...: any): rlock.task # starts a task; an
  --- error that it does not catch ends the program
  ---@field sleep fun(seconds: number) suspends the calling task
  ---@field now fun(): number # seconds of a monotonic clock
  ---@field event fun(): rlock.event # a new event
  local rlock = {
    _VERSION = host.version,
    spawn = host.spawn,
    sleep = host.sleep,
    now = host.now,
    event = host.event,
  }

  require "rlock.several.factories"(rlock, host.now)

  --- The default URL of `open()`; `rlockctl --url` sets it.
  ---@type string?
  rlock.default_url = nil

  --- The default `tls` of `open()` for rediss://; `rlockctl --cacert` sets it.
  ---@type rlock.options.tls?
  rlock.default_tls = nil

  --- The default `log` of `open()`; `rlockctl --log` sets it.
  ---@type rlock.log?
  rlock.default_log = nil

  local clients, count = setmetatable({}, { __mode = "k" }), 0

  --- Opens a client.
  ---@param options? string | rlock.open_options a URL, or a table
  ---@return rlock.client? client
  ---@return rlock.code? code "connect", "redis", "zookeeper", "usage"
  ---@return string? detail
  function rlock.open(options)
    local client = require "rlock.client"
    local given = checked(client, options)
    if not given.lazy then host.current() end      -- raises outside of tasks
    local opened, code, detail
    for _ = 1, 2 do
      local full
      full, code, detail = complete(host, rlock, client, given)
      if not full then return nil, code, detail end
      full.log = full.log or rlock.default_log
      opened, code, detail = client.open(host, full)
      -- A server of `local:` that has just died is started again.
      if opened or code ~= "connect" or not full.is_local
          or require("rlock.redis.errors").is_silence(detail) then break end
    end
    if not opened then return nil, code, detail end
    count = count + 1
    clients[opened] = count
    return opened
  end

  --- The metrics of all clients, in the text format of Prometheus.
  ---@return string
  function rlock.metrics()
    local metrics = require "rlock.util.metrics"
    return metrics.text(metrics.numbers(host))
  end

  --- Runs a command while locks are renewed and other tasks run: see
  --- rlock/host/uv/exec.lua.
  ---@param words string[] the command and its arguments; no shell
  ---@param options? rlock.exec_options
  ---@return integer? status of its exit; 128 + N if signal N ended it
  ---@return rlock.code? code "lost" (it was stopped), "not_held", "refused" (it
  ---  could not be executed)
  ---@return string? detail
  function rlock.exec(words, options)
    local exec = host.exec or require("rlock.host.uv.exec").call
    local status, code, detail = exec(words, options)
    if status == nil then return nil, code, detail end
    return status
  end

  -- Closes every client, in the order in which they were opened.
  local function close_all()
    local list = {}
    for open in next, clients do list[#list + 1] = open end
    table.sort(list, function(a, b) return clients[a] < clients[b] end)
    for _, open in ipairs(list) do open:close() end
  end

  --- Runs fn as a task until it and all other tasks have ended, then closes
  --- every client. rlockctl runs scripts with it.
  ---@param fn function
  ---@param ... any its arguments
  ---@return true?
  ---@return table|integer # the results of fn, with their count in `n`; exit
  ---  status
  ---@return string? # message, with a traceback
  function rlock.main(fn, ...)
    local ok, status, message = host.run(fn, ...)
    if ok and host.at_end then            -- of rlock.simulate
      local holds, code, why = host.run(host.at_end)
      if not holds then ok, status, message = nil, code, why end
    end
    if next(clients) then host.finish(close_all) end
    return ok, status, message
  end

  --- For plain lua5.4: runs fn as a task until it and all other tasks have
  --- ended. SIGINT, SIGTERM, SIGHUP and os.exit unwind the tasks, then end the
  --- process.
  ---@param fn function
  ---@param ... any its arguments
  ---@return any # the results of fn; raises an error that a task did not catch
  function rlock.run(fn, ...)
    if type(fn) ~= "function" then
      error("bad argument fn of rlock.run: must be a function", 2)
    elseif host.is_running() then         -- inside rlockctl, or another run
      return rlock.spawn(fn, ...):join()
    end
    local shutdown = require "rlock.host.uv.shutdown"
    local put_back = shutdown.prepare()
    ---@type any, any, any
    local ok, results, message = rlock.main(fn, ...)
    put_back()
    if message then error(message, 0) end
    if not ok then os.exit(results, true) end
    if results then return table.unpack(results, 1, results.n) end
  end

  return rlock, close_all
end
