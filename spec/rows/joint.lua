--- Behaviours that Redisson's own tests assert of multi-locks, by their names
--- there (RedissonMultiLockTest), with one lock on each of three servers.
---
---   require "spec.rows.joint" ("multi", describe, it, before_each, after_each)

local assert = require "luassert"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local LONG = 30 * slow              -- for a wait that must end earlier
local is_busy = { busy = true, quorum = true }

local make = {
  multi = function(clients, name)
    local locks = {}
    for i, client in ipairs(clients) do locks[i] = client:lock(name) end
    return rlock.multi_lock(locks)
  end,
  red = function(clients, name)
    return rlock.red_lock(clients, name, { node_timeout = slow })
  end,
}

return function(which, describe, it, before_each, after_each)
  local servers, lock, other

  local function open_all()
    local all = {}
    for i, server in ipairs(servers) do
      all[i] = fixtures.open(server.url)
    end
    return all
  end

  describe("rows of " .. which .. ":", function()
    before_each(function()
      servers = {}
      for i = 1, 3 do servers[i] = fixtures.server() end
      lock, other = make[which](open_all(), "a"), make[which](open_all(), "a")
    end)

    after_each(fixtures.close)

    it("testWaitAndLeaseTimeouts: of ten who only try one has it", function()
      local won, ended = 0, 0
      task.many(10, function()
        local ok, code = lock:try_lock { lease = 100 }
        ended = ended + 1
        if not ok then return assert.is_true(is_busy[code], code) end
        won = won + 1
        eventually(function() return ended == 10 end, LONG)
        assert.is_true(lock:unlock())
      end, 2 * LONG)
      -- Each may have won one of the three servers.
      assert.is_true(won == 1 or won == 0 and which == "red", "won " .. won)
      assert.is_true(lock:lock { wait = LONG })
    end)

    it("testMultiThreads: who waits has it when it is given back", function()
      assert.is_true(lock:lock())
      local waiting = task.start(function()
        assert.is_true(other:lock { wait = LONG })
        return other:unlock()
      end)
      assert.is_nil(waiting.is_over)
      assert.is_true(lock:unlock())
      assert.is_true(waiting:join(LONG))
    end)

    it("test(): on three servers, somebody else's tries fail", function()
      assert.is_true(lock:lock())
      assert.is_true(lock:is_held())
      for _, its in ipairs { lock, other } do
        task.run(function()
          for _ = 1, 2 do
            local ok, code = its:try_lock()
            assert.is_nil(ok)
            assert.is_true(is_busy[code], code)
          end
        end)
      end
      assert.is_true(lock:unlock())
      assert.is_true(other:lock { wait = LONG })
    end)
  end)
end
