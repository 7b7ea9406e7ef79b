--- A reentrant lock that gives each hold a fencing token. On the wire it is
--- Redisson's RFencedLock; its keys are those of reentrant.lua and fencing.lua.

local fencing = require "rlock.policy.fencing"

return fencing.of(require "rlock.policy.reentrant", "fenced")
