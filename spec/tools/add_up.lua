--- Increments a number by read and write, so that only a lock prevents lost
--- updates. The writing script also counts the writes, atomically, so that a
--- writer may be killed at any time: no update was lost if both numbers are
--- equal in the end.
---
---   require "spec.tools.add_up" (client, 100)      -- a hundred times

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
