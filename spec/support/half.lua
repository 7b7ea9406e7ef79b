--- A policy for specs: it is always busy, for half a millisecond more.
--    name    string: how often it was asked

local server = {}                       -- these run inside Redis

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
