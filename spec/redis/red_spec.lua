--- Redisson's tests of every lock, on red locks of three servers. Failures of a
--- red lock's servers are in quorum_spec.lua.

require "spec.support.rlock_rows" ("red", describe, it, before_each,
  after_each)
require "spec.support.joint_rows" ("red", describe, it, before_each,
  after_each)
