--- What the server functions of several policies have in common. A policy takes
--  what it needs as a local, so that nothing else is shipped:
--    local tell = require("rlock.policy.shared").tell
--  These run inside Redis.

local shared = {}

--- Says something on a channel.
--  @tparam string publish "publish", "spublish" or "both", as the client's
--    option
--  @tparam string channel
--  @param message a string or a whole number
--  @treturn integer how many clients of this server heard it
function shared.tell(publish, channel, message)
  if publish == "both" then
    return redis.call("publish", channel, message)
      + redis.call("spublish", channel, message)
  end
  return redis.call(publish, channel, message)
end

--- The server's time in milliseconds. Call it once: it goes on.
function shared.now()
  local time = redis.call("time")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

--- The whole number at a key, 0 if there is none; anything else is an error.
--  @tparam string key
--  @param value what GET or MGET gave: MGET hides that a key is no string
function shared.whole(key, value)
  if not value then value = redis.call("get", key) or 0 end
  local n = tonumber(value)
  if n and n % 1 == 0 then return n end
  return redis.call("incrby", key, 0)          -- raises what is wrong with it
end

--- Was this request carried out, or a later one of its slot? (requests.lua)
--  @tparam string slot a key
--  @tparam string number
function shared.is_done(slot, number)
  local last = redis.call("get", slot)
  return last and tonumber(last) >= tonumber(number)
end

return shared
