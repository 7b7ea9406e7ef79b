--- A mutex that is not reentrant: a second lock() by the same task is refused.
---   name                            hash: owner -> 1; expires with the lease
---   redisson_lock__channel:{name}   "0" when the lock becomes free
--- On the wire it is Redisson's RLock, with the server functions of the
--- reentrant lock. The client refuses re-entry itself (`reenter`), so a
--- duplicate of the same request is not mistaken for re-entry.

local reentrant = require "rlock.policy.reentrant"

return {
  name = "mutex",
  exclusive = true,
  keys = reentrant.keys,
  channel = reentrant.channel,
  hands_over = true,
  slack = 1,                            -- the lock may be reserved
  reenter = false,
  server = reentrant.server,
}
