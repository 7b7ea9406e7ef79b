--- A reentrant mutex.
--    name                            hash: owner -> hold count; expires with
--                                    the lease
--    redisson_lock__channel:{name}   "0" when the lock becomes free
--  This is Redisson's RLock, wire compatible.

local naming = require "rlock.naming"
local shared = require "rlock.policy.shared"

local tell = shared.tell

local UNLOCKED = "0"

local server = {}                       -- these run inside Redis

--- Takes the lock, or sets the owner's hold count to `want`. A lease is never
--  shortened. The reply is "lost" if the owner re-enters a hold that it no
--  longer has.
function server.acquire(keys, args)
  local lock, owner, lease, want = keys[1], args[1], args[2], args[3]
  local ttl = redis.call("pttl", lock)
  if ttl == -2 then
    if want ~= "1" then return { "lost" } end
    redis.call("hset", lock, owner, want)
    redis.call("pexpire", lock, lease)
    return { "held" }
  end
  if not redis.call("hget", lock, owner) then
    return { want == "1" and "busy" or "lost", ttl }
  end
  redis.call("hset", lock, owner, want)
  if ttl < tonumber(lease) then redis.call("pexpire", lock, lease) end
  return { "held" }
end

function server.renew(keys, args)
  local lock, owner, lease = keys[1], args[1], args[2]
  if not redis.call("hget", lock, owner) then return { "lost" } end
  if redis.call("pttl", lock) < tonumber(lease) then
    redis.call("pexpire", lock, lease)
  end
  return { "held" }
end

--- Sets the hold count to `want`; at 0 the lock is free. The lease becomes what
--  the remaining holds need.
function server.release(keys, args)
  local lock, owner, lease, want, publish =
    keys[1], args[1], args[2], args[3], args[4]
  if not redis.call("hget", lock, owner) then return { "lost" } end
  if want ~= "0" then
    redis.call("pexpire", lock, lease)  -- first: it needs no memory
    redis.call("hset", lock, owner, want)
    return { "kept" }
  end
  redis.call("del", lock)
  if publish == "both" then             -- tell(), without the cost of a call
    redis.call("publish", keys[2], UNLOCKED)
    publish = "spublish"
  end
  redis.call(publish, keys[2], UNLOCKED)
  return { "freed" }
end

function server.break_(keys, args)
  if args[1] ~= "" then return { "refused", "this lock has no tokens" } end
  if redis.call("del", keys[1]) == 0 then return { "free" } end
  tell(args[2], keys[2], UNLOCKED)
  return { "freed" }
end

function server.peek(keys, args)
  local lock, owner = keys[1], args[1]
  local ttl = redis.call("pttl", lock)
  if ttl == -2 then return { "free", ttl, 0, {} } end
  local mine = tonumber(redis.call("hget", lock, owner) or 0) or 0
  return { "held", ttl, mine, redis.call("hgetall", lock) }
end

return {
  name = "reentrant",
  exclusive = true,
  keys = function(name)
    return { name, naming.prefix("redisson_lock__channel", name) }
  end,
  channel = function(keys) return keys[2] end,
  server = server,
}
