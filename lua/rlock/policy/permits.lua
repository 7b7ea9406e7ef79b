--- A semaphore whose permits have leases: a permit that is not released in time
--- is reclaimed.
---   name                 string: the number of free permits
---   {name}:timeout       sorted set: id of a permit, 16 bytes -> end of its
---                        lease, in milliseconds of the server's time
---   redisson_sc:{name}   channel: the number of free permits, when it grows
---   rlock_request:{name}:permits   string: written when the total is set and
---                        when no permit is in use any more; kept for minutes
--- The first three are Redisson's RPermitExpirableSemaphore, wire compatible.
--- The last is rlock's own: rlockctl recognises unused permits by it. The id of
--- a permit is its owner, so requests are idempotent; it begins with half of
--- its client's id (identity.lua). Its driver is counters/permits.lua.

local naming = require "rlock.naming"
local shared = require "rlock.policy.shared"

local now, tell, whole = shared.now, shared.tell, shared.whole

local NEVER = 922337203685477           -- Redisson's score without a lease
local MEMORY = 600000                   -- milliseconds, as in deduplication.lua

local server = {}                       -- these run inside Redis

--- Extends a permit's lease to `ends`; never shortens it.
---@return any # whether there is such a permit
local function prolong(leases, id, ends)
  local score = redis.call("zscore", leases, id)
  if not score then return false end
  if tonumber(score) < ends then redis.call("zadd", leases, ends, id) end
  return true
end

--- Reclaims the permits whose lease has ended.
---@return any ... # the number of free permits then, and when the next lease
---  ends
local function reclaim(keys, left, time, publish)
  local permits, leases, channel = keys[1], keys[2], keys[3]
  local first = redis.call("zrange", leases, 0, 0, "withscores")
  local ends = tonumber(first[2] or NEVER)
  if ends > time then return left, ends end
  local n = redis.call("zremrangebyscore", leases, "-inf", time)
  left = redis.call("incrby", permits, n)
  if left > 0 then tell(publish, channel, left) end
  return left, time
end

--- Takes a permit under this id, unless a duplicate has taken it already.
---@return any # "held", then the number of free permits; or "busy", then
---  milliseconds until a lease ends
function server.acquire(keys, args)
  local permits, leases, id = keys[1], keys[2], args[1]
  local time, left = now(), whole(permits)
  local ends = time + args[2]
  if left < 1 then
    if prolong(leases, id, ends) then return { "held", 0 } end
    local next_end
    left, next_end = reclaim(keys, left, time, args[4])
    if left < 1 then
      return { "busy", next_end < NEVER and next_end - time or -1 }
    end
  end
  if redis.call("zadd", leases, "nx", ends, id) == 0 then
    prolong(leases, id, ends)
    return { "held", left }
  end
  left = redis.call("decr", permits)
  local ttl = redis.call("pttl", permits)
  if ttl > 0 then redis.call("pexpire", leases, ttl) end
  return { "held", left }
end

--- Renews a permit's lease, unless it has ended.
function server.renew(keys, args)
  local leases, id = keys[2], args[1]
  local score = redis.call("zscore", leases, id)
  local time = now()
  if not score or tonumber(score) <= time then return { "lost" } end
  local ends = time + args[2]
  if tonumber(score) < ends then
    redis.call("zrem", leases, "")      -- no permit; first: it needs no memory
    redis.call("zadd", leases, ends, id)
  end
  return { "held" }
end

--- Releases a permit. If its lease has ended it is released as well, but the
--- reply is "lost".
function server.release(keys, args)
  local permits, leases, channel, proof = keys[1], keys[2], keys[3], keys[4]
  local id, publish = args[1], args[4]
  local score = redis.call("zscore", leases, id)
  if not score then return { "lost" } end
  redis.call("zrem", leases, id)        -- first: it needs no memory
  local left = redis.call("incr", permits)
  if redis.call("exists", leases) == 0 then
    redis.call("set", proof, left, "px", MEMORY)
  end
  if left > 0 then tell(publish, channel, left) end
  return { tonumber(score) > now() and "freed" or "lost" }
end

--- Sets the total to n permits, those in use included.
function server.set(keys, args)
  local permits, leases, channel = keys[1], keys[2], keys[3]
  local more = args[1] - whole(permits) - redis.call("zcard", leases)
  local left = redis.call("incrby", permits, more)
  redis.call("set", keys[4], left, "px", MEMORY)
  if more > 0 and left > 0 then tell(args[2], channel, left) end
  return { "held" }
end

local function count(keys, time)
  local permits, leases = keys[1], keys[2]
  local over = redis.call("zcount", leases, "-inf", time)
  local left, used = whole(permits) + over, redis.call("zcard", leases) - over
  return { left > 0 and "free" or "held", left, used }
end

---@return any # "free" or "held", then the numbers of permits that are free and
---  in use
function server.count(keys) return count(keys, now()) end

--- The reply of `count`, then the first hundred permits in use: id,
--- milliseconds left, ...
function server.peek(keys)
  local time = now()
  local reply, used = count(keys, time), redis.call("zrangebyscore", keys[2],
    "(" .. time, "inf", "withscores", "limit", 0, 100)
  for i = 2, #used, 2 do used[i] = used[i] - time end
  reply[4] = used
  return reply
end

return {
  name = "permits",
  keys = function(name)
    return {
      name, naming.suffix(name, "timeout"), naming.prefix("redisson_sc", name),
      naming.prefix("rlock_request", name) .. ":permits",
    }
  end,
  lasts = function(keys) return { [keys[4]] = 600 } end,
  channel = function(keys) return keys[3] end,
  needs = {
    acquire = { held = "n", busy = "n" }, release = { freed = "", lost = "" },
    renew = { held = "", lost = "" }, set = { held = "" },
    count = { free = "nn", held = "nn" },
    peek = { free = "nnt", held = "nnt" },
  },
  server = server,
}
