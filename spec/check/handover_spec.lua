--- How locks are handed over to waiters (policy/handover.lua), on a virtual
--- clock: in which order, with how many requests, and what happens if a waiter
--- has died, given up, or does not register.

local policies = require "rlock.policy"
local redis = require "rlockctl.model.redis"
local stage = require "spec.simulate.stage"

-- A process of its own with a client.
local function open(self, name, options)
  local host = self:add_host(name)
  options = options or {}
  options.lazy = true
  return self:client(options, nil, host), host
end

-- Starts fn(...) in a process, and lets it run until it waits.
local function start(self, host, fn, ...)
  local task = host.spawn(fn, ...)
  self.sleep(0.001)
  return task
end

-- Waiters in processes of their own, in order of arrival. Each notes its name
-- and the time in `got` and keeps the lock for `seconds`.
local function queue(self, names, seconds, got, options)
  local hosts = {}
  for name in names:gmatch "%S+" do
    local client, host = open(self, name, options)
    hosts[name] = host
    start(self, host, function()
      local lock = client:lock "lock"
      assert(lock:lock { wait = 100 })
      got[#got + 1] = ("%s %.1f"):format(name, self.now())
      host.sleep(seconds)
      lock:unlock()
    end)
  end
  return hosts
end

local function held(self)
  local lock = self:client():lock "lock"
  assert(lock:lock())
  return lock
end

local function entry(self, key) return self.server.redis:entry(key) end

local WAITERS = "redisson_lock__channel:{lock}:waiters"

describe("a lock is handed over", function()
  it("in order of arrival, with no message to others", function()
    stage.play(function(self)
      local got, lock = {}, held(self)
      queue(self, "a b c d", 0.1, got)
      self.sleep(0.5)
      self:calls()
      lock:unlock()
      self.sleep(1)
      assert.same({ "a 0.5", "b 0.6", "c 0.7", "d 0.8" }, got)
      assert.equal(4, #self:calls "acquire")
      assert.is_nil(entry(self, WAITERS))
      assert.is_nil(entry(self, "lock"))
    end)
  end)

  for _, seconds in ipairs { 70, 90 } do
    it(("in order of arrival after %d s, too"):format(seconds), function()
      stage.play(function(self)
        local got, lock = {}, held(self)
        queue(self, "a b c d e f", 0.1, got)
        self.sleep(seconds)
        lock:unlock()
        self.sleep(5)
        for i, line in ipairs(got) do got[i] = line:match "%S+" end
        assert.equal("a b c d e f", table.concat(got, " "))
      end)
    end)
  end

  for _, kind in ipairs { "lock", "mutex" } do
    for _, options in ipairs { {}, { fenced = true } } do
      it("to the first waiter alone: " .. kind
        .. (options.fenced and " with tokens" or ""), function()
        stage.play(function(self)
          local lock, got = self:client()[kind](self:client(), "lock", options),
            {}
          assert(lock:lock())
          for name in ("a b"):gmatch "%a" do
            local client, host = open(self, name)
            start(self, host, function()
              local own = client[kind](client, "lock", options)
              assert(own:lock { wait = 100 })
              got[#got + 1] = name
              host.sleep(0.1)
              own:unlock()
            end)
          end
          self:calls()
          lock:unlock()
          self.sleep(0.01)
          assert.match("release 1 0 hand over$", self:calls()[1])
          assert.same({ "a" }, got)
          self.sleep(1)
          assert.same({ "a", "b" }, got)
        end)
      end)
    end
  end

  it("with three requests for each turn, however many wait", function()
    stage.play(function(self)
      local turns, done = 5, 0
      for i = 1, 20 do
        local client, host = open(self, "waiter" .. i)
        host.spawn(function()
          local lock = client:lock "lock"
          for _ = 1, turns do
            assert(lock:lock { wait = 100 })
            host.sleep(0.01)
            lock:unlock()
          end
          done = done + 1
        end)
      end
      self.sleep(0.1)
      local before = self.requests
      self.sleep(5)
      assert.equal(20, done)
      -- The first requests come before the subscription.
      assert.is_true(self.requests - before <= 3 * 20 * turns, self.requests)
    end)
  end)

  it("only for a second to a waiter that does not answer", function()
    stage.play(function(self)
      local got, lock = {}, held(self)
      local hosts = queue(self, "frozen b c", 0.1, got)
      self.universe:stall(hosts.frozen, 100)
      self.sleep(1)
      lock:unlock()
      self.sleep(4)
      assert.equal("b", got[1]:sub(1, 1))
      assert.is_true(tonumber(got[1]:match "%S+$") <= 3.1, got[1])
      assert.equal("c", got[2]:sub(1, 1))
    end)
  end)

  it("at once if a waiter gives up that has been chosen", function()
    stage.play(function(self)
      local got, lock = {}, held(self)
      local client, host = open(self, "hasty")
      local code
      start(self, host, function()
        code = select(2, client:lock "lock":lock { wait = 1 })
      end)
      queue(self, "b", 0, got)
      self.sleep(0.97)
      self.network:route(host, self.server).delay = 0.05
      lock:unlock()
      self.sleep(1)
      assert.equal("timeout", code)
      assert.is_true(tonumber(got[1]:match "%S+$") <= 1.3, got[1])
      assert.is_nil(entry(self, WAITERS))
    end)
  end)

  it("not to a client that has lost its subscription", function()
    stage.play(function(self)
      local got, lock = {}, held(self)
      local hosts = queue(self, "gone b", 0.1, got)
      self.universe:kill(hosts.gone)
      for _, link in ipairs { table.unpack(self.server.links) } do
        if link.host == hosts.gone then link:close_server() end
      end
      self.sleep(1)
      lock:unlock()
      self.sleep(0.1)
      assert.same({ "b 1.0" }, got)
    end)
  end)

  it("to all, by a message, while a waiter does not register", function()
    stage.play(function(self)
      local got, lock = {}, held(self)
      queue(self, "b", 0.1, got)
      queue(self, "older", 0.1, got, { handover = false })
      queue(self, "c", 0.1, got)
      self.sleep(0.9)
      lock:unlock()
      self.sleep(1)
      table.sort(got)
      assert.equal(3, #got)
      for _, text in ipairs(got) do
        assert.is_true(tonumber(text:match "%S+$") <= 1.3, text)
      end
    end)
  end)

  it("to a waiter that does not register, beside tasks in tight loops",
    function()
      stage.play(function(self)
        local client, got = self:client(), {}
        self:route().delay = 0.0005
        for _ = 1, 2 do
          self.spawn(function()
            local lock = client:lock "lock"
            while self.now() < 3 do
              assert(lock:lock { wait = 100 })
              self.sleep(0.0001)
              assert(lock:unlock())
            end
          end)
        end
        self.sleep(0.1)
        local older, host = open(self, "older", { handover = false })
        self.network:route(host, self.server).delay = 0.0005
        host.spawn(function()
          local lock = older:lock "lock"
          for _ = 1, 10 do
            assert(lock:lock { wait = 100 })
            got[#got + 1] = self.now()
            lock:unlock()
          end
        end)
        self.sleep(1)
        assert.equal(10, #got)
      end)
    end)

  it("never, with handover = false", function()
    stage.play(function(self)
      local got = {}
      local lock = self:client { handover = false }:lock "lock"
      assert(lock:lock())
      queue(self, "b c", 0, got, { handover = false })
      self:calls()
      lock:unlock()
      self.sleep(1)
      assert.equal(2, #got)
      local calls = self:calls "release"
      assert.match("release 1 0 publish$", calls[1])
      assert.is_nil(entry(self, WAITERS))
    end)
  end)

  it("to the tasks of one process for 5 ms, then to others", function()
    stage.play(function(self)
      local got, lock = {}, held(self)
      local client = self:client()
      queue(self, "other", 0, got)
      for i = 1, 9 do
        start(self, self.host, function()
          local own = client:lock "lock"
          assert(own:lock { wait = 100 })
          got[#got + 1] = "task" .. i
          self.sleep(0.002)
          own:unlock()
        end)
      end
      lock:unlock()
      self.sleep(1)
      assert.equal("other", got[1]:match "^%a+")
      assert.equal(10, #got)
      for i = 1, 9 do assert.equal("task" .. i, got[i + 1]) end
    end)
  end)

  it("to a multi-lock, too", function()
    stage.play(function(self)
      local lock, at = held(self), nil
      for _, name in ipairs { "busy1", "busy2" } do
        local client, host = open(self, name)
        start(self, host, function()
          local own = client:lock "lock"
          while self.now() < 5 do
            assert(own:lock { wait = 100 })
            host.sleep(0.1)
            own:unlock()
          end
        end)
      end
      local client, host = open(self, "several")
      start(self, host, function()
        local several = require("rlock.several.multi").new {
          client:lock "lock", client:lock "other" }
        assert(several:lock { wait = 100 })
        at = self.now()
        several:unlock()
      end)
      self.sleep(0.5)
      lock:unlock()
      self.sleep(6)
      assert.is_true(at and at < 1, at)
    end)
  end)
end)

describe("a waiter", function()
  it("leaves a reservation that its request made, if it is cancelled",
    function()
      stage.play(function(self)
        local lock = held(self)
        local client, host = open(self, "hasty")
        local task = start(self, host, function()
          client:lock "lock":lock { wait = 100 }
        end)
        self.sleep(0.5)
        self.network:route(host, self.server).delay = 0.1
        lock:unlock()
        self.sleep(0.15)                 -- its next request is on the way
        task:cancel()
        self.sleep(1)
        assert.is_nil(entry(self, "lock"))
        assert.is_nil(entry(self, WAITERS))
      end)
    end)

  it("passes the lock on if it leaves before the release that names it",
    function()
      stage.play(function(self)
        local got = {}
        local client, host = open(self, "own")
        local several = require("rlock.several.multi").new {
          client:lock "lock", client:simple_lock "another" }
        several.first_pause = 0.1
        function host.random_number() return 0.9 end
        local release = host.event()
        start(self, host, function()
          local lock = client:lock "lock"
          assert(lock:lock())
          release:wait()
          lock:unlock()                  -- first loads the script
        end)
        start(self, host, function()     -- loads the script that leaves
          client:lock "lock":lock { wait = 0.1 }
        end)
        self.sleep(0.5)
        queue(self, "other", 0, got)
        self.sleep(0.5)
        local waiter = host.spawn(function() several:lock { wait = 100 } end)
        self.sleep(0.02)                 -- it pauses before a retry
        self.network:route(host, self.server).delay = 0.05
        release:set()
        self.sleep(0)
        waiter:cancel()
        self.sleep(2)
        assert.matches("^other 1%.[0-4]$", got[1] or "nobody")
      end)
    end)

  it("leaves, also if its owner has got the lock in another task", function()
    stage.play(function(self)
      local got, client, host = {}, open(self, "named")
      local job = client:mutex("lock", { owner = "job" })
      local holder, code = self:client():mutex "lock", nil
      assert(holder:lock { lease = 0.6 })
      start(self, host, function() code = select(2, job:lock { wait = 5 }) end)
      queue(self, "other", 0, got)
      host.spawn(function()              -- is faster than the waiter's retry
        host.sleep(0.59)
        while not job:try_lock() do host.sleep(0.0002) end
        host.sleep(0.4)
        job:unlock()
      end)
      self.sleep(3)
      assert.equal("refused", code)      -- a mutex is held once
      assert.matches("^other 1%.[0-4]$", got[1] or "nobody")
    end)
  end)

  it("keeps the place of another task with the same owner", function()
    stage.play(function(self)
      local got, lock = {}, held(self)
      local client, host = open(self, "named")
      for _, wait in ipairs { 100, 1 } do
        start(self, host, function()
          local own = client:lock("lock", { owner = "job" })
          if own:lock { wait = wait } then
            got[#got + 1] = "job"
            own:unlock()
          end
        end)
      end
      queue(self, "other", 0, got)
      self.sleep(1.5)
      lock:unlock()
      self.sleep(0.1)
      assert.equal("job", got[1])
    end)
  end)

  it("that comes to the front registers soon if the holder does not unlock",
    function()
      stage.play(function(self)
        local got, lock = {}, held(self)
        local client, host = open(self, "two")
        for i = 1, 2 do
          start(self, host, function()
            local own = client:lock "lock"
            assert(own:lock { wait = 100, lease = i == 1 and 0.5 or nil })
            got[#got + 1] = i
            if i == 2 then own:unlock() end
          end)
        end
        for _, name in ipairs { "busy1", "busy2" } do
          local its, busy = open(self, name)
          start(self, busy, function()
            while self.now() < 30 do
              assert(its:lock "lock":lock { wait = 100 })
              busy.sleep(0.3)
              its:lock "lock":unlock()
            end
          end)
        end
        lock:unlock()
        self.sleep(8)
        assert.same({ 1, 2 }, got)
      end)
    end)

  it("of a name in braces does not get the lock of the name without",
    function()
      stage.play(function(self)
        local got, lock = {}, held(self)
        local client, host = open(self, "braces")
        local braced = self:client():lock "{lock}"
        assert(braced:lock())
        start(self, host, function()
          assert(client:lock "{lock}":lock { wait = 100 })
        end)
        queue(self, "b", 0, got)
        self.sleep(0.5)
        lock:unlock()
        self.sleep(0.01)
        assert.equal(1, #got)
        assert(braced:unlock())
      end)
    end)

  it("that gives up lets the next one of its client register", function()
    stage.play(function(self)
      local got, lock = {}, held(self)
      local client, host = open(self, "two")
      for i, wait in ipairs { 1, 100 } do
        start(self, host, function()
          local own = client:lock "lock"
          if own:lock { wait = wait } then
            got[#got + 1] = ("%d %.1f"):format(i, self.now())
            own:unlock()
          end
        end)
      end
      self.sleep(2)
      assert.is_not_nil(entry(self, WAITERS))
      lock:unlock()
      self.sleep(0.1)
      assert.same({ "2 2.0" }, got)
    end)
  end)
end)

describe("the operations of a lock that is handed over", function()
  local policy, model = policies.load "reentrant", nil
  local keys = policy.keys "lock"
  local WAITED = keys[2] .. ":waited"

  local function run(name, ...)
    return model:eval(policy.ops[name].text, keys, { ... })
  end

  local function call(...) return model:call { ... } end

  -- The owners of the registered waiters, in order.
  local function waiters()
    local owners = {}
    for i, its in ipairs(call("zrange", WAITERS, "0", "-1")) do
      owners[i] = its:match "%S+$"
    end
    return table.concat(owners, " ")
  end

  -- The lock is held by A. These wait for it, each with a client of its own.
  before_each(function()
    model = redis.new()
    model.now = 1700000000000000
    assert.equal("held", run("acquire", "A", "5000", "1"))
  end)

  local function wait(owner)
    return run("acquire", owner, "5000", "1", "client-of-" .. owner)
  end

  it("tell a waiter to retry later for each one ahead of it", function()
    assert.same({ "busy", 5000 }, wait "B")
    assert.same({ "busy", 1020 }, wait "C")
    assert.same({ "busy", 1040 }, wait "D")
    assert.same({ "busy", 1020 }, wait "C")
    call("pexpire", "lock", "500")
    assert.same({ "busy", 500 }, wait "D")
    call("persist", "lock")
    assert.same({ "busy", -1 }, wait "B")
    assert.same({ "busy", 1040 }, wait "D")
    assert.equal("B C D", waiters())
  end)

  it("reserve it for a waiter that the holder names", function()
    wait "B"
    wait "C"
    assert.equal("freed", run("release", "A", "1", "0", "hand over",
      "client-of-C C"))
    assert.same({ "C", "0" }, call("hgetall", "lock"))
    assert.equal(1000, call("pttl", "lock"))
    assert.equal("B", waiters())
    assert.equal(1, call("exists", WAITED))
    assert.same({}, model.sent)
    assert.equal("held", run("acquire", "C", "5000", "1"))
    assert.equal("freed", run("release", "C", "1", "0", "hand over",
      "client-of-B B"))
    assert.same({ "B", "0" }, call("hgetall", "lock"))
    assert.equal("", waiters())
    assert.equal(0, call("exists", WAITED))
  end)

  it("remember that others wait when one gives up", function()
    wait "B"
    wait "C"
    assert.equal("left", run("leave", "B", "hand over", "client-of-B"))
    assert.equal("C", waiters())
    assert.equal(1, call("exists", WAITED))
    assert.equal("left", run("leave", "C", "hand over", "client-of-C"))
    assert.equal(0, call("exists", WAITED))
  end)
end)
