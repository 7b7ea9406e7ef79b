--- Addresses of all systems, as rlock.redis.url and rlock.zookeeper.url know
--  them.

local address = {}

--- Is this an address of ZooKeeper?
function address.is_zookeeper(text)
  return text:find "^[zZ][kK][sS]?:" ~= nil
end

local function url_of(text)
  return require(address.is_zookeeper(text) and "rlock.zookeeper.url"
    or "rlock.redis.url")
end

--- Parses an address.
-- @return a table; or nil, "usage", detail
function address.parse(text) return url_of(text).parse(text) end

--- An address for messages, without its password.
-- @tparam string text a valid one
-- @treturn string
function address.show(text)
  local url = url_of(text)
  return url.format(url.parse(text))
end

--- The default address of a client: --url, or that of the environment.
-- @treturn string
function address.default()
  local given = require("rlock").default_url or os.getenv "RLOCK_URL" or ""
  return given ~= "" and given or "local:"
end

return address
