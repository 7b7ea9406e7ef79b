--- Adds up the metrics of all nginx workers in a lua_shared_dict, if nginx has
--- one of this name. Each worker adds the increments of its counters, so the
--- sums include workers that have ended.

local host = require "resty.rlock.host"
local metrics = require "rlock.util.metrics"
local worker_timer = require "resty.rlock.host.worker_timer"

local shared = {}

local dict = ngx.shared.rlock_metrics
local added = {}             -- this worker's numbers already in the sums

local function add()
  for key, n in pairs(metrics.numbers(host)) do
    local grown = n - (added[key] or 0)
    if grown ~= 0 and dict:incr(key, grown, 0) then added[key] = n end
  end
end

if dict then worker_timer.on_tick[#worker_timer.on_tick + 1] = add end

--- The sums of all workers, by key; those of this worker without the dict.
function shared.numbers()
  if not dict then return metrics.numbers(host) end
  add()
  local sums = {}
  for _, key in ipairs(dict:get_keys(0)) do sums[key] = dict:get(key) end
  return sums
end

return shared
