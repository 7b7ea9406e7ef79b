--- Requests that lock and unlock in nginx, compared with requests that send the
--- same two EVALSHA by plain cosocket code; and the handover of a lock between
--- workers, compared with a round trip to Redis. Prints one line of JSON.
---
---   spec/tools/in-nginx spec/bench/openresty.lua ROUNDS SECONDS
---                                            the server is RLOCK_URL

local median = require("spec.bench.statistics").median
local nginx = require "spec.tools.nginx"
local shell = require "spec.tools.shell"

local rounds, seconds = tonumber(arg[1]), tonumber(arg[2])

local HTTP = [[
  lua_shared_dict bench 1m;
  init_worker_by_lua_block { bench = require "spec.bench.openresty_locations" }
]]

local LOCATIONS = [[
  location = /ready { content_by_lua_block { bench.ready() } }
  location = /bare { content_by_lua_block { bench.bare() } }
  location = /rlock { content_by_lua_block { bench.rlock() } }
  location = /handover { content_by_lua_block { bench.handover() } }
]]

-- Requests per second.
local function rate(web, path)
  local text = shell.run(("wrk -t1 -c16 -d%ds http://127.0.0.1:%d%s"):format(
    math.ceil(seconds), web.port, path))
  assert(not text:find("Non-2xx", 1, true), text)
  return assert(tonumber(text:match("Requests/sec:%s*(%S+)")), text)
end

local function requests()
  local web = nginx.start {
    main = "env RLOCK_URL;", http = HTTP, locations = LOCATIONS,
  }
  assert(web:get("/ready") == 200)
  local bare, ours, ratios = {}, {}, {}
  for i = 1, rounds do
    bare[i], ours[i] = rate(web, "/bare"), rate(web, "/rlock")
    ratios[i] = ours[i] / bare[i]
  end
  web:stop()
  return median(bare), median(ours), median(ratios)
end

local function handovers()
  local web = nginx.start {
    workers = 2, main = "env RLOCK_URL;", http = HTTP,
    locations = LOCATIONS,
  }
  local status, body = web:get("/handover")
  web:stop()
  assert(status == 200, body or "no answer")
  return body:match("(%S+) (%S+) (%S+)")
end

local bare, ours, ratio = requests()
local trip, from_call, from_return = handovers()
print(('{"bare":%.0f,"rlock":%.0f,"ratio":%.3f,"trip_us":%.1f,'
  .. '"from_call_us":%.1f,"from_return_us":%.1f}'):format(bare, ours, ratio,
  trip, from_call, from_return))
