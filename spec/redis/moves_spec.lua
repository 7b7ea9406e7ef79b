--- Slots of a cluster move, nodes are added and removed, and one loses its
--- data, while tasks acquire and release locks. No two tasks hold a lock at the
--- same time. Memory, connections and subscriptions do not grow.
---
--- RLOCK_MOVES is the number of moves: 200; make soak has 1 000.
--- #long

local clusters = require "spec.tools.cluster"
local control = require "spec.tools.control"
local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local rlock = require "rlock"
local slot = require "rlock.redis.slot"
local slow = require "spec.tools.slow"

local MOVES = tonumber(os.getenv("RLOCK_MOVES") or 200)
local PARTS = 4                 -- the first ones warm up
local NAMES, CLIENTS, TASKS = 10, 2, 2
local SOON = 20 * slow
local ROOM = 40 + MOVES * 0.05  -- kB that the memory may grow
local CLIENT_NAME = "moves"

local cluster, clients, names, owners, turn, holders, overlaps

-- moves ---------------------------------------------------------------------

local function epoch_of(node, whose)
  return control.ask(node, "CLUSTER", "INFO")
    :match("cluster_" .. whose .. "_epoch:(%d+)")
end

-- Gives a node the latest epoch, and waits until all know it. Else a message
-- that another node has sent before it gave up a slot may take it back.
local function prefer(target)
  control.ask(target, "CLUSTER", "BUMPEPOCH")
  eventually(function()
    local epoch = epoch_of(target, "my")
    for _, node in ipairs(cluster.nodes) do
      if epoch_of(node, "current") ~= epoch then return false end
    end
    return true
  end, SOON, "all know the epoch")
end

-- The keys of a slot go with it.
local function move_keys(source, target, number)
  repeat
    local keys = control.ask(source, "CLUSTER", "GETKEYSINSLOT", number, 100)
    for _, key in ipairs(keys) do
      control.ask(source, "MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
    end
  until not keys[1]
end

-- As cluster:move, but other tasks go on meanwhile.
local function move(number, target)
  local source = owners[number]
  control.ask(target, "CLUSTER", "SETSLOT", number, "IMPORTING", source.id)
  control.ask(source, "CLUSTER", "SETSLOT", number, "MIGRATING", target.id)
  move_keys(source, target, number)
  for _, node in ipairs { target, source } do
    control.ask(node, "CLUSTER", "SETSLOT", number, "NODE", target.id)
  end
  owners[number] = target
end

local function move_all_to(target)
  prefer(target)
  for number, owner in pairs(owners) do
    if owner ~= target then move(number, target) end
  end
end

--- Moves the slots from node to node.
---@param rounds integer of all slots
local function move_all(rounds)
  for _ = 1, rounds do
    turn = turn + 1
    move_all_to(cluster.nodes[turn % #cluster.nodes + 1])
  end
end

-- load ----------------------------------------------------------------------

local function check(ok, code, detail)
  if not ok then error(("%s: %s"):format(code, detail), 2) end
end

-- While a slow machine moves the keys of a slot, it may refuse a release for
-- longer than an unlock retries it. It is then retried in the background.
local function give_back(lock)
  local ok, code, detail = lock:unlock()
  if ok or code == "redis" and detail:find "^TRYAGAIN" then return end
  check(ok, code, detail)
end

local function hold(lock, name)
  check(lock:lock { wait = SOON })
  holders[name] = (holders[name] or 0) + 1
  overlaps = overlaps + holders[name] - 1
  rlock.sleep(0)
  holders[name] = holders[name] - 1
  give_back(lock)
end

--- Tasks of all clients contend for all locks while `fn` runs. `fn` is called
--- with a function that waits until each lock was taken again.
---@return integer # how often they had one
local function under_load(fn)
  local tasks, grants, had, is_over = {}, 0, {}, false
  for i = 1, CLIENTS * TASKS * #names do
    local name = names[i % #names + 1]
    local lock = clients[i // #names % CLIENTS + 1]:lock(name)
    tasks[i] = rlock.spawn(function()
      repeat
        hold(lock, name)
        grants, had[name] = grants + 1, true
      until is_over
    end)
  end
  local ok, why = pcall(fn, function()
    had = {}
    for _, name in ipairs(names) do
      eventually(function() return had[name] end, SOON, name .. " goes on")
    end
  end)
  is_over = true
  for _, task in ipairs(tasks) do task:join() end
  if not ok then error(why, 0) end
  return grants
end

-- what there is ---------------------------------------------------------------

local function memory()
  for _ = 1, 3 do collectgarbage() end
  return collectgarbage "count"
end

-- The connections of our clients, and their subscriptions.
local function connections()
  local count, subscriptions = 0, 0
  for _, node in ipairs(cluster.nodes) do
    for line in control.ask(node, "CLIENT", "LIST"):gmatch "[^\n]+" do
      if line:find("," .. CLIENT_NAME .. " ", 1, true) then
        count = count + 1
        subscriptions = subscriptions + line:match " sub=(%d+)"
          + line:match " ssub=(%d+)"
      end
    end
  end
  return count, subscriptions
end

-- Our clients' connections to a port.
local function connected_to(port)
  local count = 0
  for _, client in ipairs(clients) do
    for _, its in pairs(client.session.server.node.nodes) do
      if its.options.port == port and its.connection then count = count + 1 end
    end
  end
  return count
end

local function set_up()
  cluster = clusters.start { masters = 3 }
  clients, names, owners, turn, holders, overlaps = {}, {}, {}, 0, {}, 0
  for i = 1, CLIENTS do
    clients[i] = fixtures.open(cluster.url, { name = CLIENT_NAME })
  end
  for i = 1, NAMES do
    names[i] = fixtures.name "moves"
    owners[slot.of(names[i])] = cluster:owner(names[i])
  end
end

local function tear_down()
  fixtures.close()
  control.close()
  cluster:stop()
end

describe("slots that move under load", function()
  before_each(set_up)
  after_each(tear_down)

  it("leave no memory, connections and subscriptions behind", function()
    local least, grants, now, count, subscriptions = nil, 0, nil, nil, nil
    for part = 1, PARTS do
      grants = grants + under_load(function()
        move_all(MOVES // PARTS // NAMES)
      end)
      now = memory()
      if part == 1 then least = now end
      count, subscriptions = connections()
      assert.is_true(count > 0 and count <= 2 * CLIENTS * #cluster.nodes,
        count .. " connections")
      assert.is_true(subscriptions <= 2 * CLIENTS * NAMES,
        subscriptions .. " subscriptions")
      assert.is_true(now <= least + ROOM,
        ("%.0f kB, then %.0f kB"):format(least, now))
    end
    assert.equal(0, overlaps)
    assert.is_true(grants > MOVES, grants .. " grants")
    print(("%d moves, %d grants, %d connections, %d subscriptions, %.0f kB "
      .. "after a quarter, %.0f kB at the end"):format(turn * NAMES, grants,
      count, subscriptions, least, now))
  end)
end)

describe("nodes of a cluster under load", function()
  before_each(set_up)
  after_each(tear_down)

  it("may be added and removed", function()
    local first, last = cluster.nodes[1], nil
    under_load(function(go_on)
      last = cluster:add()
      move_all_to(last)
      go_on()
      control.close(first)
      cluster:remove(1, last)
      go_on()
      eventually(function() return connected_to(first.port) == 0 end, SOON,
        "the node that was removed is left")
      move_all_to(cluster.nodes[1])
      go_on()
      control.close(last)
      cluster:remove(#cluster.nodes, cluster.nodes[1])
      go_on()
    end)
    assert.equal(0, overlaps)
    assert.equal(0, connected_to(last.port))
  end)

  -- A new name on a node.
  local function name_on(node)
    local name
    repeat name = fixtures.name "lost" until cluster:owner(name) == node
    return name
  end

  it("may lose their data: those holds are reported lost", function()
    local victim, told, granted = cluster.nodes[2], nil, nil
    local client = fixtures.open(cluster.url, { watchdog = 3 * slow })
    local lost, kept = name_on(victim), name_on(cluster.nodes[3])
    for i = NAMES, 1, -1 do
      if cluster:owner(names[i]) == victim then table.remove(names, i) end
    end
    assert.is_true(client:lock(lost):lock())
    assert.is_true(client:lock(kept):lock())
    client:lock(lost):on_lost(function() told = rlock.now() end)
    under_load(function(go_on)
      control.ask(victim, "FLUSHALL")
      assert.is_true(clients[1]:lock(lost):lock())
      granted = rlock.now()
      go_on()
      eventually(function() return told end, 3 * slow, "its holder is told")
    end)
    print(("two holders for %.3f s"):format(told - granted))
    assert.equal("held", client:lock(kept):state())
    assert.is_true(client:lock(kept):unlock())
    assert.equal(0, overlaps)
  end)
end)
