--- Waits without a limit on virtual time: they outlast a server that is stopped
--- or not there for longer than any timeout. Only a permanent error ends them.

local kinds = require "spec.tools.kinds"
local rlock = require "rlock"
local stage = require "spec.simulate.stage"

-- What can wait forever: (clients) -> a function that takes it and gives it
-- back, and one that makes it again where the data are lost.
local waits = {
  semaphore = function(clients)
    local semaphore = clients[1]:semaphore "x"
    local function make() assert(semaphore:set(5)) end
    make()
    return function() return semaphore:acquire() end, make
  end,
  permits = function(clients)
    local permits = clients[1]:permits "x"
    local function make() assert(permits:set(5)) end
    make()
    return function() return permits:acquire() end, make
  end,
  latch = function(clients)
    local latch = clients[1]:latch "x"
    return function() return latch:wait() end
  end,
}
for which, kind in pairs(kinds.of) do
  waits[which] = function(clients)
    local lock = kind.lock(clients, "x")
    return function() return lock:lock() and lock:unlock() end
  end
end

for which, make in pairs(waits) do
  local nodes = (kinds.of[which] or {}).nodes or 1

  -- A test: fn(stage, servers, take, make).
  local function test(title, fn)
    it(title, function()
      stage.play(function(self)
        local clients = { self:client() }
        for i = 2, nodes do
          clients[i] = self:client(nil, self:add_server("redis" .. i))
        end
        local take, again = make(clients)
        assert.truthy((take()))
        fn(self, self.network.servers, take, again)
      end)
    end)
  end

  -- Asserts that take() waits for `seconds`, and then succeeds.
  local function outlasts(self, seconds, take)
    local ok
    self.spawn(function() ok = take() end)
    self.sleep(seconds - 1)
    assert.is_nil(ok)
    self.sleep(45)              -- red locks wait until the servers count again
    assert.truthy(ok)
  end

  describe("without a wait, " .. which, function()
    test("waits for a server that is stopped", function(self, servers, take)
      for _, server in ipairs(servers) do server:freeze(30) end
      outlasts(self, 30, take)
    end)

    test("waits for a server that is not there", function(self, servers, take,
        again)
      for _, server in ipairs(servers) do server:restart(30, "nothing") end
      if again then
        self.spawn(function()
          self.sleep(31)
          again()
        end)
      end
      outlasts(self, 30, take)
    end)
  end)
end

describe("a wait without a limit", function()
  local on_stage = stage.tests(it)

  -- A task that waits for a server that is not there.
  local function waiting(self, client)
    local lock, result = client:lock "x", {}
    self.server:restart(100, "nothing")
    local task = self.spawn(function() result.ok, result.code = lock:lock() end)
    self.sleep(30)
    assert.same({}, result)
    return task, result, lock
  end

  on_stage("ends when the client is closed", function(self, client)
    local _, result = waiting(self, client)
    client:close()
    self.sleep(10)
    assert.equal("closed", result.code)
  end)

  on_stage("ends when its task is cancelled", function(self, client)
    local task, result, lock = waiting(self, client)
    task:cancel()
    self.sleep(100)
    assert.same({}, result)
    assert.is_true(lock:try_lock())
  end)

  on_stage("ends with a permanent error of the server", function(self,
      client)
    local lock = client:lock "x"
    client:call("SET", "x", "a string")
    assert.equal("redis", select(2, lock:lock()))
    client:call("DEL", "x")
    self.server:ail(10, "NOPERM this user has no permissions")
    local ok, code, detail = lock:lock()
    assert.same({ nil, "redis" }, { ok, code })
    assert.match("^NOPERM", detail)
  end)
end)

describe("a red lock that no majority can grant", function()
  local function red_of(self)
    local clients = { self:client() }
    for i = 2, 3 do
      clients[i] = self:client(nil, self:add_server("redis" .. i))
    end
    return rlock.red_lock(clients, "x", { node_timeout = 1 }), clients
  end

  it("is not waited for", function()
    stage.play(function(self)
      local lock, clients = red_of(self)
      for i = 2, 3 do clients[i]:call("SET", "x", "a string") end
      local ok, code, detail = lock:lock()
      assert.same({ nil, "quorum" }, { ok, code })
      assert.match("WRONGTYPE", detail)
    end)
  end)

  it("is waited for if one more server suffices", function()
    stage.play(function(self)
      local lock, clients = red_of(self)
      assert(lock:lock() and lock:unlock())
      self.sleep(1)
      clients[3]:call("SET", "x", "a string")
      self.network.servers[2]:restart(30, "data")
      local began = self.now()
      assert.is_true(lock:lock())
      assert.near(60, self.now() - began, 1)      -- it has been restarted
    end)
  end)
end)
