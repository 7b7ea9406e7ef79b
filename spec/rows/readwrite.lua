--- Behaviours that Redisson's own tests assert of a read/write lock, by their
--- names there (RedissonReadWriteLockTest), for both of ours. rlock.lua has
--- those of each side by itself, leases.lua those of leases, at exact times.
--- behaviours.lua lists which lock has which.
---
---   require "spec.rows.readwrite" ("readwrite", describe, it, before_each,
---     after_each)

local assert = require "luassert"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local program = require "spec.tools.program"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local LONG = 30 * slow              -- for a wait that must end earlier
local LEASE = 1 * slow              -- of the watchdog, for leases that expire

local server = redis.shared()
local methods = {
  readwrite = "read_write_lock", fair_readwrite = "fair_read_write_lock",
}

-- Another process, which reads until it is killed.
local READ = [[
  local rlock = require "rlock"
  local client = assert(rlock.open { watchdog = tonumber(arg[3]) })
  assert(client[arg[1] ](client, arg[2]):read_lock():lock())
  print "reads"
  io.stdout:flush()
  rlock.sleep(60)
]]

return function(which, describe, it, before_each, after_each)
  local method = methods[which]
  local client, name, pair, reader, writer

  local function open(options)
    return fixtures.open({ url = server.url }, options)
  end

  -- A task that waits for a lock and has tried to take it once.
  local function waits(lock)
    local before = server:stat("evalsha")
    local waiting = task.start(function() return lock:lock { wait = LONG } end)
    eventually(function() return server:stat("evalsha") > before end)
    return waiting
  end

  local function is_free() return not reader:is_locked()
    and not writer:is_locked() end

  describe("rows of " .. which .. ":", function()
    before_each(function()
      client, name = open(), fixtures.name("rows:" .. which)
      pair = client[method](client, name)
      reader, writer = pair:read_lock(), pair:write_lock()
    end)

    after_each(fixtures.close)

    it("testMultiRead: readers share, in many tasks and clients", function()
      local other = open()
      local its = other[method](other, name)
      assert.is_false(reader:break_lock())
      assert.is_true(reader:lock())
      task.many(20, function()
        assert(reader:try_lock())
        assert.is_true(reader:is_held())
        assert.is_true(reader:unlock())
        assert.is_false(reader:is_held())
      end)
      task.run(function()
        assert.is_true(its:read_lock():try_lock())
        assert.equal("busy", select(2, writer:try_lock()))
        assert.is_true(its:read_lock():unlock())
      end)
      assert.is_true(reader:unlock())
      assert.is_true(its:write_lock():try_lock())
    end)

    it("testWriteLock: a writer is alone", function()
      local other = open()
      local its = other[method](other, name)
      assert.is_true(writer:lock())
      task.run(function()
        assert.is_true(writer:is_locked())
        assert.is_false(writer:is_held())
        for _, lock in ipairs { writer, reader, its:write_lock(),
            its:read_lock() } do
          assert.equal("busy", select(2, lock:try_lock()))
          assert.equal("timeout", select(2, lock:lock { wait = 0.05 }))
        end
      end)
      assert.is_true(writer:unlock())
      task.run(function()
        assert.is_true(reader:lock { wait = LONG })
        assert.is_true(reader:unlock())
      end)
    end)

    it("testWR: a writer reads, and each hold is given back by itself",
      function()
        assert.is_true(writer:lock())
        assert.is_true(reader:lock())
        assert.is_true(reader:unlock())
        assert.is_true(writer:is_held())
        assert.is_true(writer:unlock())
        assert.is_true(is_free())
        assert.is_true(writer:lock())
        assert.is_true(reader:lock())
        assert.is_true(writer:unlock())
        assert.is_false(writer:is_held())
        assert.is_true(reader:is_held())
        assert.is_true(reader:unlock())
        assert.is_true(is_free())
      end)

    it("testWriteReadReentrancy: one that goes on as a reader keeps writers "
      .. "out and lets readers in, at once", function()
        assert.is_true(writer:lock())
        assert.is_true(reader:lock())
        local reads = waits(reader)
        assert.is_true(writer:unlock())
        assert.is_true(reads:join(LONG))
        local writes = waits(writer)
        assert.is_true(reader:unlock())
        assert.is_nil(writes.is_over)
        assert.is_true(reader:is_locked())
        assert.is_true(reader:break_lock())        -- the task's hold
        assert.is_true(writes:join(LONG))
      end)

    it("testWriteRead: all readers are woken when the writer leaves", function()
      assert.is_true(writer:lock())
      local all = {}
      for i = 1, 20 do all[i] = waits(reader) end
      assert.is_true(writer:unlock())
      for i = 1, 20 do assert.is_true(all[i]:join(LONG)) end
    end)

    it("testReentrancy, testHoldCount: counts each side of its own", function()
      local counts = {}
      local function note()
        counts[#counts + 1] = writer:hold_count() .. reader:hold_count()
      end
      note()
      for _, step in ipairs {
        { writer, "lock" }, { writer, "lock" }, { reader, "lock" },
        { reader, "lock" }, { writer, "unlock" }, { reader, "unlock" },
        { writer, "unlock" }, { reader, "unlock" },
      } do
        assert.is_true(step[1][step[2]](step[1]))
        note()
      end
      assert.same({ "00", "10", "20", "21", "22", "12", "11", "01", "00" },
        counts)
    end)

    it("testReadLockIsLocked: each side knows of itself", function()
      assert.is_true(is_free())
      assert.is_true(reader:lock())
      assert.is_true(reader:is_locked() and reader:is_held())
      assert.is_false(writer:is_locked() or writer:is_held())
      task.run(function()
        assert.is_true(reader:is_locked())
        assert.is_false(reader:is_held())
        assert.equal("not_held", select(2, reader:unlock()))
      end)
      assert.is_true(reader:unlock())
      assert.is_true(writer:lock())
      assert.is_true(writer:is_locked() and writer:is_held())
      assert.is_false(reader:is_locked() or reader:is_held())
      assert.is_true(reader:lock())
      assert.is_true(reader:is_locked() and writer:is_locked())
    end)

    it("testForceUnlock: only what is in that mode", function()
      assert.is_true(reader:lock())
      task.run(function()
        assert.is_false(writer:break_lock())
        assert.is_true(reader:break_lock())
        assert.is_false(reader:break_lock())
      end)
      assert.equal("lost", select(2, reader:unlock()))
      assert.is_true(writer:lock())
      task.run(function()
        assert.is_false(reader:break_lock())
        assert.is_true(writer:break_lock())
      end)
      assert.equal("lost", select(2, writer:unlock()))
      assert.is_true(writer:lock())
      assert.is_true(reader:lock())
      task.run(function() assert.is_true(writer:break_lock()) end)
      assert.equal("lost", select(2, reader:unlock()))
      assert.equal("lost", select(2, writer:unlock()))
      assert.is_true(is_free())
    end)

    it("testReadWriteTTL: is kept for as long as either side needs it",
      function()
        assert.is_true(writer:lock())
        assert.is_true(writer:ttl() > 9)
        assert.is_true(reader:lock())
        assert.is_true(reader:ttl() > 9)
        assert.is_true(writer:unlock())
        assert.is_true(reader:ttl() > 9)
        assert.is_true(reader:unlock())
        assert.is_false(reader:ttl())
      end)

    it("testMultiInstanceReadLockZombieCleanup: a reader in a process that was "
      .. "killed does not block a writer", function()
        local dead = program.start(server, "-e", READ, method, name,
          tostring(LEASE))
        eventually(function() return dead:output():find "reads" end, LONG)
        assert.is_true(reader:lock())
        local waiting = waits(writer)
        dead:kill(9)
        dead:wait(LONG)
        assert.is_true(reader:unlock())
        assert.is_true(waiting:join(LONG))
      end)

    it("testName: takes any name", function()
      for _, odd in ipairs { "{test}:abc:key", "nul\0inside", "}{" } do
        local its = client[method](client, odd)
        assert.is_true(its:write_lock():lock { wait = LONG })
        assert.is_true(its:read_lock():try_lock())
        assert.is_true(its:write_lock():unlock())
        assert.is_true(its:read_lock():unlock())
        assert.is_false(its:read_lock():is_locked())
      end
    end)
  end)
end
