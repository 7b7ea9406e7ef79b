--- Work of a fixed size, for spec/bench/budget to count its instructions.
--
--    rlockctl counted.lua cycles|red|handovers|renewals COUNT [URL...]
--
--  cycles: a lock() and an unlock(), by 64 tasks. red: the same of a red lock
--  on the servers named. handovers: of one lock between two tasks. renewals:
--  rounds of 100 renewals by the watchdog.

local rlock = require "rlock"

local TASKS, HELD = 64, 100

local what, count = arg[1], math.tointeger(tonumber(arg[2]))
local client = assert(rlock.open { watchdog = 0.6 })

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
  cycle(rlock.red_lock(clients, "counted:red"), count)
end

function work.handovers()
  tasks(2, function() return cycle(client:lock "counted:one", count // 2) end)
end

-- The server has made so many calls of scripts.
local function calls()
  local text = assert(client:call("INFO", "commandstats"))
  return tonumber(text:match "cmdstat_evalsha:calls=(%d+)")
end

function work.renewals()
  for i = 1, HELD do assert(client:lock("counted:" .. i):lock()) end
  local target, made = calls() + count
  repeat
    rlock.sleep(0.1)
    made = calls()
  until made >= target
  count = count + made - target
end

work[what]()
print(count)
