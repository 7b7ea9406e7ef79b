--- The leases of a read/write lock on virtual time: what Redisson's own tests
--- assert of them, by their names there (RedissonReadWriteLockTest).
---
---   require "spec.rows.leases" ("readwrite", "read_write_lock", describe, it)

local assert = require "luassert"
local stage = require "spec.simulate.stage"

return function(which, method, describe, it)
  -- A test: fn(stage, reader, writer).
  local function row(title, fn)
    stage.tests(it)(title, function(self, client)
      local pair = client[method](client, "lock")
      fn(self, pair:read_lock(), pair:write_lock())
    end)
  end

  -- Asserts that another task waits that many seconds for it.
  local function waits(self, lock, seconds)
    local began = self.now()
    self.spawn(function()
      assert.is_true(lock:lock())
      assert.is_true(lock:unlock())
    end):join()
    assert.near(seconds, self.now() - began, 0.01)
  end

  -- Tasks that live, and read with these leases.
  local function read(self, reader, ...)
    for _, lease in ipairs { ... } do
      self.spawn(function()
        assert.is_true(reader:lock { lease = lease })
        self.sleep(100)
      end)
    end
    self.sleep(0)
  end

  describe("rows of " .. which .. ":", function()
    row("testExpireRead: a reader whose lease is over has lost it",
      function(self, reader)
        assert.is_true(reader:lock { lease = 10 })
        self.sleep(10)
        assert.equal("lost", select(2, reader:unlock()))
        assert.is_true(reader:lock { lease = 30 })
      end)

    row("testExpireWrite: a writer whose lease is over has lost it, and the "
      .. "next one enters", function(self, _, writer)
        assert.is_true(writer:lock { lease = 10 })
        waits(self, writer, 10)
        assert.equal("lost", select(2, writer:unlock()))
      end)

    row("testReadLockExpiration, testReadLockLeaseTimeout: a writer waits for "
      .. "the longest lease of readers", function(self, reader, writer)
        read(self, reader, 20, 10)
        waits(self, writer, 20)
      end)

    row("testReadLockLeaseTimeoutDiffThreadsRRW: also when they came in the "
      .. "other order", function(self, reader, writer)
        read(self, reader, 10, 20)
        waits(self, writer, 20)
      end)

    row("testReadLockLeaseTimeoutDiffThreadsWRR: readers wait for the lease of "
      .. "a writer", function(self, reader, writer)
        assert.is_true(writer:lock { lease = 10 })
        self.spawn(function() waits(self, reader, 10) end)
        waits(self, reader, 10)
      end)

    row("testWriteLockExpiration: an inner lease does not end the outer one; "
      .. "and who reads on lets readers in when it stops writing",
      function(self, reader, writer)
        assert.is_true(writer:lock { lease = 20 })
        assert.is_true(writer:lock { lease = 5 })
        assert.is_true(reader:lock { lease = 60 })
        waits(self, reader, 20)
      end)

    row("testReadLockExpirationRenewal: the watchdog keeps fifty readers for "
      .. "longer than a lease", function(self, reader, writer)
        local tasks = {}
        for i = 1, 50 do
          tasks[i] = self.spawn(function()
            assert.is_true(reader:lock())
            self.sleep(100)
            assert.is_true(reader:unlock())
          end)
        end
        self.sleep(99)
        assert.equal("busy", select(2, writer:try_lock()))
        for i = 1, 50 do tasks[i]:join() end
        assert.is_true(writer:try_lock())
      end)
  end)
end
