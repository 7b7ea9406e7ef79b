--- The faults that are injected. A plan is a list of { time, kind, a, b, c },
--- made from the seed beforehand, so that a run can be repeated with a part of
--- it; a, b and c are in [0,1).

local library = require "rlockctl.simulate.faults"
local oracle = require "spec.simulate.oracle"
local sentinels = require "rlockctl.simulate.sentinels"
local watch = require "spec.simulate.watch"

local faults = {}

local one_of, process_of = library.one_of, library.process_of
local dice_of = library.dice_of

local inject = {}                       -- kind -> function(world, a, b, c)

-- Those of the library: kind -> its seconds, of c = 1; for a reset, commands.
local LONGEST = {
  late = 4, deaf = 4, reset = 8, ["half-open"] = 10, cut = 0, partition = 3,
  ["requests delayed"] = 3, ["replies delayed"] = 3, refuse = 3, slow = 3,
  freeze = 2, restart = 1, save = 0, flush = 0, stall = 3, kill = 5,
}

for kind, most in pairs(LONGEST) do
  inject[kind] = function(world, a, b, c)
    library.inject[kind](world, a, b, c * most)
  end
end

-- servers ---------------------------------------------------------------------

-- Calls fn for each thing that a server has, also for those of a crowd.
local function each_of(world, server, fn)
  for _, list in ipairs { world.things, world.crowded or {} } do
    for _, thing in ipairs(list) do
      for _, one in ipairs(thing.servers) do
        if one == server then fn(thing) end
      end
    end
  end
end

local function lose(world, thing, lease)
  oracle.doubt(thing, world.universe.now)   -- for grants that are under way
  world.oracle:lost(thing, lease, world.cluster and world.cluster.split)
  for _, each in pairs(thing.generations) do lose(world, each, lease) end
end

-- Leases for which the restart of a server of a red lock counts.
local REMEMBERED = 3

-- A red lock survives the restart of a minority: for one lease, clients do not
-- count a restarted server. Returns whether this lock survives.
local function survives(world, thing, server)
  if thing.use ~= "red" or world.only.sentinel or server.hides_run_id
      or server.has_aof then
    return false
  end
  local now, n, knowing = world.universe.now, 0, {}
  for session in next, thing.knowing[server] do knowing[session] = true end
  thing.restarted[server] = { till = now + REMEMBERED * world.lease,
    knowing = knowing }
  for _, restart in next, thing.restarted do
    if now < restart.till then n = n + 1 end
  end
  return n <= (#thing.servers - 1) // 2
end

-- The server's data is lost: wholly, or as far as `saved` is old.
local function lose_holders(world, server, lease, is_restart)
  each_of(world, server, function(thing)
    if not is_restart or not survives(world, thing, server) then
      lose(world, thing, lease)
    end
  end)
end

-- Kinds whose keys contain the ends of leases, by the server's clock. On a
-- server whose clock is behind, these leases end after the keys have expired.
local has_ends = { read_write_lock = true, fair_read_write_lock = true,
  permits = true }

-- Calls fn for each thing in a slot that moves, with the seconds by which the
-- clock of its new server is ahead.
local function in_slot(world, move, fn)
  local ahead = move.to:clock() - move.from:clock()
  for _, thing in ipairs(world.things) do
    if thing.servers[1] and world.cluster.slot_of(thing) == move.slot then
      fn(thing, ahead)
    end
  end
end

--- Handles clock skew when a key moves to another server of the cluster.
---@param world table
---@param move table of cluster.lua
function faults.key_moves(world, move)
  in_slot(world, move, function(thing, ahead)
    if ahead ~= 0 and has_ends[thing.kind] then lose(world, thing) end
  end)
end

--- The same for a slot, whose tokens may have no key.
function faults.slot_moves(world, move)
  in_slot(world, move, function(thing, ahead)
    if ahead < 0 then thing.went_back = true end
  end)
end

local function lose_data(world, server, is_whole, is_restart)
  lose_holders(world, server, is_whole and world.lease, is_restart)
  each_of(world, server, function(thing)
    thing.generation = thing.generation + 1
  end)
end

-- A server has its data of an earlier time again.
local function restored(world, server)
  server.is_restored = true             -- places that were left may be back
  each_of(world, server, function(thing)
    world.oracle.restored(thing, server)
  end)
end

-- Before a shard of a cluster loses data.
local function settle(world, server)
  if world.cluster then world.cluster:settle(server) end
end

inject["restart, empty"] = function(world, a, _, c)
  local server = one_of(world.servers, a)
  if server.is_down then return end
  settle(world, server)
  server:restart(c, "nothing")
  lose_data(world, server, true, true)
end

inject["restart, saved"] = function(world, a, _, c)
  local server = one_of(world.servers, a)
  if server.is_down or not server.saved then return end
  settle(world, server)
  server:restart(c, "saved")
  if world.cluster then world.cluster:forget_strays(server) end
  lose_data(world, server, false, true)
  restored(world, server)
end

-- In a cluster, a slot moves, at once or key by key.
function inject.move(world, a, b, c)
  local thing = one_of(world.things, a)
  if not thing.servers[1] then return end
  local from, to = thing.servers[1], one_of(world.servers, b)
  if from.is_down or to.is_down or from == to then return end
  world.cluster:move(thing, to, c * 2 - 0.7)
end

inject["node removed"] = function(world, a, b, c)
  library.inject["node removed"](world, a, b, c * 5)
end

inject["slot uncovered"] = function(world, a, _, c)
  local thing = one_of(world.things, a)
  if thing.servers[1] then world.cluster:uncover(thing, c * 2) end
end

-- Split brain: until the old master learns of the new one, both grant locks.
-- Then the writes of the old one are lost.
local function split(world, server, seconds)
  lose_data(world, server, false)
  each_of(world, server, function(thing)
    oracle.doubt(thing, world.universe.now + seconds)
  end)
  world.universe:after(seconds, function() lose_data(world, server, false) end)
end

-- From the end of the faults on, it loses nothing, and the old master answers.
local function fail_over(world, server, how)
  local cluster = world.cluster
  cluster.failing, cluster.is_down = nil, nil
  if server.is_down then return end
  if world.is_ending then how.is_lagging, how.freezes = false, 0 end
  cluster:settle(server)
  if how.is_lagging then lose_data(world, server, false) end
  if how.splits > 0 then split(world, server, how.splits) end
  cluster:fail_over(server, how)
  if how.is_lagging then
    cluster:forget_strays(server)
    restored(world, server)
  end
end

-- Until a replica is promoted, other nodes may report the cluster as down. The
-- old master may stay frozen after that, or not know of the failover.
inject["failover in the cluster"] = function(world, a, b, c)
  local server, cluster = one_of(world.servers, a), world.cluster
  if server.is_down or cluster.failing or cluster.split then return end
  local seconds, how = math.max(c * 2 - 0.5, 0), {
    is_lagging = dice_of(b, 1) < 0.5 and server.saved ~= nil,
    is_new = dice_of(b, 2) < 0.5, freezes = dice_of(b, 3) * 4 - 2, splits = 0,
  }
  if dice_of(b, 4) < 0.2 then
    seconds, how.freezes, how.splits = 0, 0, dice_of(b, 5) * 3
  end
  cluster.failing, cluster.is_down = server, dice_of(b, 6) < 0.5
  server:freeze(seconds)
  world.universe:after(seconds, function() fail_over(world, server, how) end)
end

-- With Sentinel. The replica has all, or lags.
function inject.failover(world, a, b, c)
  local server = one_of(world.servers, a)
  if server.is_down or not server.epoch then return end
  local is_lagging = b < 0.5 and server.saved ~= nil
  if is_lagging then lose_data(world, server, false) end
  sentinels.fail_over(world.network, server, is_lagging, c * 4 - 2,
    world.universe.random)
  if is_lagging then restored(world, server) end
end

inject["server's clock"] = function(world, a, b)
  one_of(world.servers, a):set_clock(1 + (b - 0.5) * 0.0004)
end

-- Leases end early.
inject["server's clock, forward"] = function(world, a, _, c)
  local server = one_of(world.servers, a)
  server:set_clock(server.speed, c * 3)
  lose_holders(world, server)
end

-- Leases end late. A client that cannot seal relies on this clock: the server
-- may execute its expired requests, see expiry.lua.
inject["server's clock, back"] = function(world, a, _, c)
  local server = one_of(world.servers, a)
  if not watch.is_sealed(world, server) then return end
  server:set_clock(server.speed, -c * 2)
  each_of(world, server, function(thing)
    thing.went_back = true              -- a lost token is the time, then
  end)
end

-- The replica of a server stops for a while, and confirms nothing.
inject["replica lags"] = function(world, a, _, c)
  library.inject["replica lags"](world, a, _, 0.2 + c * 2)
end

-- With replicas that must confirm: one is promoted. It lacks what it has not
-- confirmed, so nothing that a client counts on is lost. What was released or
-- evicted is held again.
inject["failover to a replica"] = function(world, a, _, c)
  local server = one_of(world.servers, a)
  if server.is_down then return end
  server:roll_back()
  each_of(world, server, function(thing)
    thing.rolled_back_at = world.universe.now
  end)
  restored(world, server)
  sentinels.fail_over(world.network, server, false, c * 4 - 2,
    world.universe.random)
end

--- What servers answer, one of each row of errors.lua.
faults.messages = {
  "BUSY Redis is busy running a script. You can only call SCRIPT KILL or "
    .. "SHUTDOWN NOSAVE.",
  "LOADING Redis is loading the dataset in memory",
  "READONLY You can't write against a read only replica.",
  "MASTERDOWN Link with MASTER is down",
  "MISCONF Redis is configured to save RDB snapshots",
  "OOM command not allowed when used memory > 'maxmemory'.",
  "NOREPLICAS Not enough good replicas to write.",
  "CLUSTERDOWN The cluster is down", "TRYAGAIN Multiple keys request",
  "MOVED 1 127.0.0.1:1", "ASK 1 127.0.0.1:1",
  "CROSSSLOT Keys in request don't hash to the same slot",
  "NOSCRIPT No matching script.", "EXPIRED",
  "NOAUTH Authentication required.", "WRONGPASS invalid password",
  "DENIED Redis is running in protected mode",
  "NOPERM this user has no permissions",
  "WRONGTYPE Operation against a key holding the wrong kind of value",
  "UNKILLABLE Sorry the script already executed write commands",
  "EXECABORT Transaction discarded", "ERR something failed",
  "ERR max number of clients reached", "ERR invalid password",
  "ERR AUTH called without a password", "ERR DB index is out of range",
  "ERR unknown command", "ERR Error compiling script", "MODULE failed",
}

-- These may have been executed, the others certainly not.
local MAYBE = { NOPERM = true, ERR = true, MODULE = true }

inject["an error"] = function(world, a, b, c)
  local server, message = one_of(world.servers, a), one_of(faults.messages, b)
  server:ail(c * c, message, MAYBE[message:match("^%w+")]
    and message:find("failed") and c < 0.5)
end

-- A key disappears: deleted by somebody, or evicted.
function inject.evict(world, a)
  local thing = one_of(world.things, a)
  if thing.use ~= "lock" or not thing.key
      or world.cluster and world.cluster.split then
    return
  end
  for _, server in ipairs(thing.servers) do
    server.redis.entries[thing.key] = nil
  end
  world.oracle:lost(thing, world.lease)
  oracle.doubt(thing, world.universe.now)
end

-- clients ---------------------------------------------------------------------

function inject.close(world, a)
  local process = process_of(world, a)
  if not process then return end
  world:close_client(process)
  world:start_client()
end

-- Its owners may end without unlocking.
function inject.cancel(world, a, b)
  local process = process_of(world, a)
  local task = process and one_of(process.workers, b)
  if task and task.part and not task.part.over then task.part:cancel() end
end

inject["client's clock"] = function(world, a, b)
  local process = process_of(world, a)
  if process then process.host.set_speed(1 + (b - 0.5) * 0.0008) end
end

-- ZooKeeper -------------------------------------------------------------------

-- Those of the library: kind -> seconds of c.
local OF_ENSEMBLE = {
  ["server freezes"] = function(c) return c * c * 4 end,
  ["server restarts"] = function(c) return c * 3 end,
  ["server cut off"] = function(c) return c * 6 end,
  ["server lags"] = function(c) return c * c * 3 end,
  ["leader deposed"] = function(c) return c * 12 end,
  ["server's disk"] = function(c) return c * c * 2 end,
}

for kind, seconds in pairs(OF_ENSEMBLE) do
  inject[kind] = function(world, a, b, c)
    library.inject[kind](world, a, b, seconds(c))
  end
end

-- Somebody deletes a node. A client does not watch the permits that it has.
inject["node deleted"] = function(world, _, b)
  local ensemble = world.ensemble
  local path = one_of(ensemble:newest().tree:ephemerals(), b)
  if path and not path:find "semaphore.*lease%-" then ensemble:delete(path) end
end

-- plans -----------------------------------------------------------------------

local ODDS = {
  late = 6, deaf = 5, reset = 5, ["half-open"] = 3, partition = 2,
  ["requests delayed"] = 2, ["replies delayed"] = 2, refuse = 1, slow = 1,
  freeze = 2, restart = 1.5, ["restart, empty"] = 0.8, save = 0.5,
  ["restart, saved"] = 0.5, flush = 1, ["server's clock"] = 0.5,
  ["server's clock, forward"] = 0.4, ["server's clock, back"] = 0.4,
  ["an error"] = 3, evict = 1, stall = 4, kill = 1, close = 0.5,
  cancel = 3, ["client's clock"] = 0.5,
}
local SENTINEL_ODDS = { failover = 3 }
local ZOOKEEPER_ODDS = { cut = 4, ["server freezes"] = 3,
  ["server restarts"] = 3, ["server cut off"] = 4, ["server lags"] = 4,
  ["server's disk"] = 3, ["node deleted"] = 1,
  ["leader deposed"] = 1 }
local REPLICA_ODDS = { ["replica lags"] = 6, ["failover to a replica"] = 4 }
local CLUSTER_ODDS = { move = 8, ["failover in the cluster"] = 2,
  ["node removed"] = 1, ["slot uncovered"] = 1 }

--- The kinds of faults with Sentinel, and in a cluster, sorted.
faults.of_sentinel = { "failover" }
faults.of_cluster = { "failover in the cluster", "move", "node removed",
  "slot uncovered" }

--- The kinds, sorted.
faults.kinds = {}
for kind in pairs(ODDS) do faults.kinds[#faults.kinds + 1] = kind end
table.sort(faults.kinds)
table.move(faults.kinds, 1, #faults.kinds, 2, faults.of_sentinel)
table.move(faults.kinds, 1, #faults.kinds, #faults.of_cluster + 1,
  faults.of_cluster)
for kind, odds in pairs(ZOOKEEPER_ODDS) do ODDS[kind] = odds end
for kind, odds in pairs(SENTINEL_ODDS) do ODDS[kind] = odds end
for kind, odds in pairs(CLUSTER_ODDS) do ODDS[kind] = odds end
for kind, odds in pairs(REPLICA_ODDS) do ODDS[kind] = odds end

--- Kinds with ZooKeeper, sorted.
faults.of_zookeeper = { "cancel", "client's clock", "close", "cut", "deaf",
  "half-open", "kill", "late", "leader deposed", "node deleted", "partition",
  "refuse", "replies delayed", "requests delayed", "reset", "server cut off",
  "server freezes", "server lags", "server restarts", "server's disk", "slow",
  "stall" }

--- Kinds that neither lose data nor disturb a waiter or a holder.
faults.of_calm = { "cancel", "client's clock", "save",
  "server's clock", "slow" }

--- Kinds that lose only what a replica has not confirmed.
faults.of_replicas = { "an error", "cancel", "client's clock", "close", "deaf",
  "evict", "failover to a replica", "flush", "half-open", "late", "partition",
  "refuse", "replica lags", "replies delayed", "requests delayed", "reset",
  "server's clock", "slow", "stall" }

-- Picks one of these kinds by their odds.
local function pick(kinds, dice)
  local total = 0
  for _, kind in ipairs(kinds) do total = total + ODDS[kind] end
  dice = dice * total
  for _, kind in ipairs(kinds) do
    dice = dice - ODDS[kind]
    if dice < 0 then return kind end
  end
  return kinds[1]
end

--- Makes a plan.
---@param random function
---@param seconds number after the first second, until then
---@param every number a fault each so many seconds, on average
---@param kinds? table of faults; default: all
---@return table # list of { time, kind, a, b, c }
function faults.plan(random, seconds, every, kinds)
  local plan, time = {}, 0.5
  kinds = kinds or faults.kinds
  while true do
    time = time + random() * 2 * every
    if time >= seconds then return plan end
    plan[#plan + 1] = { time, pick(kinds, random()), random(), random(),
      random() }
  end
end

--- Takes the errors of a plan in turn, so that a few runs of consecutive
--- seeds have all of them.
---@param plan table
---@param first integer the number of the first one
function faults.take_turns(plan, first)
  local n = #faults.messages
  for _, event in ipairs(plan) do
    if event[2] == "an error" then
      event[4], first = (first % n + 0.5) / n, first + 1
    end
  end
end

--- Injects a fault now.
function faults.inject(world, event)
  world.network:note(event[2])
  inject[event[2]](world, event[3], event[4], event[5])
end

--- A fault of a plan, for people.
function faults.show(event)
  return ("%9.6f s  %-24s %.3f %.3f %.3f"):format(table.unpack(event))
end

return faults
