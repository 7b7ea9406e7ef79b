--- A store protected by fencing tokens: it hands out increasing tokens and
--- accepts a write only with the latest, so that a former holder does no harm.
--- A red lock has no token of its own, because its servers are independent.

local fence = {}

local PUT = [[
if redis.call("get", "fence") ~= ARGV[1] then return 0 end
redis.call("set", KEYS[1], ARGV[2])
return 1]]

--- Draws a token. Call it while you hold the lock.
---@param store table a client
---@return string
function fence.token(store)
  return ("%d"):format(assert(store:call("INCR", "fence")))
end

--- Writes a number.
---@return boolean # false if a later token has been drawn
function fence.put(store, token, key, number)
  return assert(store:call("EVAL", PUT, "1", key, token, ("%d"):format(number)))
    == 1
end

return fence
