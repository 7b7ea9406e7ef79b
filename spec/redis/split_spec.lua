--- A split brain: the master is cut off from its replicas and the Sentinels,
--- which promote a replica. Clients still reach the old master, and it writes.
--- #long

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local rlock = require "rlock"
local sentinel = require "spec.tools.sentinel"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local SOON = 30 * slow
local LEASE = 3 * slow

local set, old, name

setup(function()
  set = sentinel.start { sleep = rlock.sleep, can_split = true }
end)
teardown(function() set:stop() end)

local function open(options)
  options.watchdog, options.timeout = LEASE, 1 * slow
  return fixtures.open({ url = set.url }, options)
end

-- A client that has not heard of the failover.
local function open_old(options)
  options.url = "redis://127.0.0.1:" .. old.port
  return open(options)
end

-- Waits for the failover. The old master does not know it, and still writes.
local function is_split()
  local new = eventually(function()
    local master = set:master()
    return master ~= old and master:info "role" == "master" and master
  end, SOON, "a replica is promoted")
  assert.equal("master", old:info "role")
  assert.equal("OK", old:cli("SET", "split:written", "x"))
  return new
end

-- Notes when a hold is lost.
local function watch(lock)
  local seen = {}
  lock:on_lost(function(_, why) seen.at, seen.why = rlock.now(), why end)
  return seen
end

describe("in a split brain", function()
  before_each(function()
    set:settle()
    old, name = set:master(), fixtures.name "split"
  end)
  after_each(function()
    set:join(old)
    fixtures.close()
  end)

  it("a hold that only the old master has is reported lost", function()
    local mine = open {}:lock(name)
    set:split(old)
    assert.is_true(mine:lock())
    local loss = watch(mine)
    assert.is_true(open {}:lock(name .. ":other"):lock())
    is_split()
    assert.is_true(open {}:lock(name):lock { wait = SOON })
    local granted = rlock.now()
    eventually(function() return loss.at end, 5 * slow, "the loss is told")
    print(("two holders for %.3f s"):format(math.max(0, loss.at - granted)))
    assert.equal("lost", mine:state())
    assert.equal("1", old:cli("EXISTS", name), "the old master still has it")
  end)

  -- Counts the grants of the old master, until this is closed.
  local function count_grants(client)
    local count = { tried = 0, granted = 0 }
    task.start(function()
      while not client.session.is_closed do
        count.tried = count.tried + 1
        local lock = client:lock(name .. ":new")
        if lock:try_lock() then count.granted = count.granted + 1 end
        rlock.sleep(0)
      end
    end)
    return count
  end

  it("the old master grants nothing that replicas must confirm", function()
    for _, replicas in ipairs { 1, "majority" } do
      local theirs = open_old { replicas = replicas, replica_timeout = 0.2 }
      local mine = theirs:lock(name)
      assert.is_true(mine:lock())
      local loss = watch(mine)
      set:split(old)
      local count = count_grants(theirs)
      is_split()
      local other = open { replicas = 1 }:lock(name)
      assert.is_true(other:lock { wait = SOON })
      local granted = rlock.now()
      assert.is_true(loss.at and loss.at <= granted, "no two holders")
      assert.matches("not renewed in time", loss.why)
      assert.equal(0, count.granted)
      assert.is_true(count.tried > 1)
      assert.is_true(other:unlock())
      set:join(old)
      fixtures.close()
      set:settle()
      old = set:master()
    end
  end)
end)
