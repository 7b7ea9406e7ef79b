--- Simulates clients and servers with faults, from one seed. Each fault that
--  the oracle finds is printed with its seed; the same seed is the same run.
--
--    rlockctl spec/simulate/run.lua [SECONDS [SEED]]   SECONDS of wall time

local client = require "rlock.client"
local network = require "spec.simulate.network"
local oracle = require "spec.simulate.oracle"
local sim = require "rlock.host.sim"

local CHANCES = {
  delay = 0.0005, stall = 0.002, stall_seconds = 4, reset = 0.0005,
}
local SECONDS = 30                      -- of virtual time, for each seed

local KINDS = { "lock", "mutex", "simple_lock", "spin_lock", "fair_lock",
  "fenced_lock" }

local function make_lock(open, universe, name, kind)
  if kind == "read_write" or kind == "fair_read_write" then
    local pair = open[kind .. "_lock"](open, name)
    local is_read = universe:random() < 0.6
    return is_read and pair:read_lock() or pair:write_lock(),
      is_read and "read" or "write"
  end
  return open[kind](open, name), "exclusive"
end

-- One round of a task: takes a lock, holds it for a while, unlocks it.
local function work(world, host, open, label)
  local universe = world.universe
  local name = world.names[universe:pick(#world.names)]
  local lock, mode = make_lock(open, universe, name.name, name.kind)
  local options = { wait = universe:random() * 3 }
  if universe:random() < 0.3 then options.lease = 0.2 + universe:random() end
  local ok = lock:lock(options)
  if not ok then return end
  local holder = { name = name.name, label = label, host = host, lock = lock,
    task = host.current(), mode = mode }
  world.oracle:granted(holder)
  host.sleep(universe:random() * (universe:random() < 0.1 and 1 or 0.005))
  world.oracle:ending(holder)
  lock:unlock()
end

local function worker(world, host, open, label)
  while world.universe.now < SECONDS do
    work(world, host, open, label)
    host.sleep(world.universe:random() * 0.01)
  end
end

-- Starts a process with some tasks.
local function add_client(world, number)
  local universe = world.universe
  local host = universe:host {
    name = "client" .. number, offset = universe:random() * 1000,
    speed = 1 + (universe:random() - 0.5) * 0.001,
  }
  world.hosts[#world.hosts + 1] = host
  host.daemon(function()
    local open
    repeat
      open = client.open(host, {
        host = "redis", port = 6379, db = 0, timeout = 0.5, watchdog = 2,
        connect_timeout = 0.5, seal = world.seal, lazy = true,
      })
    until open
    for i = 1, 3 do
      host.daemon(worker, world, host, open, ("client%d.%d"):format(number, i))
    end
  end)
end

-- Injects a fault now and then.
local function disturb(world)
  local universe, server = world.universe, world.server
  local dice = universe:random()
  if dice < 0.2 then
    server:freeze(universe:random() * 2)
  elseif dice < 0.3 then
    server:restart(universe:random(), true)
  elseif dice < 0.35 then
    world.oracle:forgive()
    server:restart(universe:random(), false)
  elseif dice < 0.7 then
    universe:stall(world.hosts[universe:pick(#world.hosts)],
      universe:random() * 3)
  elseif dice < 0.8 then
    local number = universe:pick(#world.hosts)
    universe:kill(world.hosts[number])
    add_client(world, #world.hosts + 1)
  elseif dice < 0.85 then
    server.speed = 1 + (universe:random() - 0.5) * 0.0005
  end
  universe:after(0.5 + universe:random() * 2, function() disturb(world) end)
end

local function simulate(seed, options)
  local universe = sim.new(seed)
  local net = network.new(universe, CHANCES)
  local world = {
    universe = universe, network = net, server = net:server "redis",
    oracle = oracle.new(universe), names = {}, hosts = {},
    seal = options.seal,
  }
  for i = 1, 3 do
    world.names[i] = { name = "lock" .. i, kind = KINDS[universe:pick(#KINDS)] }
  end
  for i = 1, 4 do add_client(world, i) end
  universe:after(1, function() disturb(world) end)
  universe:run(SECONDS)
  for _, host in ipairs(world.hosts) do
    for _, fault in ipairs(host.faults) do
      world.oracle:fault("%s: %s", host.label, fault)
    end
  end
  return world
end

local seconds, seed = tonumber(arg[1] or 10), tonumber(arg[2] or os.time())
local only = arg[2] ~= nil
local start, runs, grants, faults, commands = os.clock(), 0, 0, 0, 0
repeat
  local world = simulate(seed, { seal = os.getenv "SEAL" or "kill" })
  runs, grants = runs + 1, grants + world.oracle.grants
  commands = commands + (world.network.count.commands or 0)
  for _, fault in ipairs(world.oracle.faults) do
    faults = faults + 1
    print(("SEED=%d %s"):format(seed, fault))
  end
  seed = seed + 1
until only or os.clock() - start > seconds
local took = os.clock() - start
print(("%d runs, %d grants, %.0f a second, %d commands, %d faults"):format(runs,
  grants, grants / took, commands, faults))
