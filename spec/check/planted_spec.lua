--- rlockctl check finds planted faults (spec/rows/planted.lua). Each is in a
--- copy of the policy's file, which precedes the original on the path.

local ctl = require "spec.cli.ctl"
local plant = require "spec.tools.plant"

teardown(ctl.clean)

local LIMIT = 270                       -- seconds for each

describe("rlockctl check sees", function()
  for number, row in ipairs(require "spec.rows.planted") do
    local what, kind, file, text, faulty, fault, options =
      table.unpack(row, 1, 7)
    it(what .. " in " .. kind, function()
      local words = { "check", kind, "--lua-path",
        plant.folder("planted" .. number, file, text, faulty),
        "--limit", tostring(LIMIT),
        limit = LIMIT + 20 }
      for word in (options or ""):gmatch("%S+") do words[#words + 1] = word end
      local result = ctl.run(words)
      assert.same({ 1, "" }, { result.status, result.err }, result.out)
      assert.matches(fault, result.out:match("stopped: ([^\n]+)"))
      assert.matches("\n *1  ", result.out)       -- and shows its trace
    end)
  end
end)
