--- Jobs that every worker of every machine is ready to run, and one runs.
--
--    curl http://127.0.0.1:8080/cron      the last runs: period, worker
--
--  Time is cut into periods by the clock of Redis. A job is done in a period by
--  the first worker that gets the lock and finds that it was not done yet. If
--  it fails, or its worker dies, the next one that looks does it.

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

--- Has a job done once in every period of so many seconds.
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
