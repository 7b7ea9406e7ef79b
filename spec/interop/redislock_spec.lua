require "spec.interop.against" ({
  describe = describe, it = it, pending = pending,
  setup = setup, teardown = teardown,
}, "redislock", 0, {
  { "simple", require("spec.interop.simple").extended },
})
