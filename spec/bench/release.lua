-- release, written by hand: does the same work as policy/reentrant.lua's.
-- luacheck: read_globals redis KEYS ARGV
if not redis.call("hget", KEYS[1], ARGV[1]) then return {"lost"} end
if ARGV[3] ~= "0" then
  redis.call("hset", KEYS[1], ARGV[1], ARGV[3])
  redis.call("pexpire", KEYS[1], ARGV[2])
  return {"kept"}
end
redis.call("del", KEYS[1])
redis.call(ARGV[4], KEYS[2], "0")
return {"freed"}
