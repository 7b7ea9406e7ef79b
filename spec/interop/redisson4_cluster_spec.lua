local against = require "spec.interop.against"
local sets = require "spec.interop.sets"

local busted = {
  describe = describe, it = it, setup = setup, teardown = teardown,
}

-- Redisson sends SPUBLISH, then PUBLISH.
against(busted, "redisson4", 0, sets.sharded, sets.cluster "AUTO", "a cluster")
against(busted, "redisson4", 0, sets.unsharded, sets.cluster "OFF",
  "a cluster without sharded messages")
