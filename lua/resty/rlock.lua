--- rlock for OpenResty. Durations are seconds. What the world refuses comes
--  back as nil, code, detail; misuse raises.
--
--    init_worker_by_lua_block {
--      locks = require("resty.rlock").open("redis://127.0.0.1")
--    }
--    content_by_lua_block {
--      local lock = locks:lock("invoice:4711")
--      local ok, code, detail = lock:lock{ wait = 5 }
--      ...
--      lock:unlock()
--    }

local client = require "rlock.client"
local host = require "rlock.host.ngx"
local url = require "rlock.url"

local rlock = { _VERSION = "0.1.0", now = host.now }

local known = {
  url = true, watchdog = true, timeout = true, connect_timeout = true,
  name = true, publish = true, username = true, password = true, tls = true,
  keepalive_timeout = true, pool_size = true,
}

local clients = {}       -- options as text -> client, of this worker

-- The options as text: the same for the same options.
local function text_of(options)
  local parts = {}
  for key, value in pairs(options) do
    if type(value) == "table" then value = "{" .. text_of(value) .. "}" end
    parts[#parts + 1] = ("%s=%s"):format(tostring(key), tostring(value))
  end
  table.sort(parts)
  return table.concat(parts, ";")
end

local function complete(options, text)
  local parsed, code, detail = url.parse(options.url or "redis://127.0.0.1")
  if not parsed then return nil, code, detail end
  if parsed.embedded then
    return nil, "usage", "bad url: local: is for rlockctl; nginx needs a server"
  elseif options.tls and not parsed.tls then
    return nil, "usage", "bad option tls: only rediss:// goes over TLS"
  end
  local over_tls = parsed.tls
  for key, value in pairs(options) do parsed[key] = value end
  parsed.tls = over_tls and (options.tls or {}) or nil
  parsed.lazy = true
  parsed.pool = {
    name = "rlock:" .. ngx.md5(text),
    idle = (options.keepalive_timeout or 60) * 1000,
    size = options.pool_size or 30,
  }
  return parsed
end

--- The worker's client for these options; opened when it is first asked for.
--  Connects when it first has to.
-- @tparam[opt] string|table options a URL, or a table: url =
--   "redis://127.0.0.1", watchdog = 30, timeout = 3 (one command),
--   connect_timeout = 3 (seconds), name, username, password,
--   publish = "publish" | "spublish" | "both",
--   tls = { verify = true, server_name = }, keepalive_timeout = 60 (seconds),
--   pool_size = 30
-- @return[1] the client
-- @treturn[2] nil
-- @treturn[2] string code
-- @treturn[2] string detail
function rlock.open(options)
  if type(options) == "string" then options = { url = options } end
  options = options or {}
  if type(options) ~= "table" then
    error("bad options: must be a URL or a table", 2)
  end
  for key in pairs(options) do
    if not known[key] then
      error(("bad option %s of rlock.open"):format(tostring(key)), 2)
    end
  end
  if ngx.get_phase() == "init" then
    return nil, "refused", "open it in init_worker_by_lua or later: workers "
      .. "that are forked after it would all be one owner"
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

--- To be called in log_by_lua: gives back at once what a request has not, that
--  ended by an error, ngx.exit, ngx.redirect or an abort of its client. Without
--  it, that is not renewed any more, and ends with its lease.
function rlock.log_phase()
  local task = host.finish()
  if not task then return end
  for grant in pairs(task.grants) do grant:give_up() end
end

host.on_rest(function()
  for _, open in pairs(clients) do open.session:rest() end
end)

--- Several locks as one: all are held or none, see rlock/multi.lua.
-- @tparam table locks an array of locks, of any kinds and clients
-- @return a lock
function rlock.multi_lock(locks)
  local made = require("rlock.multi").new(locks)
  return made
end

--- A lock of a majority of independent Redis servers, see rlock/quorum.lua.
-- @tparam table servers an array of clients, one for each server
-- @tparam string name
-- @tparam[opt] table options policy = "reentrant" | "simple", drift = 0.01,
--   node_timeout = 0.05
-- @return a lock
function rlock.red_lock(servers, name, options)
  local made = require("rlock.quorum").new(servers, name, options)
  return made
end

return rlock
