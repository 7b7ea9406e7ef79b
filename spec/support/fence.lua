--- What a store does so that nobody harms it who only thinks that he holds a
--- lock: it hands out tokens, each greater than all before, and takes a number
--- only with the latest. A red lock has no token of its own, because its
--- servers know nothing of each other.

local fence = {}

local PUT = [[
if redis.call("get", "fence") ~= ARGV[1] then return 0 end
redis.call("set", KEYS[1], ARGV[2])
return 1]]

--- To be asked for when the lock is held.
-- @tparam table store a client
-- @treturn string
function fence.token(store)
  return ("%d"):format(assert(store:call("INCR", "fence")))
end

--- @treturn boolean false if somebody has a later token
function fence.put(store, token, key, number)
  return assert(store:call("EVAL", PUT, "1", key, token, ("%d"):format(number)))
    == 1
end

return fence
