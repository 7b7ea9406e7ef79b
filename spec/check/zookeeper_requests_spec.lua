--- The requests that each operation sends to a model of ZooKeeper, and when.

local stage = require "spec.simulate.zookeeper.stage"

-- Asserts that these requests were sent since the last call: lines of seconds,
-- request and error. A line that begins with "and" continues one.
local function sent(self, text)
  local lines = {}
  for line in text:gmatch "[^\n]+" do
    line = line:match "^%s*(.-)%s*$"
    if line:find "^and " then
      lines[#lines] = lines[#lines] .. " " .. line
    elseif line ~= "" then
      lines[#lines + 1] = line
    end
  end
  assert.same(lines, self.requests())
end

-- A test with a connected client: fn(self, client).
local function on_stage(title, fn, options)
  it(title, function()
    stage.play(1, function(self)
      self.host.sleep(1)
      local own = self.open(options)
      assert(own.session.server.connection:reach(self.host.now() + 1))
      self.requests()
      fn(self, own)
    end)
  end)
end

-- Another client, connected.
local function other(self)
  local own = self.open()
  local link = own.session.server.connection
  assert(link:reach(self.host.now() + 1))
  self.requests()
  return own
end

-- Runs fn(...) in a task.
local function later(self, fn, ...)
  local task = self.host.spawn(fn, ...)
  self.host.sleep(0.01)
  return task
end

describe("the requests of a session", function()
  on_stage("keep it alive", function(self)
    self.host.sleep(3)
    sent(self, [[
      0.20 sync /
      0.40 sync /
      0.60 sync /
      0.80 sync /
      1.00 sync /
      1.20 sync /
      1.40 sync /
      1.60 sync /
      1.80 sync /
      2.00 sync /
      2.20 sync /
      2.40 sync /
      2.60 sync /
      2.80 sync /
      3.00 sync /
    ]])
  end)

  on_stage("keep it alive with writes while something is held",
    function(self, own)
      assert(own:lock("a"):lock())
      self.requests()
      self.host.sleep(3)
      sent(self, [[
        0.10 get /a/lock-0 watch
        0.20 sync /
        0.40 sync /
        0.60 sync /
        0.67 multi check /
        0.67 sync /
        0.87 sync /
        1.07 sync /
        1.27 multi check /
        1.27 sync /
        1.33 sync /
        1.53 sync /
        1.73 sync /
        1.93 multi check /
        1.93 sync /
        2.00 sync /
        2.20 sync /
        2.40 sync /
        2.60 multi check /
        2.60 sync /
        2.67 sync /
        2.87 sync /
      ]])
      local trips = own:stats().round_trip
      assert.is_true(trips.count >= 5 and trips.sum < 0.1, trips.sum)
    end)

  on_stage("begin it, and end it", function(self, own)
    local link = own.session.server.connection
    link:leave "a test"
    assert(link:reach(self.host.now() + 1))
    sent(self, [[
      0.02 session of 2000 ms, again
    ]])
    assert(own:lock("a"):lock())
    self.requests()
    self.log = {}
    own:close()
    assert.same({}, self.log)
    sent(self, [[
      0.00 delete /a/lock-0
      0.00 close
    ]])
    assert.same({}, self.ensemble:newest().tree:ephemerals())
  end)

  on_stage("end it within a second, though the server is silent",
    function(self, own)
      self.ensemble:freeze(self.ensemble[1], 10)
      local began = self.host.now()
      own:close()
      assert.near(1, self.host.now() - began, 0.01)
    end, { timeout = 3 })

  on_stage("write nothing while nothing is held", function(self, own)
    self.ensemble:put("/l/latch", "1 1\n")
    self.host.sleep(3)
    self.requests()
    assert.equal(1, own:latch("l"):count())
    sent(self, [[
      0.00 sync /
      0.00 get /l/latch
    ]])
  end)

  it("look for the chroot once", function()
    stage.play(1, function(self)
      self.host.sleep(1)
      local own = self.open()
      local link = own.session.server.connection
      self.ensemble:put("/app", "")
      own.session.server.options.chroot = "/app"
      self.requests()
      for _ = 1, 2 do
        assert(link:reach(self.host.now() + 1))
        link:leave "a test"
      end
      sent(self, [[
        0.00 session of 2000 ms, new
        0.00 exists /app
        0.02 session of 2000 ms, again
      ]])
    end)
  end)
end)

describe("the connection of a session", function()
  -- The times of the attempts to connect from now on.
  local function attempts_of(self)
    local frames, times = self.host.frames, {}
    function self.host.frames(...)
      times[#times + 1] = self.host.now()
      return frames(...)
    end
    return times
  end

  local function link_of(own) return own.session.server.connection end

  local function refuse(self, seconds)
    self.network:route(self.host, self.ensemble[1]).refuses_until =
      self.universe.now + seconds
  end

  on_stage("is closed when the server is silent", function(self, own)
    local link, began = link_of(own), self.host.now()
    self.ensemble:freeze(self.ensemble[1], 5)
    while link.is_ready do self.host.sleep(0.01) end
    local took = self.host.now() - began
    assert.is_true(took > 0.5 and took < 0.75, took)
    assert.same({ "lost the connection to zk1:2181: silent for 0.5 s while "
      .. "requests waited" }, self.log)
  end)

  on_stage("is closed after a third of the session without a reply",
    function(self, own)
      local link, began = link_of(own), self.host.now()
      self.ensemble:freeze(self.ensemble[1], 5)
      while link.is_ready do self.host.sleep(0.01) end
      assert.near(0.67 + 0.1, self.host.now() - began, 0.11)
    end, { timeout = 3 })

  on_stage("stays open while the server replies late", function(self, own)
    local link = link_of(own)
    for _ = 1, 8 do
      self.ensemble:freeze(self.ensemble[1], 0.4)
      self.host.sleep(0.7)
      assert.is_true(link.is_ready)
    end
    assert.same({}, self.log)
  end)

  on_stage("is restored at once, unless it was just established",
    function(self, own)
      local link = link_of(own)
      self.host.sleep(1.1)
      local began = self.host.now()
      link:leave "a test"
      assert(link:reach(began + 5))
      assert.is_true(self.host.now() - began < 0.01)
      for _ = 1, 12 do
        link:leave "a test"
        assert(link:reach(self.host.now() + 5))
      end
      local took = self.host.now() - began
      assert.is_true(took > 1.5 and took < 12, took)
      self.host.sleep(1.1)
      began = self.host.now()
      link:leave "a test"
      assert(link:reach(began + 5))
      assert.is_true(self.host.now() - began < 0.01)
    end)

  on_stage("is retried with exponential backoff up to a second",
    function(self, own)
      local times, link = attempts_of(self), link_of(own)
      refuse(self, 20)
      link:leave "a test"
      local deadline = self.host.now() + 20
      assert.equal("connect", select(2, link:reach(deadline)))
      assert.is_true(self.host.now() >= deadline)
      assert.is_true(#times >= 25 and #times <= 80, #times)
      for i = 2, #times do
        local pause = times[i] - times[i - 1]
        assert.is_true(pause < (i > 5 and 1.01 or 0.05 * 2 ^ i), pause)
      end
    end)

  on_stage("begins a new session when the old one must have expired",
    function(self, own)
      local link, times = link_of(own), attempts_of(self)
      for _, row in ipairs { { 3, 2, 2 }, { 10, 1, 3 } } do
        local seconds, attempts, epoch = table.unpack(row)
        refuse(self, seconds)
        link:leave "a test"
        self.host.sleep(seconds - 0.001)
        local before = #times
        assert(link:reach(self.host.now() + 5))
        assert.same({ attempts, epoch }, { #times - before, link.epoch })
        self.host.sleep(2)
      end
    end)

  on_stage("numbers its requests from 1 again after the largest number",
    function(_, own)
      local link, lock = link_of(own), own:lock "a"
      link.xid, link.answered = 2147483645, 2147483645
      for _ = 1, 3 do assert(lock:lock() and lock:unlock()) end
      assert.is_true(link.xid > 0 and link.xid < 100)
    end)

  it("may be to any of the servers", function()
    stage.play(5, function(self)
      local firsts = {}
      for _ = 1, 40 do
        local list = {}
        for i, at in ipairs(link_of(self.open()).hosts) do list[i] = at.host end
        firsts[list[1]] = true
        table.sort(list)
        assert.same({ "zk1", "zk2", "zk3", "zk4", "zk5" }, list)
      end
      for i = 1, 5 do assert.is_true(firsts["zk" .. i]) end
    end)
  end)
end)

describe("the requests of a lock", function()
  on_stage("that is free", function(self, own)
    local lock = own:lock "a"
    assert(lock:lock())
    sent(self, [[
      0.00 create2 /a/lock- 3 = -101
      0.00 children /a = -101
      0.00 create_container /a 4
      0.00 create2 /a/lock- 3
      0.00 children /a
    ]])
    assert(lock:lock())
    assert(lock:unlock())
    sent(self, [[
      0.00 sync /
      0.00 exists /a/lock-0
    ]])
    assert(lock:unlock())
    sent(self, [[
      0.00 delete /a/lock-0
    ]])
    assert(lock:lock())
    sent(self, [[
      0.00 create2 /a/lock- 3
      0.00 children /a
    ]])
  end)

  on_stage("that is busy", function(self, own)
    local lock, its = own:lock "a", other(self):lock "a"
    assert(its:lock())
    self.requests()
    assert.equal("busy", select(2, lock:try_lock()))
    sent(self, [[
      0.00 create2 /a/lock- 3
      0.00 children /a
    ]])
    assert.equal("timeout", select(2, lock:lock { wait = 0.3 }))
    sent(self, [[
      0.00 delete /a/lock-1
      0.00 create2 /a/lock- 3
      0.00 children /a
      0.00 get /a/lock-0 watch
      0.10 get /a/lock-0 watch
      0.19 sync /
      0.20 sync /
    ]])
    local task = later(self, function() assert(lock:lock()) end)
    sent(self, [[
      0.00 delete /a/lock-2
      0.00 create2 /a/lock- 3
      0.00 children /a
      0.00 get /a/lock-0 watch
    ]])
    assert(its:unlock())
    task:join()
    sent(self, [[
      0.00 delete /a/lock-0
      0.00 children /a
    ]])
    local session = own.session
    assert.same({ {}, 0 }, { session.server.channels.list,
      session.wakeup.count })
  end)

  on_stage("with a lease", function(self, own)
    assert(own:lock("a"):lock { lease = 1 })
    self.requests()
    self.host.sleep(1.5)
    sent(self, [[
      0.10 get /a/lock-0 watch
      0.20 sync /
      0.40 sync /
      0.60 sync /
      0.80 multi check /
      0.80 sync /
      1.00 sync /
      1.00 delete /a/lock-0
      1.20 sync /
      1.40 sync /
    ]])
  end)

  on_stage("for `peek` and `break_lock`", function(self, own)
    local lock, its = own:lock "a", other(self):lock "a"
    assert(its:lock())
    local task = later(self, function() assert(lock:lock()) end)
    self.requests()
    local state, seen = assert(lock:peek()), assert(its:peek())
    assert.same({ "held", 0, 1, 1 }, { state.state, state.count, state.waiting,
      #state.holders })
    assert.same({ owner = "client", count = 1 }, state.holders[1])
    assert.is_nil(state.ttl)
    assert.equal(its:token(), state.token)
    assert.same({ 1, 1 }, { seen.count, seen.waiting })
    assert.is_true(seen.ttl > 1 and seen.ttl < 2)
    sent(self, [[
      0.00 children /a
      0.00 get /a/lock-0
      0.00 children /a
      0.00 get /a/lock-0
    ]])
    assert.equal("refused", select(2, lock:break_lock(its:token() + 1)))
    self.requests()
    assert(own:lock("a"):break_lock())
    task:join()
    sent(self, [[
      0.00 children /a
      0.00 get /a/lock-0
      0.00 delete /a/lock-0
      0.00 children /a
    ]])
  end)
end)

describe("the requests of a mutex", function()
  on_stage("that is free", function(self, own)
    local mutex = own:mutex "m"
    assert(mutex:lock())
    sent(self, [[
      0.00 children /m = -101
      0.00 create2 /m/locks/lock- 3 = -101
      0.00 children /m/locks = -101
      0.00 create_container /m 4
      0.00 create_container /m/locks 4
      0.00 create2 /m/locks/lock- 3
      0.00 children /m/locks
      0.00 create2 /m/leases/lease- 3 = -101
      0.00 children /m/leases watch = -101
      0.01 create_container /m 4 = -110
      0.01 create_container /m/leases 4
      0.01 create2 /m/leases/lease- 3
      0.01 children /m/leases watch
    ]])
    assert(mutex:unlock())
    sent(self, [[
      0.00 delete /m/locks/lock-0
      0.00 delete /m/locks/lock-0 = -101
      0.00 delete /m/leases/lease-0
    ]])
  end)

  on_stage("that is busy", function(self, own)
    local mutex, its = own:mutex "m", other(self):mutex "m"
    assert(its:lock())
    self.requests()
    assert.equal("busy", select(2, mutex:try_lock()))
    sent(self, [[
      0.00 children /m
      0.00 delete /m/locks/lock-0
      0.00 create2 /m/locks/lock- 3
      0.00 children /m/locks
      0.00 create2 /m/leases/lease- 3
      0.00 children /m/leases watch
    ]])
    local task = later(self, function() assert(mutex:lock()) end)
    sent(self, [[
      0.00 delete /m/leases/lease-1
      0.00 delete /m/locks/lock-1
      0.00 create2 /m/locks/lock- 3
      0.00 children /m/locks
      0.00 create2 /m/leases/lease- 3
      0.00 children /m/leases watch
    ]])
    assert(its:unlock())
    task:join()
    sent(self, [[
      0.00 delete /m/leases/lease-0
      0.00 children /m/locks
      0.00 children /m/leases watch
    ]])
  end)
end)

describe("the requests of a read/write lock", function()
  on_stage("whose writer waits for a reader", function(self, own)
    local pair, its = own:read_write_lock "p", other(self):read_write_lock "p"
    assert(its:read_lock():lock())
    assert(pair:read_lock():lock())
    sent(self, [[
      0.00 create2 /p/__READ__ 3 = -101
      0.00 children /p = -101
      0.00 create_container /p 4
      0.00 create2 /p/__READ__ 3
      0.00 children /p
      0.00 create2 /p/__READ__ 3
      0.00 children /p
    ]])
    assert(pair:read_lock():unlock())
    self.requests()
    local task = later(self, function()
      assert(pair:write_lock():lock())
      assert(pair:read_lock():lock())
      assert(pair:write_lock():unlock())
      assert(pair:read_lock():unlock())
    end)
    sent(self, [[
      0.00 create2 /p/__WRIT__ 3
      0.00 children /p
      0.00 get /p/__READ__0 watch
    ]])
    assert(its:read_lock():unlock())
    task:join()
    sent(self, [[
      0.00 delete /p/__READ__0
      0.00 children /p
      0.00 create2 /p/__READ__2 1
      0.00 children /p
      0.00 delete /p/__WRIT__2
      0.00 delete /p/__READ__2
    ]])
  end)
end)

describe("the requests of a semaphore", function()
  on_stage("whose permits are free", function(self, own)
    local semaphore = own:semaphore "s"
    assert(semaphore:set(3))
    sent(self, [[
      0.00 create_container /s 4
      0.00 create2 /s/limit 0
    ]])
    assert(semaphore:acquire(2))
    sent(self, [[
      0.00 children /s
      0.00 create2 /s/locks/lock- 3 = -101
      0.00 children /s/locks = -101
      0.00 create_container /s 4 = -110
      0.00 create_container /s/locks 4
      0.00 create2 /s/locks/lock- 3
      0.00 children /s/locks
      0.00 exists /s/limit watch
      0.00 get /s/limit
      0.01 create2 /s/leases/lease- 3 = -101
      0.01 children /s/leases watch = -101
      0.01 create_container /s 4 = -110
      0.01 create_container /s/leases 4
      0.01 create2 /s/leases/lease- 3
      0.01 children /s/leases watch
      0.01 create2 /s/leases/lease- 3
      0.01 children /s/leases watch
    ]])
    assert.equal(1, semaphore:available())
    assert(semaphore:add(1))
    assert.equal(2, semaphore:drain())
    sent(self, [[
      0.00 delete /s/locks/lock-0
      0.00 get /s/limit
      0.00 children /s/leases
      0.00 get /s/limit
      0.00 set /s/limit 0
      0.01 get /s/limit
      0.01 children /s/leases
      0.01 create2 /s/locks/lock- 3
      0.01 children /s/locks
      0.01 exists /s/limit watch
      0.01 get /s/limit
      0.01 create2 /s/leases/lease- 3
      0.01 children /s/leases watch
      0.01 create2 /s/leases/lease- 3
      0.01 children /s/leases watch
    ]])
    assert(semaphore:release(4))
    assert.equal(5, #self.requests())        -- in any order
  end)

  on_stage("that is waited for", function(self, own)
    local semaphore, its = own:semaphore "s", other(self):semaphore "s"
    assert(its:set(1))
    assert(its:acquire())
    self.requests()
    assert.equal("busy", select(2, semaphore:try_acquire(2)))
    sent(self, [[
      0.00 delete /s/locks/lock-0
      0.00 children /s
      0.00 create2 /s/locks/lock- 3
      0.00 children /s/locks
      0.00 exists /s/limit watch
      0.00 get /s/limit
      0.00 create2 /s/leases/lease- 3
      0.00 children /s/leases watch
    ]])
    local task = later(self, function() assert(semaphore:acquire()) end)
    sent(self, [[
      0.00 delete /s/locks/lock-1
      0.00 delete /s/leases/lease-1
      0.00 create2 /s/locks/lock- 3
      0.00 children /s/locks
      0.00 exists /s/limit watch
      0.00 get /s/limit
      0.00 create2 /s/leases/lease- 3
      0.00 children /s/leases watch
    ]])
    assert.equal("busy", select(2, semaphore:try_acquire()))
    sent(self, [[
      0.00 create2 /s/locks/lock- 3
      0.00 children /s/locks
    ]])
    local second = later(self, function() assert(semaphore:acquire()) end)
    self.host.sleep(0.5)
    self.requests()
    self.host.sleep(20)
    for _, request in ipairs(self.requests()) do
      assert.matches(" /$", request)           -- of the session only
    end
    assert(its:add(1))
    task:join()
    sent(self, [[
      0.00 get /s/limit
      0.00 set /s/limit 0
      0.00 children /s/locks
      0.00 exists /s/limit watch
      0.00 get /s/limit
      0.00 children /s/leases watch
    ]])
    assert(its:add(1))
    second:join()
  end)
end)

describe("the requests of permits", function()
  on_stage("with leases", function(self, own)
    local permits = own:permits "p"
    assert(permits:set(2))
    sent(self, [[
      0.00 set /p/limit = -101
      0.00 create_container /p 4
      0.00 create2 /p/limit 0
    ]])
    local id = assert(permits:acquire { lease = 5 })
    sent(self, [[
      0.00 children /p
      0.00 create2 /p/locks/lock- 3 = -101
      0.00 children /p/locks = -101
      0.00 create_container /p 4 = -110
      0.00 create_container /p/locks 4
      0.00 create2 /p/locks/lock- 3
      0.00 children /p/locks
      0.00 exists /p/limit watch
      0.00 get /p/limit
      0.01 create2 /p/leases/lease- 3 = -101
      0.01 children /p/leases watch = -101
      0.01 create_container /p 4 = -110
      0.01 create_container /p/leases 4
      0.01 create2 /p/leases/lease- 3
      0.01 children /p/leases watch
    ]])
    assert(permits:renew(id, 6))
    assert.equal(1, permits:available())
    assert.equal(1, permits:acquired())
    sent(self, [[
      0.00 delete /p/locks/lock-0
      0.00 sync /
      0.00 get /p/limit
      0.00 children /p/leases
      0.00 get /p/limit
      0.00 children /p/leases
    ]])
    local shown = assert(permits:peek())
    assert.same({ "free", 1 }, { shown.state, #shown.holders })
    sent(self, [[
      0.00 get /p/limit
      0.00 children /p/leases
      0.00 children /p/leases
      0.00 get /p/leases/lease-0
    ]])
    assert(permits:release(id))
    assert(permits:set(1))
    sent(self, [[
      0.00 delete /p/leases/lease-0
      0.00 set /p/limit
    ]])
    assert(permits:acquire())
    assert.equal("held", assert(permits:peek()).state)
    assert.equal("busy", select(2, permits:try_acquire()))
  end)
end)

describe("the requests of a latch", function()
  on_stage("that is counted down", function(self, own)
    local latch, its = own:latch "l", other(self):latch "l"
    assert(latch:set(2))
    sent(self, [[
      0.00 children /l = -101
      0.00 sync /
      0.00 get /l/latch = -101
      0.00 exists /l = -101
      0.00 create_container /l 4
      0.00 create2 /l/latch 0
    ]])
    local task = later(self, function() assert(its:wait()) end)
    sent(self, [[
      0.00 sync /
      0.00 get /l/latch
      0.00 sync /
      0.00 get /l/latch watch
    ]])
    assert(latch:count_down())
    assert.equal(1, latch:count())
    sent(self, [[
      0.00 sync /
      0.00 get /l/latch
      0.00 set /l/latch 0
      0.00 sync /
      0.00 get /l/latch
      0.00 sync /
      0.00 get /l/latch watch
    ]])
    assert(latch:count_down())
    task:join()
    sent(self, [[
      0.00 sync /
      0.00 get /l/latch
      0.00 set /l/latch 1
      0.00 sync /
      0.00 get /l/latch watch
    ]])
    assert(latch:delete())
    assert.is_false(latch:delete())
    sent(self, [[
      0.00 delete /l/latch
      0.00 delete /l/latch = -101
    ]])
  end)
end)

describe("the requests of a barrier", function()
  on_stage("that is waited for", function(self, own)
    local barrier, its = own:barrier "b", other(self):barrier "b"
    assert(barrier:set())
    sent(self, [[
      0.00 create2 /b 0
    ]])
    local task = later(self, function() assert(its:wait()) end)
    sent(self, [[
      0.00 sync /
      0.00 exists /b watch
      0.00 sync /
      0.00 exists /b watch
    ]])
    assert(barrier:remove())
    task:join()
    sent(self, [[
      0.00 delete /b
      0.00 sync /
      0.00 exists /b watch = -101
    ]])
  end)

  on_stage("of two members", function(self, own)
    local one, two = own:double_barrier("d", 2),
      other(self):double_barrier("d", 2)
    local task = later(self, function()
      assert(one:enter())
      self.host.sleep(0.1)
      assert(one:leave())
    end)
    sent(self, [[
      0.00 get /d watch = -101
      0.00 children /d watch = -101
      0.00 create2 /d/member- 3 = -101
      0.00 children /d = -101
      0.00 create2 /d 0
      0.00 create2 /d/member- 3
      0.00 children /d
      0.01 get /d watch
      0.01 children /d watch
      0.01 get /d watch
      0.01 children /d watch
    ]])
    assert(two:enter())
    sent(self, [[
      0.00 get /d watch
      0.00 children /d watch
      0.00 create2 /d/member- 3
      0.00 children /d
      0.00 get /d watch
      0.00 get /d watch
      0.00 children /d watch
      0.00 children /d watch
      0.01 multi set /d 0 and check /d/member-0 and check /d/member-1
      and create2 /d/ready 0
      0.01 multi set /d 0 and check /d/member-0 and check /d/member-1
      and create2 /d/ready 0
      0.01 get /d watch
      0.01 get /d watch
      0.01 children /d watch
      0.01 children /d watch
    ]])
    assert(two:leave())
    task:join()
    sent(self, [[
      0.00 get /d watch
      0.00 children /d watch
      0.00 set /d 1
      0.00 get /d watch
      0.00 children /d watch
      0.01 delete /d/member-1
      0.01 get /d watch
      0.01 children /d watch
      0.01 get /d watch
      0.01 children /d watch
      0.09 get /d/member-0 watch
      0.10 get /d watch
      0.10 children /d watch
      0.10 set /d 2
      0.10 get /d watch
      0.10 get /d watch
      0.10 children /d watch
      0.10 children /d watch
      0.10 get /d watch
      0.10 delete /d/member-0
      0.11 children /d watch
      0.11 get /d watch
      0.11 children /d watch
      0.11 multi check /d 3 and delete /d/ready
      0.11 multi check /d 3 and delete /d/ready
      0.11 get /d watch
      0.11 children /d watch
      0.11 get /d watch
      0.11 children /d watch
    ]])
  end)
end)

describe("the requests of other calls", function()
  on_stage("read and set nodes", function(self, own)
    self.ensemble:put("/n", "old")
    local lock = own:lock "a"
    local hold = assert(lock:hold())
    self.requests()
    assert.equal("old", (own:get "n"))
    assert.equal(1, select(2, own:set("n", "new", 0)))
    assert.equal(2, select(2, hold:set("n", "newer")))
    sent(self, [[
      0.00 get /n
      0.00 set /n 0
      0.00 multi check /a/lock-0 and set /n
    ]])
  end)

  on_stage("compute a value", function(self, own)
    assert.equal("x", (own:compute("c", { ttl = 5 }, function()
      return "x"
    end)))
    sent(self, [[
      0.00 get /c/compute/value = -101
      0.00 create2 /c/compute/lock- 3 = -101
      0.00 children /c/compute = -101
      0.00 create_container /c 4
      0.00 create_container /c/compute 4
      0.00 create2 /c/compute/lock- 3
      0.00 children /c/compute
      0.00 get /c/compute/value = -101
      0.01 create_container /c 4 = -110
      0.01 create_container /c/compute 4 = -110
      0.01 create2 /c/compute/value 0
      0.01 get /c/compute/value
      0.01 multi check /c/compute/lock-0 and set /c/compute/value
      0.01 delete /c/compute/lock-0
    ]])
    assert.equal("x", (own:compute("c", { ttl = 5 }, function()
      return "y"
    end)))
    sent(self, [[
      0.00 get /c/compute/value
    ]])
  end)

  on_stage("wait for a value that another one computes", function(self, own)
    local its = other(self)
    local task = later(self, function()
      own:compute("c", { ttl = 5 }, function()
        self.host.sleep(0.05)
        return "x"
      end)
    end)
    self.requests()
    assert.same({ "x", "cached" }, { its:compute("c", { ttl = 5 }, error) })
    task:join()
    sent(self, [[
      0.00 get /c/compute/value
      0.00 create2 /c/compute/lock- 3
      0.00 children /c/compute
      0.00 get /c/compute/lock-0 watch
      0.00 get /c/compute/value watch
      0.05 multi check /c/compute/lock-0 and set /c/compute/value
      0.05 delete /c/compute/lock-0
      0.05 get /c/compute/value watch
    ]])
  end)

  on_stage("wait for a value that others fail to compute", function(self, own)
    local runs, got = 0, {}
    local function fail()
      runs = runs + 1
      self.host.sleep(0.1)
      return nil, "no luck"
    end
    for i = 1, 4 do
      local its = i == 1 and own or other(self)
      later(self, function()
        got[i] = { its:compute("c", { ttl = 5 }, fail) }
      end)
    end
    self.host.sleep(3)
    assert.equal(2, runs)
    for i = 1, 4 do assert.same({ nil, "failed", "no luck" }, got[i], i) end
  end)

  on_stage("elect a leader", function(self, own)
    local election = own:election "e"
    assert(election:campaign())
    sent(self, [[
      0.00 create2 /e/lock- 3 = -101
      0.00 children /e = -101
      0.00 create_container /e 4
      0.00 create2 /e/lock- 3
      0.00 children /e
    ]])
    assert(election:resign())
    sent(self, [[
      0.00 delete /e/lock-0
    ]])
  end)

  on_stage("ask a holder to release a lock", function(self, own)
    local lock, its, asked = own:lock "a", other(self):lock "a", nil
    assert(its:lock())
    assert(its:on_release_request(function(_, reason) asked = reason end))
    self.host.sleep(0.2)
    self.requests()
    assert(lock:request_release "please")
    self.host.sleep(0.1)
    assert.equal("please", asked)
    sent(self, [[
      0.00 children /a
      0.00 get /a/lock-0
      0.00 set /a/lock-0
      0.00 get /a/lock-0 watch
      0.00 set /a/lock-0 2
      0.01 get /a/lock-0 watch
    ]])
  end)
end)

describe("on ZooKeeper", function()
  on_stage("a hold is valid for less than its session, or for its lease",
    function(self, own)
      local lock = own:lock "a"
      assert(lock:lock())
      local left = lock:valid_for()
      assert.is_true(left > 1.5 and left <= 1.8, left)
      self.host.sleep(5)
      left = lock:valid_for()
      assert.is_true(left > 0.4 and left <= 1.8, left)
      local short = own:lock "b"
      assert(short:lock { lease = 0.5 })
      assert.is_true(short:valid_for() > 0.4 and short:valid_for() <= 0.5)
    end)

  on_stage("a hold leaves no watch of the queue that it has passed",
    function(_, own)
      assert(own:mutex("a"):lock())
      for path in pairs(own.session.server.connection.watches) do
        assert.not_matches("/leases$", path)
      end
    end)

  on_stage("an idle client begins a new session later", function(self, own)
    local lock, link = own:lock "a", own.session.server.connection
    assert(lock:lock() and lock:unlock())
    own.session.server:rest()
    self.host.sleep(0.1)
    assert.is_false(link.is_ready)
    self.requests()
    self.host.sleep(5)
    sent(self, "")
    assert(lock:lock() and lock:unlock())
    assert.equal(2, link.epoch)
  end)

  on_stage("a hold is at risk while the server is down, then lost",
    function(self, own)
      assert(own:lock("a"):lock())
      self.host.sleep(1)
      self.log = {}
      self.network:route(self.host, self.ensemble[1]).refuses_until =
        self.universe.now + 10
      own.session.server.connection:leave "a test"
      self.host.sleep(3)
      assert.matches("^lost the connection to zk1:2181: a test$", self.log[1])
      assert.equal("1 hold is at risk: a test", self.log[2])
      assert.matches('^lost reentrant lock "a": its session was not confirmed '
        .. "in time$", self.log[3])
      assert.equal("lost", own:lock("a"):state())
    end)

  on_stage("no call waits beyond its deadline if the server is down",
    function(self, own)
      local permits, semaphore, latch = own:permits "p", own:semaphore "s",
        own:latch "l"
      local id = assert(permits:set(2) and permits:acquire { lease = 60 })
      assert(semaphore:set(2) and semaphore:acquire() and latch:set(2))
      self.network:route(self.host, self.ensemble[1]).refuses_until = math.huge
      own.session.server.connection:leave "a test"
      for i, call in ipairs {
        function() return own:lock("a"):try_lock() end,
        function() return own:lock("a"):lock { wait = 1 } end,
        function() return own:mutex("m"):try_lock() end,
        function() return own:lock("a"):peek() end,
        function() return own:lock("a"):break_lock() end,
        function() return permits:set(1) end,
        function() return permits:try_acquire() end,
        function() return permits:available() end,
        function() return permits:acquired() end,
        function() return permits:peek() end,
        function() return semaphore:set(1) end,
        function() return semaphore:add(1) end,
        function() return semaphore:try_acquire() end,
        function() return semaphore:available() end,
        function() return semaphore:drain() end,
        function() return semaphore:release() end,
        function() return latch:set(1) end,
        function() return latch:count() end,
        function() return latch:count_down() end,
        function() return latch:delete() end,
        function() return latch:wait { wait = 1 } end,
        function() return own:barrier("b"):set() end,
        function() return own:barrier("b"):remove() end,
        function() return own:barrier("b"):wait { wait = 1 } end,
        function() return own:double_barrier("d", 1):enter { wait = 1 } end,
        function() return own:compute("c", { ttl = 1, wait = 1 }, print) end,
        function() return own:election("e"):campaign { wait = 1 } end,
        function() return own:election("e"):candidates() end,
        function() return own:get "n" end,
        function() return own:set("n", "x") end,
        function() return own:lock("a"):request_release() end,
        function() return permits:renew(id, 5) end,
        function() return permits:release(id) end,
      } do
        local began = self.host.now()
        local ok, code, detail = call()
        assert.is_nil(ok, i)
        assert.is_string(detail, i)
        assert.is_true(code == "connect" or code == "timeout"
          or code == "closed" or code == "lost" or code == "not_held",
          i .. " " .. tostring(code))
        assert.is_true(self.host.now() - began <= 1.6, i)
      end
    end)

  on_stage("the candidates of an election are listed in their order",
    function(self, own)
      local leader = other(self):election "e"
      assert(leader:campaign())
      for i = 1, 2 do
        later(self, function() own:election("e"):campaign { wait = 5 + i } end)
      end
      assert.equal("client", (leader:leader()))
      assert.same({ "client", "client" }, leader:candidates())
    end)

  on_stage("a lock of another kind at a path is refused, without a node",
    function(self, own)
      assert(own:lock("a"):lock())
      assert(own:mutex("m"):lock())
      for lock, mark in pairs { [own:mutex "a"] = "lock%-",
          [own:read_write_lock("a"):read_lock()] = "lock%-",
          [own:lock "m"] = "l%l+" } do
        for _, wait in ipairs { 0, 1 } do
          local _, code, detail = lock:lock { wait = wait }
          assert.equal("refused", code)
          assert.matches("has nodes of another kind of lock %(" .. mark,
            detail)
        end
      end
      for _, name in ipairs { "permits", "semaphore" } do
        local _, code, detail = own[name](own, "a"):acquire { wait = 1 }
        assert.equal("refused", code)
        assert.matches("^/a has nodes of another kind of lock", detail)
      end
      self.host.sleep(1)
      assert.equal(2, #self.ensemble:newest().tree:ephemerals())
      assert.same({}, self.log)
    end)

  on_stage("a number of permits has 4 bytes", function(self, own)
    self.ensemble:put("/s/limit", "three")
    local _, code, detail = own:semaphore("s"):available()
    assert.equal("refused", code)
    assert.equal("/s/limit is not a SharedCount of 4 bytes", detail)
  end)

  on_stage("a number of permits is set before any are added",
    function(_, own)
      local semaphore = own:semaphore "s"
      assert.same({ nil, "refused", "the number of permits was never set" },
        { semaphore:add(1) })
      assert.equal(0, semaphore:available())
    end)

  on_stage("a semaphore has no time to live", function(_, own)
    assert.error_matches(function()
      own:semaphore("s"):set(1, { ttl = 60 })
    end, "bad options of semaphore:set: ttl is for Redis")
  end)

  on_stage("a latch has a count of ten digits at most", function(self, own)
    self.ensemble:put("/l/latch", "1234567890 1\n")
    assert.equal(1234567890, own:latch("l"):count())
    for i, data in ipairs { "12345678901 1\n", "1 12345678901\n", "1\n",
        "" } do
      self.ensemble:put(("/l%d/latch"):format(i), data)
      local _, code, detail = own:latch("l" .. i):count()
      assert.equal("refused", code, i)
      assert.matches("/latch is not a latch$", detail)
    end
  end)
end)
