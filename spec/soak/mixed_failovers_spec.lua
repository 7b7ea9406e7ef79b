--- rlockctl, workers of nginx and Redisson increment a number under the same
--- lock while its master is killed and fails over, in a cluster and behind
--- Sentinels. All record their holds, which holds.lua judges. rlock waits for
--- a majority of the replicas, Redisson in its own way; what failovers do to
--- Redisson's holds is printed, and not judged.
---
--- RLOCK_FAILOVERS is the number of failovers: 2; make soak has 100. Redisson
--- is prepared by make interop.

local clusters = require "spec.tools.cluster"
local eventually = require "spec.tools.eventually"
local failovers = require "spec.tools.failovers"
local files = require "spec.tools.files"
local holds = require "spec.tools.holds"
local nginx = require "spec.tools.nginx"
local nodes = require "spec.tools.servers"
local program = require "spec.tools.program"
local rlock = require "rlock"
local sentinel = require "spec.tools.sentinel"
local slow = require "spec.tools.slow"

local FAILOVERS = tonumber(os.getenv("RLOCK_FAILOVERS") or 2)
local GRANTS, EACH = 1000, 50           -- between failovers, in all and each
local TASKS = 4                         -- of each participant
local WORKERS = 2
local LEASE = 10 * slow
local NAME = "mixed:counter"
local SOON = 60 * slow
local KINDS = { "rlockctl", "nginx", "redisson" }

local HTTP = [[
  init_worker_by_lua_block {
    local rlock = require "resty.rlock"
    hold_recorded = require "spec.tools.hold_recorded"
    store = assert(rlock.open { url = "%s", timeout = 60 })
    locks = assert(rlock.open { url = "%s", watchdog = %g, timeout = %g })
    records = assert(io.open("%s." .. ngx.worker.id(), "a"))
  }
]]

local LOCATIONS = [[
  location = /add { content_by_lua_block {
    local lock = locks:lock("%s", { replicas = "majority" })
    for _ = 1, 20 do
      if store:call("GET", "stop") then return ngx.exit(204) end
      hold_recorded(lock, store, records, "nginx", %g)
    end
    ngx.say "added"
  } }
]]

-- Sends requests to the port $0 until one is answered by 204.
local REQUEST = [[
  status=200
  while [ "$status" = 200 ]; do
    exec 3<>"/dev/tcp/127.0.0.1/$0"
    printf 'GET /add HTTP/1.0\r\n\r\n' >&3
    read -r _ status _ <&3
  done
  [ "$status" = 204 ] || { echo "nginx answered $status"; exit 1; }
]]

local store, set, web, processes

local redisson = files.read((os.getenv "B" or "build")
  .. "/interop/redisson4.command")

local function path(kind) return store[1].folder .. "/holds-" .. kind end

local function address() return "redis://127.0.0.1:" .. store[1].port end

local function add(...)
  processes[#processes + 1] = program.exec(store[1], ...)
end

local function words(kind)
  return tostring(TASKS), tostring(LEASE), NAME, address(), path(kind),
    set.url
end

local starts = {}

function starts.rlockctl()
  processes[#processes + 1] = program.start(store[1],
    "spec/tools/count_recorded.lua", words "rlockctl")
end

function starts.redisson()
  local command = redisson:gsub("Peer%s*$", "Recorder")
  add("sh", "-c", "exec " .. command .. " \"$@\"", "sh", words "redisson")
end

function starts.nginx()
  web = nginx.start {
    workers = WORKERS, locations = LOCATIONS:format(NAME, LEASE),
    http = HTTP:format(address(), set.url, LEASE, 0.4 * LEASE,
      path "nginx"),
  }
  for _ = 1, TASKS do add("bash", "-c", REQUEST, ("%d"):format(web.port)) end
end

local function ask(...) return store:ask(store[1], ...) end
local function number(key) return tonumber(ask("GET", key)) or 0 end

-- How many grants each participant has had.
local function grants()
  local counts = {}
  for _, kind in ipairs(KINDS) do counts[kind] = number("grants:" .. kind) end
  return counts
end

-- What has been printed, if somebody does not go on.
local function outputs()
  local texts = { web:log() }
  for _, each in ipairs(processes) do texts[#texts + 1] = each:output() end
  return table.concat(texts, "\n")
end

-- Waits until every participant has had the lock EACH times again.
local function each_goes_on(before, when)
  for _, kind in ipairs(KINDS) do
    local ok, why = pcall(eventually, function()
      return number("grants:" .. kind) >= before[kind] + EACH
    end, SOON, kind .. " goes on " .. when)
    assert(ok, ("%s\n%s"):format(why, ok or outputs()))
  end
end

-- The same, and until there have been GRANTS, which a slow machine may not
-- reach.
local function all_go_on(when)
  local before, sum = grants(), number "counter"
  each_goes_on(before, when)
  pcall(eventually, function() return number "counter" >= sum + GRANTS end,
    SOON)
  local now = grants()
  print(("%s: %d grants: rlockctl %d, nginx %d, Redisson %d"):format(when,
    number "counter" - sum, now.rlockctl - before.rlockctl,
    now.nginx - before.nginx, now.redisson - before.redisson))
end

local function finish()
  ask("SET", "stop", "1")
  for _, process in ipairs(processes) do
    assert.equal(0, process:wait(SOON), process:output())
    local text = process:output()
    if text ~= "" then print((text:gsub("%s+$", ""))) end
  end
  local paths = { path "rlockctl", path "redisson" }    -- and of each worker
  for i = 1, WORKERS do paths[i + 2] = path("nginx." .. i - 1) end
  return holds.judge(paths)
end

local function check(seen)
  local overlaps, had = seen.overlaps, seen.grants
  print(("overlaps with Redisson: its hold first %d, ours first %d, its own %d")
    :format(overlaps["redisson rlock"] or 0, overlaps["rlock redisson"] or 0,
      overlaps["redisson redisson"] or 0))
  assert.equal(0, overlaps["rlock rlock"] or 0)
  assert.equal(0, seen.lost)
  assert.equal(0, seen.unfinished)
  if not next(overlaps) then
    assert.equal(had.rlockctl + had.nginx + had.redisson, number "counter")
  end
end

local function misses_nothing(fail)
  for _, kind in ipairs(KINDS) do starts[kind]() end
  all_go_on "at first"
  for i = 1, FAILOVERS do
    fail(i)
    all_go_on("after failover " .. i)
  end
  check(finish())
end

describe("a counter of rlockctl, nginx and Redisson", function()
  if not redisson then
    pending "needs Redisson, which make interop prepares"
    return
  end

  before_each(function()
    store, processes = nodes.start(1, { port = true }), {}
  end)

  after_each(function()
    for _, process in ipairs(processes) do process:kill(9) end
    if web then web:stop() end
    if set then set:stop() end
    set, web = nil, nil
    store:stop()
  end)

  it("misses no addition in a cluster", function()
    set = clusters.start { masters = 3, replicas = 3 }
    misses_nothing(failovers.of_cluster(set, NAME))
  end)

  it("misses no addition behind Sentinels", function()
    set = sentinel.start { sleep = rlock.sleep, can_split = true }
    misses_nothing(failovers.of_set(set))
  end)
end)
