--- rlockctl simulate: runs a program as several processes in a simulation that
--- injects faults, with one seed after another, until a run exposes a bug.

local simulate = {}

simulate.usage = [[
rlockctl simulate [OPTIONS] PROGRAM.lua [ARG...]

Runs the program as several processes on a virtual clock and injects faults. The
processes crash and restart, pause for longer than a lease, and lose requests
and replies. The seed determines the whole run. The first run, with seed 0, has
no faults: it measures the program. Then the command tries one seed after
another until a run exposes a bug: an uncaught error, a wait that never ends, a
lock or permit that is never released, or an invariant that is violated. It
prints the steps that lead to the bug, and the command that repeats the run.

The servers are simulated, too, whatever hosts the program names: one Redis for
each address, unless the scheme of the URL or an option selects Sentinel, Redis
Cluster or ZooKeeper.

`require "rlock.simulate"` has shared(name), a table that all processes share
and that survives their crashes; always(fn), an invariant to check after each
step; finally(fn), an invariant to check at the end of a run; and redis(...),
with which an invariant reads the data of the first server. An invariant is
violated if fn raises an error or returns false. Time, random numbers and the
order of pairs depend only on the seed. What cannot be simulated, such as
io.popen or a socket, raises an error.

An error code of rlock may end a process: after a long pause,
assert(lock:unlock()) raises "lost". Such an end is counted, but is not a bug.
Without faults, only busy, timeout and quorum may end a process, because it has
lost a race, and at least one process must succeed.

It is also a bug if a process ends normally while it has a permit of a
semaphore. Two uses of a semaphore are exempt: signals, where a process releases
permits that it has not acquired, and tickets, which no process releases.

  --processes N   the number of processes; default 3
  --runs N        the maximum number of runs after the first one
  --for DUR       the maximum processor time; default 10s, unless --runs is
                  given
  --span DUR      the virtual time after which a program that loops is stopped;
                  default 30s
  --seed N        the first seed; the only one, unless --runs or --for is given
  --cluster       simulate Redis Cluster, also for redis:// and local:
  --sentinel      simulate Redis behind Sentinels, also for redis:// and local:
  --replicas N    as --sentinel, with N replicas that confirm each request
  --zookeeper     simulate ZooKeeper, if the program names no URL
  --data LIST     the initial data of the server, such as number=0 for Redis and
                  /number=0,/other= for ZooKeeper
  --faults LIST   the faults to inject, or none; default:
                  crash,pause,late,servers
                    crash    a process crashes and restarts
                    pause    a process pauses for up to two leases
                    late     requests, replies and connections are late or lost
                    servers  servers stall, fail over or restart without data
                             loss, and slots of a cluster move
                  only if named, because rlock does not protect against them:
                    restart  Redis restarts without its data
                    evict    Redis evicts a key
                    clock    the clock of Redis jumps
  --strict        an error code of rlock that ends a process is always a bug
  --log           show what the program prints in the run that exposes the bug
  --json          print one object, also for an error

Write -- before arguments of the program that begin with -. After SIGINT, the
command ends the search and prints the result so far.

Exit status: 0 no bug found, 1 a bug found, 3 the program uses a command that
the simulated Redis lacks, 130 interrupted, 206 usage.
]]

simulate.options = {
  ["--processes"] = { "processes", "N" }, ["--runs"] = { "runs", "N" },
  ["--for"] = { "time", "DUR" }, ["--span"] = { "span", "DUR" },
  ["--seed"] = { "seed", "N" }, ["--faults"] = { "faults", "LIST" },
  ["--cluster"] = { "cluster" }, ["--sentinel"] = { "sentinel" },
  ["--replicas"] = { "replicas", "N" }, ["--zookeeper"] = { "zookeeper" },
  ["--data"] = { "data", "LIST" }, ["--strict"] = { "strict" },
  ["--log"] = { "prints" }, ["--json"] = { "json" },
}

local TIME, SPAN, PROCESSES = 10, 30, 3
local INCOMPLETE = 3

-- options ---------------------------------------------------------------------

local function number(chosen, name, default, least)
  local text = chosen[name]
  local value = text and math.tointeger(tonumber(text)) or not text and default
  if text and (not value or value < least) then
    error(("--%s: must be a whole number from %d"):format(name, least), 0)
  end
  return value
end

local function seconds(text, option, default)
  local value = text and require "rlockctl.cli.seconds"(text)
    or not text and default
  if not value or value <= 0 then
    error(("%s: must be a duration, such as 30s"):format(option), 0)
  end
  return value
end

local function groups_of(list)
  local groups, plan = {}, require "rlockctl.simulate.plan"
  if list == "none" then return groups end
  for name in (list or table.concat(plan.groups, ",")):gmatch "[^,]+" do
    local is_known = false
    for _, group in ipairs(plan.known) do
      is_known = is_known or group == name
    end
    if not is_known then
      error(("--faults: there is no %s; there are %s, and none"):format(name,
        table.concat(plan.known, ", ")), 0)
    end
    groups[name] = true
  end
  return groups
end

local SERVERS = { "cluster", "sentinel", "replicas", "zookeeper" }

-- The kind of servers that the options select, or nil.
local function servers_of(chosen)
  local sort
  for _, name in ipairs(SERVERS) do
    if chosen[name] and sort then
      error(("--%s and --%s: choose one"):format(sort, name), 0)
    end
    sort = chosen[name] and name or sort
  end
  return sort
end

local function data_of(list)
  local data = {}
  for word in (list or ""):gmatch "[^,]+" do
    local name, value = word:match "^([^=]+)=(.*)$"
    if not name then
      error(("--data: %s must be NAME=VALUE"):format(word), 0)
    end
    data[name] = value
  end
  return data
end

-- Returns a function that decides whether to stop the search. On a terminal, it
-- also shows the progress twice a second.
local function stopper(chosen)
  local host = require "rlock.host.uv"
  local runs = number(chosen, "runs", nil, 1)
  if chosen.seed and not runs and not chosen.time then runs = 1 end
  local limit = seconds(chosen.time, "--for", runs and math.huge or TIME)
  local began, shown = os.clock(), host.now()
  local is_terminal = host.is_terminal(2)
  return function(result)
    local now = host.now()
    if is_terminal and now - shown > 0.5 then
      shown = now
      io.stderr:write(("\r%d runs "):format(result.runs))
    end
    return runs and result.runs > runs        -- the probe is one more
      or os.clock() - began > limit
  end
end

local function options_of(chosen)
  return {
    processes = number(chosen, "processes", PROCESSES, 1),
    span = seconds(chosen.span, "--span", SPAN),
    seed = number(chosen, "seed", nil, 0) or os.time() * 1000,
    groups = groups_of(chosen.faults), strict = chosen.strict,
    servers = servers_of(chosen), data = data_of(chosen.data),
    replicas = number(chosen, "replicas", nil, 1),
    is_over = stopper(chosen), stop = {},
  }
end

-- The default URL of rlock.open, without its login, which has no effect.
local function default_url()
  local url = require "rlock".default_url or os.getenv "RLOCK_URL"
  return url and url ~= "" and url:gsub("://%S*@", "://") or nil
end

local function program_of(operands)
  local path = operands[1]
  if not path then error("which program? PROGRAM.lua", 0) end
  local fn, problem = loadfile(path, "t")
  if not fn then error(problem, 0) end
  return {
    path = path, chunks = {}, version = require("rlock.host.uv").version,
    arg = table.move(operands, 2, #operands, 1, { [0] = path }),
    url = default_url(),
  }
end

-- The command that repeats a seed; nil without one. It has all options that
-- affect a run, and the URL from the environment.
local function command_of(chosen, operands, seed, url)
  if not seed then return nil end
  local quoted = require("rlockctl.doctor.common").quoted
  local words = { ("rlockctl simulate --seed %d"):format(seed) }
  local has_dash = false
  local function add(name, value)
    if value then
      words[#words + 1] = ("--%s %s"):format(name, quoted(value))
    end
  end
  for _, name in ipairs { "processes", "span", "faults", "replicas", "data" } do
    add(name, chosen[name])
  end
  for _, name in ipairs { "cluster", "sentinel", "zookeeper", "strict" } do
    if chosen[name] then words[#words + 1] = "--" .. name end
  end
  add("url", url)
  for _, path in ipairs(chosen.lua_path or {}) do add("lua-path", path) end
  for _, operand in ipairs(operands) do
    has_dash = has_dash or operand:find "^%-" ~= nil
  end
  if has_dash then words[#words + 1] = "--" end
  for _, operand in ipairs(operands) do
    words[#words + 1] = quoted(operand)
  end
  return table.concat(words, " ")
end

-- the command -----------------------------------------------------------------

local function print_json(result, command, problem)
  local bug, shown = result.run and result.run.bug, result.shown or {}
  print(require "rlockctl.cli.json" {
    runs = result.runs, without_faults = result.calm, codes = result.codes,
    seed = result.seed, bug = shown.bug or bug, steps = shown.steps,
    log = shown.log, reproducible = result.is_reproducible,
    cause = result.cause, command = command, error = problem,
    interrupted = result.is_stopped or nil,
  })
end

-- A signal ends the search at once, even in a loop of the program that never
-- waits.
local function take_signals(stop, program)
  local cut
  require("rlock.host.uv").on_interrupt(function(signal)
    local universe = stop.universe
    if not stop.status then
      stop.status, cut = 128 + signal, universe
      if universe then universe.is_over = true end
    end
    local info = debug.getinfo(2, "S") --[[@as table]]
    local path = info.source:match "^@(.*)"
    if universe == cut and program.chunks[path or ""] then
      error("interrupted", 0)
    end
  end)
end

function simulate.run(cli, operands, chosen)
  local ok, options, program = pcall(function()
    return options_of(chosen), program_of(operands)
  end)
  if not ok then
    if chosen.json then print_json({}, nil, options) end
    return cli.fault("usage", "simulate: " .. options)
  end
  take_signals(options.stop, program)
  local result = require("rlockctl.simulate.search").run(program, options)
  local lack = result.lack and "the simulated Redis has no " .. result.lack
  local command = command_of(chosen, operands, result.seed, program.url)
  if chosen.json then
    print_json(result, command, lack or nil)
  elseif not lack then
    require("rlockctl.simulate.report").print(result, program.path, command,
      chosen.prints)
  end
  if lack then
    cli.complain("simulate: " .. lack)
    return INCOMPLETE
  end
  return options.stop.status or result.run and 1 or 0
end

return simulate
