--- Names of the side keys and channels of a lock.
--  Redisson's rule, so that both sides meet on the same keys: the lock's name
--  is wrapped in a hash tag unless it has a brace of its own anywhere.
--  Both functions are shipped into server scripts by the policies that use
--  them: Lua 5.1, no upvalues. Knows nothing of Redis.
--  @module rlock.naming

local naming = {}

--- The side key `prefix:{name}`.
--  @tparam string prefix
--  @tparam string name the lock's own key
--  @treturn string
function naming.prefix(prefix, name)
  if name:find("{", 1, true) then return prefix .. ":" .. name end
  return prefix .. ":{" .. name .. "}"
end

--- The side key `{name}:suffix`.
--  @tparam string name the lock's own key
--  @tparam string suffix
--  @treturn string
function naming.suffix(name, suffix)
  if name:find("{", 1, true) then return name .. ":" .. suffix end
  return "{" .. name .. "}:" .. suffix
end

return naming
