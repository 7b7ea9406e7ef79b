--- A missing unlock on an error path. In a program that runs on, the lock would
--- stay held until its lease expires. forgotten_with.lua uses `with`.

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
