--- The drivers of nginx: requests that take and give back a lock, by wrk.
--- spec/bench/peers/run says what they are told and print.
---
---   lua5.4 nginx.lua rlock|polling PATTERN KIND TASKS SECONDS WARM_UP FILE
---     ADDRESS

package.path = "./?.lua;" .. package.path

local nginx = require "spec.tools.nginx"
local shell = require "spec.tools.shell"

local library, pattern, kind, connections, seconds, warm_up, address =
  arg[1], arg[2], arg[3], arg[4], arg[5], arg[6], arg[8]
if kind ~= "nginx" then os.exit(3) end

local HTTP = [[
  init_worker_by_lua_block {
    bench = require "spec.bench.peers.nginx_locations"
  }
]]
local LOCATION = "location = /lock { content_by_lua_block { bench.%s(%q) } }"
local MS = { us = 0.001, ms = 1, s = 1000 }

local web = nginx.start {
  http = HTTP, locations = LOCATION:format(library, pattern),
  env = { BENCH_ADDRESS = address }, main = "env BENCH_ADDRESS;",
}

local function load_for(time)
  local text = shell.run(("wrk -t1 -c%s -d%d --latency "
    .. "http://127.0.0.1:%d/lock"):format(connections, math.ceil(time),
    web.port))
  assert(not text:find("Non-2xx", 1, true), text)
  return text
end

-- Processor time of the worker, in seconds.
local function cpu()
  return tonumber((shell.run(([[
    ticks=0
    for pid in $(pgrep -P %d); do
      ticks=$((ticks + $(awk '{ print $14 + $15 }' /proc/$pid/stat)))
    done
    echo "$ticks"]]):format(web.pid)))) / 100
end

local function memory()
  return tonumber((shell.run(([[
    cat $(pgrep -P %d | sed 's|.*|/proc/&/status|') |
      awk '/^VmRSS/ { kb += $2 } END { print kb }']]):format(web.pid))))
end

local function microseconds(text, percent)
  local number, unit = text:match(percent .. "%%%s+([%d.]+)(%a+)")
  return tonumber(number) * MS[unit] * 1000
end

local warm = load_for(tonumber(warm_up))
local before = cpu()
local text = load_for(tonumber(seconds))
local count, took = text:match "(%d+) requests in ([%d.]+)s"
print(('{"count":%d,"total":%d,"seconds":%.3f,"cpu_s":%.3f,"rss_kb":%d,'
  .. '"p50_us":%.1f,"p99_us":%.1f}'):format(count,
  count + warm:match "(%d+) requests in", took, cpu() - before, memory(),
  microseconds(text, "50"), microseconds(text, "99")))
web:stop()
