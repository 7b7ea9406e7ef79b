--- The heartbeats of many waiters of one client on a real Redis. The times of
--- heartbeats are in spec/check/heartbeats_spec.lua.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local kinds = require "spec.tools.kinds"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local WAITERS = 2000
local AT_ONCE = 50                      -- tasks that come together
local LONG = 60 * slow
local MOST = 100                        -- requests a second; expected are 40
local CALM = 4                          -- seconds until there are no more

-- Those that come together may be queued in any order.
local function group(i) return math.floor((i - 1) / AT_ONCE) end

for _, which in ipairs { "fair", "fair_write" } do
  describe("2 000 waiters for a " .. which:gsub("_", " ") .. " lock", function()
    local server, world, name, lock, waiters, got

    -- The requests so far.
    local function requests()
      return tonumber(world.clients[1]:call("INFO", "commandstats"):match(
        "cmdstat_evalsha:calls=(%d+)") or 0)
    end

    local function queued()
      return kinds.of[which].waiting(world.clients[1], name)
    end

    local function wait_in_line(i)
      waiters[i] = task.start(function()
        local ok, code = lock:lock { wait = 5 * LONG }
        if not ok then return code end
        got[#got + 1] = i
        return lock:unlock()
      end)
    end

    setup(function()
      server = redis.start()
      world = kinds.open(which, { server.url })
      name, waiters, got = "crowd", {}, {}
      lock = world.lock(name)
      assert.is_true(lock:lock())
      for first = 1, WAITERS, AT_ONCE do
        for i = first, first + AT_ONCE - 1 do wait_in_line(i) end
        eventually(function() return queued() == first + AT_ONCE - 1 end, LONG,
          "all are in line")
      end
    end)

    teardown(function()
      fixtures.close()
      server:stop()
    end)

    -- Requests a second, counted for a second.
    local function rate()
      local before, begun = requests(), rlock.now()
      rlock.sleep(1)
      return (requests() - before) / (rlock.now() - begun)
    end

    it("send few requests", function()
      local last
      -- The last ones to come retry once they are subscribed.
      local ok = pcall(eventually, function()
        last = rate()
        return last < MOST
      end, CALM)
      assert.is_true(ok and last > 2, last .. " requests a second")
      assert.equal(WAITERS, queued())
    end)

    it("get it in order of arrival", function()
      assert.is_true(lock:unlock())
      for i = 1, WAITERS do
        assert.is_true((waiters[i]:join(LONG)))
      end
      assert.equal(WAITERS, #got)
      for i, who in ipairs(got) do
        assert.equal(group(i), group(who))
      end
      eventually(function()
        return #world.clients[1]:call("KEYS", "*crowd*") == 0
      end, LONG, "nothing is left")
    end)
  end)
end
