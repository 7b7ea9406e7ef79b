--- `make bench`: the cost of a lock, beside a baseline in bare C (bare.c) that
--- alternates with it on the same private Redis. Prints medians.
---
---   lua5.4 spec/bench/run.lua [cycles] [held] [waiting] [queue] [growth]
---                             [start] [openresty] [costs] [crowd] [cluster]
---                             [wakes] [failover] [stampede]
---
---   B=build     folder with rlockctl and spec/bare
---   ROUNDS=5    turns of each                   SECONDS=2    per turn
---   TASKS="1 16 64 256 1000"                WAITERS="300 3000 12000 20000"

package.path = "./?.lua;" .. package.path

local median = require("spec.bench.statistics").median
local redis = require "spec.tools.redis"
local shell = require "spec.tools.shell"

local B = os.getenv("B") or "build"
local ROUNDS = tonumber(os.getenv("ROUNDS") or 5)
local SECONDS = tonumber(os.getenv("SECONDS") or 2)
local TASKS = os.getenv("TASKS") or "1 16 64 256 1000"

local server = redis.start()

--- Runs a program that prints flat JSON; returns that as a table.
local function measure(...)
  local text, ok = shell.run(("RLOCK_URL=%s %s"):format(
    shell.quote(server.url), shell.words({ ... })))
  assert(ok and text:find("{", 1, true), text)
  local result = {}
  for key, value in text:gmatch('"([%w_]+)":([-%d.e+]+)') do
    result[key] = tonumber(value)
  end
  return result
end

local function bare(tasks)
  return measure(B .. "/spec/bare", server.socket, tasks, SECONDS,
    "spec/bench/acquire.lua", "spec/bench/release.lua")
end

local function ours(tasks)
  return measure(B .. "/rlockctl", "spec/bench/cycles.lua", tasks, SECONDS)
end

--- The median of each field over the turns.
local function medians(turns)
  local result = {}
  for field in pairs(turns[1]) do
    local values = {}
    for i, turn in ipairs(turns) do values[i] = turn[field] end
    result[field] = median(values)
  end
  return result
end

--- The median of the ratios to bare C, turn by turn, because the machine's
--- speed may vary between turns.
local function ratio(a, b, field)
  local values = {}
  for i, turn in ipairs(a) do values[i] = b[i][field] / turn[field] end
  return median(values)
end

--- The ratio of the best turns, which approximates an idle machine.
local function best_ratio(a, b, field)
  local best_a, best_b = math.huge, math.huge
  for i in ipairs(a) do
    best_a = math.min(best_a, a[i][field])
    best_b = math.min(best_b, b[i][field])
  end
  return best_b / best_a
end

local function verdict(good)
  return good and "ok" or "MISSED"
end

local parts = {}

local ROW = "%6s %11s %11s %6s %9s %9s %10s %10s %9s %9s"

local function print_row(tasks, rate_ratio, a, b)
  print(ROW:format(tasks, ("%.0f"):format(a.rate), ("%.0f"):format(b.rate),
    ("%.2f"):format(rate_ratio),
    ("%.2f"):format(a.cpu_us), ("%.2f"):format(b.cpu_us),
    ("%.1f"):format(a.p50_us), ("%.1f"):format(b.p50_us),
    ("%.3f"):format(a.server_us), ("%.3f"):format(b.server_us)))
end

local function judge(tasks, a, b)
  if tasks >= 64 then
    local rate = ratio(a, b, "rate")
    return ("%d tasks: rate %.2f of bare's (best turns %.2f), at least 0.90: "
      .. "%s"):format(tasks, rate, 1 / best_ratio(a, b, "mean_us"),
      verdict(rate >= 0.9))
  elseif tasks == 1 then
    local latency = ratio(a, b, "mean_us")
    return ("1 task: latency %.2f of bare's (best turns %.2f), at most 1.15: "
      .. "%s"):format(latency, best_ratio(a, b, "mean_us"),
      verdict(latency <= 1.15))
  end
end

--- Client and server need a processor core each.
local function warn_if_busy()
  local file = io.open("/proc/loadavg")
  local load = file and file:read("n") or 0
  if file then file:close() end
  if load > 0.5 then
    print(("the machine is busy (load %.1f): do not trust these figures")
      :format(load))
  end
end

function parts.cycles()
  warn_if_busy()
  local notes, server_ratios, server_bests = {}, {}, {}
  print(("lock and unlock, medians of %d turns of %g s; bare: C and hiredis")
    :format(ROUNDS, SECONDS))
  print(ROW:format("", "cycles/s", "cycles/s", "", "cpu us", "cpu us",
    "median us", "median us", "server us", "server us"))
  print(ROW:format("tasks", "bare", "rlock", "ratio", "bare", "rlock", "bare",
    "rlock", "bare", "rlock"))
  for word in TASKS:gmatch("%d+") do
    local tasks, a, b = tonumber(word), {}, {}
    for i = 1, ROUNDS do a[i], b[i] = bare(tasks), ours(tasks) end
    print_row(tasks, ratio(a, b, "rate"), medians(a), medians(b))
    notes[#notes + 1] = judge(tasks, a, b)
    server_ratios[#server_ratios + 1] = ratio(a, b, "server_us")
    server_bests[#server_bests + 1] = best_ratio(a, b, "server_us")
  end
  local server_ratio = median(server_ratios)
  print(table.concat(notes, "\n"))
  print(("server time per call %.2f of that of scripts written by hand "
    .. "(best turns %.2f), at most 1.05: %s"):format(server_ratio,
    median(server_bests), verdict(server_ratio <= 1.05)))
end

local function hold(seconds, lease, most_cpu)
  local r = measure(B .. "/rlockctl", "spec/bench/held.lua", 100000, seconds,
    lease)
  print(("%d held locks for %.0f s: %d renewals in the server, least time "
    .. "left %.1f s of %.0f, lost %d, late %d: %s"):format(r.locks,
    r.seconds, r.renewals, r.least, r.lease, r.lost, r.late,
    verdict(r.lost == 0 and r.late == 0)))
  print(("client cpu %.1f %%, at most %d: %s; server %.1f %%"):format(
    r.cpu_percent, most_cpu, verdict(r.cpu_percent <= most_cpu),
    r.server_percent))
  print(("bytes per held lock %.0f, at most 1500: %s"):format(r.lock_bytes,
    verdict(r.lock_bytes <= 1500)))
end

function parts.held()
  warn_if_busy()
  hold(35, 30, 10)
  hold(15, 3, 30)
end

function parts.waiting()
  for _, how in ipairs { "one", "each" } do
    local r = measure(B .. "/rlockctl", "spec/bench/waiting.lua", how)
    print(("%d tasks wait, %s: %d bytes each (%d of them used by Lua), "
      .. "at most 3000: %s"):format(r.tasks,
      how == "one" and "all for one lock" or "each for its own",
      r.bytes, r.lua_bytes, verdict(r.bytes <= 3000)))
  end
end

function parts.queue()
  warn_if_busy()
  for _, kind in ipairs { "fair", "write" } do
    for word in (os.getenv("WAITERS") or "300 3000 12000 20000"):gmatch "%d+" do
      local r = measure(B .. "/rlockctl", "-q", "spec/bench/queue.lua", kind,
        word)
      print(("%s lock, %5d waiters in one client: a grant %.0f us, at most "
        .. "1000: %s; waiting alone %.0f requests/s, %.1f %% of the server")
        :format(kind == "fair" and "fair" or "fair write", r.waiters,
        r.grant_us, verdict(r.grant_us <= 1000), r.requests,
        r.server_percent))
    end
  end
end

function parts.growth()
  local r = measure(B .. "/rlockctl", "spec/bench/growth.lua")
  print(("%d cycles: %.0f kB resident after %d, %.0f kB at the end: %s"):format(
    r.cycles, r.first_kb, r.first, r.last_kb,
    verdict(r.last_kb <= r.first_kb * 1.02)))
end

function parts.start()
  local r = measure("sh", "spec/bench/start.sh", B .. "/rlockctl")
  print(("rlockctl -e '': %.2f ms, under 5: %s"):format(r.ms,
    verdict(r.ms < 5)))
  print(("stripped binary: %d bytes, under 1500000: %s"):format(r.bytes,
    verdict(r.bytes < 1500000)))
end

function parts.openresty()
  warn_if_busy()
  local r = measure("spec/tools/in-nginx", "spec/bench/openresty.lua",
    ROUNDS, SECONDS)
  print(("nginx: %.0f requests/s that lock and unlock, %.0f with plain "
    .. "cosocket code: %.2f, at least 0.85: %s"):format(r.rlock, r.bare,
    r.ratio, verdict(r.ratio >= 0.85)))
  local handover = r.from_return_us / r.trip_us
  print(("nginx: another worker has the lock %.0f us after unlock returns "
    .. "(%.0f after it is called); a round trip takes %.0f: %.2f, at most 2: "
    .. "%s"):format(r.from_return_us, r.from_call_us, r.trip_us, handover,
    verdict(handover <= 2)))
end

--- Runs one of our programs, with additions to its environment, and shows its
--- output.
local function show(file, more, ...)
  local text, ok = shell.run(("RLOCK_URL=%s %s %s"):format(
    shell.quote(server.url), more or "",
    shell.words({ B .. "/rlockctl", "-q", file, ... })))
  assert(ok, text)
  print(text)
end

function parts.costs()
  local second, third = redis.start(), redis.start()
  show("spec/bench/costs.lua", "RLOCK_URLS=" .. shell.quote(
    second.url .. " " .. third.url))
  second:stop()
  third:stop()
end

function parts.crowd()
  show("spec/bench/crowd.lua")
end

function parts.cluster()
  warn_if_busy()
  show("spec/bench/several.lua", nil, ROUNDS, SECONDS,
    os.getenv("TASKS") or "1 64")
end

function parts.wakes()
  warn_if_busy()
  show "spec/bench/wakes.lua"
end

function parts.failover() show("spec/bench/failover.lua", nil, ROUNDS) end

function parts.stampede()
  local text, ok = shell.run(shell.words { "spec/tools/in-nginx",
    "spec/bench/stampede.lua", ROUNDS })
  assert(ok, text)
  print(text)
end

local names = arg[1] and arg or {
  "cycles", "held", "waiting", "queue", "growth", "start", "openresty", "costs",
  "crowd", "cluster", "wakes", "failover", "stampede",
}
for i, name in ipairs(names) do
  if not parts[name] then
    io.stderr:write("run.lua: no such part: " .. name .. "\n")
    os.exit(2)
  end
  if i > 1 then print() end
  parts[name]()
end
server:stop()
