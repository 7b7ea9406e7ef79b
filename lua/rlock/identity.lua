--- Who a client is, as the name of its connections (CLIENT SETNAME) tells it:
--    rlock,<client id>,<host>,<pid>,<program>,<name>
--  CLIENT LIST shows it to whoever asks who holds a lock: an owner begins with
--  the client's id. A name has printable ASCII only, so other bytes, commas and
--  percent signs are encoded as %XX. It has no arguments of the program, and no
--  secret.

local identity = {}

local LONGEST = 64                      -- bytes of a field

local function encode(value)
  return (tostring(value or ""):sub(1, LONGEST):gsub("[^%w%-_.:@/]",
    function(char) return ("%%%02X"):format(char:byte()) end))
end

local function decode(text)
  return (text:gsub("%%(%x%x)", function(hex)
    return string.char(tonumber(hex, 16))
  end))
end

--- The name of a client's connections.
-- @tparam table who id, host, pid, program, name
-- @treturn string
function identity.encode(who)
  return table.concat({ "rlock", encode(who.id), encode(who.host),
    encode(who.pid), encode(who.program), encode(who.name) }, ",")
end

--- Reads such a name. What it says is not to be trusted: anybody may choose it.
-- @tparam string text
-- @treturn table|nil as of `encode`; host, program and name may be nil
function identity.decode(text)
  local who = {}
  who.id, who.host, who.pid, who.program, who.name =
    text:match("^rlock,([^,]+),([^,]*),(%d*),([^,]*),([^,]*)$")
  if not who.id then return nil end
  who.pid = tonumber(who.pid)
  for _, field in ipairs { "id", "host", "program", "name" } do
    who[field] = who[field] ~= "" and decode(who[field]) or nil
  end
  return who
end

--- The name for a client that does not tell who it is.
-- @tparam[opt] string name
-- @treturn string
function identity.plain(name) return name and encode(name) or "rlock" end

return identity
