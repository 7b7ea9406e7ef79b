--- Fault injection: faults of connections, servers and processes. Each fault is
--- a function of a scene, of two random numbers in [0,1) that choose its
--- targets, and of its duration in seconds.
---
--- A scene has `processes`, each with a `host`; `servers`; `network` and
--- `universe`; start_client_later(scene, seconds), for `kill`; and, for their
--- faults, `cluster` or `ensemble` (of ZooKeeper).

local sentinels = require "rlockctl.simulate.sentinels"

local faults = {}

local floor = math.floor

function faults.one_of(list, dice)
  return list[floor(dice * #list) + 1]
end

local one_of = faults.one_of

--- A running process; members of a crowd do not count.
function faults.process_of(scene, dice)
  local alive = {}
  for _, process in ipairs(scene.processes) do
    if not process.host.is_dead and not process.is_closed
        and not process.is_crowd then
      alive[#alive + 1] = process
    end
  end
  return one_of(alive, dice)
end

local process_of = faults.process_of

local function route_of(scene, a, b)
  local process = process_of(scene, a)
  if not process then return nil end
  return scene.network:route(process.host, one_of(scene.servers, b))
end

--- The kinds of faults: name -> function(scene, a, b, seconds).
faults.inject = {}

local inject = faults.inject

-- networks --------------------------------------------------------------------

local function of_links(fn)
  return function(scene, a, b, seconds)
    local route = route_of(scene, a, b)
    for _, link in ipairs(route and { table.unpack(route.links) } or {}) do
      fn(link, seconds)
    end
  end
end

-- What is sent on the current connections arrives late, even after they have
-- been closed. New connections are not affected.
inject.late = of_links(function(link, seconds) link:hold("forth", seconds) end)
inject.deaf = of_links(function(link, seconds) link:hold("back", seconds) end)

-- The server resets the connection after some commands: `seconds` is their
-- number.
inject.reset = of_links(function(link, count)
  link.resets_after = 1 + floor(count)
end)

-- A half-open connection: nothing arrives until the client gives up or the
-- server resets the connection.
inject["half-open"] = of_links(function(link, seconds)
  link:half_open(seconds)
end)

-- The connection is lost, with all that is in flight.
inject.cut = of_links(function(link) link:half_open(0) end)

local function of_route(fn)
  return function(scene, a, b, seconds)
    local route = route_of(scene, a, b)
    if route then fn(route, scene.universe.now + seconds, scene) end
  end
end

inject.partition = of_route(function(route, till)
  route.forth, route.back = till, till
end)
inject["requests delayed"] = of_route(function(route, till)
  route.forth = till
end)
inject["replies delayed"] = of_route(function(route, till)
  route.back = till
end)
inject.refuse = of_route(function(route, till) route.refuses_until = till end)
inject.slow = of_route(function(route, till, scene)
  local delay = route.usual or route.delay
  route.usual, route.delay, route.slow_till = delay, 0.04, till
  scene.universe:at(till, { fire = function()
    if route.slow_till == till then route.delay = delay end
  end })
end)

-- servers ---------------------------------------------------------------------

function inject.freeze(scene, a, _, seconds)
  one_of(scene.servers, a):freeze(seconds)
end

function inject.restart(scene, a, _, seconds)
  one_of(scene.servers, a):restart(seconds, "data")
end

function inject.save(scene, a) one_of(scene.servers, a):save() end
function inject.flush(scene, a) one_of(scene.servers, a):flush_scripts() end

-- The replica of a server stops for a while, and confirms no writes.
inject["replica lags"] = function(scene, a, _, seconds)
  one_of(scene.servers, a):lag(seconds)
end

-- Redis loses all of its data.
inject["restart, empty"] = function(scene, a, _, seconds)
  local server = one_of(scene.servers, a)
  if scene.cluster then scene.cluster:settle(server) end
  server:restart(seconds, "nothing")
end

-- Redis evicts a key.
function inject.evict(scene, a, b)
  local entries, keys = one_of(scene.servers, a).redis.entries, {}
  for key in next, entries do keys[#keys + 1] = key end
  table.sort(keys)
  local key = one_of(keys, b)
  if key then entries[key] = nil end
end

local function clock_jumps(scene, a, seconds)
  local server = one_of(scene.servers, a)
  server:set_clock(server.speed, seconds)
end

inject["clock, forward"] = function(scene, a, _, seconds)
  clock_jumps(scene, a, seconds)
end

inject["clock, back"] = function(scene, a, _, seconds)
  clock_jumps(scene, a, -seconds)
end

-- Sentinels and replicas ------------------------------------------------------

-- The new master has all data. The old master may be frozen meanwhile.
function inject.failover(scene, a, b, seconds)
  local server = one_of(scene.servers, a)
  if server.is_down or not server.epoch then return end
  sentinels.fail_over(scene.network, server, false, b < 0.5 and seconds or 0,
    scene.universe.random)
end

-- The new master lacks the writes that it had not confirmed as a replica.
inject["failover to a replica"] = function(scene, a, b, seconds)
  local server = one_of(scene.servers, a)
  if server.is_down then return end
  server:roll_back()
  inject.failover(scene, a, b, seconds)
end

-- a cluster -------------------------------------------------------------------

--- Derives independent numbers in [0,1) from one.
function faults.dice_of(dice, i) return dice * 7 ^ i % 1 end

local dice_of = faults.dice_of

-- A random key of a server, as an argument for cluster:move; a random name if
-- the server has no keys.
local function thing_of(server, dice)
  local keys = {}
  for key in next, server.redis.entries do keys[#keys + 1] = key end
  table.sort(keys)
  return { name = one_of(keys, dice) or ("%.6f"):format(dice) }
end

-- A slot migrates, at once or key by key.
function inject.move(scene, a, b, seconds)
  local thing = thing_of(one_of(scene.servers, a), dice_of(a, 1))
  local from, to = scene.cluster:servers_of(thing)[1], one_of(scene.servers, b)
  if from.is_down or to.is_down or from == to then return end
  scene.cluster:move(thing, to, dice_of(b, 1) < 0.5 and seconds or 0)
end

-- A node leaves the cluster, and rejoins it as a new node.
inject["node removed"] = function(scene, a, b, seconds)
  local shard, to = one_of(scene.servers, a), one_of(scene.servers, b)
  if shard.is_down or to.is_down then return end
  scene.cluster:remove(shard, to, seconds)
end

inject["slot uncovered"] = function(scene, a, b, seconds)
  scene.cluster:uncover(thing_of(one_of(scene.servers, a), b), seconds)
end

-- Until a replica with all data is promoted, the other nodes may report that
-- the cluster is down. After that, the old master may stay frozen.
inject["failover in the cluster"] = function(scene, a, b, seconds)
  local server, cluster = one_of(scene.servers, a), scene.cluster
  if server.is_down or cluster.failing then return end
  local until_then = seconds * dice_of(b, 1)
  cluster.failing, cluster.is_down = server, dice_of(b, 2) < 0.5
  server:freeze(until_then)
  scene.universe:after(until_then, function()
    cluster.failing, cluster.is_down = nil, nil
    if server.is_down then return end
    cluster:settle(server)
    cluster:fail_over(server, { is_lagging = false, splits = 0,
      is_new = dice_of(b, 3) < 0.5, freezes = dice_of(b, 4) < 0.5
        and seconds - until_then or 0 })
  end)
end

-- ZooKeeper -------------------------------------------------------------------

local function of_ensemble(fn)
  return function(scene, a, b, seconds)
    fn(scene.ensemble, one_of(scene.servers, a), b, seconds)
  end
end

inject["server freezes"] = of_ensemble(function(ensemble, one, _, seconds)
  ensemble:freeze(one, seconds)
end)

inject["server restarts"] = of_ensemble(function(ensemble, one, _, seconds)
  ensemble:restart(one, seconds)
end)

inject["server cut off"] = of_ensemble(function(ensemble, one, b, seconds)
  local other = one_of(ensemble, b)
  ensemble:cut(one, other ~= one and other or nil, seconds)
end)

inject["server lags"] = of_ensemble(function(ensemble, one, _, seconds)
  ensemble:lag(one, seconds)
end)

-- The leader is cut off. The other servers restart, so they elect a new leader
-- at once.
inject["leader deposed"] = of_ensemble(function(ensemble, _, _, seconds)
  local leader = ensemble:leader()
  if not leader or not ensemble[2] then return end
  ensemble:cut(leader, nil, seconds)
  for _, one in ipairs(ensemble) do
    if one ~= leader then ensemble:restart(one, 0.01) end
  end
end)

inject["server's disk"] = of_ensemble(function(ensemble, one, _, seconds)
  ensemble:slow_disk(one, seconds)
end)

-- processes -------------------------------------------------------------------

function inject.stall(scene, a, _, seconds)
  local process = process_of(scene, a)
  if process then scene.universe:stall(process.host, seconds) end
end

-- A process crashes. A waiter may detect that, or no client does for a while.
function inject.kill(scene, a, _, seconds)
  local process = process_of(scene, a)
  if not process then return end
  scene.universe:kill(process.host)
  scene:start_client_later(seconds)
end

--- The kinds that affect neither a process nor its connections.
faults.of_servers = {}
for kind in next, inject do
  faults.of_servers[kind] = kind ~= "stall" and kind ~= "kill" or nil
end
for _, kind in ipairs { "late", "deaf", "reset", "half-open", "cut",
  "partition", "requests delayed", "replies delayed", "refuse", "slow" } do
  faults.of_servers[kind] = nil
end

return faults
