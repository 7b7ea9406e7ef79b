-- Two tasks lock the same two accounts in opposite order: a deadlock.
--
--    rlockctl examples/two_orders.lua [TRANSFERS]    (of each task, default 5)
--
-- The task that would close the cycle gets "deadlock" at once. It releases what
-- it holds, and retries. Between processes, only a time-out ends a deadlock: so
-- acquire locks in one order, or all at once by rlock.multi_lock.

local rlock = require "rlock"
local client <close> = assert(rlock.open())

local function transfer(name, from, to)
  return client:lock(from):with(function()
    rlock.sleep(0.05)
    local ok, code, detail = client:lock(to):lock { wait = 60 }
    if not ok then print(("%s: %s: %s"):format(name, code, detail)) end
    return ok and client:lock(to):unlock()
  end)
end

local function work(name, from, to)
  for i = 1, tonumber(arg[1]) or 5 do
    while not transfer(name, from, to) do rlock.sleep(math.random() / 10) end
    print(("%s: done %d"):format(name, i))
  end
end

local other = rlock.spawn(work, "eve", "account:2", "account:1")
work("bob", "account:1", "account:2")
other:join()
