--- A reentrant lock whose waiters listen to nothing: they ask again after a
--  random pause that doubles from 1 to 128 ms. For a great many locks that are
--  held for a very short time.
--    name                            hash: owner -> hold count; expires with
--                                    the lease
--    redisson_lock__channel:{name}   says "0" when the lock is free, to those
--                                    who wait for it as a reentrant lock
--  On the wire it is Redisson's RLock, and so is what runs inside Redis. There
--  is no `channel` here, so nobody subscribes.

local reentrant = require "rlock.policy.reentrant"

return {
  name = "spin",
  keys = reentrant.keys,
  server = reentrant.server,
}
