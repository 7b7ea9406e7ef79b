--- What the addresses of all systems share: a login and hosts, in
--- [user[:password]@]host[:port],host2[:port],... User, password and host may
--- be percent-encoded. Errors never show a password.

local percent = require "rlock.util.percent"

local authority = {}

--- The longest host, in bytes.
authority.longest = 255

--- Another possible cause if a host or a port is malformed.
authority.hint = " (is there an unencoded / or ? or # in the password?)"

local function decode(text)
  if text:gsub("%%%x%x", ""):find("%", 1, true) then
    return nil, "has a % that is not followed by two hex digits"
  end
  text = percent.decode(text)
  if text:find("%c") then return nil, "has a control character" end
  return text
end

--- Percent-encodes a part of an address.
function authority.encode(text)
  return percent.encode(text, "[^%w%-._~/]")
end

--- Decodes a part of an address.
---@param result table gets the part, unless it is empty
---@param field string its name there, and in errors
---@param text any a text
---@return any ... # true, or nil and the error
function authority.set(result, field, text)
  local decoded, fault = decode(text)
  if not decoded then return nil, "the " .. field .. " " .. fault end
  if decoded ~= "" then result[field] = decoded end
  return true
end

--- Splits what follows the scheme.
---@param text any a text
---@return string? # login
---@return string? # hosts
---@return string? # path
---@return string|false | nil # query
function authority.split(text)
  local whole, tail = text:match("^([^/?#]*)(.*)$")
  ---@cast whole string
  ---@cast tail string
  local login, hosts = whole:match("^(.*)@([^@]*)$")
  local path, query = tail:match("^([^?]*)%??(.*)$")
  return login, hosts or whole, path, tail:find("?", 1, true) and query
end

--- Sets username and password.
---@return any ... # as `set`
function authority.set_login(result, login)
  local user, password = login:match("^([^:]*):?(.*)$")
  local ok, fault = authority.set(result, "username", user)
  if not ok then return nil, fault end
  return authority.set(result, "password", password)
end

local function port_of(text)
  local port = text:match("^%d+$") and #text <= 5 and tonumber(text) or 0
  if port >= 1 and port <= 65535 then return port end
  return nil, "the port must be a number from 1 to 65535" .. authority.hint
end

--- Reads a host and its port.
---@param text any a text
---@param port integer the default
---@return any ... # a table with `host` and `port`, or nil and the error
function authority.host(text, port)
  local host, rest = text:match("^%[([%x:.]+)%](.*)$")
  if not host then host, rest = text:match("^([^:%[%]]*)(.*)$") end
  ---@cast host string
  ---@cast rest string
  if host == "" then
    return nil, "the host is missing"
      .. (rest:find("^:.*%D") and authority.hint or "")
  end
  local at = { port = port }
  local ok, fault = authority.set(at, "host", host)
  if ok and #at.host > authority.longest then
    fault = "the host is too long"
  elseif ok and rest ~= "" then
    if rest:sub(1, 1) ~= ":" then return nil, "the host is malformed" end
    at.port, fault = port_of(rest:sub(2))
  end
  if fault then return nil, fault end
  return at
end

--- Reads a list of hosts.
---@return any ... # a list of what `host` returns, or nil and the error
function authority.hosts(text, port)
  local list = {}
  for each in (text .. ","):gmatch("([^,]*),") do
    local at, fault = authority.host(each, port)
    if not at then return nil, fault end
    list[#list + 1] = at
  end
  return list
end

--- Formats what `host` returns.
function authority.host_port(at)
  local host = authority.encode(at.host)
  if at.host:find ":" then host = "[" .. at.host .. "]" end
  return ("%s:%d"):format(host, at.port)
end

--- Formats what `hosts` returns.
function authority.show(list)
  local hosts = {}
  for i, at in ipairs(list) do hosts[i] = authority.host_port(at) end
  return table.concat(hosts, ",")
end

return authority
