--- Waits for a condition with a deadline, so that specs need no sleeps of
--- guessed length.
--
--    local eventually = require "spec.tools.wait" (host)   -- in tasks
--    local eventually = require "spec.tools.wait" ()       -- blocking
--    eventually(function() return lock:is_locked() end, 2, "it is locked")
--
--  `host` has sleep(s), which suspends the task, and now(), in seconds.

local PAUSE = 0.005
local SECONDS = 5

local function blocking()
  local slept = 0
  return {
    now = function() return slept end,
    sleep = function(s)
      os.execute(("sleep %.3f"):format(s))
      slept = slept + s
    end,
  }
end

--- Returns eventually(fn[, seconds[, what]]): it calls fn() every few
--- milliseconds until that returns something true, and returns that and the
--- second result; after `seconds` (5) it raises, with `what` it waited for.
return function(host)
  host = host or blocking()
  return function(fn, seconds, what)
    local deadline = host.now() + (seconds or SECONDS)
    while true do
      local last = host.now() >= deadline
      local result, more = fn()
      if result then return result, more end
      if last then
        error(("not within %g s: %s"):format(seconds or SECONDS,
          what or "what was waited for"), 2)
      end
      host.sleep(PAUSE)
    end
  end
end
