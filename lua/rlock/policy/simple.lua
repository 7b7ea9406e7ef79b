--- The lock that most clients implement: SET name token NX PX lease. It is
--- compatible with redis-py's Lock, redsync, node-redlock and bsm/redislock.
---   name   string: the owner; expires with the lease
--- A release wakes no waiter: waiters retry with exponential back-off from 1 to
--- 128 ms, with jitter. It has no hold count, so it is not reentrant. To break
--- it by force, the owner may be given as the token.

local server = {}                       -- these run inside Redis

-- Never shortens a lease; a key without an expiry gets one.
local function prolong(lock, lease)
  if redis.call("pttl", lock) < tonumber(lease) then
    redis.call("pexpire", lock, lease)
  end
  return "held"
end

--- Takes the lock, or finds that the owner holds it already.
function server.acquire(keys, args)
  local lock, owner, lease = keys[1], args[1], args[2]
  if redis.call("set", lock, owner, "nx", "px", lease) then
    return "held"
  end
  if redis.call("get", lock) == owner then return prolong(lock, lease) end
  return { "busy", redis.call("pttl", lock) }
end

function server.renew(keys, args)
  local lock, owner, lease = keys[1], args[1], args[2]
  if redis.call("get", lock) ~= owner then return "lost" end
  return prolong(lock, lease)
end

function server.release(keys, args)
  local lock, owner = keys[1], args[1]
  if redis.call("get", lock) ~= owner then return "lost" end
  redis.call("del", lock)
  return "freed"
end

function server.break_(keys, args)
  local lock, token = keys[1], args[1]
  local holder = redis.call("get", lock)
  if not holder then return "free" end
  if token ~= "" and token ~= holder then
    return { "refused", "another owner holds it" }
  end
  redis.call("del", lock)
  return "freed"
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
  exclusive = true,
  keys = function(name) return { name } end,
  reenter = false,
  server = server,
}
