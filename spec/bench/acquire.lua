-- acquire, written by hand: does the same work as policy/reentrant.lua's.
-- luacheck: read_globals redis KEYS ARGV
local left = redis.call("pttl", KEYS[1])
if left == -2 then
  if ARGV[3] ~= "1" then return {"lost"} end
  redis.call("hset", KEYS[1], ARGV[1], ARGV[3])
  redis.call("pexpire", KEYS[1], ARGV[2])
  return {"held"}
end
if not redis.call("hget", KEYS[1], ARGV[1]) then
  return {ARGV[3] == "1" and "busy" or "lost", left}
end
redis.call("hset", KEYS[1], ARGV[1], ARGV[3])
if left < tonumber(ARGV[2]) then redis.call("pexpire", KEYS[1], ARGV[2]) end
return {"held"}
