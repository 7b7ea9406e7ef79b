--- Waits for a condition with a deadline, so that specs need no sleeps of
--- guessed length. Other tasks continue meanwhile, in rlockctl and in nginx.
---
---   local eventually = require "spec.tools.eventually"
---   eventually(function() return lock:is_locked() end, 2, "it is locked")

local host = rawget(_G, "ngx") and require "resty.rlock.host"
  or require "rlock.host.uv"

local PAUSE = 0.005
local SECONDS = 20

--- Calls fn() every few milliseconds until its first result is true; returns
--- the first two. After `seconds` (20) raises an error that names `what`.
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
