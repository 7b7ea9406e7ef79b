--- Names of a lock's auxiliary keys and channels, by Redisson's rule, to
--  interoperate: the lock's name is wrapped in a hash tag unless it contains an
--  opening brace. Policies ship these functions in server scripts, so they
--  are Lua 5.1 without upvalues.
--  @module rlock.naming

local naming = {}

--- The auxiliary key `prefix:{name}`.
--  @tparam string prefix
--  @tparam string name the lock's own key
--  @treturn string
function naming.prefix(prefix, name)
  if name:find("{", 1, true) then return prefix .. ":" .. name end
  return prefix .. ":{" .. name .. "}"
end

--- The auxiliary key `{name}:suffix`.
--  @tparam string name the lock's own key
--  @tparam string suffix
--  @treturn string
function naming.suffix(name, suffix)
  if name:find("{", 1, true) then return name .. ":" .. suffix end
  return "{" .. name .. "}:" .. suffix
end

--- The key of the waiters of a lock that is handed over, and a channel; see
--  policy/handover.lua.
--  @tparam string channel of its releases
--  @treturn string
function naming.waiters(channel) return channel .. ":waiters" end

--- The channel of such a lock for one client.
--  @tparam string channel of its releases
--  @tparam string client
--  @treturn string
function naming.inbox(channel, client)
  return channel .. ":waiters:" .. client
end

--- A text without control characters, for messages.
--  @tparam string text
--  @treturn string
function naming.printable(text)
  return (text:gsub("%c", "?"))
end

--- A name for messages: quoted, truncated, on one line.
--  @tparam string name
--  @treturn string
function naming.show(name)
  if #name > 64 then name = name:sub(1, 61) .. "..." end
  return ("%q"):format(naming.printable(name))
end

return naming
