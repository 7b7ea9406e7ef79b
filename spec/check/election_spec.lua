--- When a leader steps down, to the millisecond, on a simulated host.

local stage = require "spec.simulate.stage"

local on_stage = stage.tests(it)

-- The changes of an election, each with its time and what is true then.
local function changes(self, election)
  local list = {}
  election:on_change(function(leads, why)
    list[#list + 1] = ("%.3f %s %s %.3f%s"):format(self.now(), tostring(leads),
      tostring(election:is_leader()), election:valid_for(),
      why and " " .. why or "")
  end)
  return list
end

-- Cuts the client off from the server, or mends that.
local function cut(self, till)
  local route = self:route()
  route.refuses_until = till or math.huge
  for _, link in ipairs(till and {} or { table.unpack(route.links) }) do
    link:lose "connection reset"
  end
end

describe("a leader", function()
  on_stage("leads while its hold is renewed", function(self, client)
    local election = client:election "jobs"
    local list = changes(self, election)
    assert.is_true(election:campaign())
    self.sleep(100)
    assert.is_true(election:is_leader())
    assert.same({ "0.000 true true 29.968" }, list)
  end)

  on_stage("steps down a second before its hold may end, and not again",
    function(self, client)
      local election = client:election "jobs"
      local list = changes(self, election)
      assert(election:campaign())
      self.sleep(12)
      cut(self)
      self.sleep(26.9)                  -- renewed at 10 s
      assert.is_true(election:is_leader())
      self.sleep(0.2)
      assert.is_false(election:is_leader())
      assert.same(2, #list)
      assert.matches("^38%.968 false false 1%.000 not renewed in time: ",
        list[2])
      self.sleep(20)
      assert.same(2, #list)
    end)

  on_stage("may campaign again at once", function(self, client)
    local election = client:election "jobs"
    assert(election:campaign())
    cut(self)
    self.sleep(29.5)
    assert.is_false(election:is_leader())
    cut(self, 0)
    assert.is_true(election:campaign { wait = 5 })
    self.sleep(40)
    assert.is_true(election:is_leader())
    assert.equal(election.lock.owner.name, (election:leader()))
  end)

  on_stage("leaves nothing in its client when it has resigned",
    function(_, client, session)
      local election = client:election "jobs"
      assert(election:campaign())
      assert.is_not_nil(next(session.closing))
      assert.is_true(election:resign())
      assert.is_nil(next(session.closing))
    end)

  on_stage("does not lead again if its program was stopped for too long",
    function(self, client)
      local election = client:election "jobs"
      assert(election:campaign())
      self.universe:stall(self.host, 29.5)
      self.sleep(0.01)
      assert.is_false(election:is_leader())
    end)

  on_stage("has a margin of a tenth of a short hold", function(self, client)
    local election = client:election "jobs"
    local list = changes(self, election)
    assert(election:campaign())
    cut(self)
    self.sleep(2)
    assert.matches("^0%.897 false false 0%.100 ", list[2])
  end, { watchdog = 1 })
end)
