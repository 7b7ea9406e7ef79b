--- How long after an unlock does a waiter have the lock? On one server, in a
--- cluster, and there after the slots of the locks have moved; from the call of
--- unlock and from its return, beside a round trip. Starts servers of its own.
--- Prints a table.
---
---   rlockctl wakes.lua [TURNS]

local clusters = require "spec.tools.cluster"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slot = require "rlock.redis.slot"

local TURNS = tonumber(arg[1] or 1000)
local SETTLE = 0.005                   -- seconds until the waiter is waiting
local ROW = "%-12s" .. ("%9s"):rep(9)
local now = rlock.now

-- Two owners' handles of a lock, held by the first one.
local function pair_of(clients, name)
  local pair = { name = name }
  for i, client in ipairs(clients) do
    pair[i] = client:lock(name, { owner = "owner " .. i })
  end
  assert(pair[1]:lock())
  return pair
end

-- Measures round trips to the server that has the pair's lock.
local function attach(pair, server)
  pair.its = assert(rlock.open("redis://127.0.0.1:" .. server.port))
end

--- Hands a lock over, and swaps the handles.
---@return number # seconds since the call of unlock
---@return number # seconds since its return
local function hand_over(pair)
  local got
  local waiter = rlock.spawn(function()
    assert(pair[2]:lock())
    got = now()
  end)
  rlock.sleep(SETTLE)
  local called = now()
  assert(pair[1]:unlock())
  local returned = now()
  waiter:join()
  pair[1], pair[2] = pair[2], pair[1]
  return got - called, got - returned
end

local function round_trip(client)
  local begun = now()
  assert(client:call "PING")
  return now() - begun
end

-- The median and the 99th percentile, in microseconds.
local function percentiles(samples)
  table.sort(samples)
  local n = #samples - 1
  return samples[1 + n // 2] * 1e6, samples[1 + n * 0.99 // 1] * 1e6
end

-- Prints one row. The slowest of the first turn of each pair is shown apart.
local function measure(title, all)
  local called, returned, trips, first = {}, {}, {}, 0
  for i = 1, TURNS do
    local pair = all[i % #all + 1]
    called[i], returned[i] = hand_over(pair)
    trips[i] = round_trip(pair.its)
    if i <= #all then first = math.max(first, called[i] * 1e6) end
  end
  local cells = { percentiles(called) }
  cells[3], cells[4] = percentiles(returned)
  cells[5], cells[6] = percentiles(trips)
  cells[7], cells[8] = cells[3] / cells[5], cells[4] / cells[6]
  cells[9] = first
  for i, cell in ipairs(cells) do
    cells[i] = ((i == 7 or i == 8) and "%.2f" or "%.0f"):format(cell)
  end
  print(ROW:format(title, table.unpack(cells)))
end

-- Both sides get subscribed.
local function warm_up(pair)
  for _ = 1, 4 do hand_over(pair) end
end

local function on_one()
  local server = redis.start { port = true }
  local url = "redis://127.0.0.1:" .. server.port
  local pair = pair_of({ assert(rlock.open(url)), assert(rlock.open(url)) },
    "wakes")
  attach(pair, server)
  warm_up(pair)
  measure("one server", { pair })
  server:stop()
end

local function name_on(cluster, node)
  local n, name = 0
  repeat
    n = n + 1
    name = "wakes:" .. n
  until cluster:owner(name) == node
  return name
end

local function in_cluster()
  local cluster, all = clusters.start { masters = 3 }, {}
  local clients =
    { assert(rlock.open(cluster.url)), assert(rlock.open(cluster.url)) }
  for i, node in ipairs(cluster.nodes) do
    all[i] = pair_of(clients, name_on(cluster, node))
    attach(all[i], node)
    warm_up(all[i])
  end
  measure("3 nodes", all)
  for i, pair in ipairs(all) do
    local target = cluster.nodes[i % #cluster.nodes + 1]
    cluster:move(slot.of(pair.name), target)
    attach(pair, target)
  end
  measure("slots moved", all)
  cluster:stop()
end

print(("wake after unlock, medians and 99th percentiles of %d in microseconds; "
  .. "in trips: from return"):format(TURNS))
print(ROW:format("", "call", "p99", "return", "p99", "trip", "p99", "in trips",
  "p99", "first"))
on_one()
in_cluster()
os.exit(0)
