--- Helpers that the server functions of several policies share. A policy makes
--- the ones that it uses locals, so that only these are shipped:
---   local tell = require("rlock.policy.shared").tell
--- They run inside Redis.

local shared = {}

--- Publishes a message on a channel.
---@param publish string "publish", "spublish" or "both": the client's option
---@param channel string
---@param message any a string or a whole number
---@return number # the number of clients of this server that received it
function shared.tell(publish, channel, message)
  if publish == "both" then
    return redis.call("publish", channel, message)
      + redis.call("spublish", channel, message)
  end
  return redis.call(publish, channel, message)
end

--- The server's time in milliseconds. Call it once per operation: it advances.
function shared.now()
  local time = redis.call("time")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

--- The whole number at a key, 0 if there is none; raises for anything else.
---@param key string
---@param value any the reply of GET or MGET; MGET hides that a key is not a
---  string
function shared.whole(key, value)
  if not value then value = redis.call("get", key) or 0 end
  local n = tonumber(value)
  if n and n % 1 == 0 then return n end
  return redis.call("incrby", key, 0)          -- raises the proper error
end

--- Has this request, or a later one of its slot, been executed? See
--- counters/deduplication.lua.
---@param slot string a key
---@param number string
function shared.is_done(slot, number)
  local last = redis.call("get", slot)
  return last and tonumber(last) >= tonumber(number)
end

return shared
