--- Late delivery: a proxy keeps back abandoned requests and delivers them once
--- the lock has been used again.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local late_rows = require "spec.rows.late"
local slow = require "spec.tools.slow"

local PATIENCE = 10 * slow

describe("a request that is delivered late", function()
  local server, proxy

  before_each(function()
    server = fixtures.server()
    proxy = fixtures.proxy(server)
  end)

  after_each(fixtures.close)

  local function lose(names)
    for _, name in ipairs(names) do proxy:late(1, name) end
  end

  local function arrive()
    proxy:deliver()
    eventually(function() return proxy:kept() == 0 end, PATIENCE,
      "the server has closed the old connections")
  end

  local function go_wrong(seal)
    return late_rows {
      server = server, url = proxy.url, lose = lose, arrive = arrive,
      options = { timeout = 2 * slow, seal = seal },
    }
  end

  for _, seal in ipairs { "kill", "time" } do
    it("does no harm: sealed by " .. seal, function()
      assert.equal("", go_wrong(seal))
    end)
  end

  it("does harm where nothing is sealed", function()
    assert.not_equal("", go_wrong("off"))
  end)
end)
