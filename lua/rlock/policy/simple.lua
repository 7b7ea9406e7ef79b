--- The lock that most clients speak: SET name token NX PX lease. So redis-py's
--  Lock, redsync, node-redlock and bsm/redislock exclude each other with it.
--    name   string: the owner; expires with the lease
--  Nobody is told when it is free: waiters ask again after a random pause that
--  doubles from 1 to 128 ms. There is no count of holds, so it cannot be
--  entered twice. What breaks it by force may name the owner as the token.

local server = {}                       -- these run inside Redis

-- A lease is never shortened; a key that would stay for ever gets one.
local function prolong(lock, lease)
  if redis.call("pttl", lock) < tonumber(lease) then
    redis.call("pexpire", lock, lease)
  end
  return { "held" }
end

--- Takes it, or finds that the owner has it.
function server.acquire(keys, args)
  local lock, owner, lease = keys[1], args[1], args[2]
  if redis.call("set", lock, owner, "nx", "px", lease) then
    return { "held" }
  end
  if redis.call("get", lock) == owner then return prolong(lock, lease) end
  return { "busy", redis.call("pttl", lock) }
end

function server.renew(keys, args)
  local lock, owner, lease = keys[1], args[1], args[2]
  if redis.call("get", lock) ~= owner then return { "lost" } end
  return prolong(lock, lease)
end

function server.release(keys, args)
  local lock, owner = keys[1], args[1]
  if redis.call("get", lock) ~= owner then return { "lost" } end
  redis.call("del", lock)
  return { "freed" }
end

function server.break_(keys, args)
  local lock, token = keys[1], args[1]
  local holder = redis.call("get", lock)
  if not holder then return { "free" } end
  if token ~= "" and token ~= holder then
    return { "refused", "somebody else holds it" }
  end
  redis.call("del", lock)
  return { "freed" }
end

function server.peek(keys, args)
  local lock, owner = keys[1], args[1]
  local holder = redis.call("get", lock)
  if not holder then return { "free", -2, 0, {} } end
  return {
    "held", redis.call("pttl", lock), holder == owner and 1 or 0,
    { holder, "1" },
  }
end

return {
  name = "simple",
  keys = function(name) return { name } end,
  reenter = false,
  server = server,
}
