--- Addresses of all systems, as rlock.redis.url and rlock.zookeeper.url know
--- them.

local authority = require "rlock.util.authority"

local address = {}

local encode = authority.encode

--- Is this an address of ZooKeeper?
function address.is_zookeeper(text)
  return text:find "^[zZ][kK][sS]?:" ~= nil
end

local function url_of(text)
  return require(address.is_zookeeper(text) and "rlock.zookeeper.url"
    or "rlock.redis.url")
end

--- Parses an address.
---@return any # a table
---@return rlock.failure? code # "usage"
---@return string? detail
function address.parse(text) return url_of(text).parse(text) end

-- A lone user may be a password whose colon was forgotten.
local function login_of(parsed)
  return parsed.username and parsed.password
    and encode(parsed.username) .. "@" or ""
end

-- The kind of a Redis address, its hosts and what follows them.
local function place_of(parsed)
  local db = ("/%d"):format(parsed.db)
  if parsed.seeds then return "+cluster", authority.show(parsed.seeds), "" end
  if not parsed.sentinels then return "", authority.host_port(parsed), db end
  return "+sentinel", authority.show(parsed.sentinels),
    "/" .. encode(parsed.master) .. db
end

--- An address for messages, without its password.
---@param text string a valid one
---@return string
function address.show(text)
  local parsed = address.parse(text)
  local login = login_of(parsed)
  if parsed.is_local then
    return "local:"
  elseif parsed.path then
    return "unix://" .. login .. encode(parsed.path)
      .. (parsed.db ~= 0 and ("?db=%d"):format(parsed.db) or "")
  elseif parsed.hosts then
    return (parsed.tls and "zks://" or "zk://") .. login
      .. authority.show(parsed.hosts) .. parsed.chroot
  end
  local kind, hosts, rest = place_of(parsed)
  return (parsed.tls and "rediss" or "redis") .. kind .. "://" .. login .. hosts
    .. rest
end

--- The default address of a client: --url, or that of the environment.
---@return string
function address.default()
  local given = require("rlock").default_url or os.getenv "RLOCK_URL" or ""
  return given ~= "" and given or "local:"
end

return address
