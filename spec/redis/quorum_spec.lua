--- Red locks on five real servers: that a majority is enough and less is not,
--- while servers die, hang, answer late and forget.

local host = require "rlock.host.uv"
local program = require "spec.support.program"
local proxies = require "spec.support.proxy"
local redis = require "spec.support.redis"
local rlock = require "rlock"
local task = require "spec.support.task"
local eventually = require "spec.support.wait" (host)

local slow = tonumber(os.getenv("RLOCK_SLOW") or 1)
local NODES = 5
local TIMEOUT = 0.4 * slow          -- of one command
local LEASE = 0.6 * slow            -- of the watchdogs, where it is to end
local NODE_TIMEOUT = 0.1 * slow
local SLACK = 0.25 * slow           -- what a bounded call may take besides

local servers, proxy, name, clients, red
local opened, controls = {}, {}
local number = 0

-- A client of each server, as one process has them.
local function open_all(options)
  local all = {}
  for i, server in ipairs(servers) do
    local own = { url = server.url, timeout = TIMEOUT }
    for key, value in pairs(options or {}) do own[key] = value end
    all[i] = assert(rlock.open(own))
    opened[#opened + 1] = all[i]
  end
  return all
end

local function red_of(some, options)
  options = options or {}
  options.node_timeout = options.node_timeout or NODE_TIMEOUT
  return rlock.red_lock(some, name, options)
end

-- What another process would have.
local function another(options)
  local others = open_all { lazy = true }
  for _, client in ipairs(others) do client:call("PING") end
  return red_of(others, options)
end

local function start(options)
  servers = {}
  for i = 1, NODES do servers[i] = redis.start() end
  number = number + 1
  name = "quorum:" .. number
  clients = open_all(options)
  red = red_of(clients)
end

local function stop()
  for _, server in ipairs(servers) do
    if server.pid then server:resume() end
  end
  for _, client in ipairs(opened) do client:close() end
  opened = {}
  for _, control in pairs(controls) do control:close() end
  controls = {}
  if proxy then proxy:stop() end
  proxy = nil
  for _, server in ipairs(servers) do server:stop() end
end

-- What fn returns, and that it returned within so many seconds.
local function within(seconds, fn, ...)
  local before = rlock.now()
  local results = table.pack(fn(...))
  local took = rlock.now() - before
  assert(took < seconds, ("it took %g s instead of at most %g s"):format(
    took, seconds))
  return table.unpack(results, 1, results.n)
end

-- Asks a server, past rlock and without blocking: while we block, servers that
-- have answered us seem not to have.
local function ask(server, ...)
  local control = controls[server]
  local reply, code, detail
  if control then reply, code, detail = control:call(5000, ...) end
  if reply ~= nil then return reply end
  assert(not control or code == "closed", detail)
  controls[server] = assert(host.connect {
    path = server.socket, timeout = 5000, silent = 0,
  })
  reply, code, detail = controls[server]:call(5000, ...)
  assert(code == nil, detail)
  return reply
end

-- On how many of the servers that live somebody has the lock.
local function count_keys()
  local count = 0
  for _, server in ipairs(servers) do
    if server.pid then count = count + ask(server, "EXISTS", name) end
  end
  return count
end

-- How many scripts a server has run.
local function count_scripts(server)
  return tonumber(ask(server, "INFO", "commandstats"):match(
    "cmdstat_evalsha:calls=(%d+)") or 0)
end

local function nothing_is_left(seconds)
  eventually(function() return count_keys() == 0 end, seconds or 5 * slow,
    "no key of the lock is left anywhere")
end

-- Holds it in a task until :leave().
local function occupy(its, options)
  local gate, held = rlock.event(), rlock.event()
  local holding = task.start(function()
    assert(its:lock(options))
    held:set()
    gate:wait()
    return its:unlock()
  end)
  assert(held:wait(5 * slow), "it is held")
  return { leave = function() gate:set() return holding:join() end }
end

local function kill(...)
  for _, i in ipairs { ... } do servers[i]:kill() end
end

local function pause(...)
  for _, i in ipairs { ... } do servers[i]:pause() end
end

local function resume(...)
  for _, i in ipairs { ... } do servers[i]:resume() end
end

-- Listens for the loss of `to`.
local function listen(to)
  local heard = { n = 0 }
  to:on_lost(function(told, reason)
    heard.n, heard.told, heard.reason = heard.n + 1, told, reason
    heard.at = rlock.now()
  end)
  return heard
end

describe("a red lock", function()
  before_each(start)
  after_each(stop)

  it("is taken on all servers and given back on all", function()
    assert.is_true(red:lock())
    eventually(function() return count_keys() == NODES end)
    assert.equal("held", red:state())
    assert.is_true(red:is_held())
    assert.is_true(red:unlock())
    assert.equal("free", red:state())
    assert.is_false(red:is_held())
    nothing_is_left()
  end)

  it("keeps out another task and another process", function()
    local other = another()
    assert.is_true(red:lock())
    for _, its in ipairs { red, other } do
      local ok, code, detail = task.run(function() return its:try_lock() end)
      assert.is_nil(ok)
      assert.equal("busy", code)
      assert.matches("held by somebody else for", detail, 1, true)
      assert.equal("not_held", select(2, task.run(function()
        return its:unlock()
      end)))
    end
    assert.is_true(red:unlock())
    assert.is_true(other:lock { wait = 5 * slow })
    assert.is_true(other:unlock())
    nothing_is_left()
  end)

  it("may be entered again by its task", function()
    assert.is_true(red:lock())
    assert.is_true(red:lock())
    assert.is_true(red:unlock())
    assert.is_true(red:is_held())
    assert.equal("busy", select(2, another():try_lock()))
    assert.is_true(red:unlock())
    assert.equal("not_held", select(2, red:unlock()))
    nothing_is_left()
  end)

  it("with the simple policy speaks SET, and is entered once", function()
    red = red_of(clients, { policy = "simple" })
    assert.is_true(red:lock())
    eventually(function() return count_keys() == NODES end)
    for _, server in ipairs(servers) do
      assert.equal("string", server:cli("TYPE", name))
    end
    assert.equal("refused", select(2, red:lock()))
    assert.equal("busy", select(2, another { policy = "simple" }:try_lock()))
    assert.is_true(red:unlock())
    nothing_is_left()
  end)

  it("is valid for no longer than the lease less 1 % and 2 ms", function()
    assert.is_true(red:lock { lease = 10 })
    local left = red:valid_for()
    assert(left <= 10 - 0.1 - 0.002, left)
    assert(left > 9, left)
    assert.is_true(red:need(9))
    assert.equal("lost", select(2, red:need(9.9)))
    assert.is_true(red:unlock())
    red = red_of(clients, { drift = 0.2 })
    assert.is_true(red:lock { lease = 10 })
    assert(red:valid_for() <= 10 - 2 - 0.002)
    assert.is_true(red:unlock())
  end)

  it("is over when its lease is, and says so", function()
    assert.is_true(red:lock { lease = 0.2 * slow })
    local heard = listen(red)
    eventually(function() return heard.n > 0 end)
    assert.equal("lost", red:state())
    assert.equal(0, red:valid_for())
    assert.equal("lost", select(2, red:lock()))
    assert.equal("lost", select(2, red:unlock()))
    assert.is_true(red:lock())
    assert.is_true(red:unlock())
    nothing_is_left()
    assert.equal(1, heard.n)
  end)

  it("is not taken with a lease shorter than the answers take", function()
    for _, server in ipairs(servers) do
      server:cli("SCRIPT", "FLUSH")
    end
    local ok, code = red:try_lock { lease = 0.001 }
    if not ok then assert.matches("^b?q?u%w+$", code) end
    if ok then red:unlock() end
    nothing_is_left()
  end)

  it("is a hold that can be carried to another task", function()
    local hold = assert(red:hold())
    assert.is_true(hold:need(1))
    assert.is_true(task.run(function() return hold:unlock() end))
    assert.equal("not_held", select(2, hold:unlock()))
    assert.equal("free", hold:state())
    do
      local closed <close> = assert(red:hold())
      assert.equal("held", closed:state())
    end
    nothing_is_left()
  end)

  it("is held while a function runs, also when it raises", function()
    assert.same({ 1, 2 }, { red:with(function(its, a)
      assert.is_true(its:is_held())
      return a, 2
    end, 1) })
    assert.has_error(function()
      red:with({ wait = 1 }, function() error("mine", 0) end)
    end, "mine")
    nothing_is_left()
  end)

  it("waits no longer than it is told to", function()
    local holding = occupy(another())
    local before = rlock.now()
    assert.equal("timeout", select(2, red:lock { wait = 0.2 * slow }))
    local took = rlock.now() - before
    assert(took >= 0.2 * slow and took < 0.2 * slow + SLACK, took)
    assert.equal("busy", select(2, within(SLACK, red.try_lock, red)))
    assert.is_true(holding.leave())
    assert.is_true(red:lock { wait = 5 * slow })
    assert.is_true(red:unlock())
    nothing_is_left()
  end)

  it("is waited for although one of its servers refuses", function()
    red = red_of(clients, { policy = "simple" })
    local own = clients[1]:simple_lock(name)
    assert.is_true(own:lock())            -- which cannot be entered twice
    local others = open_all()
    local holding = {
      occupy(others[2]:simple_lock(name)), occupy(others[3]:simple_lock(name)),
    }
    assert.equal("busy", select(2, red:try_lock()))
    local letting_go = task.start(function()
      local before = count_scripts(servers[4])
      eventually(function() return count_scripts(servers[4]) > before + 4 end)
      for _, one in ipairs(holding) do assert(one.leave()) end
    end)
    assert.is_true(red:lock { wait = 20 * slow })
    assert.is_true(red:unlock())
    letting_go:join()
    assert.is_true(own:unlock())
    nothing_is_left()
  end)

  it("leaves nothing when who waits for it is cancelled", function()
    local holding = occupy(another())
    local waiting = task.start(function() return red:lock() end)
    eventually(function() return count_scripts(servers[1]) > 10 end)
    waiting:cancel()
    assert.is_true(holding.leave())
    nothing_is_left()
    local asking = task.start(function() return red:lock() end)
    asking:cancel()
    nothing_is_left()
  end)

  it("goes from hand to hand among many", function()
    local others, inside, rounds = { red, another(), another() }, 0, 20
    task.many(9, function(i)
      local its = others[i % 3 + 1]
      for _ = 1, rounds do
        assert(its:lock { wait = 30 * slow })
        inside = inside + 1
        assert(inside == 1)
        rlock.sleep(0.0005)
        inside = inside - 1
        assert(its:unlock())
      end
    end, 60 * slow)
    nothing_is_left()
  end)

  -- A part of an earlier attempt, or hold, may still be on its way back.
  for _, policy in ipairs { "simple", "mutex", "reentrant" } do
    it("is never in its task's own way, with policy " .. policy, function()
      red = red_of(clients, { policy = policy })
      task.many(4, function()
        for _ = 1, 200 do
          assert(red:lock())
          clients[1]:call("PING")
          assert(red:unlock())
        end
      end, 60 * slow)
      nothing_is_left()
    end)
  end

  it("tells its task when a client is closed under a waiter", function()
    local holding = occupy(another())
    local waiting = task.start(function() return red:lock() end)
    eventually(function() return count_scripts(servers[1]) > 10 end)
    for i = 1, 3 do clients[i]:close() end
    assert.equal("closed", select(2, waiting:join(5 * slow)))
    assert.is_true(holding.leave())
    nothing_is_left()
  end)
end)

describe("a red lock with servers killed", function()
  before_each(start)
  after_each(stop)

  it("is the same with two of five", function()
    kill(2, 4)
    assert.is_true(within(NODE_TIMEOUT + SLACK, red.lock, red))
    assert.equal(3, count_keys())
    assert.equal("busy", select(2, another():try_lock()))
    assert.is_true(within(NODE_TIMEOUT + SLACK, red.unlock, red))
    nothing_is_left()
  end)

  it("cannot be had with three, is told so in time", function()
    kill(1, 2, 3)
    local ok, code, detail = within(NODE_TIMEOUT + SLACK, red.try_lock, red)
    assert.is_nil(ok)
    assert.equal("quorum", code)
    for i = 1, 3 do assert.matches(servers[i].socket, detail, 1, true) end
    assert.matches("3 are needed", detail, 1, true)
    nothing_is_left()
    assert.equal("quorum", select(2, within(0.2 * slow + SLACK, red.lock, red,
      { wait = 0.2 * slow })))
    -- A wait without limit is none for servers that are away.
    assert.equal("quorum", select(2, within(TIMEOUT + NODE_TIMEOUT + SLACK,
      red.lock, red)))
    nothing_is_left()
    assert.equal("quorum", select(2, red:is_held()))
  end)

  it("is had by who has the time until they are back", function()
    kill(1, 2, 3)
    local waiting = task.start(function()
      local ok, code, detail = red:lock { wait = 20 * slow }
      assert(ok, ("%s %s"):format(code, detail))
      return red:unlock()
    end)
    assert.equal("quorum", select(2, red:lock { wait = TIMEOUT }))
    assert.is_nil(waiting.is_over)
    for i = 1, 3 do servers[i].options.args = { "--appendonly", "yes" } end
    for i = 1, 3 do servers[i]:launch() end
    assert.is_true(waiting:join(20 * slow))
    nothing_is_left()
  end)

  it("is kept by a majority, and got back where it was lost", function()
    for _, client in ipairs(clients) do client:close() end
    clients = open_all { watchdog = LEASE }
    red = red_of(clients)
    assert.is_true(red:lock())
    local heard = listen(red)
    eventually(function() return count_keys() == NODES end)
    for i = 1, NODES do
      servers[i]:restart()
      eventually(function() return count_keys() == NODES end, 20 * slow,
        "it is on all servers again")
      assert.equal("held", red:state())
      assert.is_true(red:need(LEASE / 4))
    end
    assert.equal(0, heard.n)
    assert.is_true(red:unlock())
    nothing_is_left()
  end)

  it("is lost when a majority is, told once, and given back", function()
    for _, client in ipairs(clients) do client:close() end
    clients = open_all { watchdog = LEASE }
    red = red_of(clients)
    assert.is_true(red:lock())
    local heard = listen(red)
    eventually(function() return count_keys() == NODES end)
    kill(1, 2, 3)
    local killed = rlock.now()
    eventually(function() return red:state() == "at_risk" end, 2 * LEASE)
    assert.equal(0, heard.n)
    eventually(function() return heard.n > 0 end, 2 * LEASE)
    assert(heard.at - killed < LEASE + SLACK, heard.at - killed)
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

  it("is over with its task, if that did not unlock it", function()
    for _, client in ipairs(clients) do client:close() end
    clients = open_all { watchdog = LEASE }
    red = red_of(clients)
    task.run(function() assert(red:lock()) end)
    assert(count_keys() >= 3)
    nothing_is_left(3 * LEASE)
  end)
end)

describe("a red lock with servers that forgot", function()
  before_each(start)
  after_each(stop)

  it("is held on when one was restarted empty", function()
    assert.is_true(red:lock())
    eventually(function() return count_keys() == NODES end)
    servers[3]:restart()
    assert.equal("busy", select(2, another():try_lock()))
    assert.equal("held", red:state())
    assert.is_true(red:unlock())
    nothing_is_left()
  end)

  it("was lost if a majority has forgotten it", function()
    assert.is_true(red:lock())
    eventually(function() return count_keys() == NODES end)
    for i = 1, 3 do servers[i]:cli("FLUSHALL") end
    assert.equal("lost", select(2, red:unlock()))
    nothing_is_left()
  end)

  it("does not count a server until a lease after its restart", function()
    for _, client in ipairs(clients) do client:close() end
    clients = open_all { watchdog = 3 * slow }
    red = red_of(clients)
    assert.is_true(red:lock())
    assert.is_true(red:unlock())
    kill(1, 2)
    servers[3]:restart()
    local restarted = rlock.now()
    local code, detail
    eventually(function()
      code, detail = select(2, red:try_lock())
      return detail:find("restarted", 1, true)
    end)
    assert.equal("quorum", code)
    assert.matches(servers[3].socket .. ": restarted", detail, 1, true)
    assert.is_true(red:lock { wait = 10 * slow })
    -- Its uptime is told in whole seconds.
    assert(rlock.now() - restarted > 3 * slow - 1.1)
    assert.is_true(red:unlock())
    nothing_is_left()
  end)
end)

describe("a red lock with servers that hang", function()
  before_each(start)
  after_each(stop)

  -- Seconds that fn takes: the median of so many times.
  local function measure(rounds, fn)
    local took = {}
    for i = 1, rounds do
      local before = rlock.now()
      fn()
      took[i] = rlock.now() - before
    end
    table.sort(took)
    return took[math.ceil(rounds / 2)]
  end

  local function cycle()
    assert(red:lock())
    assert(red:unlock())
  end

  it("is not slowed by one", function()
    local before = measure(100, cycle)
    pause(5)
    local took = measure(200, cycle)
    assert(took < NODE_TIMEOUT / 5 and took < 5 * before + 0.005, took)
    local holding = occupy(red)
    assert.equal("busy", select(2, within(NODE_TIMEOUT + SLACK, red.try_lock,
      red)))
    assert.is_true(holding.leave())
    resume(5)
    nothing_is_left()
  end)

  it("waits for one once only, when the answer hangs on it", function()
    measure(2, cycle)
    local gate = occupy(red)
    eventually(function() return count_keys() == NODES end)
    -- Two say no, and three nothing.
    pause(1, 2, 3)
    within(NODE_TIMEOUT + SLACK, red.try_lock, red)
    within(NODE_TIMEOUT + SLACK, red.try_lock, red)
    local took = measure(9, function()
      assert.equal("quorum", select(2, red:try_lock()))
    end)
    assert(took < NODE_TIMEOUT / 5, took)
    resume(1, 2, 3)
    assert.is_true(gate.leave())
    nothing_is_left()
    -- And they are asked again as soon as they answer.
    eventually(function()
      assert(red:lock { wait = 5 * slow })
      local all = count_keys() == NODES
      assert(red:unlock())
      return all
    end)
  end)

  it("is unlocked without them, and later with them", function()
    assert.is_true(red:lock())
    eventually(function() return count_keys() == NODES end)
    pause(1, 2, 3)
    assert.is_true(within(NODE_TIMEOUT + SLACK, red.unlock, red))
    resume(1, 2, 3)
    nothing_is_left()
  end)

  it("leaves nothing on those that were asked and did not answer", function()
    measure(2, cycle)
    pause(1, 2, 3)
    assert.equal("quorum", select(2, within(NODE_TIMEOUT + SLACK,
      red.try_lock, red)))
    resume(1, 2, 3)
    nothing_is_left()
  end)
end)

describe("a red lock with a server that answers after the lease", function()
  local urls

  local function start_behind_proxy()
    start()
    proxy = proxies.start(servers[1])
    urls = { proxy.url }
    for i = 2, NODES do urls[i] = servers[i].url end
    for i, url in ipairs(urls) do
      clients[i]:close()
      clients[i] = assert(rlock.open { url = url, timeout = 3 * slow })
      opened[#opened + 1] = clients[i]
    end
    red = red_of(clients)
    assert(red:lock())
    assert(red:unlock())
    nothing_is_left()
  end

  before_each(start_behind_proxy)
  after_each(stop)

  it("does without it, and takes nothing from its answer", function()
    proxy:hold(0.5 * slow, name)
    assert.is_true(within(NODE_TIMEOUT, red.lock, red, { lease = 0.3 * slow }))
    assert(red:valid_for() <= 0.3 * slow)
    assert.is_true(red:unlock())
    nothing_is_left()
  end)

  it("is not held if it is needed, and leaves nothing", function()
    kill(2, 3)
    proxy:hold(0.5 * slow, name)
    local ok, code, detail = within(NODE_TIMEOUT + SLACK, red.try_lock, red,
      { lease = 0.3 * slow })
    assert.is_nil(ok)
    assert.equal("quorum", code)
    assert.matches(proxy.socket, detail, 1, true)
    nothing_is_left()
    assert.is_true(red:lock { wait = 5 * slow })
    assert.is_true(red:unlock())
    nothing_is_left()
  end)

  -- The answers to both attempts come from it, in turn, and both are needed.
  for _, policy in ipairs { "simple", "mutex", "reentrant" } do
    it("may be asked anew before it answers, with policy " .. policy, function()
      red = red_of(clients, { policy = policy, node_timeout = 5 * slow })
      local others, rivals = open_all(), {}
      for i = 2, 4 do
        rivals[i] = occupy(others[i]:policy(policy, name))
      end
      proxy:hold(0.3 * slow, name)
      assert.equal("busy", select(2, red:try_lock()))
      assert.is_true(rivals[4].leave())
      local ok, code, detail = red:try_lock()
      assert(ok, ("%s: %s"):format(code, detail))
      assert.is_true(rivals[2].leave())
      assert.is_true(rivals[3].leave())
      assert.is_true(red:unlock())
      nothing_is_left()
    end)
  end

  -- What a hold does not have it asks for again: here, before the first answer.
  it("counts as one, though it was asked twice", function()
    for i, url in ipairs(urls) do
      clients[i]:close()
      clients[i] = assert(rlock.open {
        url = url, timeout = 3 * slow, watchdog = 2 * slow,
      })
      opened[#opened + 1] = clients[i]
    end
    red = red_of(clients, { node_timeout = slow })
    assert.is_true(red:lock())
    assert.is_true(red:unlock())
    local rival = occupy(open_all()[2]:lock(name))
    proxy:hold(0.3 * slow, name)
    assert.is_true(red:lock())
    eventually(function() return count_keys() == NODES end)
    kill(3, 4)
    eventually(function() return red:state() == "lost" end, 20 * slow,
      "two of five servers are no majority")
    assert.equal("lost", select(2, red:unlock()))
    assert.is_true(rival.leave())
    nothing_is_left()
  end)

  it("leaves nothing if its answer never comes", function()
    proxy:drop_replies(1, name)
    assert.is_true(red:lock())
    assert.is_true(red:unlock())
    nothing_is_left()
  end)
end)

describe("the servers of a red lock", function()
  before_each(start)
  after_each(stop)

  local function refused(some, pattern)
    local its = red_of(some)
    local ok, code, detail = its:lock { wait = 1 }
    assert.is_nil(ok)
    assert.equal("refused", code)
    assert.matches(pattern, detail)
    nothing_is_left()
  end

  it("must not be one and the same by two names", function()
    servers[6] = redis.start { port = true }
    local function open(url)
      local client = assert(rlock.open(url))
      opened[#opened + 1] = client
      return client
    end
    refused({ clients[1], open(servers[6].url),
      open("redis://127.0.0.1:" .. servers[6].port) }, "the same server")
    refused({ open(servers[6].url .. "?db=1"), open(servers[6].url),
      clients[1] }, "the same server")
    refused({ clients[1], open(servers[1].url), clients[2] },
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
    end, 20 * slow)
    local all = open_all()
    refused({ all[6], all[2], all[3] }, "a server and its replica")
  end)

  it("may be away when the clients are opened", function()
    kill(1, 2)
    local lazy = open_all { lazy = true }
    local its = red_of(lazy)
    assert.is_true(its:lock { wait = 5 * slow })
    assert.equal(3, count_keys())
    assert.is_true(its:unlock())
    servers[1]:launch()
    servers[2]:launch()
    eventually(function()
      assert(its:lock { wait = 5 * slow })
      local all = count_keys() == NODES
      assert(its:unlock())
      return all
    end)
    assert.equal("connect", select(2, rlock.open("unix:///nowhere/at.all")))
    local nowhere = assert(rlock.open { url = "unix:///nowhere/at.all",
      lazy = true })
    assert.equal("connect", select(2, nowhere:call("PING")))
    nowhere:close()
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

  it("refuses what is no mutual exclusion, and says why", function()
    for _, policy in ipairs { "semaphore", "permits", "fenced" } do
      says("not known to be mutual exclusion.*A has servers 1 and 2",
        clients, name, { policy = policy })
    end
    local reentrant = require "rlock.policy.reentrant"
    local own = {}
    for key, value in pairs(reentrant) do own[key] = value end
    own.name = "mine"
    says("bad policy mine", clients, name, { policy = own })
    own.exclusive = true
    local its = red_of(clients, { policy = own })
    assert.is_true(its:lock())
    assert.is_true(its:unlock())
  end)

  it("refuses what it cannot be made of", function()
    says("bad clients", {}, name)
    says("bad clients", nil, name)
    says("bad client 2", { clients[1], "unix:///x" }, name)
    says("bad name", clients, "")
    says("bad options", clients, name, "simple")
    says("bad option lease", clients, name, { lease = 1 })
    says("bad drift", clients, name, { drift = 2 })
    says("bad node_timeout", clients, name, { node_timeout = 0 })
    assert.has_error(function() red:lock { waits = 1 } end)
  end)
end)

-- What each of the processes runs: tasks that add to a counter that nothing but
-- the lock protects. It prints how often it did.
local COUNT = [[
local rlock = require "rlock"
local rounds, tasks, name, watchdog, store = table.unpack(arg, 1, 5)
local clients = {}
for i = 6, #arg do
  clients[#clients + 1] = assert(rlock.open {
    url = arg[i], lazy = true, timeout = 0.4, watchdog = tonumber(watchdog),
  })
end
store = assert(rlock.open(store))
local red = rlock.red_lock(clients, name)
local added, lost = 0, 0

local function add()
  local value = tonumber(store:call("GET", "counter") or 0)
  if not red:need(watchdog / 4) then return end
  assert(store:call("SET", "counter", ("%d"):format(value + 1)))
  added = added + 1
end

local function work()
  for _ = 1, rounds / tasks do
    if red:lock { wait = 20 } then
      add()
      if not red:unlock() then lost = lost + 1 end
    end
  end
end

local all = {}
for i = 1, tasks do all[i] = rlock.spawn(work) end
for i = 1, tasks do all[i]:join() end
print(("added %d lost %d"):format(added, lost))
]]

describe("a counter under a red lock", function()
  local WATCHDOG = slow
  local ROUNDS, TASKS = 1600, 4
  local store

  before_each(function()
    start()
    store = redis.start()
  end)
  after_each(function()
    stop()
    store:stop()
  end)

  local function start_counting()
    local path = store.folder .. "/count.lua"
    local file = assert(io.open(path, "wb"))
    file:write(COUNT)
    file:close()
    local arguments = { path, tostring(ROUNDS), tostring(TASKS), name,
      tostring(WATCHDOG), store.url }
    for _, server in ipairs(servers) do
      arguments[#arguments + 1] = server.url
    end
    return program.start(store, table.unpack(arguments))
  end

  local function counter()
    return tonumber(ask(store, "GET", "counter")) or 0
  end

  local function are_over(all)
    for _, counting in ipairs(all) do
      if not counting:output():find("added", 1, true) then return false end
    end
    return true
  end

  -- Waits until they have counted on, or have ended.
  local function goes_on(all)
    local before = counter()
    eventually(function()
      return counter() > before + ROUNDS / 20 or are_over(all)
    end, 30 * slow, "the counting goes on")
  end

  -- What befalls two servers, and how it ends. Who was killed is empty then.
  local faults = {
    { function(a, b) kill(a, b) end,
      function(a, b) servers[a]:launch() servers[b]:launch() end },
    { pause, resume },
    { function(a, b) servers[a]:restart() pause(b) end,
      function(_, b) resume(b) end },
    { function(a, b) kill(a) pause(b) end,
      function(a, b) servers[a]:launch() resume(b) end },
  }

  it("misses no addition, whatever befalls two of five servers", function()
    local all, n = { start_counting(), start_counting() }, 0
    repeat
      local a, b = n % NODES + 1, (n + 2) % NODES + 1
      local begin, finish = table.unpack(faults[n % #faults + 1])
      goes_on(all)
      begin(a, b)
      goes_on(all)
      finish(a, b)
      n = n + 1
    until are_over(all)
    local added = 0
    for _, counting in ipairs(all) do
      assert.equal(0, counting:wait(10 * slow))
      added = added + tonumber(counting:output():match("added (%d+)"))
    end
    assert.equal(added, counter())
    assert(added > ROUNDS, added)
    assert(n >= #faults, "there were faults")
  end)
end)
