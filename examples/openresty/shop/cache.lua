--- A cache in Redis without a thundering herd: concurrent requests for a new
--  entry compute it once, and the others wait for it.
--
--    curl http://127.0.0.1:8080/report/sales

local answer = require "shop.answer"
local locks = require "shop.locks"

local cache = {}

--- The entry under a key; if it is missing, the result of `make`, which is then
--  cached for `seconds`.
-- @return the entry, or nil, code, detail
function cache.get(key, seconds, make)
  local entry, code, detail = locks:call("GET", key)
  if entry ~= false then return entry, code, detail end
  return locks:lock(key .. ":fill"):with({ wait = 10 }, function()
    entry, code, detail = locks:call("GET", key)   -- computed while we waited?
    if entry ~= false then return entry, code, detail end
    entry = make()
    locks:call("SET", key, entry, "EX", seconds)
    return entry
  end)
end

-- A slow report that shows how often it was computed.
local function make_report(name)
  ngx.sleep(0.3)
  return ("report %s, made %s time(s), last by worker %d"):format(name,
    locks:call("INCR", "report:" .. name .. ":made"), ngx.worker.id())
end

function cache.serve(name)
  answer(cache.get("report:" .. name, 60, function()
    return make_report(name)
  end))
end

return cache
