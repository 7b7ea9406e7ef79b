--- Hands a free lock over to the waiter that has waited longest, so waiters do
--- not race for it. The first waiter of each rlock client registers. Redisson
--- does not know these keys and channels. CHANNEL is the channel on which the
--- lock's releases are published:
---   CHANNEL:waiters             zset: "<client> <owner>" of a waiter -> its
---                               number in the order of arrival
---   CHANNEL:waited              set while there may be waiters; a release
---                               deletes it and the lock with one DEL
---   channel CHANNEL:waiters     carries no messages; each rlock client with
---                               waiters subscribes to it and to CHANNEL
---   channel CHANNEL:waiters:<client>
---                               a message is the owner name of a waiter of
---                               this client
---
--- A release reserves the lock for the oldest waiter: the waiter's owner gets
--- the hold count 0, which expires after CLAIM ms. A reservation is not a hold.
--- The waiter's next `acquire` turns it into one, so the reply and the lease
--- keep their usual meaning. A lost or late message costs time, never safety. A
--- release drops a waiter whose client has no subscription. A waiter that gives
--- up unregisters. If the lock is reserved for it, it passes the lock on.
---
--- Waiters of Redisson and of older rlock clients do not register. Then CHANNEL
--- has more subscribers than CHANNEL:waiters, and a release publishes on
--- CHANNEL, which wakes a waiter of each client.

--  These functions run inside Redis. They use pcall for keys and commands that
--  the user may not be permitted to use, so that a release always frees the
--  lock.

local shared = require "rlock.policy.shared"

local tell = shared.tell

local handover = {}

local UNLOCKED = "0"
local RESERVED = "0"                    -- the hold count
local CLAIM = 1000                      -- ms for which the lock is reserved
local EACH = 20                         -- ms of retry delay per waiter ahead
local KEPT = 60000                      -- ms: longer than any retry delay
local MOST = 100                        -- dead waiters dropped by one release

--- Reserves a free lock for the oldest waiter whose client is subscribed. If
--- there is none, or if another waiter has not registered, publishes the
--- release. The caller has deleted CHANNEL:waited.
---@param lock string
---@param channel string
---@param entry? string the waiter to reserve it for, without a message;
---  default: the oldest
function handover.pass(lock, channel, entry)
  local waiters, owner = channel .. ":waiters", nil
  if entry then
    redis.pcall("zrem", waiters, entry)
    owner = entry:match(" (.*)$")
  else
    for _ = 1, MOST do
      entry = redis.pcall("zrange", waiters, 0, 0)[1]
      if not entry then break end
      local client, name = entry:match("^(%S+) (.*)$")
      local inbox = waiters .. ":" .. client
      -- PUBLISH also counts those who listen to a pattern.
      local heard = redis.pcall("pubsub", "numsub", channel, waiters, inbox)
      if heard.err or heard[2] > heard[4] then break end
      redis.pcall("zrem", waiters, entry)
      if heard[6] > 0 then
        local sent = redis.pcall("publish", inbox, name)
        owner = type(sent) == "number" and name
        break
      end
    end
  end
  if not owner then return redis.call("publish", channel, UNLOCKED) end
  redis.call("hset", lock, owner, RESERVED)
  redis.call("pexpire", lock, CLAIM)
  if redis.pcall("exists", waiters) == 1 then
    redis.pcall("set", channel .. ":waited", "", "px", KEPT)
  end
end

local pass = handover.pass

--- Reserves a freed lock for the next waiter, or publishes the release.
---@param lock string
---@param channel string
---@param publish string as for shared.tell, or "hand over"
function handover.free(lock, channel, publish)
  if publish ~= "hand over" then return tell(publish, channel, UNLOCKED) end
  redis.pcall("del", channel .. ":waited")
  pass(lock, channel)
end

--- Registers a waiter. A registered one keeps its number. If the server
--- refuses, because it is full or the user lacks permission, the waiter polls.
---@param channel string
---@param entry string
---@param ttl number of the lock, in ms
---@return number # ms until it retries; -1: unknown. A waiter behind others
---  retries early, because those ahead may get the lock and be dead
function handover.register(channel, entry, ttl)
  local waiters = channel .. ":waiters"
  local last = redis.pcall("zrevrange", waiters, 0, 0, "withscores")
  if last.err then return ttl end
  redis.pcall("zadd", waiters, "nx", (last[2] or 0) + 1, entry)
  redis.pcall("pexpire", waiters, KEPT)
  redis.pcall("set", channel .. ":waited", "", "px", KEPT)
  local ahead = redis.pcall("zrank", waiters, entry)
  if type(ahead) ~= "number" or ahead == 0 then return ttl end
  local ms = CLAIM + EACH * ahead
  return ttl >= 0 and math.min(ttl, ms) or ms
end

--- Removes the entry of a waiter that gives up.
---@param channel string
---@param entry string
function handover.unregister(channel, entry)
  local waiters = channel .. ":waiters"
  redis.pcall("zrem", waiters, entry)
  if redis.pcall("exists", waiters) == 0 then
    redis.pcall("del", channel .. ":waited")
  end
end

--- The holders of a lock. An owner with a reservation is not one, nor is the
--- empty field, which marks a fair lock or is a fencing token.
---@param all table owner, count, ...: the reply of HGETALL
---@return table
function handover.holders(all)
  for i = #all - 1, 1, -2 do
    if all[i] == "" or all[i + 1] == RESERVED then
      table.remove(all, i)
      table.remove(all, i)
    end
  end
  return all
end

return handover
