--- Many tasks that begin to wait for locks at once, on a simulated host: how
--- many of their requests are in flight, and what does not wait for them.

local fair = require "rlock.policy.fair"
local remote = require "rlock.redis.remote"
local stage = require "spec.simulate.stage"

local on_stage = stage.tests(it)

local MANY = 500
local FEW = 128          -- in flight before the gate counts,
local MOST = 128         -- and that have passed it

local kinds = {
  fair = function(client) return client:fair_lock "lock" end,
  fair_write = function(client)
    return client:fair_read_write_lock("lock"):write_lock()
  end,
}

-- Runs fn with a table of the requests to acquire: how many are `flying`, and
-- their owners, in the order in which they were `sent`.
local function count_requests(fn)
  local run, n = remote.run, { flying = 0, sent = {} }
  local function ended(...)
    n.flying = n.flying - 1
    return ...
  end
  function remote.run(node, op, deadline, now, keys, owner, ...)
    if op.op ~= "acquire" then
      return run(node, op, deadline, now, keys, owner, ...)
    end
    n.flying, n.sent[#n.sent + 1] = n.flying + 1, owner
    return ended(run(node, op, deadline, now, keys, owner, ...))
  end
  local ok, why = pcall(fn, n)
  remote.run = run
  assert(ok, why)
end

-- Starts tasks that wait for the lock. Returns them, and a list of the numbers
-- of those that got it.
local function begin_to_wait(self, make, client, n, options)
  local got, tasks = {}, {}
  for i = 1, n do
    tasks[i] = self.spawn(function()
      local lock = make(client)
      local ok, code, detail = lock:lock(options)
      tasks[i].ended = { ok, code, detail, at = self.now() }
      if not ok then return end
      got[#got + 1] = i
      lock:unlock()
    end)
  end
  return tasks, got
end

-- What is sent to the server in this time arrives at its end.
local function delay(self, seconds)
  self:route().forth = self.now() + seconds
end

local function last_index(list, value)
  for i = #list, 1, -1 do
    if list[i] == value then return i end
  end
end

for which, make in pairs(kinds) do
  describe("the first requests for a " .. which .. " lock", function()
    on_stage("are not all in flight at once", function(self, client)
      count_requests(function(n)
        assert.is_true(make(client):lock())
        delay(self, 2)
        begin_to_wait(self, make, client, MANY)
        self.sleep(1)
        assert.same({ FEW + MOST, 1 + FEW + MOST }, { n.flying, #n.sent })
        self.sleep(3)
        assert.is_true(#n.sent > MANY)
        assert.is_nil(next(client.session.gates))
        assert.equal(0, client.session.pending)
      end)
    end)

    on_stage("are sent in order of arrival", function(self, client)
      local lock = make(client)
      assert.is_true(lock:lock())
      delay(self, 0.5)
      local _, got = begin_to_wait(self, make, client, MANY)
      self.sleep(2)
      assert.is_true(lock:unlock())
      self.sleep(1)
      assert.equal(MANY, #got)
      for i, who in ipairs(got) do assert.equal(i, who) end
    end)

    on_stage("do not delay a renewal", function(self, client)
      assert.is_true(make(client):lock())
      self.sleep(19.9)            -- the first has loaded the script
      self:calls()
      delay(self, 1)
      begin_to_wait(self, make, client, MANY)
      self.sleep(2)
      local before = 0
      for _, call in ipairs(self:calls()) do
        if call:find " renew " then break end
        before = before + 1
      end
      assert.equal(FEW + MOST, before)
    end)

    on_stage("do not delay a release", function(self, client)
      local lock = make(client)
      assert.is_true(lock:lock())
      assert.is_true(lock:unlock())         -- has loaded the script
      assert.is_true(lock:lock())
      self:calls()
      delay(self, 1)
      begin_to_wait(self, make, client, MANY)
      self.sleep(0.5)
      assert.is_true(lock:unlock())
      assert.matches(" release ", self:calls()[FEW + MOST + 1])
    end)

    on_stage("do not delay the request of a woken waiter", function(self,
        client)
      count_requests(function(n)
        local lock = make(client)
        assert.is_true(lock:lock { lease = 60 })
        begin_to_wait(self, make, client, 1)
        self.sleep(1)
        local name = n.sent[#n.sent]
        delay(self, 1)
        begin_to_wait(self, make, client, MANY)
        self.sleep(0.5)
        local channel = next(client.session.wakeup.channels)
        client.session.wakeup:notify("message", client.session.wakeup
          .channels[channel], "0")
        self.sleep(0)
        assert.equal(name, n.sent[#n.sent])
        assert.is_true(#n.sent < MANY)
      end)
    end)

    on_stage("do not delay a holder that enters once more", function(self,
        client)
      count_requests(function(n)
        local lock = make(client)
        assert.is_true(lock:lock())
        local name = n.sent[1]
        delay(self, 1)
        begin_to_wait(self, make, client, MANY)
        self.sleep(0.5)
        assert.is_true(lock:lock())
        assert.is_true(last_index(n.sent, name) <= 1 + FEW + MOST + 1)
      end)
    end)
  end)
end

describe("a task at the gate", function()
  on_stage("gives up when its wait ends", function(self, client)
    count_requests(function(n)
      assert.is_true(kinds.fair(client):lock { lease = 600 })
      delay(self, 2.5)
      local began = self.now()
      local tasks = begin_to_wait(self, kinds.fair, client, MANY, { wait = 2 })
      self.sleep(2.1)
      local ended = tasks[MANY].ended
      assert.same({ nil, "timeout", 'fair lock "lock": not free in time' },
        { ended[1], ended[2], ended[3] })
      assert.is_true(math.abs(ended.at - began - 2) < 0.001)
      assert.equal(1 + FEW + MOST, #n.sent)
    end)
  end)

  on_stage("may be cancelled", function(self, client)
    count_requests(function(n)
      local lock = kinds.fair(client)
      assert.is_true(lock:lock { lease = 600 })
      delay(self, 1)
      local tasks, got = begin_to_wait(self, kinds.fair, client, MANY)
      self.sleep(0.5)
      for i = FEW + 2, MANY - 1 do tasks[i]:cancel() end
      self.sleep(2)
      local owners, all = {}, 0
      for _, name in ipairs(n.sent) do
        all = all + (owners[name] and 0 or 1)
        owners[name] = true
      end
      assert.equal(1 + FEW + MOST + 1, all)
      assert.is_nil(next(client.session.gates))
      assert.equal(0, client.session.pending)
      assert.is_true(lock:unlock())
      self.sleep(1)
      assert.equal(FEW + 2, #got)
      assert.equal(MANY, got[#got])
    end)
  end)

  on_stage("ends when the client is closed", function(self, client)
    assert.is_true(kinds.fair(client):lock { lease = 600 })
    delay(self, 2)
    local tasks = begin_to_wait(self, kinds.fair, client, MANY)
    self.sleep(1)
    self.spawn(function() client:close() end)
    self.sleep(0.001)
    assert.equal("closed", tasks[MANY].ended[2])
    self.sleep(5)
    assert.equal("closed", tasks[1].ended[2])
    assert.is_nil(next(client.session.gates))
    assert.equal(0, client.session.pending)
  end)

  on_stage("makes way if its request raises an error", function(self, client)
    local mine, raised = {}, 0
    for key, value in pairs(fair) do mine[key] = value end
    mine.name = "mine"
    function mine.extra(request)
      if client.session.gates[client.session.server.node] then
        raised = raised + 1
        error "a fault"
      end
      return fair.extra(request)
    end
    local lock = client:policy(mine, "lock")
    assert.is_true(lock:lock { lease = 600 })
    delay(self, 1)
    for _ = 1, MANY do
      self.spawn(function() pcall(lock.lock, lock) end)
    end
    self.sleep(2)
    assert.equal(MANY - FEW, raised)
    assert.is_nil(next(client.session.gates))
    assert.equal(0, client.session.pending)
  end)
end)

describe("the gate", function()
  on_stage("does not delay requests for locks without a queue on the server",
    function(self, client)
      count_requests(function(n)
        assert.is_true(client:lock("lock"):lock())
        delay(self, 1)
        for _ = 1, MANY do
          self.spawn(function() client:lock("lock"):lock() end)
        end
        self.sleep(0.5)
        assert.equal(MANY, n.flying)
      end)
    end)

  on_stage("does not delay a try", function(self, client)
    count_requests(function(n)
      assert.is_true(kinds.fair(client):lock())
      delay(self, 1)
      local tasks = begin_to_wait(self, kinds.fair, client, MANY, { wait = 0 })
      self.sleep(0.5)
      assert.equal(MANY, n.flying)
      self.sleep(1)
      assert.equal("busy", tasks[MANY].ended[2])
    end)
  end)
end)
