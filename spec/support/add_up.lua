--- Adds to a number that nothing but a lock protects: it is read, and then
--- written with one more. How often it was written is counted besides, in one
--- act with the writing, so that a writer may be killed at any time; if both
--- are the same in the end, no update was lost.
--
--    require "spec.support.add_up" (client, 100)      -- a hundred times

local WRITE = [[
  redis.call("set", KEYS[1], ARGV[1])
  return redis.call("incr", KEYS[2])]]

return function(client, times)
  local lock = client:lock("sum:lock")
  for _ = 1, times do
    assert(lock:lock { wait = 60 })
    local number = client:call("GET", "sum:number") or 0
    assert(client:call("EVAL", WRITE, "2", "sum:number", "sum:written",
      number + 1))
    assert(lock:unlock())
  end
end
