--- The locations of stampede.lua.

local rlock = require "resty.rlock"

local bench = {}

local TTL = 60
local STEP, RATIO, MOST = 0.001, 2, 0.5       -- lua-resty-lock's defaults

local pages, locks = ngx.shared.pages, ngx.shared.locks
local client, seconds

function bench.open(url, its_seconds)
  client, seconds = assert(rlock.open(url)), its_seconds
end

local function ask_origin()
  assert(client:call("INCR", "origin"))
  ngx.sleep(seconds)
  return "a page"
end

local ways = {}

function ways.none(key)
  local page = pages:get(key)
  if not page then
    page = ask_origin()
    pages:set(key, page, TTL)
  end
  return page
end

function ways.dict(key)
  local page, step = pages:get(key), STEP
  if page then return page end
  while not locks:add(key, true, 30) do
    ngx.sleep(step)
    step = math.min(step * RATIO, MOST)
  end
  page = pages:get(key)
  if not page then
    page = ask_origin()
    pages:set(key, page, TTL)
  end
  locks:delete(key)
  return page
end

function ways.rlock(key)
  return assert(client:compute(key, { ttl = TTL }, ask_origin))
end

function bench.serve(way, key) ngx.print((ways[way](way .. key))) end

return bench
