--- client:compute on virtual time: which callers get a stale value.

local stage = require "spec.simulate.stage"

local on_stage = stage.tests(it)

describe("a stale value", function()
  on_stage("is for those that accept one, not for others in their client",
    function(self, client)
      local host = self:add_host "client2"
      local other = self:client({ lazy = true }, nil, host)
      assert.equal("old", (client:compute("c", { ttl = 0.1, stale = 60 },
        function() return "old" end)))
      self.sleep(1)
      host.spawn(function()
        other:compute("c", { ttl = 60 }, function()
          host.sleep(5)
          return "new"
        end)
      end)
      self.sleep(0.1)
      self:route().delay = 0.01         -- so the second one follows the first
      local stale, fresh
      self.spawn(function()
        stale = { client:compute("c", { ttl = 60, stale = 60 }, error) }
      end)
      self.spawn(function()
        fresh = { client:compute("c", { ttl = 60 }, error) }
      end)
      self.sleep(1)
      assert.same({ "old", "stale" }, stale)
      assert.is_nil(fresh)
      self.sleep(10)
      assert.same({ "new", "cached" }, fresh)
    end)
end)
