--- A count that goes down to nothing, once; then all who waited for it go on.
--    name                                        string: the count; gone at 0
--    redisson_countdownlatch__channel__{name}    says "0" when it has gone, "1"
--                                                when it was set or deleted
--    rlock_request:{name}:SLOT   string: the number of the last request that
--                                was carried out under SLOT; kept for minutes
--  The first two are Redisson's RCountDownLatch. The third is ours: counting is
--  not harmless when repeated, so a request has a slot and a number, and
--  nothing up to the last number is carried out again (see requests.lua).
--  Its driver is latch.lua.

local naming = require "rlock.naming"
local shared = require "rlock.policy.shared"

local is_done, tell, whole = shared.is_done, shared.tell, shared.whole

-- Redisson's waiters stay awake from GONE until CHANGED: never one too many.
local GONE, CHANGED = "0", "1"

local server = {}                       -- these run inside Redis

--- Sets the count, if there is none.
function server.set(keys, args)
  local latch, channel, slot = keys[1], keys[2], keys[3]
  local number, memory, n, publish = args[1], args[2], args[3], args[4]
  if is_done(slot, number) then return { "held" } end
  local present = redis.call("get", latch)
  if present then return { "refused", present } end
  redis.call("set", latch, n)
  redis.call("set", slot, number, "px", memory)
  tell(publish, channel, CHANGED)
  return { "held" }
end

--- Counts n down.
--  @return "held" or "free", then what is left
function server.count_down(keys, args)
  local latch, channel, slot = keys[1], keys[2], keys[3]
  local number, memory, n, publish = args[1], args[2], args[3], args[4]
  local count = whole(latch)
  local left = count - n
  if count <= 0 or is_done(slot, number) then
    left = count
  elseif left > 0 then
    redis.call("set", slot, number, "px", memory)
    redis.call("decrby", latch, n)
  else
    redis.call("set", slot, number, "px", memory)
    redis.call("del", latch)
    tell(publish, channel, GONE)
  end
  if left > 0 then return { "held", left } end
  return { "free", 0 }
end

--- @return "held" or "free", then the count
function server.count(keys)
  local n = whole(keys[1])
  if n > 0 then return { "held", n } end
  return { "free", 0 }
end

--- Takes the latch away, and with it what anybody could wait for.
function server.delete(keys, args)
  local latch, channel, publish = keys[1], keys[2], args[1]
  if not redis.call("get", latch) then return { "free" } end
  redis.call("del", latch)
  tell(publish, channel, CHANGED)
  return { "freed" }
end

return {
  name = "latch",
  keys = function(name)
    return {
      name, "redisson_countdownlatch__channel__{" .. name .. "}",
      naming.prefix("rlock_request", name),
    }
  end,
  channel = function(keys) return keys[2] end,
  wakes = function() return "all" end,
  needs = {
    set = { held = "", refused = "s" }, count_down = { held = "n", free = "n" },
    count = { held = "n", free = "n" }, delete = { free = "", freed = "" },
  },
  server = server,
}
