--- Redisson's tests of every lock, on red locks of three servers. Failures of a
--- red lock's servers are in quorum_spec.lua.

require "spec.rows.rlock" ("red", describe, it, before_each,
  after_each)
require "spec.rows.joint" ("red", describe, it, before_each,
  after_each)
