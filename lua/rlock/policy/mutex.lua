--- Mutual exclusion that its holder cannot enter again: a second lock() by the
--  same task is refused, not counted.
--    name                            hash: owner -> 1; expires with the lease
--    redisson_lock__channel:{name}   says "0" when the lock is free
--  On the wire it is Redisson's RLock: what runs inside Redis is that of the
--  reentrant lock, and the refusal is given without asking (`reenter`). The
--  same request sent twice is no second entry: it is answered alike.

local reentrant = require "rlock.policy.reentrant"

return {
  name = "mutex",
  keys = reentrant.keys,
  channel = reentrant.channel,
  reenter = false,
  server = reentrant.server,
}
