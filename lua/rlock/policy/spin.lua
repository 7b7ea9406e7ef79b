--- A reentrant lock whose waiters do not subscribe: they retry with exponential
--- back-off from 1 to 128 ms, with jitter. For very many locks, each held very
--- briefly.
---   name                            hash: owner -> hold count; expires with
---                                   the lease
---   redisson_lock__channel:{name}   "0" when the lock becomes free, for those
---                                   that wait for it as a reentrant lock
--- On the wire it is Redisson's RLock, with the server functions of the
--- reentrant lock. The policy has no `channel`, so nothing is subscribed to.

local reentrant = require "rlock.policy.reentrant"

local server = {}                       -- without `leave`: no waiter registers

for _, name in ipairs { "acquire", "renew", "release", "break_", "peek" } do
  server[name] = reentrant.server[name]
end

return {
  name = "spin",
  exclusive = true,
  keys = reentrant.keys,
  server = server,
}
