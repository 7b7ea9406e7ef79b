--- rlockctl check finds no fault in the double barrier, also with one member
--- more than a round has and with late requests. For planted faults see
--- spec/rows/planted.lua.

local ctl = require "spec.cli.ctl"

teardown(ctl.clean)

describe("rlockctl check of a double barrier", function()
  for _, words in ipairs {
    { "--clients", "3", "--ops", "1", "--ticks", "0" },
    { "--ops", "2", "--ticks", "0", "--option", "n=1" },
    { "--ops", "1", "--ticks", "2", "--tick", "1" },
    { "--ops", "1", "--ticks", "0", "--faults", "late" },
  } do
    it("finds no fault: " .. table.concat(words, " "), function()
      local result = ctl.run { "check", "barrier", "--limit", "600",
        limit = 620, table.unpack(words) }
      assert.same({ 0, "" }, { result.status, result.err })
      assert.matches("complete: no fault found\n", result.out)
    end)
  end
end)
