-- A double barrier: workers begin a phase together, and end it together.
--
--    rlockctl examples/barrier.lua [WORKERS [ALL]]       (default 3)
--
-- If a worker dies, the others get "lost". Start the program in several
-- terminals; ALL is the total number of workers in all of them.

local rlock = require "rlock"

local workers = tonumber(arg[1]) or 3
local all = tonumber(arg[2]) or workers
local client <close> = assert(rlock.open())

local function work(i)
  local barrier = client:double_barrier("phase", all)
  print(("worker %d is there"):format(i))
  assert(barrier:enter { wait = 60 })
  print(("worker %d begins"):format(i))
  rlock.sleep(i / 20)
  print(("worker %d has ended"):format(i))
  assert(barrier:leave { wait = 60 })
  print(("worker %d goes on"):format(i))
end

local tasks = {}
for i = 1, workers do tasks[i] = rlock.spawn(work, i) end
for i = 1, workers do tasks[i]:join() end
