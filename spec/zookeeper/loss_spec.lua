--- Four processes contend for a lock on three ZooKeeper servers, each with its
--- own network, which loses packets; and clocks are set, and processes are
--- suspended. One of them has the lock while the trouble begins. No two ever
--- hold it at once, as judged from outside by what valid_for() has promised.

local codec = require "rlock.zookeeper.codec"
local eventually = require "spec.tools.eventually"
local on_zookeeper = require "spec.tools.on_zookeeper"
local peers = require "spec.tools.zookeeper_peer"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local storms = require "spec.tools.zookeeper_storm"
local switch = require "spec.tools.switch"

local storm

-- Before the servers stop.
teardown(function()
  if storm then storm:stop() end
end)

local is_alone = switch.is_possible()
local three = on_zookeeper("contention on ZooKeeper",
  { describe = describe, pending = pending, teardown = teardown },
  { servers = 3, alone = is_alone, clocks = true })
if not three then return end

local PATIENCE = 60 * slow
local STOP, CONT = 19, 18
local HOUR = 3600
local STEP = 600                        -- seconds: more than a test takes

-- The number of the leader, or of the first follower.
local function number_of(mode)
  local found
  eventually(function()
    found = three:find(mode)
    return found and three:leader()
  end, PATIENCE, "there is a " .. mode)
  for i in ipairs(three) do
    if three[i] == found then return i end
  end
end

local function others(one)
  local list = {}
  for i in ipairs(three) do
    if i ~= one then list[#list + 1] = i end
  end
  return list
end

local function around(which)
  return function(one) return three.network:around(one, which) end
end

-- One keeps the lock while trouble begins. The others take it over meanwhile.
local function taken_over(one, begin, finish)
  storm:keep(one)
  begin()
  storm:go_on(others(one))
  finish()
  storm:let_go(one)
  storm:go_on()
  assert.same({}, storm:overlaps())
end

-- One keeps the lock though there is trouble.
local function kept(one, begin)
  storm:keep(one)
  begin()
  local count = storm:count()
  rlock.sleep(1.25 * storms.TIMEOUT)
  assert.equal(count, storm:count())
  storm:let_go(one)
  storm:go_on()
  assert.same({}, storm:overlaps())
end

-- The wall clock of the leader, which dates new nodes.
local function wall_of_leader(path)
  local peer = peers.open(three[number_of "leader"])
  assert(peer:make(path))
  local err, its = peer.link:post(codec.ops.exists, codec.read(path))
    :wait(rlock.now() + PATIENCE)
  assert.equal(0, err)
  peer:close()
  return (">I8"):unpack(its.bytes, its.at + 16) / 1000
end

local function is_ahead(step, wall)
  assert.is_true(math.abs(wall - os.time() - step) < STEP)
end

setup(function()
  storm = storms.start(three)
  storm:go_on()
end)

-- What a test that failed has left.
after_each(function()
  if is_alone then three.network:heal() end
  for i in ipairs(three) do
    storm:signal(i, CONT)
    storm:let_go(i)
  end
end)

describe("a lock on ZooKeeper is held by one", function()
  if not is_alone then
    pending "while packets are lost: needs network namespaces with bridges"
  end

  for _, case in ipairs(is_alone and {
    { "a follower has no network to the others", "follower", around "both" },
    { "a leader has no network to the others", "leader", around "both" },
    { "the followers do not hear the leader", "leader", around "to" },
    { "a server does not hear its clients", "follower",
      function(one) return { { 0, one } } end },
    { "clients do not hear their server", "follower",
      function(one) return { { one, 0 } } end },
  } or {}) do
    local title, mode, ways = table.unpack(case)
    it("while " .. title, function()
      local one = number_of(mode)
      taken_over(one, function() three.network:lose(ways(one)) end,
        function() three.network:heal() end)
    end)
  end

  it("while a holder is suspended, in nginx", function()
    taken_over(2, function() storm:signal(2, STOP) end,
      function() storm:signal(2, CONT) end)
  end)

  it("while the clocks of clients and servers are set", function()
    for i, step in ipairs { HOUR, -HOUR } do
      local one = number_of "follower"
      kept(one, function()
        for each in ipairs(three) do
          storm:set_clock(each, step)
          three[each]:set_clock(step)
        end
      end)
      is_ahead(step, storm[one].wall)
      is_ahead(step, wall_of_leader("/clock" .. i))
    end
  end)
end)
