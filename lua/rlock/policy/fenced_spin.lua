--- The spin lock, each hold with a fencing token, see fencing.lua.

local fencing = require "rlock.policy.fencing"

return fencing.of(require "rlock.policy.spin", "fenced_spin")
