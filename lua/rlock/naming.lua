--- Names of the side keys and channels of a lock.
--  Redisson's rule, so that both sides meet on the same keys: the lock's name
--  is wrapped in a hash tag unless it has a brace of its own anywhere.
--  What policies use of it is shipped into server scripts: Lua 5.1, no
--  upvalues. Knows nothing of Redis.
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

--- A name as people are shown it: quoted, not too long, on one line.
--  @tparam string name
--  @treturn string
function naming.show(name)
  if #name > 64 then name = name:sub(1, 61) .. "..." end
  return ("%q"):format((name:gsub("%c", "?")))
end

return naming
