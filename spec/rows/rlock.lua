--- Behaviours that Redisson's own tests assert of every kind of RLock, by their
--- names there (RedissonLockTest and others). behaviours.lua lists which kind
--- has which. A spec calls this with a kind of kinds.lua:
---
---   require "spec.rows.rlock" ("spin", describe, it, before_each, after_each)

local assert = require "luassert"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local kinds = require "spec.tools.kinds"
local program = require "spec.tools.program"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local seconds = require "spec.tools.seconds"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local LEASE = 2 * slow              -- of the watchdog, for leases that expire
local SLACK = 10 * slow             -- tolerance
local LONG = 30 * slow              -- for a wait that must end earlier
local NODE_TIMEOUT = 0.5 * slow     -- of one command to a dead server
local CLUSTER = "rlock.spec.rows.rlock.cluster"

-- Another process, which holds the lock until it is killed.
local HOLD = [[
  local kinds = require "spec.tools.kinds"
  local world = kinds.open(arg[1], { table.unpack(arg, 4) },
    { watchdog = tonumber(arg[3]) })
  assert(world.lock(arg[2]):lock())
  print "mine"
  io.stdout:flush()
  require "rlock".sleep(60)
]]

local function urls_of(servers)
  local urls = {}
  for i, server in ipairs(servers) do urls[i] = server.url end
  return urls
end

-- Starts a cluster of one server, which is up 2 s later: it has all slots and
-- refuses scripts whose keys are in different slots.
local function start_cluster()
  local registry = debug.getregistry()
  if registry[CLUSTER] then return end
  registry[CLUSTER] = redis.start {
    port = true, args = { "--cluster-enabled", "yes" },  -- and port + 10000
  }
  registry[CLUSTER]:cli("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
end

local function cluster()
  local server = debug.getregistry()[CLUSTER]
  eventually(function()
    return server:cli("CLUSTER", "INFO"):find("cluster_state:ok", 1, true)
  end, LONG, "the cluster is up")
  return server
end

return function(which, describe, it, before_each, after_each)
  local kind = kinds.of[which]
  local urls, world, name, lock

  local function open(options, its_urls)
    return kinds.open(which, its_urls or urls, options)
  end

  -- A lock that excludes the one under test, by another client.
  local function rival(options) return open(options).rival(name) end

  -- A task that waits for a lock and has tried to take it once.
  local function start_waiting(its)
    local before = world.clients[1]:call("INFO", "commandstats"):match(
      "cmdstat_evalsha:calls=(%d+)")
    local waiting = task.start(function() return its:lock { wait = LONG } end)
    eventually(function()
      return world.clients[1]:call("INFO", "commandstats"):match(
        "cmdstat_evalsha:calls=(%d+)") ~= before
    end)
    return waiting
  end

  -- Asserts the result of a method of the lock; of a joint lock, that each
  -- member gets to it eventually.
  local function says(method, expected)
    if not kind.is_joint then
      assert.equal(expected, (lock[method](lock)))
      return
    end
    for _, member in ipairs(world.members(name)) do
      eventually(function()
        return member[method](member) == expected
      end, LONG, ("%s is %s"):format(method, tostring(expected)))
    end
  end

  local function is_free()
    local its = rival()
    assert.is_true((its:lock { wait = LONG }))
    assert.is_true(its:unlock())
  end

  local function nobody_waits()
    if not kind.waiting then return end
    eventually(function()
      return kind.waiting(world.clients[1], name) == 0
    end)
  end

  -- Many tasks lock and unlock repeatedly, over a few clients; asserts that a
  -- rival is always alone inside.
  local function contend(tasks, times, clients)
    local worlds, inside, rivals, turns = {}, 0, 0, 0
    for i = 1, clients do worlds[i] = open() end
    task.many(tasks, function(i)
      local its = worlds[i % clients + 1]
      local excludes = not kind.rival or i % 2 == 0
      local mine = excludes and its.rival(name) or its.lock(name)
      for _ = 1, times do
        assert.is_true((mine:lock { wait = 2 * LONG }))
        if excludes then rivals = rivals + 1 end
        inside = inside + 1
        assert.is_true(rivals == 0 or inside == 1)
        rlock.sleep(0)
        assert.is_true(rivals == 0 or inside == 1)
        inside, turns = inside - 1, turns + 1
        if excludes then rivals = rivals - 1 end
        assert.is_true(mine:unlock())
      end
    end, 2 * LONG)
    assert.equal(tasks * times, turns)
    nobody_waits()
  end

  describe("rows of " .. which .. ":", function()
    before_each(function()
      if not kind.nodes then start_cluster() end
      name = fixtures.name("rows:" .. which)
      urls = urls_of(kinds.servers(which))
      world = open()
      lock = world.lock(name)
    end)

    after_each(fixtures.close)

    it("testLockUnlock", function()
      for _ = 1, 3 do
        assert.is_true((lock:lock()))
        assert.is_true(lock:unlock())
      end
      is_free()
    end)

    it("testUnlockFail: who does not hold it cannot unlock it", function()
      assert.is_true((lock:lock()))
      task.run(function()
        assert.equal("not_held", select(2, lock:unlock()))
      end)
      assert.is_true(lock:is_held())
    end)

    it("testTryLockWait: the wait is what was asked for", function()
      assert.is_true((rival():lock()))
      local took = seconds(function()
        assert.equal("timeout", select(2, lock:try_lock { wait = 0.3 }))
      end)
      assert.is_true(took >= 0.299 and took < 0.3 + SLACK,
        "took " .. took)
      nobody_waits()
    end)

    it("testExpire: who waits has it when the lease ends, the owner lost it",
      function()
        assert.is_true((lock:lock { lease = 0.3 }))
        local its = rival()
        local took = seconds(function()
          assert.is_true((its:lock { wait = LONG }))
        end)
        assert.is_true(took < 0.3 + SLACK, "took " .. took)
        assert.equal("lost", select(2, lock:unlock()))
        assert.is_true(its:is_held())
      end)

    it("testAutoExpire: a dead process has it for the watchdog's time at most",
      function()
        local holder = program.start(kinds.servers(which)[1], "--lua-path",
          "./?.lua", "-e", HOLD, which, name, tostring(LEASE),
          (table.unpack or unpack)(urls))
        eventually(function() return holder:output():find("mine") end, LONG)
        local its = rival()
        assert.equal("busy", select(2, its:try_lock()))
        holder:kill(9)
        local took = seconds(function()
          assert.is_true((its:lock { wait = LONG }))
        end)
        assert.is_true(took < LEASE + SLACK, "took " .. took)
      end)

    it("testForceUnlock", function()
      local function break_all(expected)
        for _, its in ipairs(world.members(name)) do
          assert.equal(expected, its:break_lock())
        end
      end
      break_all(false)
      assert.is_true((lock:lock()))
      says("is_locked", true)
      break_all(true)
      says("is_locked", false)
      assert.equal("lost", select(2, lock:unlock()))
      assert.is_true((lock:lock { wait = LONG }))
      says("is_locked", true)
      local waiting = start_waiting(rival())
      break_all(true)
      assert.is_true((waiting:join(LONG)))
      assert.equal("lost", select(2, lock:unlock()))
    end)

    it("testRemainTimeToLive", function()
      local function lives(most)
        for _, its in ipairs(world.members(name)) do
          eventually(function() return its:ttl() end)
          local ttl = its:ttl()
          assert.is_true(ttl > most - 10 and ttl <= most, "ttl " .. ttl)
        end
      end
      assert.is_true((lock:lock { lease = 3600 }))
      lives(3600)
      assert.is_true(lock:unlock())
      says("ttl", false)
      assert.is_true((lock:lock()))
      lives(30)
    end)

    it("testIsLocked, testIsLockedOtherThread, testIsHeldByCurrentThread, "
      .. "testIsHeldByCurrentThreadOtherThread", function()
        local function seen(is_locked, is_held)
          says("is_locked", is_locked)
          assert.equal(is_held, lock:is_held())
        end
        seen(false, false)
        assert.is_true((lock:lock()))
        seen(true, true)
        task.run(seen, true, false)
        assert.is_true(lock:unlock())
        seen(false, false)
        task.run(seen, false, false)
      end)

    it("testConcurrency_SingleInstance", function() contend(16, 20, 1) end)

    it("testConcurrencyLoop_MultiInstance", function() contend(16, 20, 16) end)

    it("testConcurrency_MultiInstance", function()
      local crowd = kind.crowd or 100
      contend(crowd, 1, crowd)
    end)

    it("testRedisFailed: a server that is gone is an error, in time", function()
      local servers = kinds.start(which)
      local its = open({ timeout = NODE_TIMEOUT, connect_timeout = NODE_TIMEOUT,
        watchdog = LEASE }, urls_of(servers)).lock(name)
      for _, server in ipairs(servers) do server:stop() end
      local ok, code, detail
      local took = seconds(function()
        ok, code, detail = its:try_lock { wait = 0.3 }
      end)
      assert.is_nil(ok)
      assert.is_true(code == "connect" or code == "timeout" or code == "closed"
        or code == "quorum", code)
      assert.is_string(detail)
      assert.is_true(took < 0.3 + NODE_TIMEOUT + SLACK, "took " .. took)
    end)

    if not kind.polls then
      it("testSubscriptionsPerConnection, testSinglePubSub: one connection "
        .. "listens for all, and to nothing in the end", function()
          local client_name, turns = fixtures.name "rows", 0
          local its = open { name = client_name }
          local function listeners()
            return select(2, world.clients[1]:call("CLIENT", "LIST", "TYPE",
              "pubsub"):gsub("," .. client_name .. " ", ""))
          end
          local most = 0
          task.many(32, function(i)
            for _ = 1, 20 do
              local one = its.rival(name .. ":" .. math.random(5))
              assert.is_true((one:lock { wait = 6 * LONG }))
              if i == 1 then most = math.max(most, listeners()) end
              turns = turns + 1
              assert.is_true(one:unlock())
            end
          end, 6 * LONG)
          assert.equal(32 * 20, turns)
          assert.equal(1, most)
          its.close()
          eventually(function()
            return #world.clients[1]:call("PUBSUB", "CHANNELS",
              "*" .. name .. ":*") == 0
          end)
          assert.equal(0, listeners())
        end)
    end

    it("testLockIsNotRenewedAfterInterruptedTryLock, testLockUninterruptibly: "
      .. "a task that is cancelled leaves nothing", function()
        local its = open { watchdog = LEASE }
        for _, method in ipairs { "try_lock", "lock" } do
          local mine = its.lock(name)
          task.start(function() return mine[method](mine) end):cancel()
        end
        is_free()
        local other = rival()
        assert.is_true((other:lock()))
        start_waiting(its.lock(name)):cancel()
        assert.is_true(other:unlock())
        is_free()
      end)

    it("testLockListener: who holds it is told that it expired or was deleted",
      function()
        local its = open({ watchdog = LEASE }).lock(name)
        local function told(options, fn)
          local reasons = {}
          assert.is_true((its:lock(options)))
          its:on_lost(function(_, reason) reasons[#reasons + 1] = reason end)
          fn()
          eventually(function() return reasons[1] end, LONG)
          assert.is_string(reasons[1])
          assert.equal("lost", select(2, its:unlock()))
          assert.equal(1, #reasons)
        end
        told({ lease = 0.1 }, function() end)
        told(nil, function()
          says("is_locked", true)
          for _, member in ipairs(world.members(name)) do
            assert.is_true(member:break_lock())
          end
        end)
      end)

    if not kind.nodes then
      it("testInCluster: on a node that has every slot", function()
        local url = cluster().url
        for _, odd in ipairs { name, "{tag}:" .. name, name .. "{tag}" } do
          local here, there = open(nil, { url }), open(nil, { url })
          local its, other = here.lock(odd), there.rival(odd)
          assert.is_true((its:lock()))
          assert.is_true(its:is_held())
          assert.equal("busy", select(2, other:try_lock()))
          local waiting = task.start(function()
            assert.is_true((other:lock { wait = LONG }))
            return other:unlock()
          end)
          if not kind.is_entered_once then
            assert.is_true((its:lock()))
            assert.is_true(its:unlock())
          end
          assert.is_true(its:unlock())
          assert.is_true(waiting:join(LONG))
          for _, member in ipairs(here.members(odd)) do
            assert.is_false(member:break_lock())
            assert.is_false(member:is_locked())
          end
        end
      end)
    end

    if kind.is_entered_once then
      it("testContendingThreadBlocksAndAcquiresOnRelease", function()
        assert.is_true(lock:lock())
        local waiting = start_waiting(lock)
        assert.is_nil(waiting.is_over)
        assert.is_true(lock:unlock())
        assert.is_true(waiting:join(LONG))
      end)

      it("testSameThreadReacquireThrows, "
        .. "testCrossInstanceSameThreadReentryThrows: a second entry is "
        .. "refused at once, and not counted", function()
          local again = world.lock(name)
          assert.is_true(lock:lock())
          for _, its in ipairs { lock, again } do
            for _, method in ipairs { "lock", "try_lock", "hold", "with" } do
              local took = seconds(function()
                local ok, code, detail = its[method](its, { wait = 20 },
                  function() error("it runs without the lock") end)
                assert.same({ nil, "refused" }, { ok, code }, method)
                assert.matches("cannot be entered twice", detail)
              end)
              assert.is_true(took < 10)
            end
            assert.is_true(its:is_held())
          end
          assert.is_true(lock:unlock())
          assert.is_false(again:is_locked())
          assert.equal("not_held", select(2, lock:unlock()))
        end)
      return
    end

    it("testGetHoldCount, testReentrancy", function()
      local count = 0
      says("hold_count", count)
      for _, step in ipairs { "lock", "unlock", "lock", "try_lock" } do
        assert.is_true((lock[step](lock)))
        count = count + (step == "unlock" and -1 or 1)
        says("hold_count", count)
      end
      assert.equal("busy", select(2, rival():try_lock()))
      for left = 1, 0, -1 do
        assert.is_true(lock:unlock())
        says("hold_count", left)
      end
    end)

    it("testRemainTimeToLive2: what is left of three leases", function()
      for _ = 1, 3 do assert.is_true((lock:lock { lease = 10 })) end
      for _ = 1, 2 do assert.is_true(lock:unlock()) end
      for _, its in ipairs(world.members(name)) do
        local ttl = its:ttl()
        assert.is_true(ttl > 5 and ttl <= 10, "ttl " .. ttl)
      end
    end)
  end)
end
