--- A counting semaphore. Its permits have no owners and do not expire, so any
--- client may release some.
---   name                        string: the number of free permits
---   redisson_sc:{name}          channel: the number of free permits, when it
---                               grows
---   rlock_request:{name}:SLOT   string: the number of the last request that
---                               was executed under SLOT; kept for minutes
---   rlock_request:{name}:SLOT:drained   string: the result of a drain
--- The first two are Redisson's RSemaphore. The others are rlock's own:
--- acquiring permits is not idempotent by itself, so each request has a slot
--- and a number, and numbers up to the last are not executed again
--- (counters/deduplication.lua).
--- Its driver is counters/semaphore.lua.

local naming = require "rlock.naming"
local shared = require "rlock.policy.shared"

local is_done, tell, whole = shared.is_done, shared.tell, shared.whole

local server = {}                       -- these run inside Redis

--- Takes n permits.
---@return any # "held" or "busy" and -1, then the number of free permits
function server.acquire(keys, args)
  local permits, slot = keys[1], keys[3]
  local number, memory, n = args[1], args[2], args[3]
  local values = redis.call("mget", permits, slot)
  local left, last = whole(permits, values[1]), values[2]
  if last and tonumber(last) >= tonumber(number) then
    return { "held", left }
  end
  if left < tonumber(n) then return { "busy", -1, left } end
  redis.call("set", slot, number, "px", memory)
  return { "held", redis.call("decrby", permits, n) }
end

--- Adds n permits; a negative n removes permits, even those in use.
function server.release(keys, args)
  local permits, channel, slot = keys[1], keys[2], keys[3]
  local number, memory, n, publish = args[1], args[2], args[3], args[4]
  if is_done(slot, number) then return { "freed" } end
  redis.call("pexpire", slot, memory)   -- first: it needs no memory
  local left = redis.call("incrby", permits, n)
  redis.call("set", slot, number, "px", memory)
  if left > 0 and tonumber(n) > 0 then tell(publish, channel, left) end
  return { "freed" }
end

--- Releases the permits that the request `undone` of this slot took: n, or all
--- that it drained. If that request has not been executed yet, it never will
--- be.
function server.undo(keys, args)
  local permits, channel, slot, drained = keys[1], keys[2], keys[3], keys[4]
  local number, memory, n, publish, undone =
    args[1], args[2], args[3], args[4], args[5]
  local last = redis.call("get", slot)
  if last and tonumber(last) >= tonumber(number) then return { "freed" } end
  redis.call("pexpire", slot, memory)   -- first: it needs no memory
  if last == undone then
    local took = drained and redis.call("get", drained) or n
    local left = redis.call("incrby", permits, took)
    if left > 0 then tell(publish, channel, left) end
  end
  redis.call("set", slot, number, "px", memory)
  return { "freed" }
end

--- Sets the number of permits, unless it is set; with a `ttl`, it expires after
--- that many milliseconds.
function server.set(keys, args)
  local permits, channel, slot = keys[1], keys[2], keys[3]
  local number, memory, n, publish, ttl =
    args[1], args[2], args[3], args[4], args[5]
  if is_done(slot, number) then return { "held" } end
  local present = redis.call("get", permits)
  if present then
    whole(permits, present)
    return { "refused", present }
  end
  if ttl then
    redis.call("set", permits, n, "px", ttl)
  else
    redis.call("set", permits, n)
  end
  redis.call("set", slot, number, "px", memory)
  if tonumber(n) > 0 then tell(publish, channel, n) end
  return { "held" }
end

--- Takes all free permits.
---@return any # "held", then their number
function server.drain(keys, args)
  local permits, slot, drained = keys[1], keys[3], keys[4]
  local number, memory = args[1], args[2]
  if is_done(slot, number) then
    return { "held", tonumber(redis.call("get", drained) or 0) }
  end
  local n = whole(permits)
  if n ~= 0 then redis.call("decrby", permits, n) end
  redis.call("set", drained, n, "px", memory)
  redis.call("set", slot, number, "px", memory)
  return { "held", n }
end

---@return any # "free" or "held", then the number of free permits
function server.count(keys)
  local n = whole(keys[1])
  return { n > 0 and "free" or "held", n }
end

return {
  name = "semaphore",
  keys = function(name)
    return {
      name, naming.prefix("redisson_sc", name),
      naming.prefix("rlock_request", name),
    }
  end,
  channel = function(keys) return keys[2] end,
  lasts = function(keys) return { [keys[3]] = 600 } end,
  needs = {
    acquire = { held = "n", busy = "nn" }, release = { freed = "" },
    undo = { freed = "" }, set = { held = "", refused = "s" },
    drain = { held = "n" }, count = { free = "n", held = "n" },
  },
  server = server,
}
