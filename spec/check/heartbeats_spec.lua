--- The heartbeats of waiters on a simulated host, where time is exact.

local remote = require "rlock.redis.remote"
local stage = require "spec.simulate.stage"

local on_stage = stage.tests(it)

local PERIOD = 0.4

local kinds = {
  fair = function(client) return client:fair_lock "lock" end,
  fair_write = function(client)
    return client:fair_read_write_lock("lock"):write_lock()
  end,
}

-- Starts `n` tasks that wait for the lock, one after the other; they add their
-- numbers to the list that is returned.
local function wait_in_line(self, make, client, n, options)
  local got = {}
  for i = 1, n do
    self.spawn(function()
      local lock = make(client)
      if lock:lock(options or { lease = 60 }) then
        got[#got + 1] = i
        got.at = self.now()
      end
    end)
    self.sleep(0.001)
  end
  return got
end

local function take(make, client, options)
  local lock = make(client)
  assert.is_true(lock:lock(options))
  return lock
end

-- How many owners each heartbeat names.
local function sizes(calls)
  for i, text in ipairs(calls) do
    calls[i] = select(2, text:gsub("%x+%-%x+%-%x+%-%x+%-%x+:%d+", ""))
  end
  return calls
end

for which, make in pairs(kinds) do
  describe("a heartbeat of the waiters of a " .. which .. " lock", function()
    on_stage("is one request for many", function(self, client)
      take(make, client)
      wait_in_line(self, make, client, 100)
      self.sleep(1)
      self:calls()
      self.sleep(5 * PERIOD)
      local n = sizes(self:calls())
      assert.is_true(#n >= 5 and #n <= 10, #n .. " requests")
      local all = 0
      for _, one in ipairs(n) do all = all + one end
      assert.is_true(all >= 500 and all <= 1000, all .. " heartbeats")
    end)

    on_stage("names 128 waiters at most", function(self, client)
      take(make, client)
      wait_in_line(self, make, client, 300)
      self.sleep(1)
      self:calls()
      self.sleep(5 * PERIOD)
      local n = sizes(self:calls())
      assert.is_true(#n >= 7 and #n <= 15, #n .. " requests")
      assert.equal(128, math.max(table.unpack(n)))
    end)

    on_stage("names more, instead of more than 200 requests a second",
      function(self, client)
        take(make, client)
        wait_in_line(self, make, client, 300)
        local _, line = next(client.session.heartbeats.lines)
        line.count = line.count + 48000 -- as if there were so many
        self:calls()
        line.deadline = self.now()      -- one that does not wait for its time
        line.change:set()
        self.sleep(0.001)
        assert.same({ 300 }, sizes(self:calls()))
        self.sleep(1)
        assert.is_true(#self:calls() <= 200)
      end)

    on_stage("is one request at a time, so that the request of a woken waiter "
      .. "goes first", function(self, client)
        take(make, client)
        self:route().delay = 0.005
        for _ = 1, 500 do
          self.spawn(function() make(client):lock { lease = 60 } end)
        end
        self.sleep(3)
        local _, line = next(client.session.heartbeats.lines)
        local most, till = 0, self.now() + 2
        while self.now() < till do
          most = math.max(most, line.flying)
          self.sleep(0.001)
        end
        assert.equal(1, most)
        assert.equal(500, line.count)
      end)

    on_stage("is the only request of a waiter", function(self, client)
      take(make, client)
      wait_in_line(self, make, client, 1)
      self.sleep(1)
      self:calls()
      self.sleep(10 * PERIOD)
      assert.equal(10, #self:calls "refresh")
    end)

    on_stage("keeps a waiter alive beside another client", function(self,
        client)
      local lock = take(make, client)
      local got = wait_in_line(self, make, client, 3)
      local other = wait_in_line(self, make, self:client(), 1)
      self.sleep(30)
      assert.is_true(lock:unlock())
      self.sleep(0.1)
      assert.same({ 1 }, { got[1], other[1] })
    end)

    on_stage("finds out that a lease has ended", function(self, client)
      take(make, client, { lease = 2 })
      local got = wait_in_line(self, make, client, 200)
      self.sleep(3)
      assert.equal(1, got[1])
      assert.is_true(got.at >= 2 and got.at < 2.02, got.at)
    end)

    on_stage("finds out that a release was not heard", function(self, client)
      take(make, client, { lease = 60 })
      local got = wait_in_line(self, make, client, 200)
      self.sleep(2)
      local freed = self.now()
      for _, key in ipairs { "lock", "rlock_frw:{lock}" } do
        assert(client:call("DEL", key))
      end
      self.sleep(PERIOD + 0.1)
      assert.equal(1, got[1])
      assert.is_true(got.at <= freed + PERIOD, got.at - freed)
    end)

    on_stage("ends with the wait", function(self, client)
      take(make, client, { lease = 60 })
      local got = wait_in_line(self, make, client, 20, { wait = 2 })
      self.sleep(3)
      self:calls()
      self.sleep(3)
      assert.same({}, self:calls())
      assert.is_nil(got[1])
    end)

    on_stage("that fails lets the waiters report it", function(self, client)
      take(make, client)
      local ok, code, detail
      self.spawn(function()
        ok, code, detail = make(client):lock { wait = 60 }
      end)
      self.sleep(1)
      self.server:ail(1, "ERR it is ill")
      self.sleep(2)
      assert.same({ nil, "redis" }, { ok, code })
      assert.matches("it is ill", detail)
    end)

    on_stage("is one of eight at most that have no reply", function(self,
        client)
      take(make, client, { lease = 60 })
      wait_in_line(self, make, client, 300)
      self.sleep(1)
      self:route().delay = 1.5          -- seconds, more or less
      local _, line = next(client.session.heartbeats.lines)
      local most, till = 0, self.now() + 5
      while self.now() < till do
        most = math.max(most, line.flying)
        self.sleep(0.01)
      end
      assert.equal(8, most)
    end)
  end)
end

describe("a user's policy that queues", function()
  local function copy(map)
    local result = {}
    for key, value in pairs(map) do result[key] = value end
    return result
  end

  -- A fair lock with another `refresh`, or none.
  local function policy_with(refresh)
    local mine = copy(require "rlock.policy.fair")
    mine.name, mine.server = "mine", copy(mine.server)
    mine.server.refresh = refresh
    return function(client) return client:policy(mine, "lock") end
  end

  -- Two waiters, for four seconds; then the lock is free.
  local function try(self, client, make)
    local lock = take(make, client)
    local got = wait_in_line(self, make, client, 2)
    self.sleep(1)
    self:calls()
    self.sleep(4)
    local n = #self:calls "acquire"
    assert.is_true(lock:unlock())
    self.sleep(0.1)
    assert.equal(1, got[1])
    return n
  end

  on_stage("polls without refresh", function(self, client)
    local n = try(self, client, policy_with(nil))
    assert.is_true(n >= 16 and n <= 32, n .. " requests")
  end)

  on_stage("retries while the reply to refresh is malformed", function(self,
      client)
    local n = try(self, client, policy_with(function() return { "odd" } end))
    assert.is_true(n >= 16 and n <= 32, n .. " requests")
  end)

  on_stage("retries when refresh says so", function(self, client)
    local n = try(self, client, policy_with(function(_, args)
      return { "busy", -1, args[2], "nobody" }
    end))
    assert.is_true(n >= 8 and n <= 12, n .. " requests")
  end)
end)

describe("a waiter that was evicted by another program", function()
  on_stage("takes its place again", function(self, client)
    take(kinds.fair, client, { lease = 60 })
    wait_in_line(self, kinds.fair, client, 3)
    self.sleep(1)
    local queue = "redisson_lock_queue:{lock}"
    local before = client:call("LRANGE", queue, 0, -1)
    assert(client:call("LPOP", queue))
    assert(client:call("ZREM", "redisson_lock_timeout:{lock}", before[1]))
    self.sleep(PERIOD + 0.1)
    assert.same(before, client:call("LRANGE", queue, 0, -1))
  end)
end)

describe("the waiters of a client that dies", function()
  for which, make in pairs(kinds) do
    on_stage("delay others by 1.2 s: " .. which, function(self, client)
      local host = self:add_host "client2"
      local other
      local lock = take(make, client, { lease = 60 })
      host.spawn(function()
        other = self:client({}, nil, host)
        for _ = 1, 10 do
          host.spawn(function() make(other):lock() end)
        end
      end)
      self.sleep(1)
      local got = wait_in_line(self, make, client, 10)
      self.sleep(2)
      self.universe:kill(host)
      local died = self.now()
      assert.is_true(lock:unlock())
      self.sleep(3)
      assert.equal(1, got[1])
      assert.is_true(got.at <= died + 1.25, got.at - died)
    end)
  end
end)

describe("heartbeats that raise an error", function()
  on_stage("do not end those that follow", function(self, client)
    local lock = take(kinds.fair, client)
    local run, raised = remote.run, 0
    function remote.run(node, op, ...)
      if op.op == "refresh" and raised < 10 then
        raised = raised + 1
        error "a fault"
      end
      return run(node, op, ...)
    end
    wait_in_line(self, kinds.fair, client, 1)
    self.sleep(10)
    remote.run = run
    assert.equal(10, raised)
    assert.equal(10, #self.host.faults)
    self.host.faults = {}
    self:calls()
    self.sleep(5 * PERIOD)
    assert.is_true(#self:calls "refresh" >= 4)
    assert.equal(1, #lock:peek().queue)
  end)
end)

describe("heartbeats whose tasks the host refuses", function()
  on_stage("make their waiters retry, and go on later", function(self, client)
    local lock = take(kinds.fair, client)
    local daemon, refused = self.host.daemon, 0
    local got = wait_in_line(self, kinds.fair, client, 3)
    self.sleep(PERIOD)
    function self.host.daemon()
      refused = refused + 1
      return nil, "refused", "no timer"
    end
    self:calls()
    self.sleep(10 * PERIOD)
    self.host.daemon = daemon
    -- more than the requests in flight for one lock
    assert.is_true(refused > 8, refused .. " refusals")
    assert.is_true(#self:calls "acquire" >= 3 * 8)
    self.sleep(5 * PERIOD)
    assert.is_true(#self:calls "refresh" >= 4)
    assert.equal(3, #lock:peek().queue)
    assert.is_true(lock:unlock())
    self.sleep(0.1)
    assert.equal(1, got[1])
  end)
end)
