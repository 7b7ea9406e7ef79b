-- A process of spec/soak/mixed_failovers_spec.lua: its tasks add to a counter
-- under a lock that replicas must confirm, until the key "stop" is set.
--
--    rlockctl count_recorded.lua TASKS LEASE NAME STORE FILE URL
--
-- The holds are recorded in FILE.

local hold_recorded = require "spec.tools.hold_recorded"
local rlock = require "rlock"

local tasks, lease = tonumber(arg[1]), tonumber(arg[2])
local store = assert(rlock.open { url = arg[4], timeout = 60 })
local file = assert(io.open(arg[5], "a"))
local client = assert(rlock.open {
  url = arg[6], lazy = true, watchdog = lease, timeout = 0.4 * lease,
})
local lock = client:lock(arg[3], { replicas = "majority" })

local function work()
  while not store:call("GET", "stop") do
    hold_recorded(lock, store, file, "rlockctl", lease)
  end
end

local all = {}
for i = 1, tasks do all[i] = rlock.spawn(work) end
for i = 1, tasks do all[i]:join() end
