--- A client learns of a failover from the Sentinel's message, not from its next
--- poll, and subscribes again when it has lost the connection.

local client = require "rlock.client"
local sentinels = require "rlockctl.simulate.sentinels"
local stage = require "spec.simulate.stage"

local LISTENED = "sentinel1"            -- the first in the URL
local SOON = 0.1                        -- seconds; two polls are 2 s apart

-- The client of a master that Sentinels watch.
local function open(self)
  self.server.execute = nil             -- a failover copies the server
  sentinels.add(self.network, { self.server })
  local own = assert(client.open(self.host, assert(client.complete({},
    sentinels.url(self.server)))))
  assert(own:lock("lock"):lock())
  return own
end

-- Asserts that a client follows a failover that only one Sentinel knows yet.
local function follows(self, own)
  local is_first = true
  sentinels.fail_over(self.network, self.server, false, 0, function()
    local late = is_first and 0 or 1
    is_first = false
    return late
  end)
  self.sleep(SOON)
  assert.equal("redis1-1:6379", (own.session.server.node:master()))
end

describe("a client with Sentinels", function()
  -- It polls them in turn, so one of these times suits each order.
  for _, seconds in ipairs { 3, 5, 7 } do
    it(("asks the Sentinel that reports a failover, after %d s"):format(
      seconds), function()
        stage.play(function(self)
          local own = open(self)
          self.sleep(seconds)
          follows(self, own)
        end)
      end)

    it(("subscribes again when the connection is lost, after %d s"):format(
      seconds), function()
        stage.play(function(self)
          local own = open(self)
          self.sleep(seconds)
          for _, link in ipairs(self.network.servers[LISTENED].links) do
            link:lose "connection reset"
          end
          self.sleep(SOON)
          follows(self, own)
        end)
      end)
  end
end)

describe("a connection that is opened while the master moves", function()
  it("is closed, because it leads to the old one", function()
    stage.play(function(self)
      local own = open(self)
      local node, opened = own.session.server.node, nil
      self:route().back = 0.1
      local opening = self.spawn(function()
        opened = table.pack(node:open(function() end))
      end)
      self.sleep(0.05)
      sentinels.fail_over(self.network, self.server, false, 0,
        function() return 0 end)
      opening:join()
      assert.same({ "closed", "the master has moved" },
        { opened[2], opened[3] })
    end)
  end)
end)
