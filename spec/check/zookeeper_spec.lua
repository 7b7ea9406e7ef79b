--- The client on a model of ZooKeeper, and planted faults that are found. As in
--- simulate_spec.lua, all seeds are fixed.

local codec = require "rlock.zookeeper.codec"
local ctl = require "spec.cli.ctl"
local plant = require "spec.tools.plant"
local rows = require "spec.rows.simulated"
local stage = require "spec.simulate.zookeeper.stage"
local world = require "spec.simulate.world"

local play = stage.play

local RUNS = 8                          -- of each sort
local MOST = 40                         -- runs within which a fault is found

teardown(ctl.clean)

-- Opens a client that uses one server only.
---@param wanted function gets a server's name: is it this one?
local function open_at(self, wanted)
  local own = self.open()
  local link = own.session.server.connection
  for _, at in ipairs(link.hosts) do
    if wanted(at.host) then link.hosts = { at } end
  end
  assert(link:reach(self.host.now() + 1))
  return own
end

-- The faults of a run, with the command that repeats it.
local function faults_of(seed, only)
  only.zookeeper = true
  local faults = {}
  for i, fault in ipairs(world.simulate(seed, { only = only }).oracle.faults) do
    faults[i] = ("make simulate ZOOKEEPER=1 SEED=%d  # %s"):format(seed,
      fault.text)
  end
  return faults
end

local function finds(row)
  local _, _, _, _, what, run_options = table.unpack(row)
  run_options = setmetatable({ wanted = what }, { __index = run_options })
  local simulate = require("spec.simulate.world").simulate
  for seed = 1, MOST do
    if simulate(seed, run_options).oracle.reported[what] then return true end
  end
  return false
end

describe("clients of a simulated ZooKeeper", function()
  local function exclude(servers)
    return function()
      for seed = 1, RUNS do
        assert.same({}, faults_of(seed, { servers = servers }))
      end
    end
  end

  it("exclude each other with 3 servers", exclude(3))
  it("exclude each other with one server #long", exclude(1))
  it("exclude each other with 5 servers #long", exclude(5))

  it("count permits", function()
    for seed = 1, RUNS do
      assert.same({}, faults_of(seed, { counter = "semaphore" }))
    end
    for seed = 1, RUNS / 4 do
      assert.same({}, faults_of(seed, { counter = "permits" }))
    end
  end)

  it("count down latches", function()
    for seed = 1, RUNS / 4 do
      assert.same({}, faults_of(seed, { counter = "latch" }))
    end
  end)

  it("enter and leave double barriers together", function()
    for seed = 1, RUNS / 2 do
      assert.same({}, faults_of(seed, { counter = "double_barrier" }))
    end
  end)
end)

describe("a simulated ZooKeeper", function()
  it("forgets what a leader that was deposed has proposed", function()
    play(3, function(self)
      self.host.sleep(1)
      local ensemble = self.ensemble
      local old = ensemble:leader()
      local function restart_others()
        for _, server in ipairs(ensemble) do
          if server ~= old then ensemble:restart(server, 0.1) end
        end
      end
      ensemble:cut(old, nil, 60)
      ensemble:delete "/none"
      restart_others()
      self.host.sleep(5)
      assert.not_equal(old, ensemble:leader())
      ensemble:cut(old, nil, 0)
      restart_others()
      self.host.sleep(5)
      assert.not_equal(old, ensemble:leader())
      assert.equal(0, #old.log)
    end)
  end)
end)

describe("a client of a simulated ZooKeeper", function()
  it("keeps a session alive that was made after its caller gave up", function()
    play(1, function(self)
      local own = self.open()
      local link = own.session.server.connection
      self.host.sleep(1)
      assert.equal("connect", select(2, link:connect(self.host.now() + 1e-4)))
      self.host.sleep(1)
      assert.is_true(link.is_ready)
      self.host.sleep(10)
      assert.is_true(link.validity.heard > self.host.now() - 2)
      assert.equal(1, link.epoch)
      own:close()
    end)
  end)
end)

describe("a lock of a simulated ZooKeeper", function()
  -- The reply to the create is lost. The session is resumed on another server,
  -- and the node is committed only after that.
  it("leaves no node whose create is committed late", function()
    play(3, function(self)
      self.host.sleep(1)
      local own = self.open()
      local link, lock = own.session.server.connection, own:lock "a"
      assert(lock:lock())
      assert(lock:unlock())
      while self.ensemble[link.link.where:match "^%w+"].role == "leader" do
        link.next_host = link.next_host % 3 + 1
        link:leave "to a follower"
        assert(link:reach(self.host.now() + 1))
      end
      for _, server in ipairs(self.ensemble) do
        self.ensemble:slow_disk(server, 1.5)
        if server.role == "leader"
            or link.link.where:find(server.name, 1, true) then
          self.network:route(self.host, server).refuses_until = math.huge
        end
      end
      assert.is_nil((lock:lock { wait = 0.3 }))
      self.host.sleep(5)
      assert.same({}, self.ensemble:newest().tree:ephemerals())
      assert(lock:lock { wait = 1 })
    end)
  end)
end)

describe("a hold of a simulated ZooKeeper", function()
  -- The others do not wait for the leader: they restart. It does not know that,
  -- and answers syncs for some ticks.
  it("is not prolonged by a leader that was deposed", function()
    play(3, function(self)
      self.host.sleep(1)
      local old = self.ensemble:leader()
      local lock = open_at(self, function(name) return name == old.name end)
        :lock "a"
      local other = open_at(self, function(name) return name ~= old.name end)
        :lock "a"
      assert(lock:lock())
      self.host.sleep(1)
      self.ensemble:cut(old, nil, 60)
      for _, server in ipairs(self.ensemble) do
        if server ~= old then self.ensemble:restart(server, 0.01) end
      end
      assert(other:lock { wait = 10 })
      assert.equal(0, lock:valid_for())
    end)
  end)

  -- The renewal waits for a connection before it is sent.
  it("keeps its node for as long as it is valid", function()
    play(1, function(self)
      local own = self.open()
      local link = own.session.server.connection
      local hold = assert(own:lock("a"):hold())
      local entry = next(own.session.server.entries)
      local route = self.network:route(self.host, self.ensemble[1])
      for _ = 1, 4 do
        route.refuses_until = self.host.universe.now + 0.4
        link:leave "a test"
        for _ = 1, 150 do
          self.host.sleep(0.01)
          local left = entry.deadline - self.host.now()
          assert.is_true(hold:valid_for() <= left + 1e-6)
        end
      end
      assert.equal("held", hold:state())
    end)
  end)
end)

describe("a waiter of a simulated ZooKeeper, whose session ends", function()
  -- Breaks a client's connection when it makes a lease, for longer than its
  -- session lasts.
  local function break_at_lease(self, own)
    local link = own.session.server.connection
    assert(link:reach(self.host.now() + 1))
    function link.post(...)
      local call = getmetatable(link).post(...)
      if not link.is_broken and (select(3, ...) or ""):find "lease%-" then
        link.is_broken = true
        self.network:route(self.host, self.ensemble[1]).refuses_until =
          self.host.now() + 6
        link:leave "the spec wants it"
      end
      return call
    end
    return link
  end

  -- The holder ends while two wait: the one whose session was replaced, and
  -- one that has come to the front since.
  local function is_behind(make)
    play(1, function(self)
      self.host.sleep(1)
      local first, early, late = self.open(), self.open(),
        self.open()
      assert(make(first).take())
      assert(late.session.server.connection:reach(self.host.now() + 1))
      local link, tasks, done = break_at_lease(self, early), {}, 0
      local function join_in(own)
        tasks[#tasks + 1] = self.host.spawn(function()
          local its = make(own)
          assert(its.take { wait = 20 })
          assert(its.free())
          done = done + 1
        end)
      end
      join_in(early)
      self.host.sleep(4)
      assert.is_true(link.is_broken)
      join_in(late)
      self.host.sleep(6)
      assert.equal(2, link.epoch)
      assert(make(first).free())
      for _, task in ipairs(tasks) do task:join() end
      assert.equal(2, done)
    end)
  end

  it("does not wait for a mutex without its place in the queue", function()
    is_behind(function(own)
      local mutex = own:mutex "m"
      return {
        take = function(with) return mutex:lock(with) end,
        free = function() return mutex:unlock() end,
      }
    end)
  end)

  it("does not wait for a semaphore without its place", function()
    is_behind(function(own)
      local semaphore = own:semaphore "s"
      semaphore:set(1)
      return {
        take = function(with) return semaphore:acquire(1, with) end,
        free = function() return semaphore:release() end,
      }
    end)
  end)
end)

describe("a semaphore of a simulated ZooKeeper", function()
  -- Runs fn(semaphore, client, self) with a semaphore of three permits.
  local function with_three(fn)
    play(1, function(self)
      self.host.sleep(1)
      local own = self.open()
      local semaphore = own:semaphore "s"
      assert(semaphore:set(3))
      fn(semaphore, own, self)
    end)
  end

  it("releases other permits for each of two tasks", function()
    with_three(function(semaphore, _, self)
      assert(semaphore:acquire(3))
      local other = self.host.spawn(function() assert(semaphore:release()) end)
      assert.is_true(semaphore:release(2))
      other:join()
      assert.equal(3, semaphore:available())
    end)
  end)

  it("releases all permits, though the first answer is late", function()
    with_three(function(semaphore, own, self)
      own.session.timeout = 0.2
      assert(semaphore:acquire(3))
      self.ensemble:freeze(self.ensemble[1], 0.3)
      assert.equal("timeout", select(2, semaphore:release(3)))
      self.host.sleep(2)
      assert.equal(3, semaphore:available())
    end)
  end)
end)

describe("the permits of a semaphore of a simulated ZooKeeper", function()
  it("are known without the object that acquired them", function()
    play(1, function(self)
      self.host.sleep(1)
      local own = self.open()
      assert(own:semaphore("s"):set(1))
      assert(own:semaphore("s"):acquire())
      for _ = 1, 2 do collectgarbage() end
      assert(own:semaphore("s"):release())
    end)
  end)
end)

describe("permits of a simulated ZooKeeper", function()
  -- The answer to the first waiter comes after its lease, so it retries with
  -- another id, behind the second one.
  it("are given at once to a waiter with a new id", function()
    play(1, function(self)
      self.host.sleep(1)
      local holder, first, second, tasks, freed = self.open(),
        self.open(), self.open(), {}, nil
      assert(holder:permits "p":set(1))
      local id = assert(holder:permits "p":acquire())
      local function wait(own)
        assert(own.session.server.connection:reach(self.host.now() + 1))
        tasks[#tasks + 1] = self.host.spawn(function()
          local its = assert(own:permits "p":acquire())
          local at = self.host.now()
          self.host.sleep(1)
          assert(own:permits "p":release(its))
          freed = freed or self.host.now()
          return at
        end)
        self.host.sleep(0.5)
      end
      wait(first)
      wait(second)
      local session = first.session
      local valid_until = session.valid_until
      function session.valid_until()
        session.valid_until = valid_until
        return 0
      end
      assert(holder:permits "p":release(id))
      tasks[2]:join()
      assert.is_true(tasks[1]:join() - freed < 0.1)
    end)
  end)

  it("are given back if their request raises an error", function()
    play(1, function(self)
      self.host.sleep(1)
      local permits = self.open():permits "p"
      assert(permits:set(1))
      local target = permits.record.target
      function target.run(...)
        target.run = nil
        assert.equal("held", target.run(...)[1])
        error "the spec wants it"
      end
      assert.error_matches(function() permits:acquire() end, "the spec wants")
      assert(permits:acquire { wait = 1 })
    end)
  end)
end)

describe("a server of a simulated ZooKeeper that lags behind", function()
  -- Runs fn(ahead, behind) with a client of the leader, and one of a follower
  -- that receives no commits for a while.
  local function lags(fn)
    play(3, function(self)
      self.host.sleep(1)
      local leader, follower = self.ensemble:leader(), nil
      for _, server in ipairs(self.ensemble) do
        if server ~= leader then follower = server end
      end
      local ahead = open_at(self, function(name) return name == leader.name end)
      local behind =
        open_at(self, function(name) return name == follower.name end)
      self.ensemble:lag(follower, 0.2)
      fn(ahead, behind)
    end)
  end

  it("hides no latch", function()
    lags(function(ahead, behind)
      assert(ahead:latch "l":set(2))
      assert.same({ true, 1 }, { behind:latch "l":count_down() })
    end)
    lags(function(ahead, behind)
      assert(ahead:latch "l":set(2))
      assert.equal("timeout", select(2, behind:latch "l":wait { wait = 0 }))
    end)
  end)

  it("hides no barrier", function()
    lags(function(ahead, behind)
      assert(ahead:barrier "b":set())
      assert.equal("timeout", select(2, behind:barrier "b":wait { wait = 0 }))
    end)
  end)
end)

describe("a latch of a simulated ZooKeeper", function()
  -- The server deletes the empty path before the client creates the node.
  it("is set even if the server deletes its path in a race", function()
    play(1, function(self)
      self.host.sleep(1)
      local own = self.open()
      local latch, link = own:latch "l", own.session.server.connection
      assert(link:reach(self.host.now() + 1))
      local post = link.post
      function link.post(its, op, ...)
        if op == codec.ops.create2 then
          link.post = post
          self.ensemble:delete "/l"
        end
        return post(its, op, ...)
      end
      assert(latch:set(1))
      assert.equal(1, latch:count())
    end)
  end)
end)

describe("a member of a double barrier of a simulated ZooKeeper", function()
  -- Two clients enter together; returns their barriers.
  local function enter(self, ...)
    local members, tasks = {}, {}
    for i, its in ipairs { ... } do
      members[i] = its:double_barrier("b", 2)
      tasks[i] = self.host.spawn(function()
        assert(members[i]:enter { wait = 5 })
      end)
    end
    for _, task in ipairs(tasks) do task:join() end
    return table.unpack(members)
  end

  -- Runs fn(one, two, self) once a round has opened, and one has left.
  local function after_one_has_left(fn)
    play(1, function(self)
      self.host.sleep(1)
      self.mortal = self.open()
      local one, two = enter(self, self.open(), self.mortal)
      assert.equal("timeout", select(2, one:leave { wait = 0 }))
      fn(one, two, self)
    end)
  end

  it("can read later how its round ended", function()
    after_one_has_left(function(one, two, self)
      assert(two:leave { wait = 5 })
      self.host.sleep(5)            -- the server deletes containers
      assert(one:leave { wait = 5 })
    end)
  end)

  it("can read that while the next round is open", function()
    after_one_has_left(function(one, two, self)
      assert(two:leave { wait = 5 })
      self.host.sleep(5)
      enter(self, self.open(), self.open())
      assert(one:leave { wait = 5 })
    end)
  end)

  it("leaves a normal round although the next one is lost", function()
    after_one_has_left(function(one, two, self)
      assert(two:leave { wait = 5 })
      local mortal = self.open()
      local other = enter(self, self.open(), mortal)
      mortal:close()
      assert.equal("lost", select(2, other:leave { wait = 5 }))
      assert(one:leave { wait = 5 })
    end)
  end)

  it("gets `lost` for its round although the next one is open", function()
    after_one_has_left(function(one, _, self)
      self.mortal:close()
      enter(self, self.open(), self.open())
      assert.equal("lost", select(2, one:leave { wait = 5 }))
    end)
  end)
end)

describe("simulated candidates on ZooKeeper", function()
  it("elect one leader at a time", function()
    for seed = 1, 5 do
      assert.same({}, faults_of(seed, { kind = "election" }))
    end
  end)
end)

describe("a simulation of ZooKeeper finds #long", function()
  for _, row in ipairs(rows.zookeeper) do
    it(row[1], function()
      assert.is_true(plant.during(row[2], row[3], row[4], function()
        return finds(row)
      end))
    end)
  end
end)
