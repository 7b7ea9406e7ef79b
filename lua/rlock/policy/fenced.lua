--- A reentrant lock that gives each hold a fencing token: a number greater than
--  that of every earlier hold. Send it with each write, and let the resource
--  refuse a token less than the greatest it has seen.
--    name                            hash: owner -> hold count; the empty
--                                    field, which no owner has, -> the token;
--                                    expires with the lease
--    redisson_lock__channel:{name}   "0" when the lock becomes free
--    redisson_lock_token:{name}      string: the last token; never expires
--    and the keys and channels of handover.lua, named after the channel
--  On the wire it is Redisson's RFencedLock. Re-entry returns the same token.
--  The next token is the last plus one or the server's time in microseconds,
--  whichever is greater, so tokens grow even if the server loses the last one.
--  Redisson takes the next one by INCR, which would restart at 1. So the key
--  has no expiry, and SET removes an expiry that an older rlock set.

local handover = require "rlock.policy.handover"
local naming = require "rlock.naming"
local reentrant = require "rlock.policy.reentrant"

local free, register = handover.free, handover.register

local RESERVED = "0"                    -- a hold count, see handover.lua
local TOKEN = ""                        -- the hash field of the token
local LIMIT = 9007199254740992          -- 2^53: numbers are exact below it

local server = {}                       -- these run inside Redis

local function next_token(counter)
  local last = redis.call("get", counter)
  local time = redis.call("time")
  local token = math.max(time[1] * 1000000 + time[2],
    (tonumber(last or 0) or 0) + 1)
  if token >= LIMIT then return nil end
  local text = ("%d"):format(token)     -- once: Redis formats numbers slowly
  redis.call("set", counter, text)
  return text
end

--- Takes the lock with a new token, or sets the owner's hold count to `want`
--  and returns its token. Otherwise like `acquire` of the reentrant lock.
function server.acquire(keys, args)
  local lock, owner, lease, want, client =
    keys[1], args[1], args[2], args[3], args[4]
  local ttl = redis.call("pttl", lock)
  local held = ttl ~= -2 and redis.call("hmget", lock, owner, TOKEN) or {}
  local count = held[1]
  if want ~= "1" and (not count or count == RESERVED) then
    return "lost"
  elseif ttl ~= -2 and not count then
    if client then
      ttl = register(keys[2], client .. " " .. owner, ttl)
    end
    return { "busy", ttl }
  end
  local token = held[2] or next_token(keys[3])
  if not token then return { "refused", "the tokens are used up" } end
  redis.call("hset", lock, owner, want, TOKEN, token)
  if count == RESERVED or ttl < tonumber(lease) then
    redis.call("pexpire", lock, lease)
  end
  if client then
    redis.pcall("zrem", keys[2] .. ":waiters", client .. " " .. owner)
  end
  return { "held", tonumber(token) }
end

--- Frees the lock by force; with a token, only if the hold with that token
--  still stands.
function server.break_(keys, args)
  local lock, token, publish = keys[1], args[1], args[2]
  if redis.call("exists", lock) == 0 then return "free" end
  if token ~= "" then
    local standing = redis.call("hget", lock, TOKEN)
    if not standing or tonumber(standing) ~= tonumber(token) then
      return { "refused", "the hold with that token is over" }
    end
  end
  redis.call("del", lock)
  free(lock, keys[2], publish)
  return "freed"
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
    elseif value ~= RESERVED then
      holders[#holders + 1], holders[#holders + 2] = field, value
      if field == owner then mine = tonumber(value) or 0 end
    end
  end
  return { "held", ttl, mine, holders, { "token", token } }
end

server.leave = reentrant.server.leave
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
  hands_over = true,
  slack = 1,                            -- the lock may be reserved
  keeps = function(keys) return { keys[3] } end,
  server = server,
}
