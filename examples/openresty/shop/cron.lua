--- Periodic jobs that run once in a cluster of workers.
---
---   curl http://127.0.0.1:8080/cron      the last runs: period, worker
---
--- The clock of Redis divides time into periods. In each, the first worker that
--- gets the lock and finds the job not yet done runs it. If the job fails or
--- its worker dies, the next worker to check runs it.

local answer = require "shop.answer"
local locks = require "shop.locks"

local cron = {}

local RUNS = "cron:runs"

local function must(value, code, detail)
  if value == nil then error(code .. ": " .. detail, 0) end
  return value
end

local function run_if_due(_, name, seconds, job)
  local done = "cron:" .. name .. ":done"
  local time = must(locks:call("TIME"))[1]
  local period = math.floor(time / seconds)
  if tonumber(must(locks:call("GET", done)) or 0) >= period then return end
  job(period)
  must(locks:call("SET", done, period))
end

--- Runs a job once in every period of `seconds`.
function cron.every(seconds, name, job)
  local lock = locks:lock("cron:" .. name)
  assert(ngx.timer.every(seconds, function(premature)
    if premature then return end
    local _, code, detail = lock:with({ wait = 0 }, run_if_due, name,
      seconds, job)
    if code and code ~= "busy" then
      ngx.log(ngx.ERR, name, ": ", code, ": ", detail)
    end
  end))
end

--- Called in every worker.
function cron.start()
  cron.every(1, "heartbeat", function(period)
    must(locks:call("LPUSH", RUNS, period .. " worker " .. ngx.worker.id()))
    must(locks:call("LTRIM", RUNS, 0, 99))
  end)
end

function cron.show()
  local runs, code, detail = locks:call("LRANGE", RUNS, 0, -1)
  answer(runs and table.concat(runs, "\n"), code, detail)
end

return cron
