--- Requests that were given up are executed later: a real network loses them,
--- and the kernel sends them again when the lock has been used again.

local link = require "spec.support.link"
local redis = require "spec.support.redis"
local rlock = require "rlock"
local task = require "spec.support.task"
local eventually = require "spec.support.wait" (rlock)

-- The kernel repeats a packet that was lost after about 0.2, 0.6, 1.5, 3.2 s.
local OUTAGE, TIMEOUT = 2, 1.6
local PATIENCE = 30

local function open_network()
  local server = redis.start { alone = true, port = 6379 }
  local between = link.to(server)
  local network = {
    server = server, url = between.url,
    options = { timeout = TIMEOUT, connect_timeout = 0.3 },
  }
  local outage

  function network.lose()
    between:lose("there")
    outage = task.start(function()
      rlock.sleep(OUTAGE)
      between:heal()
    end)
  end

  function network.arrive()
    outage:join(PATIENCE)
    eventually(function() return between:is_settled() end, PATIENCE,
      "the kernel has delivered what was lost")
  end

  function network.stop() server:stop() end

  return network
end

if link.is_possible() then
  require "spec.support.late_rows" (open_network, describe, it, setup,
    teardown, true)
else
  pending("what a real network loses: no network namespaces here")
end
