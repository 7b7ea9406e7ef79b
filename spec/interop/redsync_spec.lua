require "spec.interop.against" ({
  describe = describe, it = it, setup = setup, teardown = teardown,
}, "redsync", 5, {
  { "simple", require("spec.interop.simple").extended },
  { "red_simple", require("spec.interop.simple").extended },
  { "red_simple", require("spec.interop.quorum").exclusive },
})
