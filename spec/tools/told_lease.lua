--- A policy for specs: its server records the lease sent with a release.
---   name           hash: owner -> hold count
---   name:lease     string: the lease of the last release, in milliseconds

local server = {}                       -- runs inside Redis

function server.acquire(keys, args)
  redis.call("hset", keys[1], args[1], args[3])
  return { "held" }
end

function server.release(keys, args)
  redis.call("set", keys[2], args[2])
  redis.call("hset", keys[1], args[1], args[3])
  return { args[3] == "0" and "freed" or "kept" }
end

return {
  name = "told_lease",
  keys = function(name) return { name, name .. ":lease" } end,
  server = server,
}
