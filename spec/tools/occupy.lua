--- A task that holds a lock until it is asked to leave.
---
---   local holder = occupy(lock, { lease = 5 })
---   assert.is_true(holder.leave())             -- what unlock returned

local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

return function(lock, options)
  local gate, held = rlock.event(), rlock.event()
  local holding = task.start(function()
    assert(lock:lock(options))
    held:set()
    gate:wait()
    return lock:unlock()
  end)
  assert(held:wait(20 * slow), "it is held")
  return {
    leave = function()
      gate:set()
      return holding:join()
    end,
  }
end
