-- A process of quorum_counter_spec.lua and failovers_spec.lua: its tasks
-- increment a counter under a lock until the key "stop" is set. With several
-- URLs it is a red lock; with one, a lock that replicas must confirm: REPLICAS
-- is "majority", "all" or "none".
--
--    rlockctl count_fenced.lua TASKS LEASE NAME REPLICAS STORE URL...
--
-- Prints "begun", and at the end
--    added     how many increments the store accepted
--    stale     increments that it rejected after we had lost the lock
--    overlaps  increments that it rejected while we held the lock: another
--              owner held it at the same time
--    late      fencing tokens drawn after we had lost the lock: each may have
--              caused a rejection for the real holder

local fence = require "spec.tools.fence"
local rlock = require "rlock"

local tasks, lease, name = tonumber(arg[1]), tonumber(arg[2]), arg[3]
local replicas = arg[4] ~= "none" and arg[4] or nil
local store = assert(rlock.open { url = arg[5], timeout = 60 })
local clients = {}
for i = 6, #arg do
  clients[#clients + 1] = assert(rlock.open {
    url = arg[i], lazy = true, watchdog = lease, timeout = 0.4 * lease,
  })
end
local lock = clients[2]
  and rlock.red_lock(clients, name, { node_timeout = 0.1 * lease })
  or clients[1]:lock(name, { replicas = replicas })
local count = { added = 0, stale = 0, overlaps = 0, late = 0 }
local is_stopped = false

local function add_one()
  local token = fence.token(store)
  if lock:valid_for() == 0 then return "late" end
  local reply = assert(store:call("MGET", "counter", "stop"))
  local number = tonumber(reply[1] or 0)
  is_stopped = is_stopped or reply[2]
  if fence.put(store, token, "counter", number + 1) then return "added" end
  return lock:valid_for() > 0 and "overlaps" or "stale"
end

local function work()
  while not is_stopped do
    if lock:lock { wait = 10 * lease } then
      local what = add_one()
      count[what] = count[what] + 1
      lock:unlock()
    end
  end
end

io.stdout:setvbuf "line"
print "begun"
local all = {}
for i = 1, tasks do all[i] = rlock.spawn(work) end
for i = 1, tasks do all[i]:join() end
print(("added %d stale %d overlaps %d late %d"):format(count.added, count.stale,
  count.overlaps, count.late))
