--- Red locks on five real servers: a majority is necessary and sufficient while
--- servers are killed, freeze and lose their data. Its times, and what depends
--- on the order of replies, are in spec/check/quorum_spec.lua.

local fixtures = require "spec.tools.fixtures"
local losses = require "spec.tools.losses"
local wait = require "spec.tools.eventually"
local nodes = require "spec.tools.servers"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"
local within = require "spec.tools.within"

local NODES = 5
local TIMEOUT = 0.5 * slow          -- of one command
local LEASE = 4 * slow              -- of the watchdogs, for leases that expire
local SOON = 10 * slow              -- deadline of what must happen
local NEVER = 40 * slow             -- node timeout that must not be waited for

local servers, name, clients, red

local function eventually(fn, what) return wait(fn, 2 * SOON, what) end

-- Opens a client for each server, as one process would.
local function open_all(options)
  local all = {}
  for i, server in ipairs(servers) do
    all[i] = fixtures.open({ url = server.url, timeout = TIMEOUT }, options)
  end
  return all
end

-- Busy machines reply late: the servers get less than a second only where that
-- is the point.
local function red_of(some, options)
  options = options or {}
  options.node_timeout = options.node_timeout or slow
  return rlock.red_lock(some, name, options)
end

-- The red lock of another process.
local function another(options)
  local others = open_all { lazy = true }
  for _, client in ipairs(others) do client:call("PING") end
  return red_of(others, options)
end

-- Replaces the clients by ones with other options.
local function reopen(options, red_options)
  fixtures.close()
  clients = open_all(options)
  red = red_of(clients, red_options)
end

local function start()
  servers = nodes.start(NODES)
  name = fixtures.name "quorum"
  reopen()
end

local function stop()
  servers:wake()
  fixtures.close()
  servers:stop()
end

local function count_keys() return servers:count(name) end

local function everywhere()
  eventually(function() return count_keys() == NODES end,
    "it is on all servers")
end

local function nothing_is_left()
  eventually(function() return count_keys() == 0 end,
    "no key of the lock is left anywhere")
end

describe("a red lock", function()
  before_each(start)
  after_each(stop)

  it("excludes another task and process, and names the servers", function()
    local other = another()
    assert.is_true(red:lock())
    everywhere()
    for _, its in ipairs { red, other } do
      local ok, code, detail = task.run(function() return its:try_lock() end)
      assert.is_nil(ok)
      assert.equal("busy", code)
      local named = 0
      for _, server in ipairs(servers) do
        if detail:find(server.socket .. ": held by another owner for", 1,
            true) then
          named = named + 1
        end
      end
      assert(named >= 3, detail)
      assert.matches("0 of 5 servers, 3 are needed", detail, 1, true)
      assert.equal("not_held", select(2, task.run(function()
        return its:unlock()
      end)))
    end
    assert.is_true(red:unlock())
    assert.is_true(other:lock { wait = SOON })
    assert.is_true(other:unlock())
    nothing_is_left()
  end)

  it("with the simple policy uses SET, and is entered once", function()
    red = red_of(clients, { policy = "simple" })
    assert.is_true(red:lock())
    everywhere()
    for _, server in ipairs(servers) do
      assert.equal("string", servers:ask(server, "TYPE", name))
    end
    assert.equal("refused", select(2, red:lock()))
    assert.equal("busy", select(2, another { policy = "simple" }:try_lock()))
    assert.is_true(red:unlock())
    nothing_is_left()
  end)

  -- Releases of an earlier attempt or hold may still be in flight.
  for _, policy in ipairs { "simple", "mutex", "reentrant" } do
    it("never blocks its own task, with policy " .. policy, function()
      red = red_of(clients, { policy = policy })
      task.many(4, function()
        for _ = 1, 50 do
          assert(red:lock())
          clients[1]:call("PING")
          assert(red:unlock())
        end
      end, 6 * SOON)
      nothing_is_left()
    end)
  end
end)

describe("a red lock with servers killed", function()
  before_each(start)
  after_each(stop)

  it("works with two of five killed", function()
    servers:kill(2, 4)
    assert.is_true(within(SOON, red.lock, red))
    assert.equal(3, count_keys())
    assert.equal("busy", select(2, another():try_lock()))
    assert.is_true(within(SOON, red.unlock, red))
    nothing_is_left()
  end)

  it("fails in time with three, and names them", function()
    servers:kill(1, 2, 3)
    local ok, code, detail = within(SOON, red.try_lock, red)
    assert.is_nil(ok)
    assert.equal("quorum", code)
    for i = 1, 3 do assert.matches(servers[i].socket, detail, 1, true) end
    assert.matches("3 are needed", detail, 1, true)
    nothing_is_left()
    assert.equal("quorum", select(2, within(SOON, red.lock, red,
      { wait = 0.2 * slow })))
    nothing_is_left()
    assert.equal("quorum", select(2, red:is_held()))
  end)

  it("is acquired if they are back within the wait", function()
    servers:kill(1, 2, 3)
    local waiting = task.start(function()
      local ok, code, detail = red:lock { wait = 3 * SOON }
      assert(ok, ("%s %s"):format(code, detail))
      return red:unlock()
    end)
    assert.is_nil((red:lock { wait = TIMEOUT }))
    assert.is_nil(waiting.is_over)
    for i = 1, 3 do servers[i].options.args = { "--appendonly", "yes" } end
    servers:launch(1, 2, 3)
    assert.is_true(waiting:join(3 * SOON))
    nothing_is_left()
  end)

  it("is lost with a majority, reported once, and released", function()
    reopen { watchdog = LEASE }
    assert.is_true(red:lock())
    local heard = losses(red)
    everywhere()
    servers:kill(1, 2, 3)
    eventually(function() return red:state() == "at_risk" end)
    eventually(function() return heard.n > 0 end)
    assert.equal(red, heard.told)
    assert.matches("no majority", heard.reason, 1, true)
    assert.equal("lost", red:state())
    assert.equal(0, red:valid_for())
    nothing_is_left()
    assert.equal("lost", select(2, red:unlock()))
    assert.equal("free", red:state())
    assert.equal("quorum", select(2, red:try_lock()))
    assert.equal(1, heard.n)
  end)
end)

describe("a red lock with servers that lost their data", function()
  before_each(start)
  after_each(stop)

  -- Tries until a server is left out for that reason.
  local function refused_as(word)
    local ok, code, detail
    eventually(function()
      ok, code, detail = red:try_lock()
      return ok or detail:find(word, 1, true)
    end)
    assert.equal("quorum", code)
    return detail
  end

  -- Starting a server blocks this process: no renewals meanwhile.
  it("survives an empty restart, and is acquired there again", function()
    reopen { watchdog = 3 * slow }
    assert.is_true(red:lock())
    local heard = losses(red)
    everywhere()
    servers:restart(3)
    assert.equal("busy", select(2, another():try_lock()))
    everywhere()
    assert.equal(0, heard.n)
    assert.is_true(red:unlock())
    nothing_is_left()
  end)

  it("does not count a server until a lease after its restart", function()
    local lease = 3 * slow
    reopen { watchdog = lease }
    assert.is_true(red:lock())
    assert.is_true(red:unlock())
    servers:kill(1, 2)
    servers:restart(3)
    local restarted = rlock.now()
    assert.matches(servers[3].socket .. ": restarted", refused_as "restarted",
      1, true)
    -- Nor on another connection.
    servers:ask(servers[3], "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    refused_as "restarted"
    assert.is_true(red:lock { wait = 3 * SOON })
    -- Redis reports its uptime in whole seconds.
    assert(rlock.now() - restarted > lease - 1.1)
    assert.is_true(red:unlock())
    nothing_is_left()
  end)

  it("does not count a server that replaced another, either", function()
    local lease = 3 * slow
    local other = redis.start()
    local here = servers[3].socket
    eventually(function() return other:info "uptime_in_seconds" > 0 end,
      "it is told that it runs already")
    reopen { watchdog = lease }
    assert.is_true(red:lock())
    everywhere()
    assert.is_true(red:unlock())
    servers:kill(1, 2)
    assert(os.rename(other.socket, here))
    servers:ask(servers[3], "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    local before = rlock.now()
    refused_as "replaced"
    assert.is_true(red:lock { wait = 3 * SOON })
    assert(rlock.now() - before > lease)
    assert.is_true(red:unlock())
    other:stop()
  end)
end)

describe("a red lock with servers frozen", function()
  before_each(start)
  after_each(stop)

  it("is unlocked without them, and later with them", function()
    reopen({ timeout = NEVER }, { node_timeout = slow })
    assert.is_true(red:lock())
    everywhere()
    servers:pause(1, 2, 3)
    local ok, code, detail = within(SOON, red.unlock, red)
    assert.is_nil(ok)
    assert.equal("quorum", code)
    assert.matches("only 2 of 5 servers confirmed it; the leases end it in "
      .. "%d+%.%d s at the latest", detail)
    assert.equal("free", red:state())
    servers:resume(1, 2, 3)
    nothing_is_left()
  end)
end)

describe("the servers of a red lock", function()
  before_each(start)
  after_each(stop)

  local function refused(some, pattern)
    local its = red_of(some)
    local ok, code, detail = its:lock { wait = SOON }
    assert.is_nil(ok)
    assert.equal("refused", code)
    assert.matches(pattern, detail)
    nothing_is_left()
  end

  it("must not be one server by two names", function()
    servers[6] = redis.start { port = true }
    local open, one = fixtures.open, clients[1]
    refused({ one, open(servers[6].url),
      open("redis://127.0.0.1:" .. servers[6].port) }, "the same server")
    refused({ open(servers[6].url .. "?db=1"), open(servers[6].url), one },
      "the same server")
    refused({ one, open(servers[1].url), clients[2] },
      "the same server")
    assert.has_error(function()
      rlock.red_lock({ clients[1], clients[2], clients[1] }, name)
    end)
  end)

  it("must not be a replica and its primary", function()
    servers[6] = redis.start {
      port = true, args = { "--repl-diskless-sync-delay", "0" },
    }
    servers[2]:cli("REPLICAOF", "127.0.0.1", tostring(servers[6].port))
    eventually(function()
      return servers[2]:info("master_link_status") == "up"
    end)
    local all = open_all()
    refused({ all[6], all[2], all[3] }, "a server and its replica")
  end)

  it("may be away when the clients are opened", function()
    servers:kill(1, 2)
    local lazy = open_all { lazy = true }
    local its = red_of(lazy)
    assert.is_true(its:lock { wait = SOON })
    assert.equal(3, count_keys())
    assert.is_true(its:unlock())
    servers:launch(1, 2)
    eventually(function()
      assert(its:lock { wait = SOON })
      local all = count_keys() == NODES
      assert(its:unlock())
      return all
    end)
    assert.equal("connect", select(2, rlock.open("unix:///nowhere/at.all")))
    local nowhere = fixtures.open {
      url = "unix:///nowhere/at.all", lazy = true,
    }
    assert.equal("connect", select(2, nowhere:call("PING")))
    assert.matches(": 0 of 1 servers, 1 are needed; /nowhere/at.all: no such",
      select(3, rlock.red_lock({ nowhere }, name):try_lock()))
    assert.has_error(function() rlock.open { url = "local:", lazy = 1 } end)
  end)
end)

describe("rlock.red_lock", function()
  before_each(start)
  after_each(stop)

  local function says(pattern, ...)
    local ok, message = pcall(rlock.red_lock, ...)
    assert.is_false(ok)
    assert.matches(pattern, message)
  end

  it("refuses kinds without mutual exclusion, with the reason", function()
    for _, policy in ipairs { "semaphore", "permits", "fenced" } do
      says("not known to be mutual exclusion.*A has servers 1 and 2",
        clients, name, { policy = policy })
    end
    local reentrant = require "rlock.policy.reentrant"
    local own = {}
    for key, value in pairs(reentrant) do own[key] = value end
    own.name, own.exclusive = "mine", nil
    says("bad policy mine", clients, name, { policy = own })
    own.exclusive = true
    local its = red_of(clients, { policy = own })
    assert.is_true(its:lock())
    assert.is_true(its:unlock())
  end)

  it("accepts every kind with mutual exclusion", function()
    for _, policy in ipairs { "reentrant", "mutex", "spin", "simple" } do
      local its = red_of(clients, { policy = policy })
      assert.is_true(its:lock())
      assert.is_true(its:unlock())
    end
  end)
end)
