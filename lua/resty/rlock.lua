--- rlock for OpenResty. Durations are in seconds. Failures return nil, code,
--- detail; misuse raises.
---
---   init_worker_by_lua_block { require "resty.rlock" }
---   content_by_lua_block {
---     local locks = assert(require("resty.rlock").open("redis://127.0.0.1"))
---     local lock = locks:lock("invoice:4711")
---     local ok, code, detail = lock:lock{ wait = 5 }
---     ...
---     lock:unlock()
---   }

if ngx.config.subsystem ~= "http" then
  error("resty.rlock: for http { } only, not for " .. ngx.config.subsystem
    .. " { }", 0)
end

local check = require "rlock.util.options"
local client = require "rlock.client"
local host = require "resty.rlock.host"
local metrics = require "rlock.util.metrics"
local shared = require "resty.rlock.host.shared"

---@class resty.rlock.options.open: rlock.options.open
---@field tls? resty.rlock.options.tls
---@field keepalive_timeout? number seconds for which nginx keeps an idle
--- connection; default: 60
---@field pool_size? integer idle connections of a worker; default: 30

--- nginx.conf sets the trusted certificates: lua_ssl_trusted_certificate.
---@class resty.rlock.options.tls
---@field verify? boolean default: true
---@field server_name? string default: the host of the URL
---@field cert? string the name of a file
---@field key? string the name of a file

---@alias resty.rlock.open_options resty.rlock.options.open & {
---   url?: any, watchdog?: any, timeout?: any, connect_timeout?: any,
---   name?: any, identity?: any, username?: any, password?: any,
---   handover?: any, publish?: any, seal?: any, tls?: any, sentinel?: any,
---   replicas?: any, replica_timeout?: any, nat?: any, acl?: any, log?: any,
---   metrics?: any, keepalive_timeout?: any, pool_size?: any, [string]: nil }

---@class resty.rlock: rlock.entry_point
local rlock = { _VERSION = "0.1.0", now = host.now }
require "rlock.several.factories"(rlock, host.now)

local clients = {}       -- options as text -> client, of this worker

-- The options as canonical text.
local function text_of(options)
  local parts = {}
  for key, value in pairs(options) do
    if type(value) == "table" then value = "{" .. text_of(value) .. "}" end
    parts[#parts + 1] = ("%s=%s"):format(tostring(key), tostring(value))
  end
  table.sort(parts)
  return table.concat(parts, ";")
end

local check_tls = check.group({
  verify = check.type "boolean", server_name = check.type "string",
  cert = check.type "string", key = check.type "string",
}, "a table such as { verify = false }")

local function tls_of(tls, name, level)
  if type(tls) == "table" and tls.ca ~= nil then
    error(("bad option %s.ca: in nginx, set lua_ssl_trusted_certificate "
      .. "instead"):format(name), level + 1)
  end
  check_tls(tls, name, level + 1)
  if type(tls.cert) ~= type(tls.key) then
    error(("bad %s: cert and key belong together, each the name of a file")
      :format(name), level + 1)
  end
  return tls
end

local check_options = client.options {
  tls = tls_of, keepalive_timeout = check.duration(0.001, 86400),
  pool_size = check.that("a whole number above 0", function(size)
    return type(size) == "number" and size % 1 == 0 and size >= 1
  end),
}

local function content_of(path)
  local file, why = io.open(path, "rb")
  if not file then return nil, "usage", why end
  local text = file:read("*a")
  file:close()
  return text
end

-- The TLS options as the host takes them.
local function credentials(tls)
  local result = { verify = tls.verify, server_name = tls.server_name }
  if not tls.cert then return result end
  local ssl = require "ngx.ssl"
  local text, code, detail = content_of(tls.cert)
  if not text then return nil, code, detail end
  result.certificate, detail = ssl.parse_pem_cert(text)
  if not result.certificate then
    return nil, "usage", ("%s: %s"):format(tls.cert, detail)
  end
  text, code, detail = content_of(tls.key)
  if not text then return nil, code, detail end
  result.private_key, detail = ssl.parse_pem_priv_key(text)
  if not result.private_key then
    return nil, "usage", ("%s: %s"):format(tls.key, detail)
  end
  return result
end

-- The Sentinels' own TLS options, as the host takes them.
local function sentinel_of(given)
  if type(given.tls) ~= "table" then return given end
  local tls, code, detail = credentials(given.tls)
  if not tls then return nil, code, detail end
  return { username = given.username, password = given.password, tls = tls }
end

-- The options of client.open; `key` is the text of the given ones.
local function complete(given, key)
  local options, code, detail =
    client.complete(given, given.url or "redis://127.0.0.1")
  if not options then return nil, code, detail end
  if options.is_local then
    return nil, "usage", "bad url: local: is for rlockctl; nginx needs a server"
  elseif options.tls then
    options.tls, code, detail = credentials(options.tls)
    if not options.tls then return nil, code, detail end
  end
  if options.sentinel then
    options.sentinel, code, detail = sentinel_of(options.sentinel)
    if not options.sentinel then return nil, code, detail end
  end
  options.lazy = true
  options.pool = {
    name = "rlock:" .. ngx.md5(key),
    idle = (options.keepalive_timeout or 60) * 1000,
    size = options.pool_size or 30,
  }
  return options
end

--- The worker's client for these options; opened on first use. Connects on the
--- first command.
---@param options? string | resty.rlock.open_options a URL, or a table; default:
---  redis://127.0.0.1
---@return rlock.client? client
---@return rlock.code? code "refused", "usage"
---@return string? detail
function rlock.open(options)
  if type(options) == "string" then options = { url = options } end
  options = check_options(options)
  if ngx.get_phase() == "init" then
    return nil, "refused", "open it in init_worker_by_lua or later: workers "
      .. "forked after this would share one client id"
  end
  local text = text_of(options)
  local open = clients[text]
  if open and not open.session.is_closed then return open end
  local full, code, detail = complete(options, text)
  if not full then return nil, code, detail end
  open, code, detail = client.open(host, full)
  if not open then return nil, code, detail end
  clients[text] = open
  return open
end

--- Call this in log_by_lua: it releases at once the locks that a request still
--- holds after an error, ngx.exit, ngx.redirect or a client abort. Without it,
--- they are no longer renewed, and end with their leases.
function rlock.log_phase()
  local task = host.finish()
  if not task then return end
  for grant in pairs(task.grants) do grant:give_up() end
end

host.on_rest(function()
  for _, open in pairs(clients) do open.session:wind_down() end
end)

--- The metrics of all clients, in the text format of Prometheus: those of all
--- workers with `lua_shared_dict rlock_metrics`, else those of this worker.
---@return string
function rlock.metrics() return metrics.text(shared.numbers()) end

return rlock
