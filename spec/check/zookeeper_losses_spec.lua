--- What a client of ZooKeeper does with its nodes after a timeout, an error, a
--- lost connection or the end of its session; on virtual time.

local codec = require "rlock.zookeeper.codec"
local stage = require "spec.simulate.zookeeper.stage"

local ops = codec.ops
local NO_AUTH, BUSY = -102, -127
local LATE = 0.0007                     -- seconds; executed, no reply yet

-- A test with a connected client: fn(self, client, its connection).
local function on_stage(title, fn, options)
  it(title, function()
    stage.play(1, function(self)
      self.host.sleep(1)
      local own = self.open(options)
      local link = own.session.server.connection
      assert(link:reach(self.host.now() + 1))
      fn(self, own, link)
    end)
  end)
end

-- The nodes of locks and waiters, of one client or all.
local function nodes_of(self, link)
  return self.ensemble:newest().tree:ephemerals(link and link.session.id)
end

-- Loses the connection; the server accepts no other for some seconds.
local function disconnect(self, link, seconds)
  self.network:route(self.host, self.ensemble[1]).refuses_until =
    self.universe.now + seconds
  link:leave "a test"
end

-- Intercepts the next request of this operation: calls fn(send), and send()
-- sends it.
local function instead(link, op, fn)
  function link.post(its, kind, ...)
    local words = table.pack(...)
    if kind ~= op then return getmetatable(link).post(its, kind, ...) end
    link.post = nil
    return fn(function()
      return link:post(op, table.unpack(words, 1, words.n))
    end)
  end
end

-- Asserts that fn(...) fails at once if its login lacks a permission.
local function is_refused(self, op, path, fn, ...)
  local tree, tries = self.ensemble[1].tree, 0
  local apply = tree.apply
  function tree.apply(its, txn)
    if txn.op ~= op then return apply(its, txn) end
    tries, its.zxid = tries + 1, txn.zxid
    return NO_AUTH, ""
  end
  local ok, code, detail = fn(...)
  assert.same({ nil, "zookeeper", 1 }, { ok, code, tries })
  assert.matches("^NOAUTH for " .. path .. ":", detail)
end

describe("a client of ZooKeeper", function()
  on_stage("retries a failed deletion as soon as it reconnects",
    function(self, own, link)
      assert(own:lock("a"):lock { lease = 0.3 })
      disconnect(self, link, 2.5)       -- the attempt to delete it takes 2 s
      while not link.is_ready do self.host.sleep(0.01) end
      self.host.sleep(0.01)
      assert.equal(1, link.epoch)
      assert.same({}, nodes_of(self))
    end, { watchdog = 10, timeout = 2 })

  on_stage("deletes the node of a lost hold if the session goes on",
    function(self, own, link)
      local lock = own:lock "a"
      assert(lock:lock { lease = 30 })
      self.host.sleep(0.3)
      link:leave "a test"
      link.not_before = self.host.now() + 1.7     -- within its timeout
      self.host.sleep(1.75)
      assert.same({ "lost", 1 }, { lock:state(), link.epoch })
      assert.same({}, nodes_of(self))
    end)

  on_stage("connects to free its locks when it is closed",
    function(self, own, link)
      assert(own:lock("a"):lock())
      link:leave "a test"
      own:close()
      assert.same({}, nodes_of(self))
    end)

  on_stage("reports when it is closed that it could not free its locks",
    function(self, own, link)
      assert(own:lock("a"):lock() and own:lock("b"):lock())
      disconnect(self, link, 10)
      local began = self.host.now()
      own:close()
      assert.near(0.5, self.host.now() - began, 0.1)
      assert.matches("^2 locks could not be released; their leases end them "
        .. "%(zk1: connection refused%)$", self.log[#self.log])
    end)

  on_stage("does not treat an unreadable node as missing",
    function(self, own, link)
      instead(link, ops.get, function(send)
        disconnect(self, link, 10)
        return send()
      end)
      assert.equal("connect", select(2, own:get "n"))
      assert.equal("usage", select(2, own:get "a//b"))
    end)

  on_stage("detects that another client set the latch first",
    function(self, own, link)
      local latch = own:latch "l"
      instead(link, ops.create2, function(send)
        self.ensemble:put("/l/latch", "3 1\n")
        return send()
      end)
      assert.equal("refused", select(2, latch:set(2)))
      assert.equal(3, latch:count())
    end)

  -- The reply to the first attempt is lost.
  on_stage("does not set a latch twice that was deleted meanwhile",
    function(self, own, link)
      instead(link, ops.create2, function(send)
        self.universe:after(LATE, function()
          link:leave "a test"
          self.ensemble:delete "/l/latch"
        end)
        return send()
      end)
      local ok, code, detail = own:latch("l"):set(2)
      assert.same({ nil, "timeout" }, { ok, code })
      assert.matches("may have been set and deleted since", detail)
    end)

  on_stage("creates parent nodes again if the server deletes one",
    function(self, own)
      local on_request, deleted = self.ensemble.on_request, 0
      function self.ensemble.on_request(server, item)
        on_request(server, item)
        if item.op == ops.create_container and deleted == 0 then
          deleted = deleted + 1
          self.ensemble:delete "/m"     -- before the next one is made below it
        end
      end
      assert(own:lock("m/n"):lock { wait = 1 })
      assert.equal(1, deleted)
    end)

  on_stage("fails at once without permission to create parent nodes",
    function(self, own)
      local lock = own:lock "m"
      is_refused(self, ops.create_container, "/m", lock.lock, lock,
        { wait = 5 })
    end)

  on_stage("reports that a request to release a lock was not delivered",
    function(self, own, link)
      local other = self.open()
      assert(other:lock("a"):lock())
      assert(other:lock("a"):on_release_request(print))
      self.host.sleep(0.2)
      instead(link, ops.set, function(send)
        disconnect(self, link, 10)
        return send()
      end)
      local asked, code = own:lock("a"):request_release()
      assert.same({ nil, "connect" }, { asked, code })
    end)
end)

describe("the permits of a semaphore on ZooKeeper", function()
  on_stage("end with the session", function(self, own, link)
    local semaphore = own:semaphore "s"
    assert(semaphore:set(2) and semaphore:acquire(2))
    disconnect(self, link, 8)
    while link.epoch == 1 do self.host.sleep(0.1) end
    assert.equal("not_held", select(2, semaphore:release()))
    assert.equal(2, semaphore:available())
  end)

  on_stage("are released with a code that tells whether one was lost",
    function(self, own, link)
      local semaphore = own:semaphore "s"
      assert(semaphore:set(2) and semaphore:acquire(2))
      self.ensemble:delete(nodes_of(self)[1])
      assert.equal("lost", select(2, semaphore:release(2)))
      assert.same({}, nodes_of(self))
      assert(semaphore:acquire())
      disconnect(self, link, 1)
      assert.equal("connect", select(2, semaphore:release()))
      self.host.sleep(1.5)
      assert.same({}, nodes_of(self))
    end)

  on_stage("are given back if the call raises an error",
    function(self, own, link)
      local semaphore, list = own:semaphore "s", codec.read("/s/leases", true)
      assert(semaphore:set(1) and semaphore:acquire() and semaphore:release())
      function link.post(its, op, body, ...)
        if body ~= list then
          return getmetatable(link).post(its, op, body, ...)
        end
        link.post = nil
        error "a test"
      end
      assert.error_matches(function() semaphore:acquire() end, "a test")
      self.host.sleep(1)
      assert.same({}, nodes_of(self))
    end)
end)

describe("a renewal on ZooKeeper", function()
  -- Takes three locks. The next renewal takes 0.1 s, and meanwhile one of them
  -- is unlocked. Returns the others.
  local function renew(self, own, fails)
    local server, locks = own.session.server, {}
    for i = 1, 3 do
      locks[i] = own:lock("lock" .. i)
      assert(locks[i]:lock())
    end
    self.host.sleep(0.5)
    function server.sync(its, deadline)
      server.sync = nil
      self.host.sleep(0.1)
      if fails then return nil, "timeout", "no answer" end
      return its:sync(deadline)
    end
    self.host.sleep(0.2)
    assert(not rawget(server, "sync") and locks[1]:unlock())
    self.host.sleep(0.1)
    return locks[2], locks[3]
  end

  on_stage("is for all that are still held", function(self, own)
    local one, other = renew(self, own)
    assert.same({ "held", "held" }, { one:state(), other:state() })
    assert.same({}, self.log)
  end)

  on_stage("that fails reports why each remaining hold is at risk",
    function(self, own)
      local one, other = renew(self, own, true)
      assert.same({ "at_risk", "at_risk" }, { one:state(), other:state() })
      assert.equal(2, #self.log)
      for _, text in ipairs(self.log) do
        assert.matches("is at risk, valid for 1%.%d s more: no answer$", text)
      end
    end)

  on_stage("ends with the task: the lease then deletes the node",
    function(self, own)
      self.host.spawn(function()
        assert(own:lock("a"):lock())
        self.host.sleep(1)
      end):join()
      assert.equal(1, #nodes_of(self))
      self.host.sleep(2)
      assert.same({}, nodes_of(self))
    end)
end)

describe("a waiter on ZooKeeper", function()
  -- A semaphore of two permits. When it has acquired some, its client loses the
  -- connection for some seconds, and calls wait(its connection).
  local function losing(self, seconds, wait)
    local link
    local its = self.open { log = function(_, event)
      if event ~= "acquired" then return end
      disconnect(self, link, seconds)
      wait(link)
    end }
    link = its.session.server.connection
    local semaphore = its:semaphore "s"
    assert(semaphore:set(2))
    return semaphore
  end

  on_stage("is woken although another one that has watched the same node left",
    function(self, own)
      local writer = self.open():read_write_lock("p"):write_lock()
      assert(writer:lock())
      local reader, woken = own:read_write_lock("p"):read_lock(), nil
      self.host.spawn(function()
        assert(reader:lock { wait = 20 })
        woken = self.host.now()
        assert(reader:unlock())
      end)
      self.host.sleep(0.1)
      assert.equal("timeout", select(2, reader:lock { wait = 0.1 }))
      local freed = self.host.now()
      assert(writer:unlock())
      self.host.sleep(1)
      assert.is_true(woken and woken - freed < 0.1)
    end)

  on_stage("gets a computed value before the lock is free",
    function(self, own, link)
      local other = self.open()
      self.host.spawn(function()
        own:compute("c", { ttl = 60 }, function()
          self.host.sleep(0.2)
          return "x"
        end)
      end)
      instead(link, ops.delete, function(send)
        self.host.sleep(1)
        return send()
      end)
      self.host.sleep(0.1)
      local began = self.host.now()
      assert.same({ "x", "cached" },
        { other:compute("c", { ttl = 60 }, error) })
      assert.near(0.1, self.host.now() - began, 0.05)
    end)

  on_stage("gets no permits if the session ends during the call",
    function(self)
      local semaphore = losing(self, 8, function(link)
        while link.epoch == 1 do self.host.sleep(0.1) end
      end)
      assert.same({ nil, "closed", "the session ended in the meantime" },
        { semaphore:acquire(2) })
      self.host.sleep(1)
      assert.equal(2, semaphore:available())
    end)

  on_stage("gets no permits if the session ends and no server answers",
    function(self)
      local semaphore = losing(self, 30, function() self.host.sleep(9) end)
      assert.equal("closed", select(2, semaphore:acquire(2)))
    end)

  -- The servers are down for so long that the client begins a new session; but
  -- they give each old one its full timeout again.
  on_stage("does not rely on the node of an earlier session",
    function(self, own, link)
      local holder = self.open()
      local lock, its = own:lock "a", holder:lock "a"
      assert(its:lock())
      local task = self.host.spawn(function() assert(lock:lock()) end)
      self.host.sleep(0.1)
      local path = nodes_of(self, holder.session.server.connection)[1]
      self.ensemble:restart(self.ensemble[1], 8)
      while link.epoch == 1 do self.host.sleep(0.01) end
      self.ensemble:delete(path)
      task:join()
      assert.equal(1, #nodes_of(self, link))
    end)
end)

describe("a request on ZooKeeper", function()
  on_stage("makes no node after another task has given it up",
    function(self, own, link)
      local target, now = own:lock("a").record.target, self.host.now()
      local left
      instead(link, ops.create_container, function(send)
        left = self.host.spawn(function()
          return target:run("leave", now + 1, now, "owner")
        end)
        return send()
      end)
      assert.equal("busy",
        target:run("acquire", now + 1, now, "owner", "9000", "1")[1])
      assert.same({ "left" }, left:join())
      assert.same({}, nodes_of(self))
    end)
end)

describe("a node on ZooKeeper whose creation is in doubt", function()
  for what, fault in pairs {
    ["a server cannot list the queue"] = { err = BUSY, body = "" },
    ["the list of the queue is malformed"] = { err = 0, body = "\0\0\0\9" },
  } do
    on_stage("is deleted although " .. what, function(self, own, link)
      local lock = own:lock "a"
      assert(lock:lock() and lock:unlock())      -- its parent exists
      local target, now = lock.record.target, self.host.now()
      instead(link, ops.create2, function(send)
        self.universe:after(LATE, function() link:leave "a test" end)
        return send()
      end)
      assert.is_nil(target:run("acquire", now + 0.0005, now, "owner", "9000",
        "1"))
      self.host.sleep(0.3)
      assert.equal(1, #nodes_of(self))
      local on_request, was_faulty = self.ensemble.on_request, false
      function self.ensemble.on_request(server, item)
        if item.op == ops.children and not was_faulty then
          was_faulty, item.err, item.reply = true, fault.err, fault.body
        end
        return on_request(server, item)
      end
      now = self.host.now()
      assert.same({ "left" }, target:run("leave", now + 5, now, "owner"))
      assert.is_true(was_faulty)
      assert.same({ 1, {} }, { link.epoch, nodes_of(self) })
    end)
  end

  -- Loses the reply to the next create. The session goes on at another server
  -- before a majority has written the node to disk.
  local function leave_behind(self, link)
    instead(link, ops.create2, function(send)
      for _, server in ipairs(self.ensemble) do
        self.ensemble:slow_disk(server, 0.1)
      end
      link.next_host = link.next_host % 3 + 1
      self.universe:after(0.01, function() link:leave "a test" end)
      return send()
    end)
  end

  local function with_three(title, fn)
    it(title, function()
      stage.play(3, function(self)
        self.host.sleep(1)
        local own = self.open()
        local lock, link = own:lock "a", own.session.server.connection
        assert(lock:lock() and lock:unlock())      -- its parent exists
        leave_behind(self, link)
        fn(self, lock, link)
      end)
    end)
  end

  with_three("is found although the next server does not have it yet",
    function(self, lock, link)
      assert(lock:lock())
      assert.same({ 1, 1 }, { link.epoch, #nodes_of(self) })
    end)

  with_three("is deleted although the next server does not have it yet",
    function(self, lock, link)
      local target, now = lock.record.target, self.host.now()
      assert.is_nil(target:run("acquire", now + 0.02, now, "owner", "9000",
        "1"))
      now = self.host.now()
      assert.same({ "left" }, target:run("leave", now + 5, now, "owner"))
      self.host.sleep(1)
      assert.same({ 1, {} }, { link.epoch, nodes_of(self) })
    end)
end)

describe("a session of ZooKeeper that is resumed", function()
  on_stage("after it was ended is not continued", function(self, own, link)
    assert(own:lock("a"):lock { lease = 0.3 })
    local on_session = self.ensemble.on_session
    disconnect(self, link, 0.5)         -- the node cannot be deleted yet
    self.host.sleep(0.4)
    function self.ensemble.on_session(...)       -- the welcome is on its way
      self.ensemble.on_session = on_session
      self.host.spawn(function() own.session:wind_down() end)
      return on_session(...)
    end
    self.host.sleep(1)
    assert(self.open():lock("a"):lock { wait = 20 })
  end)

  on_stage("has one watch for each hold", function(self, own, link)
    local lock = own:lock "a"
    assert(lock:lock())
    link:leave "a test"                 -- the new hold is not watched yet
    self.host.sleep(0.5)
    local count = 0
    for _, list in pairs(link.watches) do count = count + #list end
    assert.equal(1, count)
    self.ensemble:delete(nodes_of(self)[1])
    self.host.sleep(0.1)
    assert.equal("lost", lock:state())
  end)
end)

describe("a lost hold on ZooKeeper", function()
  on_stage("leaves no watch", function(self, own, link)
    local lock = own:lock "a"
    assert(lock:lock())
    self.ensemble:delete(nodes_of(self)[1])      -- before it is watched
    self.host.sleep(0.3)
    assert.equal("lost", lock:state())
    assert.is_nil(next(link.watches))
  end)
end)

describe("waiters for a mutex on ZooKeeper", function()
  on_stage("do not wait for each other if a node of their queue is deleted",
    function(self, own, link)
      local mutex, count = self.open():mutex "m", 0
      assert(mutex:lock())
      local function use(its)
        assert(its:mutex("m"):lock { wait = 20 })
        count = count + 1
        assert(its:mutex("m"):unlock())
      end
      local one = self.host.spawn(use, own)
      self.host.sleep(0.1)
      for _, path in ipairs(nodes_of(self, link)) do
        if path:find "/locks/" then self.ensemble:delete(path) end
      end
      local two = self.host.spawn(use, self.open())
      self.host.sleep(0.5)
      assert(mutex:unlock())
      one:join()
      two:join()
      assert.equal(2, count)
    end)
end)

describe("a reader on ZooKeeper", function()
  on_stage("that waited before its owner got the write lock gets it, too",
    function(self, own)
      local other = self.open():read_write_lock("p"):write_lock()
      local pair = own:read_write_lock("p", { owner = "it" })
      assert(other:lock())
      local writes = self.host.spawn(function()
        return pair:write_lock():lock { wait = 10 }
      end)
      self.host.sleep(0.1)
      local reads = self.host.spawn(function()
        return pair:read_lock():lock { wait = 20 }
      end)
      self.host.sleep(0.1)
      assert(other:unlock())
      assert(writes:join())
      assert(reads:join())
    end)
end)

describe("a writer on ZooKeeper that reads, too,", function()
  -- Reads after the node of the writer is gone and another writer has the lock.
  local function read_late(self, own, link, state, lose)
    local pair, other = own:read_write_lock "p", self.open()
    local write, read = pair:write_lock(), pair:read_lock()
    local theirs = other:read_write_lock("p"):write_lock()
    assert(write:lock())
    local task = self.host.spawn(function()
      assert(theirs:lock())
      self.host.sleep(2)
      return theirs:unlock()
    end)
    self.host.sleep(0.05)
    instead(link, ops.create2, function(send)
      lose(pair)
      while not theirs:is_locked() do self.host.sleep(0.001) end
      return send()
    end)
    assert.equal("busy", select(2, read:try_lock()))
    self.host.sleep(0.01)
    assert.equal(state, write:state())
    assert.is_true(task:join())
    assert.same({}, nodes_of(self))
  end

  on_stage("is no reader if its node was deleted", function(self, own, link)
    read_late(self, own, link, "lost", function()
      local tree = self.ensemble:newest().tree
      for _, path in ipairs(tree:ephemerals(link.session.id)) do
        self.ensemble:delete(path)
      end
    end)
  end)

  on_stage("is no reader if it has unlocked", function(self, own, link)
    read_late(self, own, link, "free", function(pair)
      assert(pair:write_lock():unlock())
    end)
  end)
end)

describe("a member of a double barrier on ZooKeeper", function()
  -- Two members enter, each in a task that ends then.
  local function enter(self, ...)
    local members, tasks = {}, {}
    for i, client in ipairs { ... } do
      members[i] = client:double_barrier("d", 2)
      tasks[i] = self.host.spawn(function()
        assert(members[i]:enter { wait = 5 })
      end)
    end
    for _, task in ipairs(tasks) do task:join() end
    return members[1]
  end

  -- While it cannot withdraw, another one opens the round with both.
  on_stage("is lost at once if it withdraws from an open round",
    function(self, own, link)
      local other, code = self.open { watchdog = 9 }:double_barrier("d", 2), nil
      self.host.spawn(function()
        self.host.sleep(0.2)
        link:leave "a test"
        link.not_before = self.host.now() + 2
        assert(other:enter { wait = 5 })
        code = select(2, other:leave { wait = 5 })
      end)
      local barrier = own:double_barrier("d", 2)
      assert.equal("timeout", select(2, barrier:enter { wait = 0.3 }))
      self.host.sleep(4)
      assert.equal("lost", code)
    end, { watchdog = 9 })

  on_stage("is in if the round opens while it withdraws", function(self, own)
    local one, two = own:double_barrier("d", 2),
      self.open():double_barrier("d", 2)
    local operations = require("rlock.zookeeper.barrier").operations
    local withdraw = operations.withdraw
    function operations.withdraw(...)
      operations.withdraw = withdraw
      assert(two:enter { wait = 5 })
      return withdraw(...)
    end
    assert.is_true(one:enter { wait = 0.3 })
  end)

  on_stage("is not lost when it cannot read the list of members",
    function(self, own, link)
      local one, two = own:double_barrier("d", 2),
        self.open { watchdog = 9 }:double_barrier("d", 2)
      self.host.spawn(function()
        self.host.sleep(0.5)
        instead(link, ops.children, function(send)
          disconnect(self, link, 2)
          return send()
        end)
        two:enter { wait = 1 }
      end)
      local ok, code = one:enter { wait = 1 }
      assert.same({ nil, "connect" }, { ok, code })
    end, { watchdog = 9 })

  on_stage("is not taken for dead if its client is closed while it enters",
    function(self, own)
      local other = self.open()
      self.host.spawn(function() other:double_barrier("d", 3):enter() end)
      self.host.spawn(function()
        self.host.sleep(0.2)
        other:close()
      end)
      assert.equal("timeout",
        select(2, own:double_barrier("d", 3):enter { wait = 1 }))
    end)

  on_stage("has no node after it could not enter in time", function(self, own)
    self.ensemble:freeze(self.ensemble[1], 0.4)
    local barrier = own:double_barrier("d", 2)
    assert.equal("timeout", select(2, barrier:enter { wait = 0.1 }))
    self.host.sleep(3)
    assert.same({}, nodes_of(self))
  end)

  on_stage("fails at once without permission to write the log",
    function(self, own)
      local member = enter(self, own, self.open())
      is_refused(self, ops.set, "/d", member.leave, member, { wait = 5 })
    end)
end)
