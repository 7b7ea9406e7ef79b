--- Three ZooKeeper servers: one stops, hangs or loses the leader. No other
--- client gets the lock while valid_for() promises it to the holder.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local on_zookeeper = require "spec.tools.on_zookeeper"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local three = on_zookeeper("locks on three ZooKeeper servers",
  { describe = describe, pending = pending, teardown = teardown },
  { servers = 3 })
if not three then return end

local STOP, CONT = 19, 18
local TIMEOUT = 2                   -- of sessions, four ticks
local PATIENCE = 30 * slow

local suspended

teardown(ctl.clean)

-- A client of some servers; default: all. They may be electing a leader.
local function open(url)
  return fixtures.open { url = url or three.url, watchdog = TIMEOUT,
    connect_timeout = 1, lazy = true }
end

-- The address of all but one.
local function all_but(server)
  local hosts = {}
  for _, each in ipairs(three) do
    if each ~= server then hosts[#hosts + 1] = each.url:sub(6) end
  end
  return "zk://" .. table.concat(hosts, ",")
end

local function suspend(server)
  suspended = server
  server:signal(STOP)
end

-- Records until when a grant is promised, while the task runs.
local function watch(grant)
  local promised = { until_ = 0 }
  rlock.spawn(function()
    while not promised.is_over do
      local left = grant:valid_for()
      if left > 0 then
        promised.until_ = math.max(promised.until_, rlock.now() + left)
      end
      rlock.sleep(0.002)
    end
  end)
  return promised
end

-- Takes the lock in one client, fails, and lets another wait for the lock.
-- Checks that the first was promised nothing when the other had it.
local function taken_over(name, client, other, fail)
  local lock, taken = client:lock(name), nil
  assert(lock:lock())
  local promised = watch(lock:mine())
  rlock.sleep(TIMEOUT / 2)
  local waiting = task.start(function()
    local ok = other:lock(name):lock()
    taken = rlock.now()
    return ok
  end)
  eventually(function() return next(other.session.server.entries) end)
  fail()
  assert.is_true(waiting:join(PATIENCE))
  promised.is_over = true
  assert.equal("lost", lock:state())
  assert.is_true(promised.until_ <= taken,
    ("promised for %.3f s more"):format(promised.until_ - taken))
end

describe("locks on three ZooKeeper servers", function()
  before_each(function()
    eventually(function() return three:leader() and three:follower() end,
      PATIENCE)
  end)

  after_each(function()
    if suspended then suspended:signal(CONT) end
    for _, server in ipairs(three) do
      if not server.pid then server:restart() end
    end
    suspended = nil
    fixtures.close()
  end)

  it("are held by one of many at a time, on any server", function()
    local name, inside, most, rounds, all = fixtures.name "any", 0, 0, 0, {}
    for i = 1, 3 do
      local lock = open(three[i].url):lock(name)
      all[i] = task.start(function()
        for _ = 1, 30 do
          assert(lock:lock())
          inside = inside + 1
          most, rounds = math.max(most, inside), rounds + 1
          rlock.sleep(0)
          inside = inside - 1
          assert(lock:unlock())
        end
      end)
    end
    for i = 1, 3 do all[i]:join(PATIENCE) end
    assert.same({ 1, 90 }, { most, rounds })
  end)

  it("are valid for less than their session when its follower hangs",
      function()
    local follower = three:follower()
    taken_over(fixtures.name "hang", open(follower.url),
      open(all_but(follower)), function() suspend(follower) end)
  end)

  it("move to another server with their session", function()
    local client = open(all_but(three:leader()))    -- so there is no election
    local lock, lost = client:lock(fixtures.name "move"), false
    assert(lock:lock())
    lock:on_lost(function() lost = true end)
    local where = client.session.server.connection.link.where
    assert.is_string(where)
    for _, server in ipairs(three) do
      if server.url == "zk://" .. where then server:kill() end
    end
    eventually(function()
      local link = client.session.server.connection
      return link.is_ready and link.link.where ~= where
        and lock:state() == "held"
    end, PATIENCE)
    assert.is_false(lost)
    assert.is_true(lock:unlock())
  end)

  it("are lost before others get them when the leader hangs", function()
    local leader = three:leader()
    taken_over(fixtures.name "leader", open(), open(all_but(leader)),
      function() suspend(leader) end)
  end)

  it("are audited by rlockctl doctor, even without a quorum", function()
    local function look()
      return ctl.run { url = three.url, "doctor", limit = PATIENCE }
    end
    local function count(text, pattern)
      return select(2, text:gsub(pattern, ""))
    end
    eventually(function()
      local result = look()
      local out = result.out
      return result.status == 0 and count(out, ": zookeeper 3[%d.]+, leader\n")
          == 1 and count(out, ": zookeeper 3[%d.]+, follower\n") == 2
        and count(out, "\n  ok: quorum, members, sync, ") == 1
        and count(out, " followers,%s") == 1
    end, PATIENCE)
    local out = ctl.run { url = three[1].url, "doctor" }.out
    assert.matches("\n  note: members: 1 of 3 servers are in the URL\n", out)
    local leader = three:leader()
    for _, server in ipairs(three) do
      if server ~= leader then server:kill() end
    end
    eventually(function()
      return leader:says "srvr":find "not currently serving"
    end, PATIENCE)
    local result = look()
    assert.same({ 2, "" }, { result.status, result.err })
    assert.equal(2, count(result.out, "warning: reach: [^\n]*refused\n"))
    assert.equal(1, count(result.out, "fault: serving: it serves no requests"))
    assert.matches("fault: quorum: 0 of 3 servers serve\n", result.out)
  end)
end)
