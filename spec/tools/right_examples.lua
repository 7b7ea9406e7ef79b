--- Tests for programs of examples/simulate without their bugs: nothing is
--- found in 20 000 runs of each, and in fewer if RLOCK_MORE is small.

local assert = require "luassert"
local ctl = require "spec.cli.ctl"

local MORE = tonumber(os.getenv "RLOCK_MORE" or 5)
local RUNS = MORE < 20 and 500 or 20000
local LIMIT = 900                       -- seconds of a command

--- Declares a test for each program.
---@param it function of busted
---@param names string[]
return function(it, names)
  for _, name in ipairs(names) do
    it(name .. " finds nothing", function()
      local found = ctl.run { "simulate", "--seed", "1", "--runs",
        tostring(RUNS), "examples/simulate/" .. name .. ".lua",
        "--processes=2", limit = LIMIT }
      assert.same({ 0, "" }, { found.status, found.err }, found.out)
      assert.matches("^" .. RUNS .. " runs with faults and 1 without.*: no bug "
        .. "found\n$", found.out)
    end)
  end
end
