--- The identity of a client, in the name of its connections (CLIENT SETNAME):
---   rlock,<client id>,<host>,<pid>,<program>,<name>[,renews]
--- CLIENT LIST shows these names. The owner of a lock begins with the client's
--- id, so rlockctl can map a holder to a process. A name is printable ASCII:
--- other bytes, commas and percent signs are encoded as %XX. It contains no
--- arguments of the program, which may be secret. "renews": it renews all its
--- holds until it releases them.
---
--- The id of a permit has 16 bytes, like Redisson's: the first half of its
--- client's id, then random bytes.

local percent = require "rlock.util.percent"

local identity = {}

local LONGEST = 64                      -- bytes of a field

local function encode(value)
  return percent.encode(tostring(value or ""):sub(1, LONGEST), "[^%w%-_.:@/]")
end

--- Converts bytes to hex digits.
function identity.hex(bytes)
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

--- A random UUID (RFC 9562, version 4).
---@param host table
---@return string
function identity.uuid(host)
  local text = identity.hex(host.random(16))
  local variant = ("%x"):format(8
    + tonumber(text:sub(17, 17), 16) --[[@as integer]] % 4)
  return text:sub(1, 8) .. "-" .. text:sub(9, 12) .. "-4" .. text:sub(14, 16)
    .. "-" .. variant .. text:sub(18, 20) .. "-" .. text:sub(21)
end

--- The name of a client's connections.
---@param who table id, host, pid, program, name, renews (a boolean)
---@return string
function identity.encode(who)
  return table.concat({ "rlock", encode(who.id), encode(who.host),
    encode(who.pid), encode(who.program), encode(who.name),
    who.renews and "renews" or nil }, ",")
end

--- Parses such a name. It is untrusted: any client may set any name.
---@param text any a text
---@return table? # as `encode` takes it; host, program and name may be nil
function identity.decode(text)
  local who, rest = {}, text:match("^(.*),renews$")
  who.id, who.host, who.pid, who.program, who.name =
    (rest or text):match("^rlock,([^,]+),([^,]*),(%d*),([^,]*),([^,]*)$")
  if not who.id then return nil end
  who.renews = rest and true
  who.pid = tonumber(who.pid)
  for _, field in ipairs { "id", "host", "program", "name" } do
    who[field] = who[field] ~= "" and percent.decode(who[field]) or nil
  end
  return who
end

--- An identity as text: web3: invoice.lua (pid 412).
---@param who table from `decode`
---@return string # without escaping
function identity.show(who)
  local text = ("%s: %s"):format(who.host or "?", who.program or "?")
  if who.name then text = ("%s %s"):format(text, who.name) end
  return who.pid and ("%s (pid %.0f)"):format(text, who.pid) or text
end

--- The first half of a client's id, 16 hex digits. Permits begin with it.
---@param id string a UUID
---@return string
function identity.short(id) return (id:gsub("-", ""):sub(1, 16)) end

--- The client of an owner: the id, or for a permit its first half.
---@param owner string
---@return string?
function identity.client_of(owner)
  return owner:match("^([^:]+):%d+$")
    or #owner == 32 and not owner:find("%X") and owner:sub(1, 16) or nil
end

--- Converts hex digits to bytes.
function identity.bytes(digits)
  return (digits:gsub("..", function(pair)
    return string.char(tonumber(pair, 16) --[[@as integer]])
  end))
end

--- The name for a client with `identity = false`.
---@param name? string
---@return string
function identity.plain(name) return name and encode(name) or "rlock" end

return identity
