--- The corrected programs of examples/simulate about jobs, leaders and caches.

local ctl = require "spec.cli.ctl"
local right_examples = require "spec.tools.right_examples"

teardown(ctl.clean)

describe("a simulation of examples/simulate/", function()
  right_examples(it, { "cron_once", "leader_asks", "cache_compute" })
end)
