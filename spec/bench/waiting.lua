--- Many tasks wait for a lock that somebody else holds: how much memory does
--- each take? Prints JSON.
---
---   rlockctl waiting.lua one|each [TASKS]     all wait for one lock, or each
---                                             for its own; the server is
---                                             RLOCK_URL

local resident = require "spec.bench.resident"
local rlock = require "rlock"

local each = arg[1] == "each"
local TASKS = tonumber(arg[2] or 20000)
local BATCH = 100                      -- tasks started at a time
local SETTLE = 2                       -- seconds until all are waiting again

local client = assert(rlock.open())

--- Bytes of the process, and bytes used by Lua.
local function memory()
  return resident(), collectgarbage("count") * 1024
end

local function name_of(i)
  return "waiting:" .. (each and i or 1)
end

-- Held by an owner that this client does not know.
for i = 1, each and TASKS or 1 do
  assert(client:call("HSET", name_of(i), "somebody else", 1))
  assert(client:call("PEXPIRE", name_of(i), 600000))
end

local function wait_all()
  local started = 0
  for i = 1, TASKS do
    rlock.spawn(function()
      started = started + 1
      assert(client:lock(name_of(i)):lock())
    end)
    if i % BATCH == 0 then rlock.sleep(0) end
  end
  while started < TASKS do rlock.sleep(0.05) end
  local lines = each and TASKS or 1
  repeat
    rlock.sleep(0.1)
    -- A lock that is handed over has two channels more, with longer names.
  until #assert(client:call("PUBSUB", "CHANNELS", "*}")) == lines
  rlock.sleep(SETTLE)
end

local warm = client:lock("warm")
assert(warm:lock())
assert(warm:unlock())
local before, lua_before = memory()
wait_all()
local after, lua_after = memory()
print(('{"tasks":%d,"bytes":%.0f,"lua_bytes":%.0f}'):format(TASKS,
  (after - before) / TASKS, (lua_after - lua_before) / TASKS))
io.stdout:flush()
client:call("FLUSHALL")
os.exit(0)
