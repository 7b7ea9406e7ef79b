--- Addresses of Redis nodes.
---   redis://[user[:password]@]host[:port][/db]       rediss:// the same, TLS
---   redis+cluster://[user[:password]@]host[:port],host2[:port],...
---                                           rediss+cluster:// the same, TLS
---   unix://[user[:password]@]/path/to.sock[?db=n]    local:
---   redis+sentinel://[user[:password]@]host[:port],host2.../MASTER[/db]
---   rediss+sentinel://                               the same, TLS
--- User, password, host and path may be percent-encoded. No text returned by
--- this file, error messages included, shows a password. Opens no connection.

local authority = require "rlock.util.authority"

local url = {}

local DEFAULT_PORT, SENTINEL_PORT, DEFAULT_DB = 6379, 26379, 0
local FORMS = "must begin with redis://, rediss://, redis+sentinel://, "
  .. "rediss+sentinel://, redis+cluster://, rediss+cluster://, unix://, zk:// "
  .. "or zks://, or be local:"

local set = authority.set

--- Formats a host and its port, or a list of these.
url.host_port, url.hosts = authority.host_port, authority.show

local function set_db(result, text)
  if not text:match("^%d+$") or #text > 9 then
    return nil, "the database must be a number"
  end
  result.db = tonumber(text)
  return true
end

local function set_unix(result, host, path, query)
  if host ~= "" or path == "" or path == "/" then
    return nil, "the path must be absolute: unix:///path/to.sock"
  end
  local ok, fault = set(result, "path", path)
  if not ok or not query then return ok, fault end
  local db = query:match("^db=(.*)$")
  if not db then return nil, "only ?db=n may follow the path" end
  return set_db(result, db)
end

local function set_tcp(result, host, path)
  local at, fault = authority.host(host, DEFAULT_PORT)
  if not at then return nil, fault end
  result.host, result.port = at.host, at.port
  local db = path:sub(2)
  if db ~= "" then return set_db(result, db) end
  return true
end

local function set_cluster(result, hosts, path)
  local fault
  result.seeds, fault = authority.hosts(hosts, DEFAULT_PORT)
  if result.seeds and path ~= "" and path ~= "/" and path ~= "/0" then
    fault = "a cluster has no databases"
  end
  return not fault, fault
end

local function set_sentinel(result, hosts, path)
  local ok, fault
  result.sentinels, fault = authority.hosts(hosts, SENTINEL_PORT)
  if not result.sentinels then return nil, fault end
  local master, db = path:match("^/([^/]+)/?(.*)$")
  if not master then
    return nil, "the master's name is missing: redis+sentinel://host,host2/NAME"
      .. (path == "" and authority.hint or "")
  end
  ok, fault = set(result, "master", master)
  if ok and db ~= "" then return set_db(result, db) end
  return ok, fault
end

-- A suggestion for an address without a scheme. Quotes nothing that may contain
-- a password.
local function suggestion(text)
  local whole = (text:sub(1, 1) == "/" and "unix://" or "redis://") .. text
  if text:find("@", 1, true) or not url.parse(whole) then return "" end
  return "; did you mean " .. whole .. "?"
end

local set_place = {
  redis = set_tcp, rediss = set_tcp, unix = set_unix,
  ["redis+sentinel"] = set_sentinel, ["rediss+sentinel"] = set_sentinel,
  ["redis+cluster"] = set_cluster, ["rediss+cluster"] = set_cluster,
}

--- Parses an address.
---@param text string
---@return table? # `host port`, `path`, `sentinels master`, or `seeds` (of a
---  cluster; both lists of tables with `host port`), and `db username password
---  tls`; for "local:" `is_local = true`
---@return rlock.failure? code # "usage"
---@return string? # the error, without the password
function url.parse(text)
  if type(text) ~= "string" then error("bad url: must be a string", 2) end
  if text == "local:" then
    return { is_local = true, db = DEFAULT_DB, tls = false }
  end
  local scheme, rest = text:match("^([%a+]+)://(.*)$")
  scheme = scheme and scheme:lower()
  if not set_place[scheme] then
    return nil, "usage", "bad url: " .. FORMS .. suggestion(text)
  end
  ---@cast scheme string
  ---@cast rest string
  local result = { db = DEFAULT_DB, tls = scheme:sub(1, 6) == "rediss" }
  local login, host, path, query = authority.split(rest)
  ---@type any, any
  local ok, fault = true, nil
  if login then ok, fault = authority.set_login(result, login) end
  if ok then ok, fault = set_place[scheme](result, host, path, query) end
  if ok and query and scheme ~= "unix" then
    ok, fault = nil, "a ?query is not allowed"
  end
  if not ok then return nil, "usage", "bad url: " .. fault end
  return result
end

--- Checks an address that a server names. Every such address passes here.
---@param host any valid if it is a string of 1 to 255 bytes without control
---  characters
---@param port any valid if it is an integer from 1 to 65535, or its decimal
---  digits
---@return table? # `host` and `port`
function url.address(host, port)
  if type(host) ~= "string" or #host < 1 or #host > authority.longest
      or host:find("%c") then
    return nil
  end
  if type(port) == "string" then
    port = port:find("^%d+$") and #port <= 5 and tonumber(port)
  end
  if type(port) ~= "number" or port % 1 ~= 0 or port < 1 or port > 65535 then
    return nil
  end
  return { host = host, port = port }
end

--- Prefixes an error with its address, unless the text begins with it.
---@param address string
---@param text any a text
---@return string
function url.says(address, text)
  if text:sub(1, #address + 2) == address .. ": " then return text end
  return address .. ": " .. text
end

return url
