--- A reentrant lock that gives each hold a fencing token: a number greater than
--  that of every earlier hold. Send it with each write, and let the resource
--  refuse a token less than the greatest it has seen.
--    name                            hash: owner -> hold count, and under the
--                                    empty name, which no owner has, the
--                                    token; expires with the lease
--    redisson_lock__channel:{name}   "0" when the lock becomes free
--    redisson_lock_token:{name}      string: the last token; never expires
--  On the wire it is Redisson's RFencedLock. Re-entry returns the same token.
--  The next token is the last plus one or the server's time in microseconds,
--  whichever is greater, so tokens grow even if the server loses the last one.
--  Redisson takes the next one by INCR and would restart at 1, so the key has
--  no expiry, and SET removes one that an older rlock set.

local naming = require "rlock.naming"
local reentrant = require "rlock.policy.reentrant"
local shared = require "rlock.policy.shared"

local tell = shared.tell

local UNLOCKED = "0"
local TOKEN = ""                        -- the hash field of the token
local LIMIT = 9007199254740992          -- 2^53: numbers are exact below it

local server = {}                       -- these run inside Redis

local function next_token(counter)
  local last = redis.call("get", counter)
  local time = redis.call("time")
  local token = math.max(time[1] * 1000000 + time[2],
    (tonumber(last or 0) or 0) + 1)
  if token >= LIMIT then return nil end
  redis.call("set", counter, token)
  return token
end

--- Takes the lock with a new token, or sets the owner's hold count to `want`
--  and returns its token. Otherwise as the reentrant lock's.
function server.acquire(keys, args)
  local lock, owner, lease, want = keys[1], args[1], args[2], args[3]
  local ttl = redis.call("pttl", lock)
  local held = ttl ~= -2 and redis.call("hmget", lock, owner, TOKEN)
  if not held and want ~= "1" then return { "lost" } end
  if held and not held[1] then
    return { want == "1" and "busy" or "lost", ttl }
  end
  local token = held and held[2] or next_token(keys[3])
  if not token then return { "refused", "the tokens are used up" } end
  redis.call("hset", lock, owner, want, TOKEN, token)
  if ttl < tonumber(lease) then redis.call("pexpire", lock, lease) end
  return { "held", tonumber(token) }
end

--- Frees the lock by force; with a token, only if the hold with that token
--  still stands.
function server.break_(keys, args)
  local lock, token, publish = keys[1], args[1], args[2]
  if redis.call("exists", lock) == 0 then return { "free" } end
  if token ~= "" then
    local standing = redis.call("hget", lock, TOKEN)
    if not standing or tonumber(standing) ~= tonumber(token) then
      return { "refused", "the hold with that token is over" }
    end
  end
  redis.call("del", lock)
  tell(publish, keys[2], UNLOCKED)
  return { "freed" }
end

function server.peek(keys, args)
  local lock, owner = keys[1], args[1]
  local ttl, mine, token = redis.call("pttl", lock), 0, false
  local holders, all = {}, redis.call("hgetall", lock)
  if ttl == -2 then return { "free", ttl, 0, {} } end
  for i = 1, #all, 2 do
    local field, value = all[i], all[i + 1]
    if field == TOKEN then
      token = tonumber(value)
    else
      holders[#holders + 1], holders[#holders + 2] = field, value
      if field == owner then mine = tonumber(value) or 0 end
    end
  end
  return { "held", ttl, mine, holders, { "token", token } }
end

server.release = reentrant.server.release
server.renew = reentrant.server.renew

return {
  name = "fenced",
  keys = function(name)
    return {
      name, naming.prefix("redisson_lock__channel", name),
      naming.prefix("redisson_lock_token", name),
    }
  end,
  channel = reentrant.channel,
  keeps = function(keys) return { keys[3] } end,
  server = server,
}
