--- Bursts of requests for a page that nobody has cached, on two servers with
--- nginx: how often they ask the origin, and how long they take. Prints a row
--- for each way:
---  none   each server has a cache in a shared dict, without a lock
---  dict   the same with the recipe of lua-resty-lock: add() in a shared dict,
---         and sleeps of 1 ms to 500 ms. (Our own few lines of that recipe,
---         because Debian does not have the library.)
---  rlock  client:compute
---
---   spec/tools/in-nginx spec/bench/stampede.lua [ROUNDS] [REQUESTS] [SECONDS]
---                                            of the origin for a page

local at_once = require "spec.tools.at_once"
local clock = require "resty.rlock.host.clock"
local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"

local rounds, requests = tonumber(arg[1] or 5), tonumber(arg[2] or 200)
local seconds = tonumber(arg[3] or 0.3)

local HTTP = [[
  lua_shared_dict pages 8m;
  lua_shared_dict locks 1m;
  init_worker_by_lua_block {
    bench = require "spec.bench.stampede_locations"
    bench.open("%s", %g)
  }
]]

local LOCATIONS = [[
  location ~ ^/(none|dict|rlock)/(.+)$ {
    content_by_lua_block { bench.serve(ngx.var[1], ngx.var[2]) }
  }
]]

local server = redis.start()
local webs = {}
for i = 1, 2 do
  webs[i] = nginx.start { workers = 2, locations = LOCATIONS,
    http = HTTP:format(server.url, seconds) }
end

-- The requests of a round; adds their milliseconds to a list.
local function burst(path, took)
  at_once(requests, function(i)
    local began = clock.now()
    local status, body = webs[i % 2 + 1]:get(path)
    took[#took + 1] = (clock.now() - began) * 1000
    return status == 200 and body == "a page" or error(body)
  end)
end

print(("%d bursts of %d requests, on 2 servers; the origin takes %g s"):format(
  rounds, requests, seconds))
print "way     origin per burst   p50 ms   p99 ms"
for _, way in ipairs { "none", "dict", "rlock" } do
  burst("/" .. way .. "/warm", {})
  server:cli("DEL", "origin")
  local took = {}
  for round = 1, rounds do burst(("/%s/%d"):format(way, round), took) end
  table.sort(took)
  print(("%-7s %16.1f %8.0f %8.0f"):format(way,
    server:cli("GET", "origin") / rounds, took[math.ceil(#took / 2)],
    took[math.ceil(#took * 0.99)]))
end
for _, web in ipairs(webs) do web:stop() end
server:stop()
