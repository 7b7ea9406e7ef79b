--- Locks, their grants and their waiters on a simulated host: which requests
--- are sent, when, and how requests with an unknown outcome are undone.

local identity = require "rlock.util.identity"
local multi = require "rlock.several.multi"
local owner_of = require "rlock.lock.owner"
local remote = require "rlock.redis.remote"
local stage = require "spec.simulate.stage"

local on_stage = stage.tests(it)

local function entry(self, name)
  self.server.redis.now = math.floor(self.server:clock() * 1000000)
  return self.server.redis:entry(name or "lock")
end

-- The owners that were sent with an operation.
local function owners(self, operation)
  local list = {}
  for _, call in ipairs(self.recorded) do
    if call.operation == operation then
      list[#list + 1] = call.args[1]:match ":(%w+)$" or call.args[1]
    end
  end
  return table.concat(list, " ")
end

local function fails(code, pattern, ok, got, detail)
  assert.is_nil(ok)
  assert.equal(code, got)
  if pattern then assert.match(pattern, detail) end
end

-- Ends a write lock as a Redisson writer that remains a reader does, who
-- publishes nothing.
local function stop_writing(self)
  local fields = entry(self).value
  for field in pairs(fields) do
    if field:find ":write$" then fields[field] = nil end
  end
  fields.mode = "read"
end

describe("a request to lock", function()
  on_stage("states the holds that are wanted", function(self, client)
    local lock = client:lock "lock"
    for _ = 1, 18 do assert.is_true(lock:lock { lease = 5 }) end
    local calls = self:calls()
    assert.equal("0.000 acquire 5000 1", calls[1])
    assert.equal("0.000 acquire 5000 18", calls[18])
    for _ = 1, 18 do assert.is_true(lock:unlock()) end
    calls = self:calls()
    assert.equal("0.000 release 4993 17 hand over", calls[1])
    assert.equal("0.000 release 1 0 hand over", calls[18])
    fails("not_held", nil, lock:unlock())
  end)

  on_stage("without any time fails with the server and the limit",
    function(self, client)
      local lock = client:lock "lock"
      local now, step = self.host.now, 0
      function self.host.now()              -- each look takes a microsecond
        step = step + 1e-6
        return now() + step
      end
      local ok, code, detail = lock:lock { wait = 1e-6 }
      self.host.now = now
      fails("timeout", "^" .. self.server.name:gsub("%p", "%%%0")
        .. ":?%d*: no time left, of 1e%-06 s$", ok, code, detail)
    end)

  on_stage("of readers is repeated within a second, by one of them",
    function(self, client)
      local pair = client:read_write_lock "lock"
      assert.is_true(pair:write_lock():lock())
      assert.is_true(pair:read_lock():lock())
      local count, entered = 3, {}
      local other = self:client()
      for _ = 1, count do
        self.spawn(function()
          assert(other:read_write_lock "lock":read_lock():lock { wait = 100 })
          entered[#entered + 1] = self.now()
        end)
      end
      self.sleep(30)
      self:calls()
      self.sleep(20)
      local load = #self:calls "acquire"
      assert.is_true(load >= 20 and load <= 50, load)
      stop_writing(self)
      local began = self.now()
      self.sleep(1.1)
      assert.equal(count, #entered)
      assert.is_true(entered[count] - began <= 1.01)
    end)

  on_stage("of readers is repeated as often after others got the lock",
    function(self, client)
      local pair, other = client:read_write_lock "lock", self:client()
      for _ = 1, 6 do
        assert.is_true(pair:write_lock():lock())
        assert.is_true(pair:read_lock():lock())
        local entered = 0
        for _ = 1, 3 do
          self.spawn(function()
            local reader = other:read_write_lock "lock":read_lock()
            assert(reader:lock { wait = 100 })
            entered = entered + 1
            assert(reader:unlock())
          end)
        end
        self.sleep(20)
        stop_writing(self)
        self.sleep(1.1)
        assert.equal(3, entered)
        assert.is_true(pair:read_lock():unlock())
        fails("lost", nil, pair:write_lock():unlock())
      end
    end)

  on_stage("says how long it waits, if the policy asks", function(self, client)
    local lock = client:fair_lock "lock"
    assert.is_true(lock:lock())
    assert.is_true(lock:lock { wait = 1.5 })
    assert.is_true(lock:try_lock { lease = 60 })
    assert.same({ "0.000 acquire 30000 1 -1 publish",
      "0.000 acquire 30000 2 1500 publish", "0.000 acquire 60000 3 0 publish",
    }, self:calls())
  end)

  on_stage("keeps its deadline if it waits for another of its owner",
    function(self, client)
      local lock = client:lock("lock", { owner = "named" })
      assert.is_true(lock:lock { lease = 20 })
      self:route().delay = 0.2
      self.spawn(function() lock:lock { lease = 20 } end)
      self.sleep(0.1)
      local took
      self.spawn(function()
        took = self:timed(lock.lock, lock, { wait = 0.7, lease = 20 })
      end)
      self.sleep(0.2)
      self.server:freeze(5)
      self.sleep(5)
      assert.near(0.7, took, 0.001)
    end)

  on_stage("is undone if its reply is lost", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    self:calls()
    self.server:freeze(3.5)
    local took, ok, code = self:timed(lock.try_lock, lock)
    assert.is_nil(ok)
    assert.equal("closed", code)
    assert.near(3, took, 0.001)
    self.sleep(3)
    assert.is_nil(entry(self))
    assert.equal("1", owners(self, "release"):match "^%d+")
    assert.is_true(lock:lock())
    assert.equal("2", owners(self, "acquire"):match "%d+$")
  end)

  for _, kind in ipairs { "read_write_lock", "fair_read_write_lock" } do
    on_stage("is undone before its named owner requests the other side of a "
      .. kind, function(self, client)
      local pair = client[kind](client, "lock", { owner = "me" })
      for _, lock in ipairs { pair:read_lock(), pair:write_lock() } do
        assert.is_true(lock:lock() and lock:unlock())  -- loads the scripts
      end
      self.server:freeze(1)
      fails("timeout", nil, pair:read_lock():lock { wait = 0.4 })
      assert.is_true(pair:write_lock():lock { wait = 5 })
    end)
  end

  on_stage("is undone before the next request of its named owner",
    function(self, client)
    local lock = client:lock("lock", { owner = "me" })
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    self:calls()
    self.server:freeze(3.5)
    fails("closed", nil, lock:try_lock())
    local ok = lock:lock { wait = 5 }
    assert.is_true(ok)
    local calls = self:calls()
    assert.match("acquire", calls[#calls])
    assert.match("leave", calls[#calls - 1])
    assert.match("release 1 0", calls[#calls - 2])
    assert.is_true(lock:unlock())
    assert.is_nil(entry(self))
  end)

  on_stage("reports what the server said, not that the last attempt was short",
    function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    self:route().delay = 0.03
    for ms = 200, 800, 18 do
      assert.equal("PONG", client:call "PING")
      self.server:ail(3, "CLUSTERDOWN Hash slot not served")
      local _, code, detail = lock:lock { wait = ms / 1000 }
      self.sleep(4)
      assert.equal("redis", code, ms)
      assert.match("^CLUSTERDOWN", detail)
    end
  end)

  on_stage("leaves the queue, too, if its reply is lost", function(self, client)
    local lock = client:fair_lock "lock"
    self.spawn(function()
      assert.is_true(lock:lock())
      self.sleep(10)
      assert.is_true(lock:unlock())
    end)
    self.sleep(0)
    self.server:freeze(3.5)
    fails("closed", nil, lock:try_lock())
    self.sleep(2)
    assert.equal(1, #self:calls "leave")
  end)

  on_stage("leaves the queue also after the lease that it asked for",
    function(self, client)
      local lock = client:fair_read_write_lock "lock":write_lock()
      self.spawn(function() assert.is_true(lock:lock()) end):join()
      local execute = self.server.execute
      function self.server.execute(...)
        self.server.execute = execute
        local reply = execute(...)
        self.server:restart(1, "data")      -- before it replies
        return reply
      end
      fails("connect", nil, lock:lock { wait = 0.4, lease = 0.1 })
      assert.is_truthy(entry(self, "rlock_frw_queue:{lock}"))
      self.sleep(2)
      assert.is_nil(entry(self, "rlock_frw_queue:{lock}"))
    end)

  on_stage("is not undone while outer holds are left", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock { lease = 60 })
    self.server:freeze(3.5)
    fails("closed", nil, lock:try_lock())
    self.sleep(2)
    assert.equal(0, #self:calls "release")
    assert.is_true(lock:unlock())
    assert.is_nil(entry(self))
  end)

  on_stage("is undone by the unlock of a lost outer hold", function(self,
      client)
    local lock, execute = client:lock "lock", self.server.execute
    assert.is_true(lock:lock { lease = 1 })
    lock:on_lost(function() end)
    function self.server.execute(its, link, words)
      self.server.execute = execute
      its:freeze(5)                     -- before it replies
      link:half_open(10)
      return execute(its, link, words)
    end
    assert.is_nil((lock:lock { lease = 60, wait = 2 }))
    fails("lost", nil, lock:unlock())
    self.sleep(10)
    assert.is_nil(entry(self))
  end)

  on_stage("is undone if its reply comes after the lease", function(self,
      client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock { lease = 10 })
    assert.is_true(lock:unlock())
    self:route().delay = 0.1
    fails("busy", nil, lock:try_lock { lease = 0.1 })
    self.sleep(1)
    assert.is_nil(entry(self))
    assert.equal("free", lock:state())
    local ok = lock:lock { lease = 0.5 }
    assert.is_true(ok)
    assert.is_true(lock:valid_for() < 0.4)
  end)

  on_stage("is undone for a cancelled task after a late reply, too", function(
      self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock() and lock:unlock())
    self:route().delay = 0.1
    local task = self.spawn(function() lock:lock { lease = 0.1 } end)
    self.sleep(0.25)                      -- it is being released
    task:cancel()
    self.sleep(1)
    assert.is_nil(entry(self))
    assert.equal("free", lock:state())
  end)

  on_stage("is undone if its reply makes no sense", function(self, client)
    local lock, execute, odd = client:lock "lock", self.server.execute, true
    function self.server.execute(its, link, words)
      local reply = execute(its, link, words)
      if words[1] == "EVALSHA" and odd then
        odd = false
        return { "odd" }
      end
      return reply
    end
    fails("redis", "odd", lock:lock())
    self.sleep(1)
    assert.is_nil(entry(self))
  end)

  on_stage("finds that the outer hold was lost", function(_, client)
    local lock, told = client:lock "lock", 0
    assert.is_true(lock:lock())
    lock:on_lost(function() told = told + 1 end)
    client:call("DEL", "lock")
    fails("lost", "outer hold was lost", lock:lock())
    assert.equal("lost", lock:state())
    fails("lost", "earlier hold was lost .the server does not have it",
      lock:lock())
    fails("lost", "does not have it", lock:unlock())
    assert.equal("free", lock:state())
    assert.is_true(lock:lock())
    assert.equal(1, told)
  end)

  on_stage("waits for a release of the other side that is retried",
    function(self, client)
      local pair = client:read_write_lock("lock", { owner = "me" })
      local read, write = pair:read_lock(), pair:write_lock()
      self:route().delay = 0.01
      for _ = 1, 20 do
        assert.is_true(read:lock())
        self.spawn(function() read:unlock() end)
        self.sleep(0.001)
        self:route().links[1]:close_server()
        self.sleep(0.001)
        assert.is_true(write:lock { wait = 9 })
        assert.is_true(write:unlock())
      end
    end)

  on_stage("may be refused", function(_, client)
    local pair = client:read_write_lock "lock"
    assert.is_true(pair:read_lock():lock())
    fails("refused", "^upgrade", pair:write_lock():lock())
    local mutex = client:mutex "other"
    assert.is_true(mutex:lock())
    fails("refused", "cannot be entered twice", mutex:lock())
  end)

  on_stage("is given up when the client is closed", function(self, client)
    local lock, results = client:lock "lock", nil
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    self.server:freeze(1)
    self.spawn(function() results = { lock:lock() } end)
    self.sleep(0.1)
    client:close()
    self.sleep(2)
    fails("closed", nil, table.unpack(results, 1, 3))
    assert.is_nil(entry(self))
    fails("closed", nil, lock:lock())
  end)

  on_stage("is refused at once while the client is being closed",
    function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock() and lock:unlock())
    self.server:freeze(1)
    self.spawn(function() client:lock("other"):lock() end)
    self.sleep(0.1)
    local closing = self.spawn(client.close, client)
    self.sleep(0.1)
    local took, ok, code = self:timed(lock.lock, lock)
    fails("closed", nil, ok, code)
    assert.equal(0, took)
    assert.is_false(closing.over)
    closing:join()
  end)

  on_stage("passes its wait to whole_wait if a host ends tasks", function(self,
      client)
    local lock, waits = client:lock "lock", {}
    self.host.ends_tasks = true
    function self.host.whole_wait(fn, its, wait, ...)
      waits[#waits + 1] = wait
      return fn(its, wait, ...)
    end
    assert.is_true(lock:lock { wait = 2, lease = 5 })
    assert.is_true(lock:try_lock())
    assert.same({ 2, 0 }, waits)
    assert.same({ "0.000 acquire 5000 1", "0.000 acquire 30000 2" },
      self:calls())
  end)

  on_stage("is covered by on_death until it ends, and so is an unlock",
    function(self, client)
    local lock, order, execute = client:lock "lock", {}, self.server.execute
    assert.is_true(lock:lock() and lock:unlock())
    local function note(what) order[#order + 1] = what end
    function self.host.on_death()         -- as nginx has it
      note "begins"
      return function() note "ends" end
    end
    function self.server.execute(...)
      note "is carried out"
      return execute(...)
    end
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    self.host.on_death = nil
    assert.same({ "begins", "is carried out", "ends", "begins",
      "is carried out", "ends" }, order)
  end)

  on_stage("releases a hold that was granted to a cancelled task",
    function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    self:route().delay = 0.1
    local task = self.spawn(function() lock:lock() end)
    self.sleep(0.05)
    task:cancel()
    self.sleep(2)
    assert.is_nil(entry(self))
  end)
end)

describe("a request to release a lock", function()
  on_stage("reaches the callback of its holder", function(self, client)
    local hold, heard = assert(client:lock("lock"):hold()), nil
    local lock = self:client():lock "lock"
    fails("refused", nil, lock:request_release "please")
    assert.is_true(hold:on_release_request(function(its, reason)
      heard = { its, reason }
    end))
    self.sleep(0.1)                       -- it subscribes
    assert.same({ true, 1 }, { lock:request_release "please" })
    self.sleep(0.1)
    assert.equal(hold, heard[1])
    assert.equal("please", heard[2])
    assert.is_true(hold:unlock())
    fails("not_held", nil, lock:request_release "please")
  end)

  on_stage("reaches the remaining holders", function(self, client)
    local lock, asked = client:read_write_lock("pair"):read_lock(), {}
    for i = 1, 2 do
      self.spawn(function()
        local hold = assert(lock:hold())
        hold:on_release_request(function() asked[#asked + 1] = i end)
        self.sleep(i == 1 and 5 or 1)
        hold:unlock()
      end)
      self.sleep(0.1)
    end
    self.sleep(2)
    assert.is_true((lock:request_release "please"))
    self.sleep(0.1)
    assert.same({ 1 }, asked)
  end)

  on_stage("fails if its reply makes no sense", function(self, client)
    local lock, execute = client:lock "lock", self.server.execute
    assert.is_true(lock:lock())
    function self.server.execute(its, link, words)
      return words[1] == "EVALSHA" and {} or execute(its, link, words)
    end
    fails("redis", "a malformed reply$", lock:request_release "please")
  end)
end)

describe("the name of an owner", function()
  local function holder_of(self, name)
    local owner = next(entry(self, name).value)
    return owner
  end

  on_stage("is a task's for all its locks of a family",
    function(self, client, session)
      assert.is_true(client:lock("a"):lock() and client:lock("b"):lock())
      assert.equal(session.id .. ":1", holder_of(self, "a"))
      assert.equal(session.id .. ":1", holder_of(self, "b"))
      self.spawn(function() client:lock("c"):lock() end)
      self.sleep(0)
      assert.equal(session.id .. ":2", holder_of(self, "c"))
    end)

  -- A node of a cluster may execute the first attempt when the slot returns.
  on_stage("is not reused after a request was retried",
    function(self, client)
      for _, kind in ipairs { "lock", "fair_lock" } do
        local lock = client[kind](client, "a " .. kind)
        assert.is_true(lock:lock() and self:lose_reply(lock.unlock, lock))
        assert.is_true(lock:lock() and lock:unlock())
        assert.is_true(self:lose_reply(lock.lock, lock))
        assert.is_true(lock:lock() and lock:unlock() and lock:unlock())
        assert.is_true(lock:lock() and lock:unlock())
      end
      assert.equal("1 2 2 2 2 3 4 5 5 5 5 6", owners(self, "acquire"))
    end)

  on_stage("is the one that the program gives", function(self, client)
    local lock = client:lock("lock", { owner = "job" })
    assert.is_true(lock:lock())
    assert.equal("job", holder_of(self))
    local same = self:client():lock("lock", { owner = "job" })
    assert.equal(1, same:peek().count)
  end)
end)

describe("tasks of one owner", function()
  on_stage("send one request at a time", function(self, client)
    local lock = client:lock("lock", { owner = "me" })
    self:route().delay = 0.1
    local done = {}
    for i = 1, 3 do
      self.spawn(function()
        assert.is_true(lock:lock())
        done[#done + 1] = i
      end)
    end
    self.sleep(5)
    assert.same({ 1, 2, 3 }, done)
    local counts = {}
    for i, call in ipairs(self:calls()) do counts[i] = call:match "%d+$" end
    assert.same({ "1", "2", "3" }, counts)
  end)

  on_stage("send one request at a time after a rollback whose task the host "
    .. "refused", function(self, client)
    local name, run, flying, most = { owner = "me" }, remote.run, 0, 0
    local lock, done = client:lock("lock", name), {}
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    function self.host.daemon() return nil, "refused", "no timer" end
    function remote.run(...)
      flying = flying + 1
      most = math.max(most, flying)
      local results = table.pack(run(...))
      flying = flying - 1
      return table.unpack(results, 1, results.n)
    end
    self.server:freeze(2)
    for i = 1, 4 do                     -- the first one is given up
      self.spawn(function()
        local began = self.now()
        done[i] = lock:lock { wait = i == 1 and 1 or 10, lease = 5 }
        if i == 1 then done.took = self.now() - began end
      end)
      self.sleep(0.01)
    end
    self.sleep(15)
    remote.run = run
    assert.is_nil(done[1])
    for i = 2, 4 do assert.is_true(done[i]) end
    assert.near(1, done.took, 0.001)    -- it does not wait for its rollback
    assert.equal(1, most)
  end)

  on_stage("wait for their turn until their deadline", function(self, client)
    local lock = client:lock("lock", { owner = "me" })
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    self.server:freeze(2.5)
    local first = self.spawn(function() return lock:lock() end)
    self.sleep(0)
    local took, ok, code, detail = self:timed(lock.lock, lock, { wait = 1 })
    fails("timeout", "another request of this owner is in flight", ok, code,
      detail)
    assert.near(1, took, 0.001)
    local task = self.spawn(function() lock:lock() end)
    self.sleep(0.1)
    task:cancel()
    assert.is_true(first:join())
    assert.is_true(lock:unlock())
    assert.is_nil(entry(self))
  end)

  -- Lets a request to lock have the turn of the owner. The server does not
  -- answer for some seconds.
  local function take_turn(self, lock, seconds, wait)
    self.server:freeze(seconds)
    local task = self.spawn(lock.lock, lock, { wait = wait })
    self.sleep(0)
    return task
  end

  -- For 8 s, a request to lock of `me` has the turn. So the unlocks of this
  -- task and of `more` others fail after 6 s. Then that task has a hold, too.
  local function fail_to_unlock(self, lock, more)
    for _ = 0, more do assert.is_true(lock:lock()) end
    self.server:freeze(8)
    local gate = self.host.event()
    local locks = self.spawn(function()
      assert.is_true(lock:lock())
      gate:wait()
      return lock:unlock()
    end)
    local function unlock() fails("timeout", nil, lock:unlock()) end
    self.sleep(0)
    for _ = 1, more do self.spawn(unlock) end
    unlock()
    self.sleep(3)
    return function()
      gate:set()
      return locks:join()
    end
  end

  for _, more in ipairs { 0, 2 } do
    on_stage("release holds later that they cannot unlock: " .. more,
      function(self, client, session)
        local lock = client:lock("lock", { owner = "me" })
        local unlock = fail_to_unlock(self, lock, more)
        assert.equal(1, lock:hold_count())
        self.sleep(60)
        assert.equal("held", lock:state())
        assert.is_true(unlock())
        assert.equal("free", lock:state())
        assert.is_nil(entry(self))
        assert.is_false(session.watchdog:is_needed())
      end)
  end

  on_stage("do not renew a hold that they cannot unlock", function(self, client)
    local lock = client:lock("lock", { owner = "me" })
    assert.is_true(lock:lock())
    take_turn(self, lock, 60, 7)
    fails("timeout", nil, lock:unlock())
    self.sleep(40)
    assert.equal("free", lock:state())
    self.sleep(60)
    assert.equal("", owners(self, "renew"))
    assert.is_nil(entry(self))
  end)

  on_stage("release an outer hold although the inner unlock failed",
    function(self, client)
      local lock = client:lock("lock", { owner = "me" })
      for _ = 1, 2 do assert.is_true(lock:lock()) end
      take_turn(self, lock, 6.1, 6.5)
      fails("timeout", nil, lock:unlock())
      assert.is_true(lock:unlock())
      self.sleep(1)
      assert.equal(1, lock:hold_count())
      assert.is_true(lock:unlock())
      assert.is_nil(entry(self))
    end)

  on_stage("renew their other holds if an unlock fails", function(self, client)
    local lock = client:lock("lock", { owner = "me" })
    for _ = 1, 2 do assert.is_true(lock:lock()) end
    local locks = take_turn(self, lock, 8, 7)
    fails("timeout", nil, lock:unlock())
    assert.is_nil((locks:join()))
    self.sleep(100)
    assert.equal("held", lock:state())
  end)

  on_stage("may cancel an unlock while the last hold is released",
    function(self, client, session)
      local lock = client:lock("lock", { owner = "me" })
      assert.is_true(lock:lock())
      self.server:freeze(1)
      local first = self.spawn(function() return lock:unlock() end)
      self.sleep(0)
      local second = self.spawn(function() return lock:unlock() end)
      self.sleep(0)
      second:cancel()
      assert.is_true(first:join())
      assert.is_false(session.watchdog:is_needed())
      assert.is_nil(entry(self))
    end)

  on_stage("may repeat a failed unlock of the only hold", function(self, client)
    local lock = client:lock("lock", { owner = "me" })
    assert.is_true(lock:lock())
    local other = take_turn(self, lock, 16)
    for _ = 1, 2 do fails("timeout", nil, lock:unlock()) end
    assert.is_true(other:join())
    self.sleep(60)
    assert.equal(1, lock:hold_count())
    assert.equal("held", lock:state())
  end)

  on_stage("release a hold later if its unlock is cancelled",
    function(self, client)
      local lock = client:lock("lock", { owner = "me" })
      for _ = 1, 2 do assert.is_true(lock:lock()) end
      self.server:freeze(2)
      local first = self.spawn(function() return lock:unlock() end)
      self.sleep(0)
      local second = self.spawn(function() return lock:unlock() end)
      self.sleep(0)
      second:cancel()
      assert.is_true(first:join())
      self.sleep(0.1)
      assert.equal("free", lock:state())
      assert.is_nil(entry(self))
    end)

  on_stage("leave their turn to the others if they cannot wait",
    function(self, client)
      local lock = client:lock("lock", { owner = "me" })
      assert.is_true(lock:lock())
      self.sleep(5)
      self.server:freeze(2)
      local waits, results = { 9, 9, 0.5, 9, 1 }, {}
      for i, wait in ipairs(waits) do
        self.spawn(function()
          local ok, code = lock:lock { wait = wait }
          results[i] = ("%s %.1f"):format(code or tostring(ok), self.now())
        end)
      end
      self.sleep(3)
      assert.same({ "true 7.0", "true 7.0", "timeout 5.5", "true 7.0",
        "timeout 6.0" }, results)
      for _ = 1, 4 do assert.is_true(lock:unlock()) end
      assert.is_nil(entry(self))
    end)

  on_stage("leave their turn if they are cancelled", function(self, client)
    local lock = client:lock("lock", { owner = "me" })
    assert.is_true(lock:lock())
    self.server:freeze(2)
    self.spawn(function() lock:lock() end)
    self.sleep(0)
    local task, got = self.spawn(function() lock:lock() end), nil
    self.sleep(0)
    self.spawn(function() got = lock:lock() end)
    self.sleep(0)
    task:cancel()
    self.sleep(3)
    assert.is_true(got)
    assert.is_nil(task.results)
    assert.equal(3, lock:hold_count())
  end)

  on_stage("release one after the other", function(self, client)
    local lock = client:lock("lock", { owner = "me" })
    for _ = 1, 3 do assert.is_true(lock:lock()) end
    self:route().delay = 0.1
    local freed = 0
    for _ = 1, 3 do
      self.spawn(function()
        assert.is_true(lock:unlock())
        freed = freed + 1
      end)
    end
    self.sleep(2)
    assert.equal(3, freed)
    assert.is_nil(entry(self))
  end)

  on_stage("release in the background what they cannot now", function(self,
      client)
    local lock = client:lock("lock", { owner = "me" })
    local hold = assert(lock:hold())
    self.server:freeze(8)
    self.spawn(function() lock:lock() end)
    self.sleep(0)
    local took, ok, code = self:timed(hold.unlock, hold)
    fails("timeout", nil, ok, code)
    assert.near(6, took, 0.01)
    self.sleep(10)
    assert.equal("free", hold:state())
  end)
end)

describe("an unlock", function()
  on_stage("is carried out although its task is cancelled", function(self,
      client)
    local lock = client:lock "lock"
    self:route().delay = 0.01
    for cancelled = 0.005, 0.025, 0.01 do
      assert.is_true(lock:lock() and lock:unlock())
      local task = self.spawn(function()
        assert(lock:lock())
        self.sleep(1)
        lock:unlock()
      end)
      self.sleep(1.02 + cancelled)
      task:cancel()
      self.sleep(1)
      assert.is_nil(entry(self))
    end
  end)

  on_stage("is repeated if its reply is lost", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    local route = self:route()
    route.back = 4
    self.sleep(0.5)
    local took, ok = self:timed(lock.unlock, lock)
    assert.is_true(ok)
    assert.is_true(took >= 3 and took < 6)
    assert.is_nil(entry(self))
    assert.equal("free", lock:state())
  end)

  on_stage("is logged when it is repeated", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    self:logged()
    assert.is_true(self:lose_reply(lock.unlock, lock))
    assert.equal('reentrant.release of "lock" is retried: connection reset',
      self:logged()[2])
  end)

  on_stage("says when the lease ends if it fails", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock { lease = 20 })
    self.server:freeze(12)
    local took, ok, code, detail = self:timed(lock.unlock, lock)
    fails("connect", "the lease ends it in 20.0 s at the latest", ok, code,
      detail)
    assert.near(6, took, 0.01)
    assert.equal("free", lock:state())
    self.sleep(7)
    assert.is_nil(entry(self))
  end)

  on_stage("keeps the outer holds' lease", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock { lease = 20 })
    assert.is_true(lock:lock { lease = 50 })
    assert.near(49.948, lock:valid_for(), 0.001)
    self:calls()
    self.sleep(1)
    assert.is_true(lock:unlock())
    assert.same({ "1.000 release 18978 1 hand over" }, self:calls())
    assert.near(18.957, lock:valid_for(), 0.001)
    assert.equal("held", lock:state())
    self.sleep(18.9)
    assert.equal("held", lock:state())
    self.sleep(0.1)
    assert.equal("lost", lock:state())
    fails("lost", nil, lock:unlock())
  end)

  on_stage("goes on renewing the outer hold", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    assert.is_true(lock:lock { lease = 50 })
    self.sleep(3)
    self:calls()
    assert.is_true(lock:unlock())
    assert.near(29.968, lock:valid_for(), 0.001)
    self.sleep(40)
    local calls = self:calls()
    assert.equal("3.000 release 30000 1 hand over", calls[1])
    assert.equal("13.000 renew 30000 1", calls[2])
    assert.equal(4, #calls)
    assert.equal("held", lock:state())
  end)

  on_stage("of an inner hold ends a risk", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    assert.is_true(lock:lock())
    self.server:ail(11, "OOM command not allowed")
    self.sleep(11.5)
    assert.equal("at_risk", lock:state())
    assert.is_true(lock:unlock())
    assert.equal("held", lock:state())
  end)

  on_stage("states the rest of the lease at the last release only",
    function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock { lease = 3 })
    assert.is_true(lock:lock())
    self.sleep(5)
    assert.is_true(lock:unlock())
    local calls = self:calls()
    assert.equal("5.000 release 2 1 hand over", calls[#calls])
    self.sleep(1)
    fails("lost", nil, lock:unlock())
  end)

  on_stage("of a hold lost without a reply frees what is left of it", function(
      self, client)
    local pair = client:read_write_lock "lock"
    local read, write = pair:read_lock(), pair:write_lock()
    assert.is_true(read:lock())
    self.sleep(19.9)
    self:route().back = self.now() + 21.5   -- a renewal is executed at 20 s
    self.sleep(20.2)
    assert.equal("lost", read:state())
    self.sleep(1.5)
    fails("lost", "not renewed in time", read:unlock())
    assert.is_true(write:lock { wait = 1 })
    assert.is_true(write:unlock())
    assert.is_nil(entry(self))
  end)

  on_stage("of a lost hold returns lost", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    client:call("DEL", "lock")
    fails("lost", "did not have it any more when it was unlocked",
      lock:unlock())
    assert.equal("free", lock:state())
    assert.equal(0, #self:calls "renew")
    fails("not_held", nil, lock:unlock())
  end)

  on_stage("with a reply that makes no sense fails", function(self, client)
    local lock, execute = client:lock "lock", self.server.execute
    assert.is_true(lock:lock())
    function self.server.execute(its, link, words)
      local reply = execute(its, link, words)
      return words[1] == "EVALSHA" and { "kept" } or reply
    end
    fails("redis", "kept", lock:unlock())
    assert.equal("free", lock:state())
  end)

  on_stage("leaves the holds of objects to them", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    local one = assert(lock:hold())
    local other = assert(lock:hold())
    assert.is_true(lock:unlock())
    assert.equal("held", one:state())
    assert.is_true(one:unlock())
    fails("not_held", "released before", one:unlock())
    assert.equal("held", other:state())
    assert.is_true(lock:unlock())
    assert.equal("free", other:state())
    assert.is_nil(entry(self))
  end)
end)

describe("a hold's on_lost", function()
  on_stage("says whether there is a hold to lose", function(self, client)
    local lock, told = client:lock "lock", nil
    local members = { lock, client:lock "other" }
    local both = require("rlock.several.multi").new(members)
    for _, its in ipairs { lock, both } do
      local hold = assert(its:hold())
      assert.is_true(hold:on_lost(function() end))
      assert.is_true(hold:unlock())
      fails("not_held", "released before", hold:on_lost(function() end))
    end
    local hold = assert(lock:hold())
    client:call("DEL", "lock")
    self.sleep(11)
    assert.is_true(hold:on_lost(function(its) told = its end))
    self.sleep(0)
    assert.equal(hold, told)
  end)
end)

describe("grants", function()
  on_stage("are used again, and few are kept", function(self, client, session)
    local locks = {}
    for i = 1, 20 do
      locks[i] = client:lock("lock" .. i)
      assert.is_true(locks[i]:lock())
    end
    for i = 1, 20 do assert.is_true(locks[i]:unlock()) end
    assert.equal(16, #session.spares)
    local lock = client:lock "other"
    assert.is_true(lock:lock { lease = 1 })
    assert.equal(15, #session.spares)
    assert.near(0.997, lock:valid_for(), 0.001)
    lock:on_lost(function() end)
    assert.is_true(lock:unlock())
    assert.equal(16, #session.spares)
    assert.is_nil(next(lock.record.grants))
    self.sleep(2)
    assert.same({}, self:logged())
  end)

  on_stage("that are kept for reuse refer to no lock", function(self, client)
    local locks = setmetatable({ client:lock "lock" }, { __mode = "v" })
    assert.is_true(locks[1]:lock())
    assert.is_true(locks[1]:unlock())
    self.sleep(20)                      -- the watchdog has ended
    for _ = 1, 2 do collectgarbage() end
    assert.is_nil(next(locks))
  end)

  on_stage("are given up for a task that has ended", function(self, client,
      session)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    assert.is_true(lock:lock())
    local granted = lock:mine()
    granted:give_up()
    self.sleep(0)
    assert.is_nil(entry(self))
    assert.equal("free", lock:state())
    assert.is_false(session.watchdog:is_needed())
    assert.equal("1 1", owners(self, "acquire"))
    assert.is_true(lock:lock())
    assert.equal("1 1 2", owners(self, "acquire"))
  end)

  on_stage("are given up when the request in flight has ended", function(self,
      client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    self:route().delay = 0.1
    self.spawn(function() lock:lock() end)
    self.sleep(0.05)
    local _, granted = next(lock.record.grants)
    granted:give_up()
    self.sleep(2)
    assert.is_nil(entry(self))
  end)

  on_stage("report an earlier loss", function(self, client)
    local lock, told = client:lock "lock", nil
    fails("not_held", nil, lock:on_lost(function() end))
    assert.is_true(lock:lock())
    client:call("DEL", "lock")
    self.sleep(11)
    assert.is_true(lock:on_lost(function(_, why) told = why end))
    self.sleep(0)
    assert.match("expired or broken", told)
    fails("lost", "valid for 0.000 s only", lock:need(1))
    assert.equal(0, lock:valid_for())
  end)

  on_stage("have the owner of the other side", function(self, client)
    local pair = client:read_write_lock "lock"
    local read, write = pair:read_lock(), pair:write_lock()
    assert.is_true(write:lock())
    assert.is_true(read:lock())
    assert.is_true(write:unlock())
    assert.equal("1 1", owners(self, "acquire"))
    self.server:freeze(3.5)
    fails("closed", nil, read:try_lock())
    self.sleep(2)
    assert.is_true(read:unlock())
    assert.is_nil(entry(self))
  end)
end)

describe("a grant", function()
  on_stage("keeps its owner's name for a request that waits for its turn",
    function(self, client)
      local lock = client:lock "lock"
      local hold = assert(lock:hold())
      self.server:freeze(8)
      self.spawn(function() hold:unlock() end)
      self.sleep(0)
      assert.is_true(lock:lock { wait = 20 })
      self.sleep(5)
      assert.match("^1 1", owners(self, "acquire"))
      assert.is_truthy(entry(self))
      assert.is_true(lock:unlock())
      assert.is_nil(entry(self))
      assert.is_nil(next(lock.record.grants))
    end)

  on_stage("ends only after it has left the queue, if the other side is held",
    function(self, client)
      local pair = client:fair_read_write_lock "lock"
      local read, write = pair:read_lock(), pair:write_lock()
      self.spawn(function()
        assert.is_true(write:lock())
        self.sleep(1)
        assert.is_true(write:unlock())
      end)
      self.sleep(0.1)
      assert.is_true(write:lock { wait = 5 })   -- subscribes
      assert.is_true(write:unlock())
      self:route().delay = 0.01
      assert.is_true(read:lock())
      for _ = 1, 3 do
        fails("refused", "^upgrade", write:lock { wait = 1 })
      end
      assert.is_true(read:unlock())
      self.sleep(1)
      assert.is_nil(entry(self))
      assert.is_nil(next(write.record.grants))
      assert.is_true(write:lock())
      assert.is_true(write:unlock())
    end)

  on_stage("keeps its owner's name while the other side is requested",
    function(self, client)
      local pair, task = client:read_write_lock "lock", self.host.current()
      local read, write = pair:read_lock(), pair:write_lock()
      local hold = assert(read:hold())
      self.server:freeze(8)
      local code, is_settling
      self.spawn(function()
        code = select(2, hold:unlock())
        self.sleep(0.1)
        is_settling = read.record.grants[task] ~= nil
      end)
      self.sleep(0)
      local ok = write:lock { wait = 20 }   -- refused if it overtakes the other
      assert.equal("connect", code)
      assert.is_true(is_settling)
      assert.is_true(read:lock())
      self.sleep(1)
      assert.is_true(read:is_held())
      assert.equal("1", owners(self, "acquire"):match "%d+$")
      assert.is_true(read:unlock())
      if ok then assert.is_true(write:unlock()) end
      assert.is_nil(entry(self))
      assert.is_nil(next(read.record.grants))
      assert.is_nil(next(write.record.grants))
    end)

  on_stage("that two tasks release is not left behind", function(self, client)
    local lock, code = client:lock("lock", { owner = "me" }), nil
    assert.is_true(lock:lock())
    self:route().delay = 0.01
    local other = self.spawn(function()
      code = select(2, lock:unlock())
    end)
    assert.is_true(lock:unlock())
    other:join()
    assert.equal("not_held", code)
    assert.is_nil(next(lock.record.grants))
  end)

  on_stage("that has ended when its release runs is left alone",
    function(self, client)
      local whole, name = self.host.whole, { owner = "me" }
      local first, other = client:lock("lock", name), client:lock "other"
      assert.is_true(first:lock())
      self.host.ends_tasks = true              -- as nginx, which runs it later
      function self.host.whole(fn, ...)
        self.sleep(0.01)
        return fn(...)
      end
      local code
      self.spawn(function() first:unlock() end)
      local late = self.spawn(function()
        self.host.whole = function(fn, ...)
          self.sleep(0.1)
          return fn(...)
        end
        code = select(2, first:unlock())
      end)
      self.sleep(0.05)
      self.host.whole, self.host.ends_tasks = whole, nil
      assert.is_nil(next(first.record.grants))
      assert.is_true(other:lock())
      late:join()
      assert.equal("not_held", code)
      assert.equal("held", other:state())
      assert.is_truthy(entry(self, "other"))
    end)

  on_stage("is valid as long as its longest hold", function(self, client,
      session)
    local lock = client:lock "lock"
    assert.is_true(lock:lock { lease = 20 })
    assert.is_true(session.watchdog:is_needed())
    assert.is_true(lock:lock { lease = 5 })
    assert.near(19.978, lock:valid_for(), 0.001)
    self.sleep(15)
    assert.equal(0, #self:calls "renew")
    assert.is_true(lock:unlock())
    assert.is_true(lock:unlock())
    assert.is_false(session.watchdog:is_needed())
  end)

  on_stage("of an object with a lease is not renewed", function(self, client)
    local lock = client:lock "lock"
    local hold = assert(lock:hold { lease = 5 })
    assert.is_true(lock:lock { lease = 2 })
    assert.is_true(lock:unlock())
    self:calls()
    self.sleep(12)
    assert.equal("lost", hold:state())
    assert.same({}, self:calls())
  end)

  on_stage("is lost when the client is closed", function(self, client, session)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    assert.equal(0, session.pending)
    assert.near(0, (self:timed(client.close, client)), 0.001)
    assert.equal("lost", lock:state())
    fails("lost", "the client was closed", lock:unlock())
    assert.is_nil(entry(self))
  end)

  on_stage("is forgotten once its loss is known", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    client:call("DEL", "lock")
    self.sleep(11)
    local task = self.host.current()
    assert.is_truthy(next(task.lost))
    fails("lost", nil, lock:unlock())
    assert.is_nil(next(task.lost))
    assert.is_nil(next(lock.record.grants))
  end)

  on_stage("of a named owner is forgotten once it is undone", function(self,
      client)
    local lock = client:lock("lock", { owner = "me" })
    self.server:freeze(3.5)
    assert.is_nil(lock:try_lock())
    self.sleep(5)
    assert.is_nil(next(lock.record.grants))
    assert.is_nil(entry(self))
  end)

  on_stage("of an object is renewed after an inner hold", function(self, client)
    local lock = client:lock "lock"
    local hold = assert(lock:hold())
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    self.sleep(60)
    assert.equal("held", hold:state())
    assert.is_true(hold:valid_for() > 19)
  end)

  on_stage("of objects on both sides of a hold leaves them", function(_, client)
    local lock = client:lock "lock"
    local one = assert(lock:hold())
    assert.is_true(lock:lock())
    local other = assert(lock:hold())
    assert.is_true(lock:unlock())
    assert.is_true(one:unlock())
    assert.is_true(other:unlock())
  end)

  on_stage("whose lease has ended ends at once, if nobody answers",
    function(self, client)
      local lock = client:lock "lock"
      assert.is_true(lock:lock { lease = 3 })
      self.sleep(4)
      self.server:freeze(30)
      local _, code, detail = lock:unlock()
      assert.equal("connect", code)
      assert.match("the lease ends it in 0.0 s", detail)
    end)

  on_stage("needs a lease if its policy cannot renew", function(_, client)
    local plain = client:policy({
      name = "plain", keys = function(name) return { name } end,
      server = {
        acquire = function(keys, args)
          redis.call("set", keys[1], args[1], "px", args[2]) -- luacheck: ignore
          return { "held" }
        end,
        release = function(keys)
          redis.call("del", keys[1]) -- luacheck: ignore
          return { "freed" }
        end,
      },
    }, "plain")
    fails("usage", "give a lease", plain:lock())
    assert.is_true(plain:lock { lease = 5 })
    assert.is_true(plain:unlock())
    fails("usage", "has no server.peek", plain:peek())
    fails("usage", "has no server.break_", plain:break_lock())
  end)

  for what, owner in pairs { ["a task"] = false, ["a name"] = "me" } do
    on_stage("of " .. what .. " may wait in line again", function(self, client)
      local other = client:fair_lock("lock", { owner = "other" })
      local lock = client:fair_lock("lock", owner and { owner = owner } or nil)
      assert.is_true(other:lock())
      fails("timeout", nil, lock:lock { wait = 1 })
      fails("timeout", nil, lock:lock { wait = 1 })
      self.sleep(1)
      assert.equal(2, #self:calls "leave")
      assert.is_nil(next(lock.record.grants, next(lock.record.grants)))
      assert.is_true(other:unlock())
      assert.is_true(lock:lock { wait = 1 })
      assert.is_true(lock:unlock())
    end)
  end
end)

describe("waiters", function()
  -- Its leave must not be executed after the owner's next request.
  on_stage("that give up while their request is undone leave once",
    function(self, client)
      local host = self:add_host "client2"
      local other = self:client({ lazy = true }, nil, host):fair_lock "lock"
      host.spawn(function()
        assert(other:lock())
        host.sleep(1)
        assert(other:unlock())
      end)
      self.sleep(0.1)
      local lock = client:fair_lock("lock", { owner = "me" })
      local target, acquires, leaves = lock.record.target, 0, 0
      local run = target.run
      function target.run(its, name, ...)
        if name == "acquire" then acquires = acquires + 1 end
        if acquires == 3 then self:route().back = 2 end     -- no reply in time
        if name == "leave" then leaves = leaves + 1 end
        if name == "leave" and leaves == 1 then self.sleep(3) end
        return run(its, name, ...)
      end
      fails("timeout", nil, lock:lock { wait = 1.5 })
      assert.is_true(lock:lock { wait = 20 })
      self.sleep(5)
      assert.is_true(lock:is_held())
      assert.equal(1, leaves)
    end)

  local function wait_in_line(self, client, n, options, name)
    local got, lock = {}, client[name or "lock"](client, "lock")
    for i = 1, n do
      self.spawn(function()
        local ok, code = lock:lock(options)
        got[#got + 1] = ok and i or code
        if ok then
          self.sleep(0.1)
          lock:unlock()
        end
      end)
      self.sleep(0.01)
    end
    return got
  end

  on_stage("are woken one at a time, in order", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock() and lock:unlock() and lock:lock())
    local got = wait_in_line(self, client, 3)
    self:calls()
    assert.is_true(lock:unlock())
    self.sleep(0.05)
    local calls = self:calls()
    assert.equal(2, #calls)
    assert.match("acquire", calls[2])
    self.sleep(1)
    assert.same({ 1, 2, 3 }, got)
    assert.equal(5, #self:calls())
  end)

  on_stage("of the same client get the lock in one round trip",
    function(self, client)
      local held, got_at = client:lock "lock", nil
      assert.is_true(held:lock() and held:unlock() and held:lock())
      local first = self.spawn(function()
        local lock = client:lock "lock"
        assert.is_true(lock:lock { wait = 10 })
        got_at = self.now()
        assert.is_true(lock:unlock())
      end)
      local second = self.spawn(function()
        assert.is_true(client:lock("lock"):lock { wait = 10 })
      end)
      self.sleep(1)
      self:route().delay = 0.001
      self:route().random = function() return 0.5 end
      self:calls()
      local released_at = self.now()
      assert.is_true(held:unlock())
      first:join()
      assert.near(0.002, got_at - released_at, 1e-4)
      second:join()
      assert.near(0.004, self.now() - released_at, 1e-4)
      self.sleep(0.2)                   -- the messages have come
      local id, calls = client.session.id:gsub("-", "%%-"), self:calls()
      for i, call in ipairs(calls) do calls[i] = call:gsub(id, "ID") end
      assert.same({
        "1.001 release 1 0 hand over ID ID:2", "1.001 acquire 30000 1 ID",
        "1.003 release 1 0 hand over ID ID:3", "1.003 acquire 30000 1 ID",
      }, calls)
    end)

  on_stage("of the same client get it in one round trip after a break, too",
    function(self, client)
      local lock, got_at = client:lock "lock", nil
      assert.is_true(lock:lock() and lock:unlock())
      self:route().delay = 0.05
      self:route().random = function() return 0.5 end
      for _ = 1, 2 do
        assert.is_true(lock:lock())
        self.spawn(function()
          assert(lock:lock { wait = 10 })
          got_at = self.now()
          assert(lock:unlock())
        end)
        self.sleep(0.5)                 -- it is registered and subscribed
        local released_at = self.now()
        assert.is_true(lock:unlock())
        self.sleep(0.5)
        assert.near(0.1, got_at - released_at, 0.001)
      end
    end)

  on_stage("pass on a wake that they do not use", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    local first = self.spawn(function() lock:lock() end)
    self.sleep(0.01)
    local got = wait_in_line(self, client, 1)
    self:route().delay = 0.01
    assert.is_true(lock:unlock())
    self.sleep(0.012)
    first:cancel()
    self.sleep(1)
    assert.same({ 1 }, got)
  end)

  on_stage("wait until their deadline", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    self.spawn(function()
      local took, ok, code, detail = self:timed(lock.lock, lock,
        { wait = 1.5 })
      fails("timeout", "not free in time", ok, code, detail)
      assert.near(1.5, took, 0.001)
      fails("busy", "is held by another owner", lock:try_lock())
    end):join()
    self.spawn(function()
      local task = self.spawn(function() lock:lock() end)
      self.sleep(1)
      task:cancel()
    end):join()
    assert.is_nil(client.session.wakeup.channels.none)
  end)

  on_stage("retry when the lease ends", function(self, client)
    local other = self:client({ lazy = true }, nil, self:add_host "client2")
    self.spawn(function()
      assert.is_true(client:lock("lock"):lock { lease = 3 })
    end):join()
    local got_at
    other.session.host.spawn(function()
      assert.is_true(other:lock("lock"):lock())
      got_at = self.now()
    end)
    self.sleep(2.9)
    assert.is_nil(got_at)
    self.sleep(0.2)
    assert.near(3.001, got_at, 0.003)
  end)

  on_stage("poll without a message", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    wait_in_line(self, client, 3)
    self:calls()
    self.sleep(60)
    local n = #self:calls "acquire"
    assert.is_true(n >= 60 / 5 + 2 * 60 / 20 and n <= 60 / 2.5 + 2 * 60 / 10, n)
  end)

  on_stage("poll more often if they are not subscribed", function(self, client,
      session)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    session.wakeup.is_live = function() return false end
    wait_in_line(self, client, 1)
    for _, channel in pairs(session.wakeup.channels) do
      channel.is_live = false
    end
    self.sleep(6)
    for _, channel in pairs(session.wakeup.channels) do
      channel.is_live = false
    end
    self:calls()
    self.sleep(6)
    local n = #self:calls "acquire"
    assert.is_true(n >= 6 / 0.4 - 1 and n <= 6 / 0.2 + 1, n)
  end)

  on_stage("are all woken when a writer has left", function(self,
      client)
    local pair = client:read_write_lock "lock"
    assert.is_true(pair:write_lock():lock())
    local got = {}
    for i = 1, 3 do
      self.spawn(function()
        assert.is_true(pair:read_lock():lock())
        got[#got + 1] = i
        self.sleep(5)
      end)
    end
    self.spawn(function() pair:write_lock():lock { wait = 3 } end)
    self.sleep(0.01)
    self:calls()
    assert.is_true(pair:write_lock():unlock())
    self.sleep(0.01)
    assert.equal(3, #got)
    assert.equal(4, #self:calls "acquire")
  end)

  on_stage("try again after a new connection", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    wait_in_line(self, client, 3)
    self:calls()
    self.server:restart(0.1, "data")
    self.sleep(1.5)
    assert.is_true(#self:calls "acquire" >= 3)
  end)

  on_stage("of a lock without a channel poll with a back-off", function(self,
      client)
    local lock = client:spin_lock "lock"
    assert.is_true(lock:lock())
    wait_in_line(self, client, 1, nil, "spin_lock")
    self:calls()
    self.sleep(10)
    local n = #self:calls "acquire"
    assert.is_true(n >= 10 / 0.128 - 1 and n <= 10 / 0.064 + 8, n)
  end)

  on_stage("leave the queue of a fair lock", function(self, client)
    local lock = client:fair_lock "lock"
    assert.is_true(lock:lock())
    local got = wait_in_line(self, client, 2, { wait = 1 }, "fair_lock")
    self.sleep(2)
    assert.same({ "timeout", "timeout" }, got)
    assert.equal("", owners(self, "release"))
    assert.equal(2, #self:calls "leave")
    assert.is_nil(lock:peek().queue[1])
  end)

  on_stage("keep their place after giving up a multi-lock", function(self,
      client)
    local other = self:client({ lazy = true }, nil, self:add_host "client2")
    local sleep, theirs = other.session.host.sleep, other:fair_lock "lock"
    local lock, longest, freed_at = client:fair_lock "lock", 0, nil
    other.session.host.spawn(function()
      assert.is_true(other:fair_lock("a"):lock())
      sleep(0.92)                       -- when the multi-lock has released it
      assert.is_true(theirs:lock())
      for _ = 1, 20 do
        sleep(0.1)
        longest = math.max(longest, #theirs:peek().queue)
      end
      freed_at = self.now()
      assert.is_true(theirs:unlock())
    end)
    self.sleep(0.01)
    self:route().delay = 0.15
    local both = multi.new { client:fair_lock "a", lock }
    fails("timeout", nil, both:lock { wait = 0.5 })
    assert.is_true(lock:lock { wait = 10 })
    -- A request may be in flight when the message comes.
    assert.is_true(self.now() <= freed_at + 0.6, self.now())
    assert.equal(1, longest)
  end)

  on_stage("leave their place if they are cancelled during a request",
    function(self, client)
    local a, held = client:fair_lock "a", client:fair_lock "lock"
    assert.is_true(held:lock())
    local waiter = self.spawn(function() multi.new { a, held }:lock() end)
    self.sleep(0.05)
    self:calls()
    self:route().delay = 0.1
    held.session.wakeup.channels[held.record.policy.channel(held.record.target,
      client.session.id .. ":2")].first:set()        -- it retries
    self.sleep(0.25)
    waiter:cancel()
    self:route().delay = 0
    self.sleep(1)
    assert.is_nil(held:peek().queue[1])
    assert.is_true(#self:calls "leave" >= 1)
  end)

  on_stage("leave their place while their owner has a request in flight",
    function(self, client)
    local holder, options = client:fair_lock "lock", { owner = "named" }
    assert.is_true(holder:lock())
    local other, got = self:client(), {}
    local lock = other:fair_lock("lock", options)
    self.spawn(function() got[1] = select(2, lock:lock { wait = 1 }) end)
    self.sleep(0.5)
    self:route().delay = 0.3
    self.sleep(0.3)
    self.spawn(function() got[2] = select(2, lock:try_lock()) end)
    self.sleep(2)
    assert.same({ "timeout", "busy" }, got)
    assert.is_nil(holder:peek().queue[1])
  end)

  on_stage("keep their place while their owner waits in another task",
    function(self, client)
    local holder, options = client:fair_lock "lock", { owner = "named" }
    assert.is_true(holder:lock())
    local lock = self:client():fair_lock("lock", options)
    self.spawn(function() lock:lock { wait = 1 } end)
    self.spawn(function() lock:lock { wait = 3 } end)
    self.sleep(2)
    assert.equal("named", holder:peek().queue[1])
    self.sleep(2)
    assert.is_nil(holder:peek().queue[1])
  end)

  on_stage("keep their place when their task gets another name",
    function(self, client)
    local lock = client:fair_lock "lock"
    assert.is_true(lock:lock())
    local waiter = self.spawn(function()
      assert.is_true(lock:lock())
      lock:unlock()
    end)
    self.sleep(0.01)
    local names = owners(self, "acquire")
    owner_of.renumber(waiter, lock.record.family)
    assert.is_true(lock:unlock())
    self.sleep(0.01)
    assert.is_true(waiter.over)
    assert.equal(names .. " 2", owners(self, "acquire"))
    assert.is_nil(lock:peek().queue[1])
  end)

  on_stage("leave their place if its name is being undone", function(self,
      client, session)
    local lock = client:fair_lock "lock"
    assert.is_true(lock:lock())
    local waiter = self.spawn(function() assert.is_true(lock:lock()) end)
    self.sleep(0.01)
    owner_of.renumber(waiter, lock.record.family)
    lock.record.undone = { [session.id .. ":2"] = true }
    assert.is_true(lock:unlock())
    waiter:join()
    self.sleep(0.01)
    assert.equal("3", owners(self, "acquire"):match "%d+$")
    assert.equal("2", owners(self, "leave"))
    assert.is_nil(lock:peek().queue[1])
  end)

  on_stage("return closed when the client is closed", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    local got = wait_in_line(self, client, 2)
    client:close()
    self.sleep(0.1)
    assert.same({ "closed", "closed" }, got)
  end)
end)

describe("the state of a lock", function()
  on_stage("is what the server says", function(self, client)
    local lock = client:fenced_lock "lock"
    assert.is_false(lock:is_locked())
    assert.is_false(lock:ttl())
    assert.is_nil(lock:token())
    local ok, token = lock:lock { lease = 5 }
    assert.is_true(ok)
    assert.equal(token, lock:token())
    assert.is_true(lock:lock { lease = 3 })
    self.sleep(1)
    assert.is_true(lock:is_locked())
    assert.is_true(lock:is_held())
    assert.equal(2, lock:hold_count())
    assert.near(4, lock:ttl(), 0.001)
    local state = lock:peek()
    assert.equal("held", state.state)
    assert.equal(token, state.token)
    assert.equal(1, #state.holders)
    assert.equal(2, state.holders[1].count)
    self.spawn(function()
      assert.is_true(lock:is_locked())
      assert.is_false(lock:is_held())
      assert.equal(0, lock:hold_count())
    end):join()
    assert.is_true(lock:break_lock())
    assert.is_false(lock:break_lock())
    assert.equal("free", lock:peek().state)
    assert.is_nil(lock:peek().ttl)
  end)

  on_stage("fails as the server does", function(self, client)
    local lock = client:lock "lock"
    self.server:freeze(100)
    for _, name in ipairs { "is_locked", "hold_count", "ttl", "peek",
        "break_lock" } do
      local took, ok, code = self:timed(lock[name], lock)
      assert.is_nil(ok)
      assert.is_true(code == "closed" or code == "connect", code)
      assert.near(3, took, 0.01)
    end
    local task = self.spawn(function() lock:peek() end)
    self.sleep(0.1)
    task:cancel()
    task:join()
    assert.is_nil(task.results)
    assert.equal('reentrant lock "lock"', tostring(lock))
  end)
end)

describe("a lost hold of a task that has ended", function()
  on_stage("ends with the task, though the lock goes on", function(self, client)
    local lock = client:lock "lock"
    self.spawn(function()
      assert.is_true(lock:lock())
      client:call("DEL", "lock")
      self.sleep(15)                    -- the renewal finds the loss
      assert.equal("lost", lock:state())
      assert.is_truthy(next(lock.record.grants))
    end):join()
    for _ = 1, 2 do collectgarbage() end
    assert.is_nil(next(lock.record.grants))
  end)

  on_stage("can still be released, after a renewal without an answer",
    function(self, client)
    local granted
    self.spawn(function()
      local lock = client:lock "lock"
      assert.is_true(lock:lock { lease = 5 })
      granted = lock:mine()
    end)
    self.sleep(0.1)
    local hold = granted.holds[1]
    granted.is_unsure = true
    client.session.watchdog:lose(granted, "not renewed in time")
    self:calls()
    fails("lost", "not renewed in time", granted:release(hold))
    self.sleep(0.1)
    assert.equal("1", owners(self, "release"))
    assert.is_nil(entry(self))
  end)

  -- Calls enter(lock) and leave(lock) in a task, which is cancelled while the
  -- request of `leave` is in flight, and does not unlock the lock.
  local function cancelled(self, client, enter, leave)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())       -- the server has the scripts
    self:calls()
    local task = self.spawn(function()
      enter(lock)
      self:route().delay = 0.5
      leave(lock)
    end)
    self.sleep(0.2)
    local _, granted = next(lock.record.grants)
    task:cancel()
    return granted
  end

  local function enter(lock) assert.is_true(lock:lock { lease = 2 }) end
  local function enter_again(lock) lock:lock { lease = 20 } end

  on_stage("is released if a request in flight may have extended it",
    function(self, client)
    cancelled(self, client, enter, enter_again)
    self.sleep(1)
    assert.is_table(entry(self))
    self.sleep(3)
    assert.equal("2", owners(self, "release"))
    assert.is_nil(entry(self))
  end, { watchdog = 3 })

  on_stage("is released if a partial release may have extended it",
    function(self, client)
    cancelled(self, client, function(lock)
      enter(lock)
      assert.is_true(lock:lock { lease = 3 })
    end, function(lock) lock:unlock() end)
    self.sleep(4)
    assert.equal("2 2", owners(self, "release"))
  end, { watchdog = 3 })

  on_stage("is released by one who gives it up after its lease",
    function(self, client)
    local granted = cancelled(self, client, enter, enter_again)
    self.sleep(3)
    self.server:restart(1, "data")
    granted:give_up()
    self.sleep(9)
    assert.is_nil(entry(self))
  end)
end)

describe("a server that has become a replica", function()
  on_stage("is left after its first READONLY reply", function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock() and lock:unlock())
    local execute, opened = self.server.execute, self.server.ids.last
    function self.server.execute(its, link, words)
      if words[1] ~= "EVALSHA" then return execute(its, link, words) end
      self.server.execute = execute
      return { err = "READONLY You can't write against a read only replica." }
    end
    assert.is_true(lock:lock())
    assert.equal(opened + 1, self.server.ids.last)
  end)
end)

describe("a command under a lock", function()
  on_stage("is executed once, though its reply is lost with time left",
    function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock())
    assert.equal(1, lock:call("INCR", "number"))
    fails("timeout", "outcome is unknown", self:lose_reply(lock.call, lock,
      "INCR", "number"))
    self.sleep(5)
    assert.equal("2", client:call("GET", "number"))
  end)
end)

describe("a client", function()
  on_stage("forgets locks and owners that nobody uses any more",
    function(_, client, session)
      local kept = client:lock "kept"
      local policy = kept.record.policy
      for i = 1, 3 do
        local lock = client:lock("lock" .. i, { owner = "owner" .. i })
        assert.is_true(lock:lock() and lock:unlock())
      end
      assert.is_table(session:known_record(policy, "lock1"))
      collectgarbage()
      collectgarbage()
      assert.is_nil(next(session.owners))
      assert.is_nil(session:known_record(policy, "lock1"))
      assert.equal(kept.record, session:known_record(policy, "kept"))
      kept = nil -- luacheck: ignore
      collectgarbage()
      collectgarbage()
      assert.is_nil(next(session.kinds))
    end)

  on_stage("tells the server who it is, unless that is not wanted",
    function(self)
      function self.host.process_identity()
        return { host = "there", pid = 7, program = "job" }
      end
      local session = self:client({ name = "its" }).session
      assert.same({ id = session.id, host = "there", pid = 7, program = "job",
        name = "its" }, identity.decode(session.options.connection_name))
      session = self:client({ name = "its", identity = false }).session
      assert.is_nil(session.options.connection_name)
    end)

  on_stage("knows what tasks of other clients in its process wait for",
    function(self, client)
      local other, code = self:client(), nil
      self.spawn(function()
        assert.is_true(client:lock("a"):lock())
        self.sleep(1)
        other:lock("b"):lock { wait = 9 }
      end)
      self.spawn(function()
        assert.is_true(other:lock("b"):lock())
        self.sleep(2)
        code = select(2, client:lock("a"):lock { wait = 9 })
      end)
      self.sleep(3)
      assert.equal("deadlock", code)
    end)

  on_stage("runs background work once, even if it raises an error",
    function(self, _, session)
      local n = 0
      function self.host.service(fn)      -- nginx may start it again
        assert.is_false(pcall(fn))
        assert.is_true(pcall(fn))
      end
      session:background(function()
        n = n + 1
        assert.equal(1, session.pending)
        error("oops", 0)
      end)
      assert.same({ 1, 0 }, { n, session.pending })
    end)

  on_stage("counts per lock only the names in the option metrics",
    function(_, client)
      assert.is_true(client:lock("a"):lock() and client:lock("b"):lock())
      local stats = client:stats()
      assert.equal(2, stats.kinds.reentrant.acquired)
      assert.equal(1, stats.locks.a.acquired)
      assert.is_nil(stats.locks.b)
    end, { metrics = { "a" } })
end)

describe("closing a client", function()
  on_stage("waits for a grant in flight, and releases it",
    function(self, client)
    local lock, code = client:lock "lock", nil
    assert.is_true(lock:lock() and lock:unlock())
    self:route().delay = 0.1
    self.spawn(function() code = select(2, lock:lock()) end)
    self.sleep(0.15)                      -- the server has granted it
    assert.is_table(entry(self))
    local took = self:timed(client.close, client)
    assert.is_true(took < 1, took)        -- the time limit is 3 s
    assert.equal("closed", code)
    assert.is_nil(entry(self))
  end)

  on_stage("does not end a hold that a task unlocks concurrently",
    function(self, client)
    local lock = client:lock "lock"
    assert.is_true(lock:lock() and lock:unlock() and lock:lock())
    self:route().delay = 0.1
    local done = self.spawn(client.close, client)
    self.sleep(0.05)
    fails("closed", nil, lock:unlock())
    assert.is_true(done:join())
    assert.equal(2, client:stats().hold.count)
  end)

  on_stage("ends its connections", function(self, client)
    assert.is_true(client:lock("lock"):lock())
    assert.equal(1, #self:route().links)
    client:close()
    self.sleep(0)
    assert.equal(0, #self:route().links)
  end)
end)

describe("a client's log callback", function()
  local heard
  on_stage("is told the level, the event and its fields", function(_, client)
    heard = nil
    assert.is_true(client:lock("lock"):lock())
    assert.same({ "info", "acquired" }, { heard[1], heard[2] })
    assert.same({ "reentrant", "lock", "its" },
      { heard[3].kind, heard[3].lock, heard[3].client })
  end, { name = "its", log = function(...) heard = { ... } end })
end)

describe("a program without a log callback", function()
  local function logged(self, verbosity)
    self.host.verbosity = verbosity
    self:logged()
    assert.is_true(self:client():lock("lock" .. verbosity):lock())
    return table.concat(self:logged(), "\n")
  end

  on_stage("logs acquisitions only at verbosity 2", function(self)
    assert.equal("", logged(self, 1))
    assert.match("acquired .*lock2", logged(self, 2))
  end)
end)

describe("the end of a program", function()
  on_stage("releases all holds, and the client can still be used",
    function(self, client, session)
    local locks = { client:lock "one", client:lock "two" }
    for _, lock in ipairs(locks) do assert.is_true(lock:lock()) end
    session:wind_down()
    assert.equal(2, #self:calls "release")
    assert.is_nil(next(self.server.redis.entries))
    assert.is_false(session.watchdog:is_needed())
    for _, lock in ipairs(locks) do
      fails("lost", "the program ends", lock:unlock())
      assert.is_true(lock:lock())
    end
    self.sleep(15)
    assert.equal("held", locks[1]:state())
  end)
end)

describe("a hold that is abandoned", function()
  on_stage("is neither renewed nor released, and is not entered again",
    function(self, client)
    local lock, told = client:lock "lock", nil
    assert.is_true(lock:lock())
    lock:on_lost(function(_, reason) told = reason end)
    self:calls()
    lock:abandon "it may go on"
    self.sleep(0)
    assert.same({ "it may go on", "lost", 0 },
      { told, lock:state(), lock:valid_for() })
    fails("lost", "it may go on", lock:unlock())
    fails("busy", nil, lock:try_lock())
    self.sleep(29)
    client:close()
    assert.equal("", owners(self, "release"))
    assert.equal("", owners(self, "renew"))
  end)

  on_stage("sends no release, even if a renewal was lost",
    function(self, client)
    local hold = assert(client:lock("lock"):hold())
    self.server:freeze(14)
    self.sleep(13.9)
    assert.equal("at_risk", hold:state())
    hold:abandon "it may go on"
    self:calls()
    self.sleep(5)
    fails("lost", "it may go on", hold:unlock())
    self.sleep(5)
    assert.equal("", owners(self, "release"))
  end)
end)
