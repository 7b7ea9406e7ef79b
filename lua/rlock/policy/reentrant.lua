--- A reentrant mutex.
---   name                            hash: owner -> hold count; expires with
---                                   the lease
---   redisson_lock__channel:{name}   "0" when the lock becomes free
---   and the keys and channels of handover.lua, named after this channel
--- Wire compatible with Redisson's RLock. A hold count of 0 is a reservation
--- for the owner, see handover.lua.

local handover = require "rlock.policy.handover"
local naming = require "rlock.naming"
local shared = require "rlock.policy.shared"

local free, holders = handover.free, handover.holders
local pass, register, tell = handover.pass, handover.register, shared.tell

local UNLOCKED = "0"
local RESERVED = "0"

local server = {}                       -- these run inside Redis

--- Takes the lock, or sets the owner's hold count to `want`. A lease is never
--- shortened. The reply is "lost" if the owner re-enters a hold that it no
--- longer has. With a `client`, a busy lock registers the owner as a waiter.
function server.acquire(keys, args)
  local lock, owner, lease, want, client =
    keys[1], args[1], args[2], args[3], args[4]
  local ttl = redis.call("pttl", lock)
  local count = ttl ~= -2 and redis.call("hget", lock, owner)
  if want ~= "1" and (not count or count == RESERVED) then
    return "lost"
  elseif not count and ttl ~= -2 then
    if client then
      ttl = register(keys[2], client .. " " .. owner, ttl)
    end
    return { "busy", ttl }
  end
  redis.call("hset", lock, owner, want)
  if ttl == -2 or count == RESERVED or ttl < tonumber(lease) then
    redis.call("pexpire", lock, lease)
  end
  if client then
    redis.pcall("zrem", keys[2] .. ":waiters", client .. " " .. owner)
  end
  return "held"
end

function server.renew(keys, args)
  local lock, owner, lease = keys[1], args[1], args[2]
  local count = redis.call("hget", lock, owner)
  if not count or count == RESERVED then return "lost" end
  if redis.call("pttl", lock) < tonumber(lease) then
    redis.call("pexpire", lock, lease)
  end
  return "held"
end

--- Sets the hold count to `want`; 0 frees the lock. The lease becomes what the
--- remaining holds need. With an `entry`, reserves the lock for that waiter.
function server.release(keys, args)
  local lock, owner, lease, want, publish, entry =
    keys[1], args[1], args[2], args[3], args[4], args[5]
  local count = redis.call("hget", lock, owner)
  if not count then return "lost" end
  if want ~= "0" then
    if count == RESERVED then return "lost" end
    redis.call("pexpire", lock, lease)  -- first: it needs no memory
    redis.call("hset", lock, owner, want)
    return "kept"
  end
  if publish == "hand over" then
    local deleted = redis.pcall("del", lock, keys[2] .. ":waited")
    if entry or deleted ~= 1 then
      if deleted ~= 2 then redis.call("del", lock) end
      pass(lock, keys[2], entry)
      return "freed"
    end
    publish = "publish"
  else
    redis.call("del", lock)
  end
  tell(publish, keys[2], UNLOCKED)
  return "freed"
end

--- Unregisters a waiter that gives up. If the lock is reserved for it, passes
--- the lock on.
function server.leave(keys, args)
  local lock, owner, publish, client = keys[1], args[1], args[2], args[3]
  if client then handover.unregister(keys[2], client .. " " .. owner) end
  if redis.call("hget", lock, owner) ~= RESERVED then return "left" end
  redis.call("del", lock)
  free(lock, keys[2], publish)
  return "freed"
end

function server.break_(keys, args)
  if args[1] ~= "" then return { "refused", "this lock has no tokens" } end
  if redis.call("del", keys[1]) == 0 then return "free" end
  free(keys[1], keys[2], args[2])
  return "freed"
end

function server.peek(keys, args)
  local lock, owner = keys[1], args[1]
  local ttl = redis.call("pttl", lock)
  if ttl == -2 then return { "free", ttl, 0, {} } end
  local mine = tonumber(redis.call("hget", lock, owner) or 0) or 0
  return { "held", ttl, mine, holders(redis.call("hgetall", lock)) }
end

return {
  name = "reentrant",
  exclusive = true,
  keys = function(name)
    return { name, naming.prefix("redisson_lock__channel", name) }
  end,
  channel = function(keys) return keys[2] end,
  hands_over = true,
  slack = 1,                            -- the lock may be reserved
  server = server,
}
