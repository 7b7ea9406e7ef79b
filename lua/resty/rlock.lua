--- rlock for OpenResty. Durations are in seconds. Failures return nil, code,
--  detail; misuse raises.
--
--    init_worker_by_lua_block { require "resty.rlock" }
--    content_by_lua_block {
--      local locks = assert(require("resty.rlock").open("redis://127.0.0.1"))
--      local lock = locks:lock("invoice:4711")
--      local ok, code, detail = lock:lock{ wait = 5 }
--      ...
--      lock:unlock()
--    }

if ngx.config.subsystem ~= "http" then
  error("resty.rlock: for http { } only, not for " .. ngx.config.subsystem
    .. " { }", 0)
end

local client = require "rlock.client"
local duration = require "rlock.duration"
local host = require "rlock.host.ngx"
local url = require "rlock.redis.url"

local rlock = { _VERSION = "0.1.0", now = host.now }

local known = {
  url = true, watchdog = true, timeout = true, connect_timeout = true,
  name = true, publish = true, username = true, password = true, tls = true,
  keepalive_timeout = true, pool_size = true, seal = true,
}

local known_of_tls = { verify = true, server_name = true, cert = true,
  key = true }

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

local function bad(level, ...)
  error("bad " .. string.format(...), level + 1)
end

-- Checks that these fields of a table, if present, have this type.
local function check_types(options, kind, names, prefix, level)
  for _, name in ipairs(names) do
    local found = type(options[name])
    if found ~= kind and found ~= "nil" then
      bad(level + 1, "%s%s: must be a %s, is a %s", prefix, name, kind, found)
    end
  end
end

local STRINGS = { "url", "username", "password" }
local STRINGS_OF_TLS = { "server_name", "cert", "key" }

local function check_tls(tls, level)
  if tls == nil then return end
  if type(tls) ~= "table" then bad(level + 1, "tls: must be a table") end
  for key in pairs(tls) do
    if key == "ca" then
      bad(level + 1, "option tls.ca: in nginx, set "
        .. "lua_ssl_trusted_certificate instead")
    elseif not known_of_tls[key] then
      bad(level + 1, "option tls.%s of rlock.open", tostring(key))
    end
  end
  check_types(tls, "string", STRINGS_OF_TLS, "tls.", level + 1)
  check_types(tls, "boolean", { "verify" }, "tls.", level + 1)
  if (tls.cert == nil) ~= (tls.key == nil) then
    bad(level + 1, "tls: cert and key belong together")
  end
end

local function check(options, level)
  if type(options) ~= "table" then
    bad(level + 1, "options: must be a URL or a table")
  end
  for key in pairs(options) do
    if not known[key] then
      bad(level + 1, "option %s of rlock.open", tostring(key))
    end
  end
  check_types(options, "string", STRINGS, "", level + 1)
  check_tls(options.tls, level + 1)
  local size = options.pool_size
  if size ~= nil and (type(size) ~= "number" or size % 1 ~= 0 or size < 1)
  then
    bad(level + 1, "pool_size: must be a whole number above 0")
  end
  local idle = options.keepalive_timeout
  if idle ~= nil then
    duration.check(idle, "keepalive_timeout", 0.001, 86400, level + 1)
  end
end

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

-- The options of client.open.
local function complete(options, text)
  local parsed, code, detail = url.parse(options.url or "redis://127.0.0.1")
  if not parsed then return nil, code, detail end
  if parsed.is_local then
    return nil, "usage", "bad url: local: is for rlockctl; nginx needs a server"
  elseif options.tls and not parsed.tls then
    return nil, "usage", "bad option tls: only rediss:// goes over TLS"
  end
  local tls
  if parsed.tls then
    tls, code, detail = credentials(options.tls or {})
    if not tls then return nil, code, detail end
  end
  for key, value in pairs(options) do parsed[key] = value end
  parsed.tls, parsed.lazy = tls, true
  parsed.pool = {
    name = "rlock:" .. ngx.md5(text),
    idle = (options.keepalive_timeout or 60) * 1000,
    size = options.pool_size or 30,
  }
  return parsed
end

--- The worker's client for these options; opened on first use. Connects on the
--  first command.
-- @tparam[opt] string|table options a URL, or a table: url =
--   "redis://127.0.0.1", watchdog = 30, timeout = 3 (one command),
--   connect_timeout = 3 (seconds), name, username, password,
--   publish = "publish" | "spublish" | "both",
--   seal = "kill" | "time" | "off": how late execution of an abandoned request
--   is prevented, see seal.lua and expiry.lua; off: not at all,
--   tls = { verify = true, server_name =, cert =, key = } (nginx.conf sets the
--   trusted certificates, by lua_ssl_trusted_certificate),
--   keepalive_timeout = 60 (seconds), pool_size = 30 (idle connections)
-- @return[1] the client
-- @treturn[2] nil
-- @treturn[2] string code
-- @treturn[2] string detail
function rlock.open(options)
  if type(options) == "string" then options = { url = options } end
  options = options or {}
  check(options, 2)
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

--- To be called in log_by_lua: releases at once the locks that a request still
--  holds after an error, ngx.exit, ngx.redirect or a client abort. Without it,
--  they are not renewed any more, and end with their leases.
function rlock.log_phase()
  local task = host.finish()
  if not task then return end
  for grant in pairs(task.grants) do grant:give_up() end
end

host.on_rest(function()
  for _, open in pairs(clients) do open.session:wind_down() end
end)

--- Several locks as one: all or none are held, see rlock/several/multi.lua.
-- @tparam table locks an array of locks, of any kinds and clients
-- @return a lock
function rlock.multi_lock(locks)
  local made = require("rlock.several.multi").new(locks)
  return made
end

--- A lock on a majority of independent Redis servers: see
--  rlock/several/quorum.lua.
-- @tparam table servers an array of clients, one for each server
-- @tparam string name
-- @tparam[opt] table options policy = "reentrant" | "simple", drift = 0.01,
--   node_timeout = 0.05
-- @return a lock
function rlock.red_lock(servers, name, options)
  local made = require("rlock.several.quorum").new(servers, name, options)
  return made
end

return rlock
