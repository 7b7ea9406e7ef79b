--- Waiters: which one is woken, that a waiter that gives up leaves nothing
--- behind, and what happens to waiters and holders when a client closes.
local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local program = require "spec.tools.program"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"
local within = require "spec.tools.within"

local TIMEOUT = 0.5 * slow
local SLACK = 20 * slow
local WARM = 12 * slow           -- until an unused subscription has ended

local server, proxy, client, lock, name, channel

local function open(options)
  return fixtures.open({ url = server.url }, options)
end

-- A command to the server without rlock; does not block.
local function ask(...) return control.ask(server, ...) end

local function evalshas() return control.evalshas(server) end

local function subscribers()
  return ask("PUBSUB", "NUMSUB", channel)[2]
end

-- The id of the connection that has a subscription.
local function subscriber()
  return ask("CLIENT", "LIST", "TYPE", "pubsub"):match("id=(%d+)")
end

local function is_free()
  return ask("EXISTS", name) == 0
end

-- Somebody else holds the lock until free().
local function occupy()
  ask("HSET", name, "somebody:1", "1")
end

local function free()
  ask("DEL", name)
  ask("PUBLISH", channel, "0")
end

-- A task that waits for the lock, queued behind the current waiters.
local function wait_in_line(its, options)
  local before = evalshas()
  local waiting = task.start(function() return its:lock(options) end)
  eventually(function() return subscribers() > 0 and evalshas() > before end)
  return waiting
end

local function choose_name()
  name = fixtures.name "waiting"
  channel = "redisson_lock__channel:{" .. name .. "}"
  lock = client:lock(name)
end

local function start(options)
  server = fixtures.server()
  client = open(options)
  choose_name()
end

local function start_behind_proxy()
  server = fixtures.server()
  proxy = fixtures.proxy(server)
  client = open { url = proxy.url }
  choose_name()
  assert(lock:lock())
  assert(lock:unlock())
end

describe("a release that is published by PUBLISH and SPUBLISH", function()
  before_each(function() start { publish = "both" } end)
  after_each(fixtures.close)

  it("wakes one waiter", function()
    assert.is_true(lock:lock() and lock:unlock() and lock:lock())
    local first = wait_in_line(lock, { lease = 30 })
    local second = wait_in_line(lock, { wait = 30 })
    local before = evalshas()
    assert.is_true(lock:unlock())
    assert.is_true(first:join())
    for _ = 1, 10 do client:call("PING") end
    assert.equal(before + 2, evalshas())
    assert.is_true(lock:break_lock())
    assert.is_true(second:join())
  end)
end)

describe("waiters", function()
  before_each(start)
  after_each(fixtures.close)

  it("of one client share a subscription, and one is woken per release",
    function()
      occupy()
      local n, all, got = 50, {}, 0
      for i = 1, n do
        all[i] = task.start(function()
          assert(lock:lock { wait = 60 * slow })
          got = got + 1
          -- Not by unlock, to count only the requests of waiters.
          free()
        end)
      end
      local before = evalshas()
      eventually(function()
        return subscribers() == 1 and evalshas() >= before + n
      end)
      before = evalshas()
      free()
      for i = 1, n do all[i]:join(60 * slow) end
      local questions = evalshas() - before
      assert.is_true(questions <= 2 * n, questions .. " questions")
      assert.equal(n, got)
    end)

  it("leave no subscription behind, and no connection, when all have gone",
    function()
      occupy()
      for _ = 1, 3 do
        assert.equal("timeout", select(2, lock:lock { wait = 0.05 }))
      end
      assert.equal(1, subscribers())
      eventually(function() return subscribers() == 0 end, WARM)
      eventually(function()
        return ask("CLIENT", "LIST", "TYPE", "pubsub") == ""
      end, WARM)
      -- It subscribes again for a new waiter.
      local waiting = wait_in_line(lock, { wait = 30 * slow })
      free()
      assert.is_true(waiting:join())
    end)

  it("keep the subscription: it is not renewed for each wait",
    function()
      for _ = 1, 20 do
        occupy()
        local waiting = wait_in_line(lock, { wait = 30 * slow })
        free()
        assert.is_true(waiting:join())
        assert.is_true(task.run(function()
          return (lock:break_lock())
        end))
      end
      -- Three channels of the lock, see policy/handover.lua.
      assert.equal(3, server:stat("subscribe"))
    end)
end)

describe("a subscriber that is killed again and again", function()
  before_each(start)
  after_each(fixtures.close)

  it("is replaced each time", function()
    occupy()
    local waiting = wait_in_line(lock, { wait = 60 * slow })
    for _ = 1, 14 do
      local before = subscriber()
      ask("CLIENT", "KILL", "TYPE", "pubsub")
      eventually(function()
        local now = subscriber()
        return now and now ~= before
      end)
    end
    free()
    assert.is_true(waiting:join())
  end)
end)

describe("a waiter that is cancelled", function()
  before_each(start_behind_proxy)
  after_each(fixtures.close)

  it("leaves nothing behind", function()
    occupy()
    local waiting = wait_in_line(lock, { wait = 60 * slow })
    waiting:cancel()
    free()
    for _ = 1, 10 do client:call("PING") end
    assert.is_true(is_free())
    assert.equal("free", lock:state())
    eventually(function() return subscribers() == 0 end, WARM)
  end)

  it("is unwound also if it waits without a limit, or for a server",
    function()
      occupy()
      local waiting = wait_in_line(lock)
      waiting:cancel()
      server:pause()
      local asking = task.start(function() return lock:lock { wait = 60 } end)
      for _ = 1, 3 do rlock.sleep(0) end            -- until it has asked
      asking:cancel()
      server:resume()
      free()
      eventually(is_free)
    end)

  it("with a hold is released by its <close> variable", function()
    local inside = rlock.event()
    local holding = task.start(function()
      local _ <close> = assert(lock:hold())
      inside:set()
      rlock.sleep(1000)
    end)
    inside:wait(10 * slow)
    holding:cancel()
    assert.is_true(is_free())
  end)

  it("inside lock:with is released, and the function does not go on",
    function()
      local inside, went_on = rlock.event(), nil
      local holding = task.start(function()
        lock:with(function()
          inside:set()
          rlock.sleep(1000)
          went_on = true
        end)
      end)
      inside:wait(10 * slow)
      holding:cancel()
      assert.is_true(is_free())
      assert.is_nil(went_on)
    end)
end)

describe("an explicit owner", function()
  before_each(start_behind_proxy)
  after_each(fixtures.close)

  it("is counted correctly in many tasks at once", function()
    local named = client:lock(name, { owner = "me" })
    task.many(50, function()
      for _ = 1, 5 do
        assert(named:lock())
        rlock.sleep(0)
        assert(named:unlock())
      end
    end)
    assert.is_true(is_free())
  end)
end)

describe("closing a client", function()
  before_each(start)
  after_each(fixtures.close)

  it("releases all its holds, however many", function()
    local far = open()
    task.many(1000, function(i)
      assert(far:lock(name .. ":" .. i):hold(i % 2 == 0 and { lease = 60 }
        or nil))
    end)
    assert.equal(1000, ask("DBSIZE"))
    within(SLACK, far.close, far)
    assert.equal(0, ask("DBSIZE"))
  end)

  it("wakes the waiters of other clients", function()
    local far = open()
    assert.is_true(far:lock(name):lock())
    local waiting = wait_in_line(lock, { wait = 60 * slow })
    far:close()
    assert.is_true(waiting:join())
  end)

  it("takes bounded time if the server is gone, silent or stopped", function()
    for _, fault in ipairs { "kill", "pause" } do
      local far = open { timeout = TIMEOUT }
      for i = 1, 600 do assert(far:lock(name .. fault .. i):lock()) end
      server[fault](server)
      local ok, message = pcall(within, TIMEOUT + SLACK, far.close, far)
      if fault == "kill" then
        server:launch()
      else
        server:resume()
      end
      assert(ok, message)
    end
  end)

  it("is safe while the subscription is kept, or just ended #long",
    function()
      local seconds = { 0, 3, 5.1, 7, 9.9, 11 }
      local all = {}
      for i, after in ipairs(seconds) do
        all[i] = program.start(server, "-e", [[
          local rlock = require "rlock"
          local client = assert(rlock.open())
          local own = client:lock("waiting:warm")
          assert(own:lock())
          rlock.spawn(function() own:lock { wait = 0.1 } end):join()
          assert(own:unlock())
          rlock.sleep(tonumber((...)))
          client:close()
          rlock.sleep(0.1)]], tostring(after))
      end
      for i in ipairs(seconds) do
        local status = all[i]:wait()
        assert.equal(0, status, all[i]:output())
      end
    end)

  it("happens by its <close> variable, and leaves no connection", function()
    local before = tonumber(ask("INFO", "clients"):match(
      "connected_clients:(%d+)"))
    do
      local far <close> = open()
      assert.is_true(far:lock(name):lock())
    end
    assert.is_true(is_free())
    eventually(function()
      return tonumber(ask("INFO", "clients"):match(
        "connected_clients:(%d+)")) == before
    end)
  end)

  it("happens when it is garbage-collected", function()
    local before = tonumber(ask("INFO", "clients"):match(
      "connected_clients:(%d+)"))
    task.run(function()
      for _ = 1, 5 do
        local forgotten = assert(rlock.open(server.url))
        assert(forgotten:lock(name):lock())
        assert(forgotten:lock(name):unlock())
      end
    end)
    eventually(function()
      collectgarbage()
      return tonumber(ask("INFO", "clients"):match(
        "connected_clients:(%d+)")) == before
    end, 5 * slow)
  end)
end)
