--- Work whose costs spec/bench/budget counts. Prints the amount of work done,
--- or the figure for costs that this program counts itself. The server is
--- RLOCK_URL.
---
---   rlockctl counted.lua WHAT COUNT [FACTORY|URL...]
---
--- cycles: a lock() and an unlock(), by 64 tasks, of the kind that the factory
--- makes (lock). crowd: the same by 1000 tasks. red: a red lock on the servers
--- named. handovers: of one lock between two tasks. renewals: by the watchdog,
--- 100 at a time. The clock is set forward to each period, so the count does
--- not depend on how busy the machine is.
--- opcodes, garbage, red_garbage: opcodes of Lua and bytes allocated, for a
--- cycle. task, waiting, held: bytes of a task that has used a lock and has
--- ended its turn, of one that waits, and of a held lock.

local host = require "rlock.host.uv"
local rlock = require "rlock"

local TASKS, HELD, WATCHDOG = 64, 100, 30
local CROWD = 1000
local PERIOD = 10007                    -- opcodes between two calls of the hook

local what, count = arg[1], math.tointeger(tonumber(arg[2]))
-- Under valgrind, on a busy machine, 1000 requests take long.
local client = assert(rlock.open { watchdog = WATCHDOG, timeout = 60 })

-- Runs fn(i) as tasks; waits for all.
local function tasks(n, fn)
  local list = {}
  for i = 1, n do list[i] = rlock.spawn(fn, i) end
  for _, task in ipairs(list) do assert(task:join()) end
end

local function cycle(lock, n)
  for _ = 1, n do
    assert(lock:lock { wait = 100 })
    assert(lock:unlock())
  end
  return true
end

local work = {}

-- Some kinds have two sides.
local function new_lock(name)
  local lock = client[arg[3] or "lock"](client, name)
  return lock.write_lock and lock:write_lock() or lock
end

local function cycles_of(n)
  tasks(n, function(i) return cycle(new_lock("counted:" .. i), count // n) end)
end

function work.cycles() cycles_of(TASKS) end

function work.crowd() cycles_of(CROWD) end

local function red_lock()
  local clients = { client }
  for i = 3, #arg do clients[#clients + 1] = assert(rlock.open(arg[i])) end
  -- Under valgrind, a first request takes long.
  return rlock.red_lock(clients, "counted:red", { node_timeout = 10 })
end

function work.red() cycle(red_lock(), count) end

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
    until watchdog.batches == 0 and watchdog.fresh.first[4] > host.now()
  end
end

-- The hook is called once in a period, so its own opcodes hardly count.
function work.opcodes()
  local calls, main = 0, debug.getregistry()[1]
  local function hook() calls = calls + 1 end
  local lock = client:lock "counted"
  cycle(lock, 100)
  debug.sethook(hook, "", PERIOD)
  debug.sethook(main, hook, "", PERIOD)
  cycle(lock, count)
  debug.sethook()
  debug.sethook(main)
  return calls * PERIOD / count
end

local function bytes() return collectgarbage "count" * 1024 end

local function bytes_left()
  collectgarbage()
  collectgarbage()
  return bytes()
end

local function garbage_of(lock)
  cycle(lock, 100)
  collectgarbage()
  collectgarbage "stop"
  local before = bytes()
  cycle(lock, count)
  return (bytes() - before) / count
end

function work.garbage() return garbage_of(client:lock "counted") end

function work.red_garbage() return garbage_of(red_lock()) end

-- Bytes of each of `count` tasks that run fn(i), once are_ready() is true.
local function bytes_of(fn, are_ready)
  local before = bytes_left()
  for i = 1, count do rlock.spawn(fn, i) end
  repeat rlock.sleep(0.02) until are_ready()
  return (bytes_left() - before) / count
end

function work.task()
  cycle(client:lock "counted", 1)            -- loads the scripts
  local ready = 0
  return bytes_of(function(i)
    local lock = client:lock("counted:" .. i)
    cycle(lock, 1)
    ready = ready + 1
    rlock.event():wait()
    return lock
  end, function() return ready == count end)
end

-- Do all tasks wait, without a request in flight?
local function all_wait()
  local n = 0
  for _, channel in pairs(client.session.wakeup.channels) do
    local waiter = channel.first
    while waiter do n, waiter = n + 1, waiter.next end
  end
  return n == count and client.session.pending == 0
end

function work.waiting()
  assert(client:lock("counted"):lock())
  return bytes_of(function() client:lock("counted"):lock() end, all_wait)
end

function work.held()
  local locks = {}
  for i = 1, count do locks[i] = false end   -- has room, which does not count
  local before = bytes_left()
  for i = 1, count do
    locks[i] = client:lock("counted:" .. i)
    assert(locks[i]:lock())
  end
  return (bytes_left() - before) / count
end

io.write(("%.0f\n"):format(work[what]() or count))
io.stdout:flush()
os.exit(0)
