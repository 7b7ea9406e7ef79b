local sets = require "spec.interop.sets"

require "spec.interop.against" ({
  describe = describe, it = it, setup = setup, teardown = teardown,
}, "redisson4", 0, sets.kinds, sets.sentinel, "a set with Sentinels")
