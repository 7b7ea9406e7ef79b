-- One computation for many callers, without a thundering herd: the first caller
-- computes, the others get its result. Start it in several terminals at once.
--
--    rlockctl examples/compute.lua

local rlock = require "rlock"

local client <close> = assert(rlock.open())

-- An hourly report. For a minute more, callers get the stale one while one task
-- recomputes it.
local options = { ttl = 3600, stale = 60, wait = 30 }

local function make_report()
  print("makes the report")
  rlock.sleep(0.5)
  return "the report"
end

local function reader(number)
  local report, how = client:compute("report", options, make_report)
  print(("reader %d has %s: %s"):format(number, report, how))
end

local readers = {}
for i = 1, 5 do readers[i] = rlock.spawn(reader, i) end
for i = 1, 5 do readers[i]:join() end
