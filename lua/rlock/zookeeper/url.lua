--- Addresses of ZooKeeper servers.
---   zk://[user:password@]host[:port],host2[:port],.../chroot
---   zks://  the same, over TLS
--- No text returned by this file shows a password.

local authority = require "rlock.util.authority"

local url = {}

local PORT, MOST = 2181, 64             -- the usual port; hosts

--- Why a path cannot be a node's, or nil.
---@param path string absolute
function url.fault(path)
  if path:find("%c") then
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
  local _, fault = authority.set_login(result, login)
  if not fault and not (result.username and login:find(":", 1, true)) then
    return "a login is user:password"
  end
  result.password = result.password or ""
  return fault
end

local function set_hosts(result, hosts)
  local list, fault = authority.hosts(hosts, PORT)
  result.hosts = list
  return list and list[MOST + 1] and ("more than %d hosts"):format(MOST)
    or fault
end

local function set_chroot(result, path)
  if path == "/" then return nil end
  local ok, fault = authority.set(result, "chroot", path)
  if not ok then return fault end
  fault = result.chroot ~= "" and url.fault(result.chroot)
  return fault and "the chroot: " .. fault
end

--- Parses an address.
---@param text string
---@return table? # hosts (a list of { host, port }), chroot ("" or a path),
---  username, password, tls
---@return rlock.failure? code # "usage"
---@return string? detail
function url.parse(text)
  local scheme, rest = text:match("^(%a+)://(.*)$")
  scheme = scheme and scheme:lower()
  if scheme ~= "zk" and scheme ~= "zks" then
    return nil, "usage", "bad url: must begin with zk:// or zks://"
  end
  local result = { tls = scheme == "zks", chroot = "" }
  local login, hosts, path, query = authority.split(rest)
  ---@cast path -nil
  local fault = (query or path:find("#", 1, true))
    and "a ?query or # is not allowed"
    or login and set_login(result, login)
    or set_hosts(result, hosts) or set_chroot(result, path)
  if fault then return nil, "usage", "bad url: " .. fault end
  return result
end

--- The hosts and the chroot, for messages.
function url.show(parsed)
  return authority.show(parsed.hosts) .. parsed.chroot
end

return url
