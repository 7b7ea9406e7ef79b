--- Names of a lock's auxiliary keys and channels, by Redisson's rule, to
--- interoperate: the lock's name is wrapped in a hash tag unless it contains an
--- opening brace. Policies ship these functions in server scripts, so they
--- are Lua 5.1 without upvalues.

local naming = {}

--- The auxiliary key `prefix:{name}`.
---@param prefix string
---@param name string the lock's own key
---@return string
function naming.prefix(prefix, name)
  if name:find("{", 1, true) then return prefix .. ":" .. name end
  return prefix .. ":{" .. name .. "}"
end

--- The auxiliary key `{name}:suffix`.
---@param name string the lock's own key
---@param suffix string
---@return string
function naming.suffix(name, suffix)
  if name:find("{", 1, true) then return name .. ":" .. suffix end
  return "{" .. name .. "}:" .. suffix
end

--- The key of the waiters of a lock that is handed over, and a channel; see
--- policy/handover.lua.
---@param channel string of its releases
---@return string
function naming.waiters(channel) return channel .. ":waiters" end

--- The channel of such a lock for one client.
---@param channel string of its releases
---@param client string
---@return string
function naming.inbox(channel, client)
  return channel .. ":waiters:" .. client
end

--- A text without control characters, for messages.
---@param text string
---@return string
function naming.printable(text)
  return (text:gsub("%c", "?"))
end

--- A name for messages: quoted, truncated, on one line.
---@param name string
---@return string
function naming.show(name)
  if #name > 64 then name = name:sub(1, 61) .. "..." end
  return ("%q"):format(naming.printable(name))
end

return naming
