--- client:compute on virtual time: which callers get a stale value, and which
--- read the state.

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

describe("a computation of this client", function()
  on_stage("has followers that do not read the state", function(self, client)
    local function compute(fn)
      return client:compute("c", { ttl = 60 }, fn)
    end
    local leader = self.spawn(compute, function()
      self.sleep(5)
      return "new"
    end)
    self.sleep(1)
    local execute, n = self.server.execute, 0
    function self.server.execute(its, link, words)
      if words[1] == "MGET" then n = n + 1 end
      return execute(its, link, words)
    end
    local followers = {}
    for i = 1, 9 do followers[i] = self.spawn(compute, error) end
    self.sleep(1)
    assert.equal(0, n)
    for _, follower in ipairs(followers) do
      assert.same({ "new", "cached" }, { follower:join() })
    end
    assert.same({ "new", "computed" }, { leader:join() })
  end)
end)

describe("a caller that is cancelled", function()
  on_stage("while it reads the state computes nothing", function(self, client)
    self:route().delay = 0.1
    local is_called = false
    local task = self.spawn(function()
      client:compute("c", { ttl = 60 }, function()
        is_called = true
        return "new"
      end)
    end)
    self.sleep(0.15)
    task:cancel()
    self.sleep(5)
    assert.is_true(task.over)
    assert.is_false(is_called)
  end)
end)

describe("the read under the lock", function()
  -- Loses the replies to reads 2 to `last`. Read 2 is the first one under the
  -- lock.
  local function lose_reads(self, last)
    local execute, n = self.server.execute, 0
    function self.server.execute(its, link, words)
      if words[1] == "MGET" then
        n = n + 1
        if n >= 2 and n <= last then link:half_open(0.01) end
      end
      return execute(its, link, words)
    end
  end

  on_stage("is retried when its connection is lost", function(self, client)
    lose_reads(self, 2)
    assert.same({ "new", "computed" }, { client:compute("c", { ttl = 60 },
      function() return "new" end) })
  end)

  for _, wait in ipairs { 1, 2, 3 } do
    on_stage(("ends when the wait of %d s has passed"):format(wait),
      function(self, client)
        lose_reads(self, math.huge)
        local seconds, value, code = self:timed(client.compute, client, "c",
          { ttl = 60, wait = wait }, error)
        assert.is_nil(value)
        assert.equal("closed", code)
        assert.near(wait, seconds, 0.05)
      end)
  end
end)

describe("a malformed reply to MGET", function()
  local replies = { 5.0, false, "OK", {}, { false }, { false, 5.0 },
    { 7.0, "fresh" }, { { err = "ERR" }, false } }

  for i, reply in ipairs(replies) do
    on_stage("is a failure, not a value (" .. i .. ")", function(self, client)
      local execute = self.server.execute
      function self.server.execute(its, link, words)
        if words[1] == "MGET" then return reply end
        return execute(its, link, words)
      end
      local value, code, detail = client:compute("c", { ttl = 1, wait = 1 },
        function() return "v" end)
      assert.same({ nil, "redis" }, { value, code })
      assert.equal("ERR a malformed reply to MGET", detail)
    end)
  end
end)

describe("a failure that another program has stored", function()
  local function compute(client, state)
    assert(client:call("SET", "rlock_compute:{c}:state", state))
    return client:compute("c", { ttl = 1 }, function() return "v" end)
  end

  -- What a waiter gets if the holder of the lock stores this.
  local function wait_for(self, client, state)
    local lock, result = "rlock_compute:{c}", nil
    assert(client:call("HSET", lock, "holder", "1"))
    assert(client:call("PEXPIRE", lock, "60000"))
    self.spawn(function() result = { compute(self:client(), "") } end)
    self.sleep(0.1)
    assert(client:call("SET", lock .. ":state", state))
    self.sleep(10)
    assert(client:call("DEL", lock))
    self.sleep(10)
    return result
  end

  on_stage("has a detail without control characters", function(self, client)
    assert.same({ nil, "failed", "?[2Jboo?" },
      wait_for(self, client, "2 abcd failed \27[2Jboo\7"))
  end)

  on_stage("with an unknown code is ignored", function(self, client)
    assert.same({ "v", "computed" },
      wait_for(self, client, "2 abcd nonsense boo"))
    for _, state in ipairs { "2", "2 abcd", "9 abcd nonsense ", "\27" } do
      client:call("DEL", "rlock_compute:{c}:value")
      assert.equal("v", (compute(client, state)))
    end
  end)
end)
