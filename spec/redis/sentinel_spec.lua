--- A master behind Redis Sentinel, through failovers of all kinds.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local rlock = require "rlock"
local sentinel = require "spec.tools.sentinel"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local SOON = 15 * slow
local NONE = "127.0.0.1:1"              -- nothing listens there

local set, client, lock

local function open(options)
  return fixtures.open({ url = set.url, watchdog = 6 * slow }, options)
end

-- One set for all tests: it takes seconds to start.
setup(function() set = sentinel.start() end)
teardown(function() set:stop() end)

local function start()
  set:settle()
  client = open()
  lock = client:lock(fixtures.name "sentinel")
end

-- What the server says without rlock.
local function has(server, name) return server:cli("EXISTS", name) == "1" end

-- The port to which the client's commands go.
local function port_of(its)
  local connection = its.session.node.connection
  return connection and connection.place.port
end

-- Fails over, and waits until a client has followed.
local function follow(its, fail_over)
  local old = set:master()
  fail_over(old)
  eventually(function()
    local port = port_of(its)
    return port and port ~= old.port
  end, SOON, "the client has another master")
  return old
end

local function collect_losses(its)
  local losses = {}
  its:on_lost(function(_, why) losses[#losses + 1] = why end)
  return losses
end

describe("a client with Sentinel", function()
  before_each(start)
  after_each(fixtures.close)

  it("locks on the master", function()
    assert.is_true(lock:lock())
    assert.is_true(has(set:master(), lock.site.name))
    assert.is_true(lock:unlock())
    assert.is_false(has(set:master(), lock.site.name))
  end)

  it("wakes a waiter", function()
    assert.is_true(lock:lock())
    local other = open():lock(lock.site.name)
    local began
    local waiting = task.start(function()
      local ok = other:lock { wait = SOON }
      return ok, rlock.now() - began, other:unlock()
    end)
    eventually(function()
      return set:master():cli("PUBSUB", "NUMSUB",
        "redisson_lock__channel:{" .. lock.site.name .. "}"):match "\n1$"
    end)
    began = rlock.now()
    assert.is_true(lock:unlock())
    local ok, seconds, released = waiting:join()
    assert.is_true(ok and released)
    assert(seconds < 0.2 * slow, "woken after " .. seconds)
  end)

  it("follows a failover, and its holds go on", function()
    assert.is_true(lock:lock())
    local losses = collect_losses(lock)
    local old = follow(client, function() set:fail_over() end)
    eventually(function() return lock:state() == "held" end, SOON)
    assert.equal(set:master().port, port_of(client))
    assert.not_equal(old.port, port_of(client))
    assert.is_true(lock:unlock())
    assert.equal(0, #losses)
  end)

  it("wakes a waiter on the new master", function()
    assert.is_true(lock:lock())
    local other = open():lock(lock.site.name)
    local waiting = task.start(function()
      local ok = other:lock { wait = SOON }
      return ok, other:unlock()
    end)
    follow(client, function() set:fail_over() end)
    eventually(function() return lock:state() == "held" end, SOON)
    assert.is_true(lock:unlock())
    local ok, released = waiting:join()
    assert.is_true(ok and released)
  end)

  it("follows when the master is killed", function()
    assert.is_true(lock:lock())
    local old = follow(client, function(master) master:kill() end)
    eventually(function() return lock:state() == "held" end, SOON)
    assert.is_true(lock:unlock())
    assert.not_equal(old.port, port_of(client))
  end)

  it("leaves a master that stands still, and comes back as a replica",
    function()
      assert.is_true(lock:lock())
      local old = follow(client, function(master) master:pause() end)
      eventually(function() return lock:state() == "held" end, SOON)
      local port = port_of(client)
      old:resume()
      eventually(function() return old:info "role" == "slave" end, SOON)
      assert.equal(port, port_of(client))
      assert.is_true(lock:unlock())
    end)

  it("tells at once of a hold that the new master does not have", function()
    assert.is_true(lock:lock { lease = 60 })
    local renewed = client:lock(fixtures.name "renewed")
    assert.is_true(renewed:lock())
    local losses, others = collect_losses(lock), collect_losses(renewed)
    follow(client, function(master)
      for _, server in ipairs(set.servers) do
        if server ~= master then
          server:cli("CONFIG", "SET", "replica-read-only", "no")
          server:cli("DEL", lock.site.name, renewed.site.name)
          server:cli("CONFIG", "SET", "replica-read-only", "yes")
        end
      end
      master:kill()
    end)
    eventually(function() return #losses + #others == 2 end, slow)
    assert.equal("lost", lock:state())
  end)

  it("keeps the end of a lease across a failover", function()
    assert.is_true(lock:lock { lease = 60 })
    local before = lock:valid_for()
    follow(client, function() set:fail_over() end)
    eventually(function() return lock:state() == "held" end, SOON)
    assert(lock:valid_for() <= before)
    local ms = tonumber(set:master():cli("PTTL", lock.site.name))
    assert(ms > 0 and ms <= 60000, ms)
    assert.is_true(lock:unlock())
  end)

  it("needs only one Sentinel that answers", function()
    set.sentinels[1]:pause()
    local url = set.url:gsub("://", "://" .. NONE .. ",")
    local other = open { url = url }
    set.sentinels[1]:resume()
    local its = other:lock(lock.site.name)
    assert.is_true(its:lock { wait = SOON })
    assert.is_true(its:unlock())
  end)

  it("learns the other Sentinels", function()
    local one = set:url_of(set.name, { set.sentinels[1] })
    local other = open { url = one }
    local its = other:lock(lock.site.name)
    assert.is_true(its:lock())
    follow(other, function()
      set.sentinels[1]:pause()
      set:fail_over()
    end)
    assert.is_true(its:unlock())
  end)
end)

describe("rlockctl status with Sentinel", function()
  before_each(start)
  after_each(fixtures.close)

  local function status(...)
    return (shell.run(shell.words { os.getenv "RLOCKCTL", "--url", set.url,
      "status", ... }))
  end

  it("names the master and its address", function()
    local node = ("127.0.0.1:%d"):format(set:master().port)
    assert.is_true(lock:lock())
    assert.matches("\n  on " .. node .. ", the master of mymaster\n",
      status(lock.site.name))
    assert.matches('"master":"mymaster","name":"[^"]*","node":"' .. node .. '"',
      status("--json", lock.site.name))
    assert.matches("^mymaster is " .. node .. "\nmymaster %(Sentinel [^)]*%): "
      .. "%a+ [%d.]+, primary\n", status "--server")
    assert.is_true(lock:unlock())
  end)
end)

describe("an error with Sentinel", function()
  before_each(start)
  after_each(fixtures.close)

  local function refused(url, options)
    local its = { url = url, connect_timeout = 1 * slow }
    for name, value in pairs(options or {}) do its[name] = value end
    local opened, code, detail = rlock.open(its)
    assert.is_nil(opened)
    assert.equal("connect", code)
    return detail
  end

  it("names the Sentinels that do not answer, and why", function()
    local detail = refused("redis+sentinel://127.0.0.1:1,127.0.0.1:2/mymaster")
    assert.matches("^mymaster: no Sentinel answers; 127.0.0.1:1: .*refused",
      detail)
    assert.matches("; 127.0.0.1:2: .*refused", detail)
  end)

  it("names the masters that the Sentinels know", function()
    local detail = refused(set:url_of "nomaster")
    assert.matches("^nomaster: no Sentinel knows it; 127.0.0.1:%d+: it knows "
      .. 'no master "nomaster", only: mymaster;', detail)
  end)

  it("says that a server is no Sentinel", function()
    local detail = refused(set:url_of(set.name, { set:master() }))
    assert.matches("it is not a Sentinel", detail)
  end)
end)
