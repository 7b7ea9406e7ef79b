--- Cycles of lock and unlock in a cluster of 3 nodes beside one server, and
--- those that a replica confirms beside those that none does. Starts servers of
--- its own, on loopback ports. Prints tables.
---
---   rlockctl several.lua ROUNDS SECONDS "TASKS..."

local clusters = require "spec.tools.cluster"
local eventually = require "spec.tools.eventually"
local median = require("spec.bench.statistics").median
local redis = require "spec.tools.redis"
local rlockctl = require "spec.tools.rlockctl"
local shell = require "spec.tools.shell"

local ROUNDS, SECONDS, TASKS = tonumber(arg[1]), arg[2], arg[3]
local FIELDS = { "rate", "p50_us", "p99_us" }
local REPLICAS = 2
local ROW = "%6s  %-24s%10s%8s%8s%10s%10s"

-- One turn of a variant: title, URL, options of rlock.open as words.
local function measure(variant, tasks)
  local text, ok = shell.run(("RLOCK_URL=%s %s"):format(
    shell.quote(variant[2]), shell.words { rlockctl, "spec/bench/cycles.lua",
    tasks, SECONDS, table.unpack(variant, 3) }))
  assert(ok, text)
  local result = {}
  for _, field in ipairs(FIELDS) do
    result[field] = tonumber(text:match('"' .. field .. '":([%d.]+)'))
  end
  return result
end

-- The medians of the variants' fields, which take turns; `ratio` is that of the
-- rate to the first variant's, and `best` that of the best turns, which
-- approximates an idle machine.
local function compare(variants, tasks)
  local lists, medians = {}, {}
  for i = 1, ROUNDS do
    local first
    for j, variant in ipairs(variants) do
      local turn = measure(variant, tasks)
      first = first or turn.rate
      turn.ratio = turn.rate / first
      lists[j] = lists[j] or {}
      for field, value in pairs(turn) do
        lists[j][field] = lists[j][field] or {}
        lists[j][field][i] = value
      end
    end
  end
  for j, fields in ipairs(lists) do
    medians[j] = {}
    for field, list in pairs(fields) do medians[j][field] = median(list) end
    medians[j].best = math.max(table.unpack(fields.rate))
      / math.max(table.unpack(lists[1].rate))
  end
  return medians
end

local function print_table(title, variants)
  print(("%s, medians of %d turns of %s s"):format(title, ROUNDS, SECONDS))
  print(ROW:format("tasks", "", "cycles/s", "ratio", "best", "p50 us",
    "p99 us"))
  for tasks in TASKS:gmatch "%d+" do
    for j, its in ipairs(compare(variants, tasks)) do
      print(ROW:format(j == 1 and tasks or "", variants[j][1],
        ("%.0f"):format(its.rate), ("%.2f"):format(its.ratio),
        ("%.2f"):format(its.best), ("%.0f"):format(its.p50_us),
        ("%.0f"):format(its.p99_us)))
    end
  end
end

local function url_of(server)
  return ("redis://127.0.0.1:%d"):format(server.port)
end

local function in_cluster()
  local one, cluster = redis.start { port = true }, clusters.start()
  print_table("lock and unlock in a cluster", {
    { "one server", url_of(one) },
    { "3 nodes", cluster.url },
    { "3 nodes, only PUBLISH", cluster.url, "publish=publish" },
    { "3 nodes, only SPUBLISH", cluster.url, "publish=spublish" },
  })
  cluster:stop()
  one:stop()
end

local function start_replica(primary)
  return redis.start { port = true, args = {
    "--replicaof", ("127.0.0.1 %d"):format(primary.port),
    "--repl-diskless-sync-delay", "0",
  } }
end

local function with_replicas()
  local primary, all = redis.start { port = true }, {}
  for i = 1, REPLICAS do all[i] = start_replica(primary) end
  eventually(function()
    local text = primary:cli("INFO", "replication")
    return select(2, text:gsub("state=online", "")) == REPLICAS
  end, 20, "the replicas have caught up")
  print_table("lock and unlock with 2 replicas", {
    { "none confirms", url_of(primary) },
    { "replicas = 1", url_of(primary), "replicas=1" },
  })
  for _, replica in ipairs(all) do replica:stop() end
  primary:stop()
end

in_cluster()
with_replicas()
