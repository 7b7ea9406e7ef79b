--- cron.lua with a "done" key: the process that sets it, in a guarded write,
--- runs the job. The job runs at most once: if that process dies after the SET,
--- no other process runs it.

local rlock = require "rlock"
local simulate = require "rlock.simulate"

local job = simulate.shared "job"
simulate.always(function()
  if (job.runs or 0) > 1 then error("the job has run twice today", 0) end
end)

local client <close> = assert(rlock.open())
local lock = client:lock("report:2026-11-27")

if lock:try_lock() then
  if lock:call("SET", "done:2026-11-27", "yes", "NX") == "OK" then
    rlock.sleep(0.01)                   -- writes the report
    job.runs = (job.runs or 0) + 1
  end
  assert(lock:unlock())
end
