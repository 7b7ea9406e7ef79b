--- rlockctl check finds nothing in the built-in kinds, within its default
--  bounds.

local ctl = require "spec.cli.ctl"
local kinds = require "rlock.kinds"

local LIMIT = 270                       -- seconds for each

teardown(ctl.clean)

describe("rlockctl check finds nothing in", function()
  local running = {}

  -- The one that takes longest is explored beside the others.
  setup(function()
    running.fair_readwrite = ctl.start { "check", "fair_readwrite",
      "--limit", tostring(LIMIT), limit = LIMIT + 20 }
  end)

  local function finish(name)
    local process = running[name] or ctl.start { "check", name,
      "--limit", tostring(LIMIT), limit = LIMIT + 20 }
    return process:wait()
  end

  local last
  for _, kind in ipairs(kinds) do
    local function is_right()
      local result = finish(kind.name)
      assert.same({ 0, "" }, { result.status, result.err }, result.out)
      assert.matches("^" .. kind.name .. ": [%d ]+ states, [%d ]+ steps, "
        .. "2 clients x 2 operations, complete: no fault found\n$", result.out)
    end
    if kind.name == "fair_readwrite" then
      last = is_right
    else
      it(kind.name, is_right)
    end
  end
  it("fair_readwrite", last)
end)
