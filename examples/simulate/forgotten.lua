--- An unlock that is forgotten on the path of an error: the program ends, and
--  the lock stays until its lease is over. forgotten_with.lua uses `with`.

local rlock = require "rlock"

local client = assert(rlock.open())
local lock = client:lock("export")

local function export()
  rlock.sleep(0.005)
  if math.random() < 0.2 then return nil, "the disk is full" end
  return true
end

assert(lock:lock())
local ok, why = export()
if not ok then
  print("not exported: " .. why)
  return                                -- the lock is still held
end
assert(lock:unlock())
