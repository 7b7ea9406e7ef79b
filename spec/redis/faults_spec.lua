--- Faults that a lock survives: servers that die, hang and lose their data,
--- connections that break at the worst moment, replies that are lost or late.

local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local occupy = require "spec.tools.occupy"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"
local within = require "spec.tools.within"

local TIMEOUT = 0.4 * slow          -- of one command by default
local SLACK = 20 * slow           -- tolerance of a bounded call

local server, proxy, client, lock, name

local function open(options)
  return fixtures.open({ url = server.url, timeout = TIMEOUT }, options)
end

-- A command to the server without rlock; does not block.
local function ask(...) return control.ask(server, ...) end

-- The lock has a single owner on the server, with this count of holds.
local function held_once(count)
  local fields = ask("HGETALL", name)
  assert.equal(2, #fields, "owners of the lock")
  assert.equal(tostring(count or 1), fields[2])
  assert.equal(count or 1, lock:hold_count())
end

local function is_free()
  return ask("EXISTS", name) == 0
end

-- Another client can take and release the lock: no stale hold remains.
local function usable(seconds)
  local other = open()
  local its = other:lock(name)
  assert.is_true(task.run(function()
    local ok, code, detail = its:lock { wait = seconds or 5 * slow }
    assert(ok, ("%s %s"):format(code, detail))
    return its:unlock()
  end))
  other:close()
end

local function start()
  server = fixtures.server()
  client = open()
  name = fixtures.name "faults"
  lock = client:lock(name)
end

local function start_behind_proxy()
  server = fixtures.server()
  proxy = fixtures.proxy(server)
  client = open { url = proxy.url }
  name = fixtures.name "faults"
  lock = client:lock(name)
  -- Loads the scripts, so that the specs are about the requests.
  assert(lock:lock())
  assert(lock:unlock())
end

local function stop()
  if proxy then proxy:thaw() end
  fixtures.close()
  proxy = nil
end

describe("a server that is killed and comes back empty", function()
  before_each(start)
  after_each(stop)

  it("serves an idle client again", function()
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    server:restart()
    assert.is_true(lock:lock())
    held_once()
    assert.is_true(lock:unlock())
    assert.is_true(is_free())
  end)

  it("grants the lock to a waiter with enough time", function()
    local its = open()
    local holder = occupy(its:lock(name))
    local waiting = task.start(function()
      return lock:lock { wait = 30 * slow }, lock:hold_count()
    end)
    eventually(function()
      return ask("PUBSUB", "NUMSUB",
        "redisson_lock__channel:{" .. name .. "}")[2] == 1
    end)
    server:kill()
    rlock.sleep(2 * TIMEOUT)
    server:launch()
    local ok, count = waiting:join()
    assert.is_true(ok)
    assert.equal(1, count)
    -- Until its client has reconnected, an unlock may return `connect`.
    eventually(function() return its:call("PING") end)
    assert.equal("lost", select(2, holder.leave()))
    assert.equal(1, ask("EXISTS", name))
  end)

  it("costs the holder its hold, reports it, and allows another", function()
    assert.is_true(lock:lock())
    server:restart()
    -- On the broken connection, the outcome of a release would be unknown.
    eventually(function() return client:call("PING") end)
    assert.equal("lost", select(2, lock:unlock()))
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
  end)

  it("while it is away fails in time", function()
    server:kill()
    local ok, code, detail = within(TIMEOUT + SLACK, lock.try_lock, lock)
    assert.is_nil(ok)
    assert.equal("connect", code)
    assert.matches(server.socket, detail, 1, true)
    assert.equal("connect", select(2, within(TIMEOUT + SLACK, lock.lock,
      lock, { wait = TIMEOUT })))
    assert.equal("connect", select(2, within(TIMEOUT + SLACK, client.call,
      client, "PING")))
    server:launch()
    assert.is_true(lock:lock { wait = 5 * slow })
    assert.is_true(lock:unlock())
  end)
end)

describe("a server that forgets its scripts", function()
  before_each(start)
  after_each(stop)

  it("gets them again from every operation", function()
    local function forget() ask("SCRIPT", "FLUSH") end
    for _ = 1, 3 do
      forget()
      assert.is_true(lock:lock())
      forget()
      assert.is_true(lock:lock())
      forget()
      held_once(2)
      forget()
      assert.is_true(lock:unlock())
      forget()
      assert.is_true(lock:is_locked())
      assert.is_true(lock:unlock())
      forget()
      assert.is_false(lock:break_lock())
    end
  end)

  it("gets them again from a hundred concurrent tasks", function()
    task.many(100, function(i)
      local own = client:lock(name .. ":" .. i)
      for _ = 1, 5 do
        assert.is_true(own:lock())
        if i == 1 then ask("SCRIPT", "FLUSH") end
        assert.is_true(own:unlock())
      end
    end)
  end)
end)

describe("a server that hangs", function()
  before_each(start)
  after_each(stop)

  it("by CLIENT PAUSE is waited for within the time there is", function()
    local far = open { timeout = 5 * slow }
    local held = far:lock(name)
    assert.is_true(held:lock())
    ask("CLIENT", "PAUSE", ("%.0f"):format(TIMEOUT * 1000), "ALL")
    local before = rlock.now()
    assert.is_true(held:unlock())
    assert.is_true(rlock.now() - before >= TIMEOUT / 2)
    ask("CLIENT", "PAUSE", ("%.0f"):format(4 * TIMEOUT * 1000), "WRITE")
    local ok, code = within(2 * TIMEOUT + SLACK, lock.lock, lock,
      { wait = 2 * TIMEOUT })
    assert.is_nil(ok)
    assert.is_true(code == "timeout" or code == "closed", code)
    assert.is_true(lock:lock { wait = 10 * slow })
    assert.is_true(lock:unlock())
    assert.is_true(is_free())
  end)

  it("by SIGSTOP bounds every call", function()
    local far = open { timeout = TIMEOUT }
    local held = far:lock(name)
    assert.is_true(held:lock())
    server:pause()
    local ok, message = pcall(function()
      for _, method in ipairs { "lock", "try_lock", "is_locked", "is_held",
        "hold_count", "ttl", "peek", "break_lock", "unlock" } do
        local result, code = within(TIMEOUT + SLACK, held[method], held,
          method == "lock" and { wait = TIMEOUT } or nil)
        assert.is_nil(result)
        assert.is_string(code)
      end
      assert.is_nil((within(TIMEOUT + SLACK, far.call, far, "PING")))
      within(TIMEOUT + SLACK, far.close, far)
    end)
    server:resume()
    assert(ok, message)
    assert.is_true(ask("PTTL", name) <= 30000)
  end)
end)

describe("a connection that is killed", function()
  before_each(start)
  after_each(stop)

  local function kill(kind)
    ask("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
  end

  it("is replaced without an effect", function()
    for _ = 1, 5 do
      kill "normal"
      assert.is_true(lock:lock())
      kill "normal"
      held_once()
      kill "normal"
      assert.is_true(lock:unlock())
    end
  end)

  it("is the subscriber: it is replaced, and its waiter woken", function()
    local holder = occupy(open():lock(name))
    local channel = "redisson_lock__channel:{" .. name .. "}"
    local function subscribed()
      return ask("PUBSUB", "NUMSUB", channel)[2] == 1
    end
    local waiting = task.start(function() return lock:lock { wait = 20 } end)
    for _ = 1, 3 do
      eventually(subscribed)
      kill "pubsub"
      eventually(function() return not subscribed() end)
    end
    eventually(subscribed)
    assert.is_true(holder.leave())
    assert.is_true(waiting:join())
  end)

  it("and was the subscriber, just when the lock was released: the waiter is "
    .. "woken all the same", function()
    ask("HSET", name, "somebody:1", "1")
    local waiting = task.start(function() return lock:lock { wait = 60 } end)
    eventually(function()
      return ask("PUBSUB", "NUMSUB",
        "redisson_lock__channel:{" .. name .. "}")[2] == 1
    end)
    server:script {
      { "CLIENT", "KILL", "TYPE", "pubsub" },
      { "DEL", name },
      { "PUBLISH", "redisson_lock__channel:{" .. name .. "}", "0" },
    }
    assert.is_true(waiting:join())
  end)

  it("under a hundred tasks fails none of them", function()
    local patient, turns = open { timeout = 10 * slow }, 0
    local killer = task.start(function()
      while turns < 490 do
        local before = turns
        kill "normal"
        eventually(function() return turns > before + 3 end, 60 * slow)
      end
    end)
    task.many(100, function(i)
      local own = patient:lock(name .. ":" .. i % 10)
      for _ = 1, 5 do
        local ok, code, detail = own:lock { wait = 30 * slow }
        assert(ok, ("%s: %s"):format(code, detail))
        ok, code, detail = own:unlock()
        assert(ok, ("%s: %s"):format(code, detail))
        turns = turns + 1
      end
    end, 60 * slow)
    killer:join()
  end)
end)

-- The fault hits one request: its reply and all later ones on that connection
-- are lost, or the connection is closed in place of the reply.
for _, fault in ipairs { "mute", "cut" } do
  describe("a reply that is lost (" .. fault .. ")", function()
    before_each(start_behind_proxy)
    after_each(stop)

    local function strike(n) proxy[fault](proxy, n or 1, name) end

    it("of an acquire: the lock is held, once", function()
      strike()
      assert.is_true(lock:lock { wait = 20 * slow })
      held_once()
      assert.equal("held", lock:state())
      assert.is_true(lock:unlock())
      assert.is_true(is_free())
    end)

    it("of an inner acquire: it counts once", function()
      assert.is_true(lock:lock())
      strike()
      assert.is_true(lock:lock { wait = 20 * slow })
      held_once(2)
      assert.is_true(lock:unlock())
      held_once(1)
      assert.is_true(lock:unlock())
      assert.is_true(is_free())
    end)

    it("of every try: it fails in time, and leaves nothing",
      function()
        strike(1000)
        local ok, code = within(TIMEOUT + SLACK, lock.try_lock, lock)
        assert.is_nil(ok)
        assert.is_true(code == "timeout" or code == "closed"
          or code == "connect", code)
        proxy:reset()
        eventually(is_free, 5 * slow, "the lock is given back")
        usable()
      end)

    it("of a release: it is released, and unlock returns true", function()
      assert.is_true(lock:lock())
      strike()
      assert.same({ true }, { within(2 * TIMEOUT + SLACK, lock.unlock,
        lock) })
      assert.is_true(is_free())
      assert.equal("not_held", select(2, lock:unlock()))
      assert.is_true(lock:lock { wait = 5 * slow })
      held_once()
    end)

    it("of a state query: it is retried in time, or fails",
      function()
        assert.is_true(lock:lock())
        strike()
        local result, code = within(TIMEOUT + SLACK, lock.is_locked, lock)
        assert.is_true(result == true or code == "timeout"
          or code == "closed", code)
        assert.is_true(lock:is_locked())
        assert.is_true(lock:unlock())
      end)
  end)
end

describe("a request that is lost", function()
  before_each(start_behind_proxy)
  after_each(stop)

  it("is retried: acquire, release", function()
    proxy:drop_requests(1, name)
    proxy:mute(1, name)
    assert.is_true(lock:lock { wait = 20 * slow })
    held_once()
    assert.is_true(lock:unlock())
    assert.is_true(is_free())
  end)
end)

describe("a network that falls silent", function()
  before_each(start_behind_proxy)
  after_each(stop)

  it("bounds every call, and leads to a new connection", function()
    assert.is_true(lock:lock())
    proxy:freeze()
    for _, method in ipairs { "lock", "try_lock", "is_locked", "is_held",
      "hold_count", "ttl", "peek", "break_lock" } do
      local result, code = within(TIMEOUT + SLACK, lock[method], lock,
        method == "lock" and { wait = TIMEOUT } or nil)
      assert.is_nil(result)
      assert.is_string(code)
    end
    assert.is_nil((within(TIMEOUT + SLACK, client.call, client, "PING")))
    local ok, code = within(2 * TIMEOUT + SLACK, lock.lock, lock,
      { wait = 2 * TIMEOUT })
    assert.is_nil(ok)
    assert.is_string(code)
    within(2 * TIMEOUT + SLACK, lock.unlock, lock)
    proxy:thaw()
    assert.is_true(lock:lock { wait = 10 * slow })
    assert.is_true(lock:unlock())
    eventually(is_free)
  end)

  it("bounds the opening and the closing of a client", function()
    proxy:freeze()
    assert.is_nil((within(TIMEOUT + SLACK, rlock.open, {
      url = proxy.url:gsub("unix://", "unix://") .. "?db=1",
      connect_timeout = TIMEOUT, timeout = TIMEOUT,
    })))
    within(TIMEOUT + SLACK, client.close, client)
  end)
end)

describe("a hold that was closed", function()
  before_each(start_behind_proxy)
  after_each(stop)

  -- Another hold of its owner occupies the lock while this one waits to go.
  it("is released once the server answers again", function()
    local one, two = assert(lock:hold()), assert(lock:hold())
    proxy:freeze()
    local first = task.start(one.unlock, one)
    local second = task.start(function() local _ <close> = two end)
    first:join()
    second:join()
    proxy:thaw()
    eventually(is_free, 20 * slow, "the lock is free")
  end)
end)

describe("closing a client", function()
  before_each(start_behind_proxy)
  after_each(stop)

  it("while another task unlocks releases as usual", function()
    local far = open { url = proxy.url, timeout = 10 * slow }
    local held, gate = rlock.event(), rlock.event()
    local other = task.start(function()
      local its = far:lock(name)
      assert(its:lock())
      assert(its:unlock())                 -- its script is loaded now
      assert(its:lock())
      held:set()
      gate:wait()
      return its:unlock()
    end)
    held:wait(10 * slow)
    assert(far:mutex(name .. ":mutex"):lock())   -- its release is not loaded
    proxy:freeze()
    local closing = task.start(far.close, far)
    rlock.sleep(0)
    gate:set()
    rlock.sleep(0)
    proxy:thaw()
    assert.is_true(closing:join())
    assert.is_true(other:join())
    assert.is_true(is_free())
    assert.equal(0, ask("EXISTS", name .. ":mutex"))
  end)

  it("ends the validity of its locks before the server frees them", function()
    local far = open { url = proxy.url, timeout = 10 * slow }
    local held, gate = rlock.event(), rlock.event()
    local holder = task.start(function()
      local its = far:lock(name)
      assert(its:lock())
      assert.is_true(its:valid_for() > 0)
      held:set()
      gate:wait()
      return its:valid_for(), its:state()
    end)
    held:wait(10 * slow)
    proxy:freeze()
    local closing = task.start(far.close, far)
    rlock.sleep(0)
    gate:set()
    local left, state = holder:join()
    proxy:thaw()
    closing:join()
    assert.same({ 0, "lost" }, { left, state })
    assert.is_true(is_free())
  end)
end)

describe("opening a client", function()
  before_each(start_behind_proxy)
  after_each(stop)

  it("takes one round trip", function()
    local function reads()
      return tonumber(ask("INFO", "stats"):match(
        "total_reads_processed:(%d+)"))
    end
    local before = reads()
    open()
    assert.equal(1 + 1, reads() - before)      -- plus this INFO
  end)

  it("is retried until the deadline if the connection is cut",
    function()
      proxy:cut(3, "SETNAME")
      open { url = proxy.url }
      proxy:cut(1000, "SETNAME")
      local before = proxy:count("SETNAME")
      local ok, code = within(TIMEOUT + SLACK, rlock.open, {
        url = proxy.url, connect_timeout = TIMEOUT })
      assert.is_nil(ok)
      assert.equal("connect", code)
      assert.is_true(proxy:count("SETNAME") - before >= 2)
    end)

  it("fails at once if nothing listens, or login fails", function()
    local function refusal(url)
      local ok, code = within(SLACK, rlock.open, {
        url = url, connect_timeout = 10 * slow })
      assert.is_nil(ok)
      return code
    end
    assert.equal("connect", refusal("unix:///no/such/socket"))
    ask("CONFIG", "SET", "requirepass", "secret")
    assert.equal("connect", refusal(proxy.url))
    ask("CONFIG", "SET", "requirepass", "")
  end)
end)

describe("a server that drops connections", function()
  before_each(start)
  after_each(stop)

  -- The change of an INFO field while 50 tasks try to lock for a while.
  local function count_while_trying(field, seconds)
    local before = tonumber(ask("INFO", "stats"):match(field .. ":(%d+)"))
    task.many(50, function(i)
      client:lock(name .. ":" .. i):lock { wait = seconds }
      local ok = client:lock(name .. ":" .. i):lock { wait = seconds }
      assert.is_nil(ok)
    end)
    return tonumber(ask("INFO", "stats"):match(field .. ":(%d+)")) - before
  end

  it("as soon as they open is retried with back-off", function()
    ask("CONFIG", "SET", "maxclients", "1")
    ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    local attempts = count_while_trying("rejected_connections", 1.5)
    assert.is_true(attempts >= 2, attempts .. " attempts")
    assert.is_true(attempts < 40, attempts .. " attempts in 3 s")
    ask("CONFIG", "SET", "maxclients", "1000")
    assert.is_true(lock:lock { wait = 10 * slow })
  end)

  it("because of the password is retried with back-off", function()
    ask("CONFIG", "SET", "requirepass", "new")
    ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    local attempts = count_while_trying("total_connections_received", 1.5)
    assert.is_true(attempts < 40, attempts .. " attempts in 3 s")
    ask("CONFIG", "SET", "requirepass", "")
    assert.is_true(lock:lock { wait = 10 * slow })
  end)
end)
