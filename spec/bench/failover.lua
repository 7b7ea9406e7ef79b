--- The time from kill -9 of a lock's master in a cluster to the next grant: of
--- rlock and of Redisson in the same kills, beside the time until the new
--- master takes a write. Starts a cluster of its own. Prints a table.
---
---   rlockctl failover.lua [TURNS]
---
--- Redisson is there if `make interop` has prepared it.

local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local host = require "rlock.host.uv"
local median = require("spec.bench.statistics").median
local rlock = require "rlock"
local sets = require "spec.interop.sets"
local world = require "spec.interop.world"

local TURNS = tonumber(arg[1] or 5)
local NAME = "{failover}:%s"                     -- all in one slot
local PATIENCE = 60
local now = host.now

local prepared = (os.getenv("B") or "build") .. "/interop/redisson4.command"
local has_redisson = files.read(prepared) ~= nil
local w = world.new(has_redisson and "redisson4" or "ours", 0,
  sets.cluster "AUTO")
local cluster = w.set

-- The replica of a master, once it follows closely.
local function replica_of(master)
  return eventually(function()
    for _, node in ipairs(cluster.nodes) do
      if node.pid and node:info "master_port" == master.port
          and node:info "master_link_status" == "up" then
        return node
      end
    end
  end, PATIENCE, "the master has a replica")
end

--- Calls fn, which may raise errors, until it returns true.
---@return number # when that was
local function until_done(fn)
  local last
  eventually(function()
    local ok, done = pcall(fn)
    if not ok then last = done end
    return ok and done
  end, PATIENCE, "it goes on; " .. tostring(last))
  return now()
end

-- A process's task takes a lock; returns when it has it.
local function taken(task, name)
  return until_done(function()
    return task:ask("take", "lock", name, -1, -1)
  end)
end

local function written(replica)
  local connection = assert(host.connect {
    path = replica.socket, timeout = 1000, silent = 0,
  })
  return until_done(function()
    return connection:call(1000, "SET", NAME:format "cluster", "x") == "OK"
  end)
end

-- Runs the functions at the same time; returns their results.
local function at_once(...)
  local tasks, results = {}, {}
  for i, fn in ipairs { ... } do
    tasks[i] = rlock.spawn(function() results[i] = fn() end)
  end
  for _, task in ipairs(tasks) do task:join() end
  return results
end

local function turn(ours, theirs)
  local master = cluster:owner(NAME)
  local replica = replica_of(master)
  for _, task in ipairs { ours, theirs } do      -- both have used the master
    taken(task, NAME:format(task.peer.name))
    assert(task:ask("give", "lock", NAME:format(task.peer.name)))
  end
  local begun = now()
  master:kill()
  local times = at_once(function() return written(replica) end,
    function() return taken(ours, NAME:format(ours.peer.name)) end,
    function() return taken(theirs, NAME:format(theirs.peer.name)) end)
  for i, at in ipairs(times) do times[i] = at - begun end
  for _, task in ipairs { ours, theirs } do
    assert(task:ask("give", "lock", NAME:format(task.peer.name)))
  end
  master:launch()
  return times
end

local all = { {}, {}, {} }
local ours, theirs = w.ours:task(), w.theirs:task()
for _ = 1, TURNS do
  for i, took in ipairs(turn(ours, theirs)) do table.insert(all[i], took) end
end
w:stop()

print(("seconds from kill -9 of a master to the next grant, %d times; "
  .. "cluster-node-timeout is 1 s"):format(TURNS))
local titles = { "a write to the new master", "rlock",
  has_redisson and "Redisson 4" or "rlock again, for Redisson" }
for i, title in ipairs(titles) do
  print(("%-28s median %6.2f, least %6.2f, most %6.2f"):format(title,
    median(all[i]), all[i][1], all[i][#all[i]]))
end
os.exit(0)
