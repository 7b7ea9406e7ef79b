--- Processes increment a number under a red lock of five servers, two of which
--- always fail, and so do the processes. The number's store hands out fencing
--- tokens and accepts a write only with the latest; a process whose write is
--- rejected must have lost the lock before.
---
--- RLOCK_ROUNDS is the number of increments: 1000 by default, 20000 in
--- make soak.
--- #long

local wait = require "spec.tools.eventually"
local fence = require "spec.tools.fence"
local nodes = require "spec.tools.servers"
local program = require "spec.tools.program"
local proxies = require "spec.tools.proxy"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local ROUNDS = tonumber(os.getenv("RLOCK_ROUNDS") or 1000)
local STEP = ROUNDS // 40          -- increments from one event to the next
local NODES, TASKS = 5, 4
local LEASE = slow
local NAME = "quorum:counter"
local STOP, CONT = 19, 18

local servers, store, proxy, processes

local function counter()
  return tonumber(store:ask(store[1], "GET", "counter")) or 0
end

local function start_process()
  local urls = { proxy.url }
  for i = 2, NODES do urls[i] = servers[i].url end
  return program.start(store[1], "spec/tools/count_fenced.lua", tostring(TASKS),
    tostring(LEASE), NAME, "none", store[1].url, table.unpack(urls))
end

local function goes_on(what)
  local before = counter()
  wait(function() return counter() > before + STEP end, 60 * slow,
    "the counting goes on, " .. what)
end

-- Faults of two of the servers, and their ends.
local faults = {
  ["two killed, back empty"] = {
    function(a, b) servers:kill(a, b) end,
    function(a, b) servers:launch(a, b) end,
  },
  ["two frozen"] = {
    function(a, b) servers:pause(a, b) end,
    function(a, b) servers:resume(a, b) end,
  },
  ["one restarted empty, one frozen"] = {
    function(a, b) servers:restart(a) servers:pause(b) end,
    function(_, b) servers:resume(b) end,
  },
  ["one killed, one frozen"] = {
    function(a, b) servers:kill(a) servers:pause(b) end,
    function(a, b) servers:launch(a) servers:resume(b) end,
  },
  ["one answers after the lease, one killed"] = {
    function(_, b)
      for _ = 1, 5 do proxy:hold(1.2 * LEASE, NAME) end
      servers:kill(b == 1 and 2 or b)
    end,
    function(_, b)
      proxy:reset()
      servers:launch(b == 1 and 2 or b)
    end,
  },
  ["a process stopped for longer than the lease"] = {
    function() processes[1]:kill(STOP) end,
    function()
      local stopped = rlock.now()
      wait(function() return rlock.now() > stopped + 1.2 * LEASE end)
      processes[1]:kill(CONT)
    end,
  },
}

describe("a counter under a red lock", function()
  before_each(function()
    servers, store = nodes.start(NODES), nodes.start(1)
    proxy = proxies.start(servers[1])
    processes = {}
  end)

  after_each(function()
    for _, process in ipairs(processes) do process:kill(9) end
    servers:wake()
    proxy:stop()
    servers:stop()
    store:stop()
  end)

  it("misses no addition while two of five servers are in trouble", function()
    for i = 1, 2 do processes[i] = start_process() end
    local names, n = {}, 0
    for what in pairs(faults) do names[#names + 1] = what end
    table.sort(names)
    repeat
      local what = names[n % #names + 1]
      local begin, finish = table.unpack(faults[what])
      local a, b = n % NODES + 1, (n + 2) % NODES + 1
      goes_on("before: " .. what)
      begin(a, b)
      goes_on(what)
      finish(a, b)
      n = n + 1
    until n >= #names and counter() >= ROUNDS
    store:ask(store[1], "SET", "stop", "1")
    local sum = { added = 0, stale = 0, overlaps = 0, late = 0 }
    for _, process in ipairs(processes) do
      assert.equal(0, process:wait(60 * slow), process:output())
      local result = process:output():match "added .*"
      for what, count in result:gmatch "(%a+) (%d+)" do
        sum[what] = sum[what] + tonumber(count)
      end
    end
    assert.equal(sum.added, counter())
    assert(sum.added >= ROUNDS, sum.added)
    assert(sum.overlaps <= sum.late, ("%d overlaps, %d late"):format(
      sum.overlaps, sum.late))
  end)

  it("rejects a holder that slept beyond its lease", function()
    local clients = {}
    for i, server in ipairs(servers) do
      clients[i] = assert(rlock.open { url = server.url })
    end
    local red = rlock.red_lock(clients, NAME, { node_timeout = slow })
    local client = assert(rlock.open(store[1].url))
    assert.is_true(red:lock { lease = slow })
    local token = fence.token(client)
    wait(function() return red:valid_for() == 0 end)
    task.run(function()
      assert.is_true(red:lock())
      assert.is_true(fence.put(client, fence.token(client), "counter", 1))
      assert.is_true(red:unlock())
    end)
    assert.is_false(fence.put(client, token, "counter", 7))
    assert.equal("lost", select(2, red:unlock()))
    assert.equal(1, counter())
    for _, one in ipairs(clients) do one:close() end
    client:close()
  end)
end)
