require "spec.interop.against" ({
  describe = describe, it = it, setup = setup, teardown = teardown,
}, "redisson3", 5, (require "spec.interop.redisson"))
