--- A multi-lock on virtual time: what becomes of requests that are in flight
--- when its task is cancelled.

local multi = require "rlock.several.multi"
local stage = require "spec.simulate.stage"

local on_stage = stage.tests(it)

describe("a multi-lock of a named owner", function()
  on_stage("that is cancelled leaves no lock, although a grant comes later",
    function(self, client)
      local parts = {}
      for i, name in ipairs { "a", "b" } do
        parts[i] = client:lock(name, { owner = "it" })
      end
      assert.is_true(parts[1]:lock())   -- the server has the scripts
      assert.is_true(parts[1]:unlock())
      self:route().delay = 0.2
      local task = self.spawn(function() multi.new(parts):lock() end)
      self.sleep(0.1)
      task:cancel()
      self.sleep(1)
      for _, name in ipairs { "a", "b" } do
        assert.is_nil(self.server.redis:entry(name))
      end
    end)
end)
