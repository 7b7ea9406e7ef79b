--- A job that cron starts on several machines at once; one of them should run
--- it. The lock excludes concurrent runs, not successive ones: a machine that
--- starts late runs the job again. cron_once.lua records that the job is done.

local rlock = require "rlock"
local simulate = require "rlock.simulate"

local job = simulate.shared "job"
simulate.always(function()
  if (job.runs or 0) > 1 then error("the job has run twice today", 0) end
end)

local client <close> = assert(rlock.open())
local lock = client:lock("report:2026-11-27")

if lock:try_lock() then
  rlock.sleep(0.01)                     -- writes the report
  job.runs = (job.runs or 0) + 1
  assert(lock:unlock())
end
