--- A multi-lock on virtual time: what becomes of requests that are in flight
--- when its task is cancelled, and whom it delays while a server is silent.

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

describe("a multi-lock that is cancelled", function()
  on_stage("leaves its place, also if a lost request is repeated after that",
    function(self, client)
      local waiters = "redisson_lock__channel:{a}:waiters"
      assert(self:client():lock("a"):lock { lease = 250 })
      for try = 1, 20 do
        local locks = { client:lock "a", client:lock "b" }
        local task = self.spawn(function() multi.new(locks):lock() end)
        self.sleep(1)
        self:calls()
        self:lose_reply(function()
          repeat self.sleep(0.001) until self:calls()[1]
        end)
        self.sleep(0.0105)              -- the connection is closed
        task:cancel()
        self.sleep(3)
        assert.is_nil(self.server.redis:entry(waiters), "try " .. try)
      end
    end)
end)

describe("a multi-lock that waits for a silent server", function()
  local TIMEOUT = 2                     -- seconds

  -- Processes that take "a" in turn, for half a second each.
  local function compete(self, names)
    for name in names:gmatch "%S+" do
      local host = self:add_host(name)
      local lock = self:client({ lazy = true }, nil, host):lock "a"
      host.spawn(function()
        while self.now() < 100 do
          assert(lock:lock { wait = 100 })
          host.sleep(0.5)
          assert(lock:unlock())
        end
      end)
    end
  end

  on_stage("does not delay the waiters for its other locks",
    function(self, client)
      local far = self:add_server "redis2"
      local parts = { client:lock "a",
        self:client({ timeout = TIMEOUT }, far):lock "b" }
      assert(parts[2]:lock() and parts[2]:unlock())
      compete(self, "p q")
      self.sleep(0.1)
      self.spawn(function() multi.new(parts):lock { wait = 200 } end)
      self.sleep(0.1)
      far:freeze(100)
      self.sleep(10)                    -- it has had "a", but not "b"
      local took = self:timed(function()
        assert(client:lock("a"):lock { wait = 50 })
      end)
      assert.is_true(took < 3, took)
    end, { timeout = TIMEOUT })
end)
