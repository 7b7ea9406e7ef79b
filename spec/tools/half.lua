--- A policy for specs: always busy, with a retry in half a millisecond.
---   name    string: how often acquire ran

local server = {}                       -- runs inside Redis

function server.acquire(keys)
  redis.call("incr", keys[1])
  return { "busy", 0.5 }
end

function server.release() return { "lost" } end

return {
  name = "half",
  keys = function(name) return { name } end,
  channel = function(keys) return keys[1] end,
  server = server,
}
