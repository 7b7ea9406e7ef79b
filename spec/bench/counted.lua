--- Work of a fixed size, for spec/bench/budget to count its instructions.
--
--    rlockctl counted.lua cycles|red|handovers|renewals COUNT [URL...]
--
--  cycles: a lock() and an unlock(), by 64 tasks. red: the same of a red lock
--  on the servers named. handovers: of one lock between two tasks. renewals:
--  by the watchdog, 100 at a time. The clock is set forward to each period, so
--  the count does not depend on how busy the machine is.

local host = require "rlock.host.uv"
local rlock = require "rlock"

local TASKS, HELD, WATCHDOG = 64, 100, 30

local what, count = arg[1], math.tointeger(tonumber(arg[2]))
local client = assert(rlock.open { watchdog = WATCHDOG })

-- Runs fn(i) as tasks; waits for all.
local function tasks(n, fn)
  local list = {}
  for i = 1, n do list[i] = rlock.spawn(fn, i) end
  for _, task in ipairs(list) do assert(task:join()) end
end

local function cycle(lock, n)
  for _ = 1, n do
    assert(lock:lock { wait = 10 })
    assert(lock:unlock())
  end
  return true
end

local work = {}

function work.cycles()
  tasks(TASKS, function(i)
    return cycle(client:lock("counted:" .. i), count // TASKS)
  end)
end

function work.red()
  local clients = { client }
  for i = 3, #arg do clients[#clients + 1] = assert(rlock.open(arg[i])) end
  cycle(rlock.red_lock(clients, "counted:red", { node_timeout = 10 }), count)
end

function work.handovers()
  tasks(2, function() return cycle(client:lock "counted:one", count // 2) end)
end

function work.renewals()
  local now, ahead, watchdog = host.now, 0, client.session.watchdog
  function host.now() return now() + ahead end
  for i = 1, HELD do assert(client:lock("counted:" .. i):lock()) end
  for round = 1, count // HELD do
    ahead = round * WATCHDOG / 3
    watchdog.change:set()
    repeat rlock.sleep(0.02)
    until watchdog.batches == 0 and watchdog.fresh.first.deadline > host.now()
  end
end

work[what]()
print(count)
