--- Requests with a deadline by the server's clock, while that clock is set
--- forward: the first one is refused, and the retry follows at once.

local stage = require "spec.simulate.stage"

local on_stage = stage.tests(it)

local STEP = 4                          -- seconds, more than `timeout`

-- The calls that send a request, as functions of a client.
local function calls_of(client)
  local lock, fair = client:lock "lock", client:fair_lock "fair"
  local pair = client:fair_read_write_lock "pair"
  local permits, id = client:permits "permits", nil
  local semaphore = client:semaphore "semaphore"
  local latch = client:latch "latch"
  return {
    function() return lock:lock() end,
    function() return lock:try_lock { lease = 60 } end,
    function() return lock:peek() end,
    function() return lock:is_held() end,
    function() return lock:unlock() end,
    function() return lock:break_lock() end,
    function() return fair:lock { wait = 10 } end,
    function() return fair:unlock() end,
    function() return pair:write_lock():lock() end,
    function() return pair:read_lock():lock() end,
    function() return permits:set(2) end,
    function()
      id = assert(permits:acquire())
      return id
    end,
    function() return permits:renew(id, 60) end,
    function() return permits:available() end,
    function() return permits:peek() end,
    function() return permits:release(id) end,
    function() return semaphore:set(2) end,
    function() return semaphore:acquire() end,
    function() return semaphore:available() end,
    function() return semaphore:release() end,
    function() return latch:set(1) end,
    function() return latch:count() end,
    function() return latch:count_down() end,
    function() return latch:wait() end,
  }
end

local options = { seal = "time", watchdog = 600 }

on_stage("a call succeeds at once after the server's clock is set forward",
  function(self, client)
    for i, call in ipairs(calls_of(client)) do
      self.server:set_clock(1, STEP)
      local began = self.now()
      assert.is_truthy(call(), i)
      assert.near(began, self.now(), 0.001, i)
    end
  end, options)

on_stage("a renewal succeeds at once after the server's clock is set forward",
  function(self, client)
    local lock, permits = client:lock "lock", client:permits "permits"
    assert.is_true(lock:lock())
    assert.is_true(permits:set(1))
    local id = assert(permits:acquire())
    self.sleep(5)
    self.server:set_clock(1, 6)
    self:calls()
    self:logged()
    self.sleep(6.5)
    assert.equal("held", lock:state())
    assert.near(8.5, lock:valid_for(), 0.1)
    assert.near(8.5, permits:valid_for(id), 0.1)
    assert.same({}, self:logged())
    local renewed = self:calls "renew"
    assert.equal(4, #renewed)           -- the first two are refused
    for _, call in ipairs(renewed) do assert.match("^8.000", call) end
  end, { seal = "time", watchdog = 12 })

on_stage("renewals share a request that carries a deadline",
  function(self, client)
    for i = 1, 3 do assert.is_true(client:lock("lock" .. i):lock()) end
    self.sleep(5)                       -- the first renewal loads scripts
    local before = self.requests
    self.sleep(4)
    assert.equal(before + 1, self.requests)
    assert.equal(6, #self:calls "renew")
  end, { seal = "time", watchdog = 12 })

on_stage("closing the client releases at once after the server's clock is set "
  .. "forward, and after its scripts are lost", function(self, client)
    for i = 1, 3 do assert.is_true(client:lock("lock" .. i):lock()) end
    self.server:set_clock(1, STEP)
    local began = self.now()
    client:close()
    assert.near(began, self.now(), 0.001)
    self.server:tick()
    assert.is_nil(self.server.redis:entry "lock1")
    assert.is_nil(self.server.redis:entry "lock3")
    local other = self:client()
    assert.is_true(other:lock("lock"):lock())
    assert.is_true(other:lock("lock"):lock())
    assert.is_true(other:lock("lock"):unlock())      -- loads the script
    self.server:flush_scripts()
    other:close()
    assert.is_nil(self.server.redis:entry "lock")
  end, options)

on_stage("retries pause if the server's clock never fits", function(self,
    client)
  local lock = client:lock "lock"
  assert.is_true(lock:lock())
  assert.is_true(lock:unlock())
  self:calls()
  self.server:ail(20, "EXPIRED the request came after its deadline")
  local ok, code = lock:lock { wait = 10 }
  assert.is_nil(ok)
  assert.equal("timeout", code)
  assert.is_true(#self:calls() < 60)
end, options)
