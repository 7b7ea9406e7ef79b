--- Permits on a simulated host: replies that come when the lease has ended.

local stage = require "spec.simulate.stage"

local on_stage = stage.tests(it)

local LEASE, WAIT = 0.05, 0.2

-- Takes a permit, so that the server knows the scripts.
local function warmed_up(self, client)
  local permits = client:permits "permits"
  assert.is_true(permits:set(2))
  assert.is_true(permits:release((assert(permits:acquire()))))
  self.recorded = {}
  return permits
end

-- The ids that were sent with an operation.
local function ids(self, operation)
  local list = {}
  for _, call in ipairs(self.recorded) do
    if call.operation == operation then list[#list + 1] = call.args[1] end
  end
  return list
end

describe("a permit whose reply comes too late", function()
  on_stage("is released without a longer wait", function(self, client)
    local permits, results, took = warmed_up(self, client), nil, nil
    self:route().delay = 0.04
    self.spawn(function()
      local began = self.now()
      results = { permits:acquire { lease = LEASE, wait = WAIT } }
      took = self.now() - began
    end)
    self.sleep(0.07)
    self.server:freeze(1)
    self.sleep(3)
    assert.same({ nil, "timeout" }, { table.unpack(results, 1, 2) })
    assert.near(WAIT, took, 0.001)
  end)

  on_stage("is another one than that of the next request",
    function(self, client, session)
      local permits, id = warmed_up(self, client), nil
      self:route().delay = 0.04
      self.spawn(function()
        id = assert(permits:acquire { lease = LEASE, wait = 9 })
      end)
      self.sleep(0.07)
      self:route().delay = 0.001
      self.sleep(0.04)
      local taken, released = ids(self, "acquire"), ids(self, "release")
      assert.equal(2, #taken)
      assert.same({ taken[1] }, released)
      assert.not_equal(taken[1], taken[2])
      assert.is_true(permits:release(id))
      assert.equal(0, session.pending)
    end)
end)
