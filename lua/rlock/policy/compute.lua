--- The lock of a computation, see recipes/compute.lua: a mutex whose release
--- wakes one waiter in every client, because all of them wait for the value.
---   name                            hash: owner -> 1; expires with the lease
---   redisson_lock__channel:{name}   "0" when the lock becomes free
--- Its server functions are those of the reentrant lock.

local reentrant = require "rlock.policy.reentrant"
local spin = require "rlock.policy.spin"

return {
  name = "compute",
  exclusive = true,
  keys = reentrant.keys,
  channel = reentrant.channel,
  reenter = false,
  server = spin.server,                 -- without `leave`: no waiter registers
}
