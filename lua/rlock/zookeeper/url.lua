--- Addresses of ZooKeeper servers.
--    zk://[user:password@]host[:port],host2[:port],.../chroot
--    zks://  the same, over TLS
--  No text returned by this file shows a password.
--  @module rlock.zookeeper.url

local percent = require "rlock.util.percent"

local url = {}

local LONGEST = 255                     -- bytes of a host
local PORT, MOST = 2181, 64             -- the usual port; hosts

local function decode(text)
  if text:gsub("%%%x%x", ""):find("%", 1, true) then return nil end
  text = percent.decode(text)
  return not text:find("%c") and text or nil
end

-- A host and its port, or nil and the error.
local function read_host(text)
  local host, rest = text:match("^%[([%x:.]+)%](.*)$")
  if not host then host, rest = text:match("^([^:%[%]]*)(.*)$") end
  host = host and decode(host)
  if not host or host == "" or #host > LONGEST then
    return nil, "a host is missing or malformed"
  end
  local port = rest == "" and PORT or tonumber(rest:match("^:(%d+)$"))
  if not port or port < 1 or port > 65535 then
    return nil, "a port must be a number from 1 to 65535"
  end
  return { host = host, port = port }
end

local function read_hosts(text)
  local list = {}
  for each in (text .. ","):gmatch("([^,]*),") do
    local at, fault = read_host(each)
    if not at then return nil, fault end
    list[#list + 1] = at
  end
  if #list > MOST then return nil, ("more than %d hosts"):format(MOST) end
  return list
end

--- Why a path cannot be a node's, or nil.
-- @tparam string path absolute
function url.fault(path)
  if path:find("%c") or path:find("\127", 1, true) then
    return "it has a control character"
  elseif path:find("//", 1, true) or path:find("/$") then
    return "it has an empty part"
  end
  for part in path:gmatch("[^/]+") do
    if part == "." or part == ".." then
      return ("it has the part %s"):format(part)
    end
  end
  if path:match("^/([^/]*)") == "zookeeper" then
    return "/zookeeper is reserved by the server"
  end
end

local function set_login(result, login)
  local user, password = login:match("^([^:]*):(.*)$")
  user, password = decode(user or ""), decode(password or "")
  if not user or not password or user == "" then
    return "a login is user:password"
  end
  result.username, result.password = user, password
end

local function set_chroot(result, path)
  local chroot = decode(path)
  if chroot == "/" or chroot == "" then return end
  local fault = not chroot and "has a bad % or a control character"
    or url.fault(chroot)
  if fault then return "the chroot: " .. fault end
  result.chroot = chroot
end

--- Parses an address.
-- @tparam string text
-- @treturn[1] table hosts (a list of { host, port }), chroot ("" or a path),
--   username, password, tls
-- @treturn[2] nil, "usage", detail
function url.parse(text)
  local scheme, rest = text:match("^(%a+)://(.*)$")
  scheme = scheme and scheme:lower()
  if scheme ~= "zk" and scheme ~= "zks" then
    return nil, "usage", "bad url: must begin with zk:// or zks://"
  end
  local result = { tls = scheme == "zks", chroot = "" }
  local authority, path = rest:match("^([^/?#]*)(.*)$")
  local login, hosts = authority:match("^(.*)@([^@]*)$")
  local fault = path:find("[?#]") and "a ?query or # is not allowed"
    or login and set_login(result, login)
  if not fault then
    result.hosts, fault = read_hosts(hosts or authority)
  end
  fault = fault or set_chroot(result, path)
  if fault then return nil, "usage", "bad url: " .. fault end
  return result
end

--- The hosts and the chroot, for messages.
function url.show(parsed)
  local list = {}
  for i, at in ipairs(parsed.hosts) do
    local host = at.host:find(":", 1, true) and "[" .. at.host .. "]" or at.host
    list[i] = ("%s:%d"):format(host, at.port)
  end
  return table.concat(list, ",") .. parsed.chroot
end

--- An address for messages and logs, without its password.
function url.format(parsed)
  return ("zk%s://%s%s"):format(parsed.tls and "s" or "",
    parsed.username and percent.encode(parsed.username, "[^%w%-._~]") .. "@"
    or "", url.show(parsed))
end

return url
