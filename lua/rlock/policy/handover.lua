--- The hand-over of a lock to its oldest waiter, without a race. The first
--  waiter of each client of rlock registers beside Redisson's layout; CHANNEL
--  is that of the lock's releases:
--    CHANNEL:waiters             zset: "<client> <owner>" of a waiter -> its
--                                number in the order of arrival
--    CHANNEL:waited              set while there may be waiters; a release
--                                deletes it with the lock, in one command
--    channel CHANNEL:waiters     no messages; each client of rlock with waiters
--                                is subscribed to it and to CHANNEL
--    channel CHANNEL:waiters:<client>
--                                the owner name of a waiter of this client
--
--  A release reserves the lock for the oldest waiter: the waiter's owner has
--  the hold count 0, which expires after CLAIM ms. It is no hold. The waiter's
--  next `acquire` makes it one, so the reply and its lease mean what they
--  always do, and a lost or late message costs time, never safety. A waiter
--  whose client has no subscription is dropped. A waiter that gives up leaves,
--  which passes the lock on.
--
--  Redisson's waiters and those of older clients do not register. CHANNEL has
--  more subscribers than CHANNEL:waiters then, and a release publishes on
--  CHANNEL, for all.

--  These functions run inside Redis. Each is a single one, because a script
--  creates the functions that it contains each time it runs. They use pcall for
--  keys and commands that the user may not be permitted to use, so that a
--  release frees the lock in any case.

local shared = require "rlock.policy.shared"

local tell = shared.tell

local handover = {}

local UNLOCKED = "0"
local RESERVED = "0"                    -- the hold count
local CLAIM = 1000                      -- ms for which the lock is reserved
local EACH = 20                         -- ms of retry delay for each one ahead
local KEPT = 60000                      -- ms: longer than any retry delay
local MOST = 100                        -- dead waiters dropped by one release

--- Reserves a free lock for the oldest waiter that has a subscription. Without
--  any, publishes the release. CHANNEL:waited must have been deleted.
--  @tparam string lock
--  @tparam string channel
--  @tparam[opt] string entry  reserves it for this waiter, without a message
function handover.pass(lock, channel, entry)
  local waiters, owner = channel .. ":waiters", nil
  if entry then
    redis.pcall("zrem", waiters, entry)
    owner = entry:match(" (.*)$")
  else
    local heard = redis.pcall("pubsub", "numsub", channel, waiters)
    local most = (heard.err or heard[2] > heard[4]) and 0 or MOST
    for _ = 1, most do
      entry = redis.pcall("zrange", waiters, 0, 0)[1]
      if not entry then break end
      local client, name = entry:match("^(%S+) (.*)$")
      redis.pcall("zrem", waiters, entry)
      if redis.call("publish", waiters .. ":" .. client, name) > 0 then
        owner = name
        break
      end
    end
  end
  if not owner then return redis.call("publish", channel, UNLOCKED) end
  redis.call("hset", lock, owner, RESERVED)
  redis.call("pexpire", lock, CLAIM)
  if redis.pcall("exists", waiters) == 1 then
    redis.pcall("set", channel .. ":waited", 1, "px", KEPT)
  end
end

local pass = handover.pass

--- Passes on a lock that has been freed, or publishes that.
--  @tparam string lock
--  @tparam string channel
--  @tparam string publish  as for shared.tell, or "hand over"
function handover.free(lock, channel, publish)
  if publish ~= "hand over" then return tell(publish, channel, UNLOCKED) end
  redis.pcall("del", channel .. ":waited")
  pass(lock, channel)
end

--- Registers a waiter, and keeps its number if it is registered. If the server
--  refuses, because it is full or the user may not, the waiter polls.
--  @tparam string channel
--  @tparam string entry
--  @tparam number ttl  of the lock, in ms
--  @treturn number ms until it retries; -1: unknown. The waiters ahead of it
--    may get the lock, and be dead
function handover.register(channel, entry, ttl)
  local waiters = channel .. ":waiters"
  local last = redis.pcall("zrevrange", waiters, 0, 0, "withscores")
  if last.err then return ttl end
  redis.pcall("zadd", waiters, "nx", (last[2] or 0) + 1, entry)
  redis.pcall("pexpire", waiters, KEPT)
  redis.pcall("set", channel .. ":waited", 1, "px", KEPT)
  local ahead = redis.pcall("zrank", waiters, entry)
  if type(ahead) ~= "number" or ahead == 0 then return ttl end
  local ms = CLAIM + EACH * ahead
  return ttl >= 0 and math.min(ttl, ms) or ms
end

--- Removes the entry of a waiter that gives up.
--  @tparam string channel
--  @tparam string entry
function handover.unregister(channel, entry)
  local waiters = channel .. ":waiters"
  redis.pcall("zrem", waiters, entry)
  if redis.pcall("exists", waiters) == 0 then
    redis.pcall("del", channel .. ":waited")
  end
end

--- The holders of a lock, without an owner for which it is reserved.
--  @tparam table all owner, count, ...: the reply of HGETALL
--  @treturn table
function handover.holders(all)
  for i = #all - 1, 1, -2 do
    if all[i + 1] == RESERVED then
      table.remove(all, i)
      table.remove(all, i)
    end
  end
  return all
end

return handover
