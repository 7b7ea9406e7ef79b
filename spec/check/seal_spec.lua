--- The background test of sealing, on a virtual clock: what proves that
--- something else answers CLIENT KILL, and what proves nothing.

local server = require "rlockctl.simulate.server"
local stage = require "spec.simulate.stage"

-- Replaces what CLIENT KILL does to the link with that id. Returns a function
-- that counts the kills of connections.
local function on_kill(self, fn)
  local kills = 0
  self.killed = {}
  function self.server.execute(its, link, words)
    if words[1] == "CLIENT" and words[2] == "KILL" and #words[4] < 9 then
      kills = kills + 1
      self.killed[kills] = words[4]
      for _, other in ipairs(its.links) do
        if tostring(other.id) == words[4] then return fn(other) or 1.0 end
      end
    end
    return server.execute(its, link, words)
  end
  return function() return kills end
end

-- The end of the connection does not arrive.
local function go_silent(link) link:half_open(math.huge) end

local function connected(self)
  local client = self:client()
  assert.is_true(client:lock("lock"):lock())
  return client.session.server.node.seals
end

describe("the test of sealing", function()
  it("is passed by a server that ends the connection", function()
    stage.play(function(self)
      local seals = connected(self)
      self.sleep(2)
      assert.is_true(select(2, next(seals.probed)))
      assert.equal("kill", seals.mode)
    end)
  end)

  it("proves nothing if the end of the connection is lost, and is repeated",
    function()
      stage.play(function(self)
        local kills = on_kill(self, go_silent)
        local seals = connected(self)
        self.sleep(20)
        assert.equal("kill", seals.mode)
        assert.is_true(kills() >= 2)
        on_kill(self, function(link) link:close_server() end)
        self.sleep(120)
        assert.is_true(select(2, next(seals.probed)))
        assert.equal("kill", seals.mode)
        assert.is_true(kills() < 10)
      end)
    end)

  it("is given up until the next connection, if it never proves anything",
    function()
      stage.play(function(self)
        local kills = on_kill(self, go_silent)
        local seals = connected(self)
        self.sleep(290)
        assert.equal("kill", seals.mode)
        assert.is_true(kills() <= 10)
      end)
    end)

  it("ends with its client", function()
    stage.play(function(self)
      on_kill(self, go_silent)
      local client = self:client()
      assert.is_true(client:lock("lock"):lock())
      self.sleep(60)
      client:close()
      self.sleep(1)
      local tasks = 0
      for _ in pairs(self.host.tasks) do tasks = tasks + 1 end
      assert.equal(1, tasks)                     -- this one
    end)
  end)

  it("is failed by a proxy that keeps the connection", function()
    stage.play(function(self)
      on_kill(self, function() end)
      local seals = connected(self)
      self.sleep(2)
      assert.equal("time", seals.mode)
      assert.matches("left the connection open", seals.why)
    end)
  end)

  it("is failed by a proxy that answers with an error", function()
    stage.play(function(self)
      on_kill(self, function(link) link.is_dead_end = true end)
      local execute = self.server.execute
      function self.server.execute(its, link, words)
        if link.is_dead_end then return { err = "ERR upstream closed" } end
        return execute(its, link, words)
      end
      local seals = connected(self)
      self.sleep(2)
      assert.equal("time", seals.mode)
    end)
  end)

  it("is failed by a server that refuses the kill", function()
    stage.play(function(self)
      on_kill(self, function()
        return { err = "NOPERM this user has no permissions" }
      end)
      local seals = connected(self)
      self.sleep(2)
      assert.equal("time", seals.mode)
      assert.matches("^NOPERM", seals.why)
    end)
  end)

  it("kills nothing on a server that was restarted meanwhile", function()
    stage.play(function(self)
      local kills = on_kill(self, function(link) link:close_server() end)
      local client = self:client()
      assert.is_true(client:lock("lock"):lock())
      local node, victim = client.session.server.node, nil
      local open = node.open
      function node.open(...)
        local connection = open(...)
        if not victim then
          victim = connection
          self.server:restart(0, "data")       -- its ids start again
          self.sleep(1)
          assert.is_truthy(node.connection)    -- to the new run
        end
        return connection
      end
      self.sleep(100)
      assert.is_truthy(victim)
      for _, id in ipairs(self.killed) do
        assert.not_equal(tostring(victim.identity.id), id)
      end
      assert.equal("kill", node.seals.mode)
      assert.is_true(kills() > 0)              -- the new run passes its test
    end)
  end)
end)
