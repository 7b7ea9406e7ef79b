--- Holds that count only once replicas have them.
--- #long

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local SOON = 10 * slow

local primary, first, second, name

local function follow(replica)
  replica:cli("REPLICAOF", "127.0.0.1", ("%d"):format(primary.port))
  eventually(function()
    return replica:info "master_link_status" == "up"
  end, SOON, "the replica has caught up")
end

local function open(options) return fixtures.open(primary.url, options) end

describe("replicas", function()
  before_each(function()
    local args = { "--repl-diskless-sync-delay", "0" }
    primary = fixtures.server { port = true, args = args }
    first = fixtures.server { port = true, args = args }
    second = fixtures.server { port = true, args = args }
    follow(first)
    follow(second)
    eventually(function()
      return primary:info "connected_slaves" == 2
    end, SOON, "both replicas are there")
    name = fixtures.name "replicas"
  end)
  after_each(function()
    for _, server in ipairs { first, second } do
      if server.pid then server:resume() end
    end
    fixtures.close()
  end)

  it("have a lock before it is granted", function()
    local needed = { [1] = 1, [2] = 2, majority = 1, all = 2 }
    for count, least in pairs(needed) do
      local lock = open { replicas = count }:lock(name)
      assert.is_true(lock:lock())
      assert.is_true(least
        <= first:cli("EXISTS", name) + second:cli("EXISTS", name))
      assert.is_true(lock:lock())
      assert.is_true(lock:unlock())
      assert.is_true(lock:unlock())
      assert.equal("0", primary:cli("EXISTS", name))
    end
  end)

  it("have a lock although the primary's clock is set forward", function()
    local client = open { replicas = 1, seal = "time" }
    local lock = client:lock(name)
    assert.is_true(lock:lock())
    local clock = client.session.server.node.clock
    clock.ms = clock.ms - 5000                -- as if it were set forward
    assert.is_true(lock:try_lock())
    assert.is_true(lock:unlock())
  end)

  it("that are missing are reported, and nothing stays held", function()
    local client = open { replicas = "all", replica_timeout = 0.2,
      timeout = 1 * slow }
    local lock = client:lock(name)
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    second:pause()
    local ok, code, detail = lock:try_lock()
    assert.same({ nil, "replicas" }, { ok, code })
    assert.matches("1 of 2 replicas in 0%.%d+ s", detail)
    eventually(function()
      return primary:cli("EXISTS", name) == "0"
    end, SOON, "the lock was given back")
    second:resume()
    assert.is_true(lock:lock { wait = SOON })
    assert.equal(1, lock:hold_count())
    assert.is_true(lock:unlock())
  end)

  it("that are missing are reported within a wait that is shorter", function()
    local lock = open { replicas = "all", replica_timeout = SOON }:lock(name)
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    second:pause()
    for _ = 1, 3 do
      local ok, code, detail = lock:lock { wait = 0.5 * slow }
      assert.same({ nil, "replicas" }, { ok, code })
      assert.not_matches("script kill", detail, 1, true)
    end
  end)

  it("that are missing are waited for", function()
    local lock = open { replicas = "all", replica_timeout = 0.2 }:lock(name)
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    second:pause()
    local waiting = task.start(function()
      local ok = lock:lock { wait = SOON }
      return ok, lock:hold_count()
    end)
    eventually(function()
      return primary:cli("EXISTS", name) == "1"
    end, SOON, "the request has arrived")
    second:resume()
    local ok, count = waiting:join()
    assert.is_true(ok)
    assert.equal(1, count)
  end)

  it("need only be a majority, the primary included", function()
    local lock = open { replicas = "majority", replica_timeout = 0.2 }
      :lock(name)
    assert.is_true(lock:lock())
    second:pause()
    assert.is_true(lock:lock())
    first:pause()
    local ok, code = lock:try_lock()
    assert.same({ nil, "replicas" }, { ok, code })
  end)

  it("confirm a write that a retry did not repeat", function()
    local lock = open { replicas = "all", replica_timeout = 0.2 }:lock(name)
    assert.is_true(lock:lock { lease = 20 })
    second:pause()
    primary:cli("PEXPIRE", name, 60000)
    local sent = lock:mine():acquire(rlock.now() + 0.5, 20, nil, rlock.now(),
      rlock.now())
    assert.is_nil(sent)
  end)

  it("confirm renewals and releases of a server over its maxmemory", function()
    local client = open { replicas = "all", watchdog = 1.5 * slow }
    local lock, last = client:lock(name), nil
    assert.is_true(lock:lock())
    primary:cli("CONFIG", "SET", "maxmemory", "1")
    assert.matches("^OOM", primary:cli("SET", "x", "1"))
    for _ = 1, 2 do                     -- renewals
      eventually(function()
        local ttl = tonumber(primary:cli("PTTL", name))
        last = last or ttl
        local is_later = ttl > last
        last = ttl
        return is_later
      end, SOON, "it is renewed")
      assert.equal("held", lock:state())
    end
    assert.is_true(lock:unlock())
    assert.equal("0", primary:cli("EXISTS", name))
  end)

  it("confirm again when the server has forgotten the scripts", function()
    local lock = open { replicas = "all" }:lock(name)
    assert.is_true(lock:lock())
    primary:cli("SCRIPT", "FLUSH")
    assert.is_true(lock:lock())
    assert.equal(2, lock:hold_count())
    assert.is_true(lock:unlock())
    assert.is_true(lock:unlock())
  end)

  it("put a hold at risk when they do not confirm its renewal", function()
    local client = open { replicas = "all", watchdog = 1.5 * slow,
      replica_timeout = 0.2 }
    local lock, lost = client:lock(name), nil
    assert.is_true(lock:lock())
    lock:on_lost(function(_, why) lost = why end)
    second:pause()
    eventually(function() return lock:state() == "at_risk" end, SOON,
      "it is at risk")
    eventually(function() return lost end, SOON, "it is lost")
    assert.matches("not renewed in time", lost)
  end)

  it("do not delay locks that do not need them", function()
    local client = open { timeout = 3 * slow }
    local safe = client:lock(name .. ":safe", { replicas = "all",
      replica_timeout = 1 * slow })
    assert.is_true(safe:lock())
    assert.is_true(safe:unlock())
    second:pause()
    local waiting = task.start(function() return safe:lock() end)
    local plain = client:lock(name)
    local before = rlock.now()
    for _ = 1, 100 do
      assert.is_true(plain:lock())
      assert.is_true(plain:unlock())
    end
    assert.is_true(rlock.now() - before < 30 * slow)
    second:resume()
    assert.is_true(waiting:join())
  end)

  it("that are gone still count", function()
    local client = open { replicas = "all", replica_timeout = 0.2,
      timeout = 1 * slow }
    local lock = client:lock(name)
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    second:kill()
    eventually(function() return primary:info "connected_slaves" == 1 end, SOON)
    local _, code = lock:try_lock()
    assert.equal("replicas", code)
  end)

  it("grant nothing themselves, and say what they are", function()
    local client = fixtures.open(first.url, { timeout = 1 * slow })
    for _, options in ipairs { {}, { replicas = 1, replica_timeout = 0.1 } } do
      local lock = client:lock(fixtures.name "replica", options)
      local ok, code, detail = lock:try_lock()
      assert.same({ nil, "redis" }, { ok, code })
      assert.matches("the server is a replica; connect to its primary", detail,
        1, true)
      assert.not_matches("WAIT", detail)
    end
  end)

  it("confirm many requests with few WAITs", function()
    local client = open { replicas = "majority" }
    local tasks = {}
    for i = 1, 400 do
      tasks[i] = task.start(function()
        return client:lock(name .. i):lock { lease = 30 }
      end)
    end
    for i = 1, 400 do assert.is_true(tasks[i]:join()) end
    assert.is_true(primary:stat "wait" < 200)
  end)
end)
