--- Late delivery: a real network drops abandoned requests, and the kernel
--- retransmits them once the lock has been used again.
--- #long

local eventually = require "spec.tools.eventually"
local late_rows = require "spec.rows.late"
local link = require "spec.tools.link"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local task = require "spec.tools.task"

-- The kernel retransmits a lost packet after about 0.2, 0.6, 1.5 and 3.2 s.
local OUTAGE, TIMEOUT = 2, 1.6
local PATIENCE = 30

describe("a request that the network loses and repeats", function()
  if not link.is_possible() then
    pending "needs network namespaces"
    return
  end

  local server, network, outage

  before_each(function()
    server = redis.start { alone = true, port = 6379 }
    network = link.to(server)
  end)

  after_each(function() server:stop() end)

  local function lose()
    network:lose("there")
    outage = task.start(function()
      rlock.sleep(OUTAGE)
      network:heal()
    end)
  end

  local function arrive()
    outage:join(PATIENCE)
    eventually(function() return network:is_settled() end, PATIENCE,
      "the kernel has delivered what was lost")
  end

  local function go_wrong(seal)
    return late_rows {
      server = server, url = network.url, lose = lose, arrive = arrive,
      options = { timeout = TIMEOUT, connect_timeout = 0.3, seal = seal },
    }
  end

  for _, seal in ipairs { "kill", "time" } do
    it("does no harm: sealed by " .. seal, function()
      assert.equal("", go_wrong(seal))
    end)
  end
end)
