--- A count that goes down to 0 once, which releases all waiters.
---   name                                        string: the count; none at 0
---   redisson_countdownlatch__channel__{name}    "0" when the count reaches 0,
---                                               "1" when it is set or deleted
---   rlock_request:{name}:SLOT   string: the number of the last request that
---                               was executed under SLOT; kept for minutes
--- The first two are Redisson's RCountDownLatch. The third is rlock's own:
--- counting down is not idempotent by itself, so each request has a slot and a
--- number, and numbers up to the last are not executed again
--- (counters/deduplication.lua).
--- Its driver is counters/latch.lua.

local naming = require "rlock.naming"
local shared = require "rlock.policy.shared"

local is_done, tell, whole = shared.is_done, shared.tell, shared.whole

-- GONE opens Redisson's local latch, and CHANGED closes it: no extra GONE.
local GONE, CHANGED = "0", "1"

local server = {}                       -- these run inside Redis

--- Sets the count, unless there is one.
function server.set(keys, args)
  local latch, channel, slot = keys[1], keys[2], keys[3]
  local number, memory, n, publish = args[1], args[2], args[3], args[4]
  if is_done(slot, number) then return { "held" } end
  local present = redis.call("get", latch)
  if present then
    whole(latch, present)
    return { "refused", present }
  end
  redis.call("set", latch, n)
  redis.call("set", slot, number, "px", memory)
  tell(publish, channel, CHANGED)
  return { "held" }
end

--- Counts down by n.
---@return any # "held" or "free", then the remaining count
function server.count_down(keys, args)
  local latch, channel, slot = keys[1], keys[2], keys[3]
  local number, memory, n, publish = args[1], args[2], args[3], args[4]
  local count = whole(latch)
  local left = count - n
  if count <= 0 or is_done(slot, number) then
    left = count
  elseif left > 0 then
    redis.call("pexpire", slot, memory) -- first: it needs no memory
    redis.call("set", slot, number, "px", memory)
    redis.call("decrby", latch, n)
  else
    redis.call("del", latch)
    redis.call("set", slot, number, "px", memory)
    tell(publish, channel, GONE)
  end
  if left > 0 then return { "held", left } end
  return { "free", 0 }
end

---@return any # "held" or "free", then the count
function server.count(keys)
  local n = whole(keys[1])
  if n > 0 then return { "held", n } end
  return { "free", 0 }
end

--- Deletes the latch, which releases its waiters.
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
  lasts = function(keys) return { [keys[3]] = 600 } end,
  wakes = function() return "all" end,
  needs = {
    set = { held = "", refused = "s" }, count_down = { held = "n", free = "n" },
    count = { held = "n", free = "n" }, delete = { free = "", freed = "" },
  },
  server = server,
}
