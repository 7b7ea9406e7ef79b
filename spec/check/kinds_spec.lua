--- rlockctl check finds nothing in the built-in kinds: with one operation for
--- each client, and within its default bounds.

local ctl = require "spec.cli.ctl"
local kinds = require "spec.tools.kinds"

local LIMIT = 270                       -- seconds for each

teardown(ctl.clean)

local function start(name, ...)
  return ctl.start { limit = LIMIT + 20, "check", name, "--limit",
    tostring(LIMIT), ... }
end

local function is_right(process, name, operations)
  local result = process:wait()
  assert.same({ 0, "" }, { result.status, result.err }, result.out)
  assert.matches("^" .. name .. ": [%d ]+ states, [%d ]+ steps, "
    .. "2 clients x " .. operations .. ", complete: no fault found\n$",
    result.out)
end

describe("rlockctl check, with one operation, finds nothing in", function()
  for _, name in ipairs(kinds.policies) do
    it(name, function()
      is_right(start(name, "--ops", "1"), name, "1 operations")
    end)
  end
end)

-- The search of three clients, which covers the waiters of fair kinds: a whole
-- search of those with tokens takes minutes.
describe("rlockctl check, with three clients, finds nothing in", function()
  for _, name in ipairs { "fenced_fair", "fenced_fair_readwrite" } do
    it(name, function()
      local result = start(name, "--clients", "3", "--ops", "1", "--ticks", "1",
        "--tick", "2", "--faults", "crash,twice,break"):wait()
      assert.same({ 0, "" }, { result.status, result.err }, result.out)
    end)
  end
end)

describe("rlockctl check, within its default bounds, finds nothing in",
    function()
      it("compute, the lock of client:compute", function()
        is_right(start "compute", "compute", "2 operations")
      end)
    end)

describe("rlockctl check finds nothing in #long", function()
  local longest

  -- The one that takes longest is explored beside the others.
  setup(function() longest = start "fair_readwrite" end)

  for _, name in ipairs(kinds.policies) do
    if not name:find "fair_readwrite" and name ~= "fenced_fair" then
      it(name, function() is_right(start(name), name, "2 operations") end)
    end
  end

  it("fair_readwrite", function()
    is_right(longest, "fair_readwrite", "2 operations")
  end)
end)
