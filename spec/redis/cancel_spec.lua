--- Waits that end early, for every kind: a task that is cancelled, also at the
--- moment of the grant, and a deadline that several calls share.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local host = require "rlock.host.uv"
local kinds = require "spec.tools.kinds"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local ROUNDS = 12
local SOON = 20 * slow

local name, waits

local function count_waits(_, event)
  if event == "waiting" then waits = waits + 1 end
end

local OPTIONS = { log = count_waits }

-- Whether a client is idle: it has no waiter and no request in flight.
local function is_idle(client)
  for _, channel in pairs(client.session.wakeup.channels) do
    if channel.first then return false end
  end
  return client.session.pending == 0
end

local function all_idle(clients)
  eventually(function()
    for _, client in ipairs(clients) do
      if not is_idle(client) then return false end
    end
    return true
  end, SOON, "nothing is under way")
end

-- A task that waits in `take`, and releases what it acquires.
local function wait_in(take, give)
  local before = waits
  local waiter = task.start(function()
    local got, code = take()
    if got then give(got) end
    return got, code
  end)
  eventually(function() return waits > before end, SOON, "it waits")
  return waiter
end

-- Races a release with the waiter's cancellation, in both orders.
local function race(i, waiter, free)
  local freeing = task.start(free)
  if i % 3 > 0 then rlock.sleep(i % 4 / 2000) end
  waiter.task:cancel()
  freeing:join(SOON)
  eventually(function() return waiter.is_over end, SOON, "it ends")
end

local function start()
  name, waits = fixtures.name "cancel", 0
end

for _, which in ipairs(kinds.names()) do
  describe("a wait for a " .. which .. " lock that is cancelled", function()
    local world, lock, rival

    before_each(function()
      start()
      local urls = {}
      for i, server in ipairs(kinds.servers(which)) do urls[i] = server.url end
      world = kinds.open(which, urls, OPTIONS)
      lock, rival = world.lock(name), world.rival(name)
    end)
    after_each(fixtures.close)

    local function wait()
      return wait_in(function() return lock:lock { wait = SOON } end,
        function() lock:unlock() end)
    end

    -- The lock is free, and has no waiter or request in flight.
    local function is_left_alone()
      all_idle(world.clients)
      eventually(function()
        local got = rival:try_lock()
        return got and rival:unlock()
      end, SOON, "it is free")
      for _, member in ipairs(world.members(name)) do
        eventually(function() return not next(member.record.grants) end, SOON,
          "no task has anything of it")
        -- In nginx, a killed waiter may still be granted the lock, and then
        -- releases it.
        eventually(function()
          local state = member:peek() or { state = "free" }   -- few has none
          return state.state == "free" and #(state.queue or {}) == 0
        end, SOON, "it is free")
      end
    end

    it("leaves nothing behind, and the next waiter acquires it", function()
      assert(rival:lock())
      local waiter, second = wait(), wait()
      waiter.task:cancel()
      eventually(function() return waiter.is_over end, SOON)
      assert.is_false(second.is_over or false)
      assert(rival:unlock())
      assert.is_true((second:join(SOON)))
      is_left_alone()
    end)

    it("leaves nothing behind if it races with the grant", function()
      for i = 1, ROUNDS do
        assert(rival:lock())
        race(i, wait(), function() end)
        assert(rival:unlock())
        is_left_alone()
        local held, done = false, rlock.event()
        local holder = task.start(function()
          assert(rival:lock())
          held = true
          done:wait()
          assert(rival:unlock())
        end)
        eventually(function() return held end, SOON, "it is held")
        race(i, wait(), function()
          done:set()
          holder:join(SOON)
        end)
        is_left_alone()
      end
    end)

    it("differs from a deadline, which ends all waits", function()
      local deadline = rlock.deadline(0.1)
      assert(rival:lock())
      local results = {}
      task.run(function()
        for i = 1, 3 do
          local ok, code = lock:lock { wait = deadline }
          assert.is_nil(ok)
          results[i] = code
        end
        assert.same({ nil, "timeout", "the deadline has passed" },
          { lock:try_lock { wait = deadline } })
      end)
      assert.same({ "timeout", "timeout", "timeout" }, results)
      assert(rival:unlock())
      is_left_alone()
    end)
  end)
end

describe("a wait for", function()
  local client

  before_each(function()
    start()
    client = fixtures.open(redis.shared().url, OPTIONS)
  end)
  after_each(fixtures.close)

  -- Tests one kind of counter. `take` waits for it, `give` releases it; `free`
  -- lets one waiter acquire it, `occupy` undoes that; `left` is the number
  -- available.
  local function test(its)
    for i = 1, ROUNDS do
      race(i, wait_in(its.take, its.give), its.free)
      all_idle { client }
      eventually(function() return its.left() == its.all end, SOON,
        "all is there")
      its.occupy()
    end
    local waiter = wait_in(its.take, its.give)
    waiter.task:cancel()
    eventually(function() return waiter.is_over end, SOON)
    all_idle { client }
    its.free()
    assert.equal(its.all, its.left())
    local deadline = rlock.deadline(0.05)
    its.occupy()
    for _ = 1, 2 do
      assert.same({ nil, "timeout" }, { its.take(deadline) })
    end
    assert.equal(0, deadline:left())
  end

  it("permits of a semaphore that is cancelled leaves nothing", function()
    local semaphore = client:semaphore(name)
    assert(semaphore:set(0))
    test {
      all = 1, left = function() return semaphore:available() end,
      take = function(wait)
        local ok, code = semaphore:acquire { wait = wait or SOON }
        return ok, code
      end,
      give = function() semaphore:release() end,
      free = function() assert(semaphore:release()) end,
      occupy = function() assert(semaphore:acquire { wait = SOON }) end,
    }
  end)

  it("a permit with a lease that is cancelled leaves nothing", function()
    local permits = client:permits(name)
    assert(permits:set(1))
    local held = assert(permits:acquire())
    test {
      all = 1, left = function() return permits:available() end,
      take = function(wait)
        local id, code = permits:acquire { wait = wait or SOON }
        return id, code
      end,
      give = function(id) permits:release(id) end,
      free = function() assert(permits:release(held)) end,
      occupy = function()
        held = assert(permits:acquire { wait = SOON })
      end,
    }
  end)

  it("a latch that is cancelled leaves nothing", function()
    local latch = client:latch(name)
    assert(latch:set(1))
    test {
      all = 0, left = function() return latch:count() end,
      take = function(wait)
        local ok, code = latch:wait { wait = wait or SOON }
        return ok, code
      end,
      give = function() end,
      free = function() assert(latch:count_down()) end,
      occupy = function() assert(latch:set(1)) end,
    }
  end)
end)

describe("a deadline", function()
  before_each(start)
  after_each(fixtures.close)

  it("gives the remaining time to each call", function()
    local deadline = rlock.deadline(10)
    local before = deadline:left()
    assert.is_true(before > 0 and before <= 10)
    rlock.sleep(0.01)
    assert.is_true(deadline:left() < before)
    assert.matches("^deadline in %d%.%d+ s$", tostring(deadline))
    assert.equal(math.huge, rlock.deadline(math.huge):left())
  end)

  it("that has passed sends no request", function()
    local client = fixtures.open(redis.shared().url)
    local deadline, lock = rlock.deadline(0), client:lock(name)
    assert.same({ nil, "timeout", "the deadline has passed" },
      { lock:lock { wait = deadline } })
    assert.same({ nil, "timeout", "the deadline has passed" },
      { lock:with({ wait = deadline }, error) })
    assert.equal("free", lock:state())
    assert.equal(2, client:stats().timeouts)
  end)

  it("must be made of seconds", function()
    for _, bad in ipairs { -1, "1", 0 / 0, {} } do
      assert.is_false(pcall(rlock.deadline, bad))
    end
    local lock = fixtures.open(redis.shared().url):lock(name)
    local ok, message = pcall(lock.lock, lock, { wait = {} })
    assert.is_false(ok)
    assert.matches("bad wait: .*must be a number of seconds", message)
  end)
end)

if host.name ~= "ngx" then              -- there, the first request connects
  describe("an open() that is cancelled", function()
    it("ends, though its server drops connections or is silent", function()
      local silent, lost = redis.start(), 0
      finally(function()
        silent:resume()
        silent:stop()
      end)
      silent:pause()
      local opening = task.start(function()
        rlock.open { url = silent.url, timeout = 0.1, connect_timeout = 600,
          log = function(_, event)
            if event == "disconnected" then lost = lost + 1 end
          end }
      end)
      eventually(function() return lost > 0 end, SOON, "it tries again")
      opening:cancel(SOON)
    end)
  end)
end
