-- A lock of your own kind: the waiter with the highest priority is next.
--
--    rlockctl examples/priority.lua
--
-- The policy is the first half of this file; in a real program it would be a
-- separate file. A sorted set is the queue: by priority, then by arrival.
-- Each waiter sends a heartbeat at least every half second; a silent one is
-- dropped, so a dead waiter blocks no other. If more urgent waiters keep
-- arriving, the others starve. To see what Redis runs:
-- rlockctl script examples.priority

local naming = require "rlock.naming"
local shared = require "rlock.policy.shared"

local now, tell = shared.now, shared.tell

local SILENT = 1500                     -- ms after which a waiter is dropped
local STAY = 60000                      -- ms that an idle queue is kept
local BAND = 4398046511104              -- 2^42: more than any time in ms
local MOST = 1000                       -- a priority beyond it would lose the
                                        -- order of arrival: doubles have 2^53
local server = {}                       -- these run inside Redis

local function leave_line(queue, alive, owner)
  redis.call("zrem", queue, owner)
  redis.call("zrem", alive, owner)
end

-- Drops the dead waiters; returns the first live waiter.
local function first_waiter(queue, alive, time)
  local dead = redis.call("zrangebyscore", alive, "-inf", time - SILENT)
  for _, owner in ipairs(dead) do leave_line(queue, alive, owner) end
  return redis.call("zrange", queue, 0, 0)[1]
end

local function stand_in_line(queue, alive, owner, priority, time)
  priority = math.max(-MOST, math.min(MOST, priority))
  redis.call("zadd", queue, "nx", time - priority * BAND, owner)
  redis.call("zadd", alive, time, owner)
  redis.call("pexpire", queue, STAY)
  redis.call("pexpire", alive, STAY)
end

-- Extends the holder's lease; never shortens it.
local function prolong(lock, lease)
  if redis.call("pttl", lock) < tonumber(lease) then
    redis.call("pexpire", lock, lease)
  end
  return "held"
end

function server.acquire(keys, args)
  local lock, queue, alive = keys[1], keys[2], keys[3]
  local owner, lease, wait, priority =
    args[1], args[2], args[4], tonumber(args[5])
  local holder, time = redis.call("get", lock), now()
  if holder == owner then return prolong(lock, lease) end
  if wait ~= "0" then stand_in_line(queue, alive, owner, priority, time) end
  local first = first_waiter(queue, alive, time)
  if not holder and (not first or first == owner) then
    redis.call("set", lock, owner, "px", lease)
    leave_line(queue, alive, owner)
    return "held"
  end
  return { "busy", holder and redis.call("pttl", lock) or 100 }
end

function server.renew(keys, args)
  if redis.call("get", keys[1]) ~= args[1] then return "lost" end
  return prolong(keys[1], args[2])
end

-- Wakes the first waiter, on its own channel.
local function call_next(keys, publish)
  local first = first_waiter(keys[2], keys[3], now())
  if first then tell(publish, keys[4] .. ":" .. first, "0") end
end

function server.release(keys, args)
  if redis.call("get", keys[1]) ~= args[1] then return "lost" end
  redis.call("del", keys[1])
  call_next(keys, args[4])
  return "freed"
end

-- Removes a waiter that gives up.
function server.leave(keys, args)
  leave_line(keys[2], keys[3], args[1])
  if redis.call("exists", keys[1]) == 0 then call_next(keys, args[2]) end
  return "left"
end

local priority_lock = {
  name = "priority",
  reenter = false,                      -- held once, or not at all
  poll = 0.5,                           -- seconds between heartbeats
  keys = function(name)
    return {
      name, naming.suffix(name, "queue"), naming.suffix(name, "alive"),
      naming.prefix("priority_turn", name),
    }
  end,
  channel = function(keys, owner) return keys[4] .. ":" .. owner end,
  extra = function(request)
    return { request.wait_ms, request.options.priority or 0 }
  end,
  server = server,
}

-- If this file is required, it returns the policy only.
if ... == "examples.priority" then return priority_lock end

-- The program: three tasks wait while a fourth holds the lock. They get it in
-- order of priority, not of arrival.

local rlock = require "rlock"

local client <close> = assert(rlock.open())

local function lock_with(priority)
  return client:policy(priority_lock, "printer", { priority = priority })
end

local holder = lock_with(0)
assert(holder:lock())
local tasks = {}
for i, priority in ipairs { 1, 5, 3 } do
  tasks[i] = rlock.spawn(function()
    assert(lock_with(priority):with(function()
      print(("priority %d has the lock"):format(priority))
      return true
    end))
  end)
end
repeat
  rlock.sleep(0.01)                     -- until all three are queued
until client:call("ZCARD", naming.suffix("printer", "queue")) == 3
print "three tasks wait; the lock is released"
assert(holder:unlock())
for _, task in ipairs(tasks) do task:join() end
