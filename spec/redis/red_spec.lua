--- What Redisson's tests assert of every lock, asked of red locks on three
--- servers. What befalls a red lock is in quorum_spec.lua.

require "spec.support.rlock_rows" ("red", describe, it, before_each,
  after_each)
require "spec.support.joint_rows" ("red", describe, it, before_each,
  after_each)
