--- The script that asks the holders of a lock to release it.

local release_request = {}

--- Publishes a request. The key is the lock's, which selects the slot; the
--- arguments are the channel, the client's option `publish` and the request.
---@return integer # the number of subscribed clients. Unlike the reply to
---  PUBLISH, it excludes pattern subscribers. In a cluster, all these clients
---  are subscribed at the node that serves the slot
function release_request.ask(_, args)
  ---@type any, any, any, any
  local channel, publish, request, listeners = args[1], args[2], args[3], 0
  if publish ~= "spublish" then
    local counted = redis.pcall("pubsub", "numsub", channel)
    local told = redis.call("publish", channel, request)
    listeners = counted.err and told or counted[2]
  end
  if publish ~= "publish" then
    listeners = math.max(listeners, redis.call("spublish", channel, request))
  end
  return listeners
end

return release_request
