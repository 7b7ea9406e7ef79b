--- The script that asks the holders of a lock to release it.

local release_request = {}

--- Publishes a request. Its key is the lock's, for the slot; its arguments are
--  the channel, the client's option `publish` and the request.
--  @treturn integer the number of subscribed clients, without those that listen
--    to a pattern, which PUBLISH counts. In a cluster, these clients are all at
--    the node of the slot
function release_request.ask(_, args)
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
