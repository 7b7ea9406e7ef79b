require "spec.interop.against" ({
  describe = describe, it = it, setup = setup, teardown = teardown,
}, "redisson4", 5, (require "spec.interop.redisson"))
