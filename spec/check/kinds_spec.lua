--- rlockctl check finds nothing in the built-in kinds: with one operation for
--  each client, and within its default bounds.

local ctl = require "spec.cli.ctl"
local kinds = require "rlock.lock.kinds"

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
  for _, kind in ipairs(kinds) do
    it(kind.name, function()
      is_right(start(kind.name, "--ops", "1"), kind.name, "1 operations")
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

  for _, kind in ipairs(kinds) do
    if kind.name ~= "fair_readwrite" then
      it(kind.name, function()
        is_right(start(kind.name), kind.name, "2 operations")
      end)
    end
  end

  it("fair_readwrite", function()
    is_right(longest, "fair_readwrite", "2 operations")
  end)
end)
