--- The corrected programs of examples/simulate about effects, orders and
--- forgotten unlocks.

local ctl = require "spec.cli.ctl"
local right_examples = require "spec.tools.right_examples"

teardown(ctl.clean)

describe("a simulation of examples/simulate/", function()
  right_examples(it, { "counter_guarded", "accounts_together",
    "forgotten_with" })
end)
