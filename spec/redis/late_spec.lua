--- Requests that were given up are executed later: a proxy keeps them back and
--- delivers them when the lock has been used again.

local proxies = require "spec.support.proxy"
local redis = require "spec.support.redis"
local rlock = require "rlock"
local eventually = require "spec.support.wait" (rlock)

local slow = tonumber(os.getenv("RLOCK_SLOW") or 1)
local PATIENCE = 10 * slow

local function open_network(seal)
  local server = redis.start()
  local proxy = proxies.start(server)
  local network = {
    server = server, url = proxy.url, options = { timeout = 0.3 * slow, seal = seal },
  }

  function network.lose(names)
    proxy:reset()
    for _, name in ipairs(names) do proxy:late(1, name) end
  end

  function network.arrive()
    proxy:deliver()
    eventually(function() return proxy:kept() == 0 end, PATIENCE,
      "the server has closed the old connections")
  end

  function network.stop()
    proxy:stop()
    server:stop()
  end

  return network
end

for _, seal in ipairs { "kill", "time" } do
  describe("sealed by " .. seal .. ",", function()
    require "spec.support.late_rows" (function() return open_network(seal) end,
      describe, it, setup, teardown)
  end)
end
