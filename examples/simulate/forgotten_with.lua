--- forgotten.lua with `with`, which unlocks on every path.

local rlock = require "rlock"

local client = assert(rlock.open())

local function export()
  rlock.sleep(0.005)
  if math.random() < 0.2 then return nil, "the disk is full" end
  return true
end

local ok, why = client:lock("export"):with(export)
if not ok then print("not exported: " .. why) end
