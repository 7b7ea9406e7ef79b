--- A primary and its replica switch roles behind one address: clients leave the
--- demoted one and connect to the new primary.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local host = require "rlock.host.uv"
local rlock = require "rlock"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local SOON = 10 * slow
local TASKS = 30

local address, first, second, client, lock

-- Points the address to this server.
local function point_at(server)
  shell.run(("ln -sfn %s %s"):format(shell.quote(server.socket),
    shell.quote(address)))
end

local function follow(replica, primary)
  replica:cli("REPLICAOF", "127.0.0.1", ("%d"):format(primary.port))
  eventually(function()
    return replica:info "master_link_status" == "up"
  end, SOON, "the replica has caught up")
end

-- The replica has caught up and takes over.
local function fail_over()
  eventually(function() return first:has_reached(second) end, SOON,
    "the replica has every write")
  second:cli("REPLICAOF", "NO", "ONE")
  follow(first, second)
  point_at(second)
end

local function open(options)
  return fixtures.open("unix://" .. address, options)
end

local function start()
  local args = { "--repl-diskless-sync-delay", "0" }
  first = fixtures.server { port = true, args = args }
  second = fixtures.server { port = true, args = args }
  address = first.folder .. "/address"
  point_at(first)
  follow(second, first)
  client = open { watchdog = 1.5 * slow }
  lock = client:lock "x"
end

describe("a primary that becomes a replica", function()
  before_each(start)
  after_each(fixtures.close)

  it("is left by a client that requests a lock", function()
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    fail_over()
    assert.is_true(lock:lock { wait = SOON })
    assert.equal("1", second:cli("EXISTS", "x"))
    assert.is_true(lock:unlock())
    assert.equal("0", second:cli("EXISTS", "x"))
  end)

  it("is left by a client whose lock needs replicas", function()
    local safe = open { replicas = 1, timeout = 1 * slow }:lock "x"
    assert.is_true(safe:lock())
    assert.is_true(safe:unlock())
    fail_over()
    assert.is_true(safe:lock { wait = SOON })
    assert.equal("1", second:cli("EXISTS", "x"))
    assert.is_true(safe:unlock())
  end)

  it("is left by the watchdog, and the hold goes on", function()
    assert.is_true(lock:lock())
    fail_over()
    local before = second:stat "evalsha"
    eventually(function()
      return second:stat "evalsha" > before and lock:state() == "held"
    end, SOON, "the new primary has renewed the hold")
    assert.is_true(lock:need(slow))
    assert.is_true(lock:unlock())
  end)

  it("is left by a client that sends a command, not repeated", function()
    assert(client:call("SET", "n", "1"))
    fail_over()
    local ok, code, detail = client:call("INCR", "n")
    assert.is_nil(ok)
    assert.equal("redis", code)
    assert.matches("^READONLY", detail)
    eventually(function() return client:call("INCR", "n") == 2 end, SOON)
  end)

  it("is left by all tasks with concurrent requests", function()
    assert.is_true(lock:lock())
    assert.is_true(lock:unlock())
    fail_over()
    task.many(100, function(i)
      local own = client:lock("own:" .. i)
      assert.is_true(own:lock { wait = SOON })
      assert.is_true(own:unlock())
    end)
  end)

  it("is left no faster than the backoff allows", function()
    fail_over()
    point_at(first)
    local before = first:info "total_connections_received"
    local started = rlock.now()
    task.many(TASKS, function(i)
      local ok, code, detail = client:lock("own:" .. i):lock { wait = 2 * slow }
      assert.is_nil(ok)
      assert(code == "redis" or code == "connect" or code == "closed", code)
      if code == "redis" then assert.matches("^READONLY", detail) end
    end)
    local seconds = rlock.now() - started
    local opened = first:info "total_connections_received" - before
    -- In nginx each request in flight has its own connection.
    if host.name == "ngx" then opened = opened / TASKS end
    assert(opened >= 3 and opened < 15 * seconds,
      ("%g connections in %.1f s"):format(opened, seconds))
    point_at(second)
    assert.is_true(lock:lock { wait = SOON })
  end)
end)

describe("a server that comes back empty", function()
  after_each(fixtures.close)

  -- In nginx, no connection is open that could be lost: a request finds out.
  local function lost(held)
    client:call "PING"
    return held:state() == "lost"
  end

  it("is detected long before the next renewal", function()
    first = fixtures.server()
    client = fixtures.open({ url = first.url, watchdog = 600 })
    lock = client:lock "x"
    local leased = client:lock "y"
    assert.is_true(lock:lock())
    assert.is_true(leased:lock { lease = 600 })
    first:restart()
    eventually(function() return lost(lock) and lost(leased) end, SOON)
    assert.equal("lost", select(2, lock:unlock()))
    assert.equal("lost", select(2, leased:unlock()))
  end)

  it("does not lose persisted holds", function()
    first = fixtures.server { args = { "--appendonly", "yes",
      "--appendfsync", "always" } }
    client = fixtures.open({ url = first.url, watchdog = 600 })
    lock = client:lock "x"
    assert.is_true(lock:lock())
    local before = first:info "run_id"
    first:restart()
    assert.not_equal(before, first:info "run_id")
    eventually(function()
      return not lost(lock)
        and client.session.server.node.server.run_id ~= before
        and lock:state() == "held"
    end, SOON)
    assert.is_true(lock:unlock())
  end)
end)
