-- A process of counter_spec.lua: many tasks increment a counter that only the
-- lock protects.
--
--    rlockctl count_up.lua TASKS ROUNDS WATCHDOG
--
-- Prints "begun", and at the end "added N": the number of increments.

local rlock = require "rlock"

local tasks, rounds = tonumber(arg[1]), tonumber(arg[2])
local LOCK, KEY = "counter:lock", "counter:number"

local client = assert(rlock.open { watchdog = tonumber(arg[3]) })
local lock = client:lock(LOCK)
local added, seen = 0, 0

-- Retries a command, which must be idempotent while we hold the lock.
local function surely(...)
  for _ = 1, 100 do
    local reply, code, detail = client:call(...)
    if reply ~= nil then return reply end
    assert(code ~= "redis", detail)
  end
  error "the server does not answer"
end

local function add_one()
  local ok, code, detail = lock:lock { wait = 120 }
  assert(ok, ("lock: %s: %s"):format(code, detail))
  local number = tonumber(surely("GET", KEY) or 0)
  assert(number >= seen, ("%d after %d"):format(number, seen))
  seen = number + 1
  surely("SET", KEY, number + 1)
  ok, code, detail = lock:unlock()
  assert(ok, ("unlock: %s: %s"):format(code, detail))
  added = added + 1
end

io.stdout:setvbuf "line"
print "begun"
local all = {}
for i = 1, tasks do
  all[i] = rlock.spawn(function()
    for _ = 1, rounds do add_one() end
  end)
end
for i = 1, tasks do all[i]:join() end
print(("added %d"):format(added))
client:close()
