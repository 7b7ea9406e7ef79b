--- A cache in Redis without a thundering herd: concurrent requests for a new
--- entry compute it once, and the others wait for it.
---
---   curl http://127.0.0.1:8080/report/sales

local answer = require "shop.answer"
local locks = require "shop.locks"

local cache = {}

local OPTIONS = { ttl = 60, wait = 10 }

-- A slow report that shows how often it was computed.
local function make_report(name)
  ngx.sleep(0.3)
  return ("report %s, made %s time(s), last by worker %d"):format(name,
    locks:call("INCR", "report:" .. name .. ":made"), ngx.worker.id())
end

function cache.serve(name)
  answer(locks:compute("report:" .. name, OPTIONS, function()
    return make_report(name)
  end))
end

return cache
