--- cron.lua with a mark: the process that sets it, while it holds the lock,
--  runs the job. It is at most once: a process that dies after the mark is not
--  replaced.

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
