--- The fair lock, each hold with a fencing token, see fencing.lua.

local fencing = require "rlock.policy.fencing"

return fencing.of(require "rlock.policy.fair", "fenced_fair")
