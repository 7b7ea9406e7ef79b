--- rlockctl check: explores every order in which the operations of a policy can
--- run, and prints the shortest trace of a fault.

local json = require "rlockctl.cli.json"
local bounded = require "rlockctl.cli.bounded_model"

local check = {}

check.usage = [[
rlockctl check POLICY [options]

Explores every order in which several clients can run the operations of a
policy: acquire, re-enter, renew, release, leave. Time passes, requests and
replies get lost, requests are retried, clients die. In every state it checks
mutual exclusion; that each operation is idempotent; that no client loses its
hold, or frees, renews or re-enters another's; that tokens grow and hold counts
are right; that a fair lock keeps the order; that no waiter is stuck, delayed or
not woken; that no key or part of a key outlives its use; that only the lock's
keys are used; that no script fails; and that a full server refuses only
acquire. It needs no server. A fault is shown as a shortest list of steps, with
the beliefs of each client, the keys, and the line of the operation in the
policy. Rows with "probe" are the calls that revealed the fault. With default
bounds, smaller searches of a lock follow: with three clients, unequal leases,
three holds, and a break.

POLICY is as for `rlockctl script`; its fields are described in
lua/rlock/policy/README.md.

  --option K=V    an option of the lock, such as most=2, or n=3, the number of
                  permits or of the members of a barrier; may be repeated.
                  A:K=V is an option of client A only, such as A:mode=S
  --clients N     the number of clients; default 2
  --ops N         acquires of each client; default 2
  --ticks N       steps of time; default 3 (2 for a read/write lock, 1 for a
                  barrier)
  --tick S        seconds of a step; default 1 (300 for a semaphore or a latch,
                  2.5 for a barrier, more than its lease)
  --leases LIST   at most three; default: two ticks
  --faults LIST   the faults to inject; default: crash,lost,twice
                    crash   all clients but one die
                    lost    a request or a reply gets lost
                    twice   an operation is executed twice
                    late    an old request is executed again, as if rlock did
                            not seal lost connections
                    break   the lock is broken by force
                    evict   a key is lost
                    expire  a key with an expiry is lost
                    jump    the server's clock jumps, forward or back
  --limit S       seconds to search; default 60
  --seed N        random walks for half of the limit, if not all is explored
  --no-symmetry   do not treat the clients as alike
  --trace FILE    run the steps in FILE, one per line, as in the column `step`
  --on URL        then run them on this server as well: it must agree
  --json          print one object

Exit status: 0 no fault, 1 a fault or a server that does not agree, 3
incomplete; with --on, also 202, 206 and 208, as in `rlockctl help`.
]]

---@type table<string, any>
check.options = {
  ["--limit"] = { "limit", "S" }, ["--trace"] = { "trace", "FILE" },
  ["--on"] = { "on", "URL" }, ["--json"] = { "json" },
  ["--seed"] = { "seed", "N" },
}
for name, option in pairs(bounded.options) do check.options[name] = option end

local INCOMPLETE = 3

-- output ----------------------------------------------------------------------

local function thousands(n)
  local text = ("%d"):format(n):reverse():gsub("(%d%d%d)", "%1 "):reverse()
  return (text:gsub("^ ", ""))
end

local function extent(result)
  if result.fault then return "stopped" end
  if result.is_complete then return "complete" end
  return ("incomplete at depth %d"):format(result.depth) .. (result.walks
    and (", then %s random walks (seed %d)"):format(thousands(result.walks),
      result.seed) or "")
end

local function summary(explored, result)
  return ("%s: %s states, %s steps, %d clients x %d operations, %s: %s"):format(
    explored.name, thousands(result.states), thousands(result.steps),
    explored.bounds.clients, explored.bounds.ops, extent(result),
    result.fault or "no fault found")
end

-- The line of the faulty operation in the policy.
local function where_of(result, rows)
  return result.op and result.op.where or rows and rows[#rows].where
end

-- Advice on the result, its assumptions, and what was not searched; or nil.
local function notes_of(explored, result)
  local notes = {}
  if not result.fault and not result.is_complete then
    notes[1] = "to explore all: a longer --limit, or fewer --clients, --ops or "
      .. "--ticks; --seed N explores the rest by random walks"
  end
  if explored.faults.late then
    notes[#notes + 1] = "late: this assumes that lost connections are not "
      .. "sealed; rlock's clients seal them"
  end
  notes[#notes + 1] = result.skipped
  notes[#notes + 1] = result.not_compared
  return notes[1] and notes
end

local function print_json(explored, result, rows, probes)
  local list, tried
  for i, row in ipairs(rows or {}) do
    list = list or {}
    list[i] = {
      step = row.text, answer = row.answer, beliefs = row.beliefs,
      keys = row.keys, where = row.where,
    }
  end
  for i, row in ipairs(probes or {}) do
    tried = tried or {}
    tried[i] = { call = row.text:gsub("^probe ", ""), answer = row.answer,
      keys = row.keys, where = row.where }
  end
  print(json {
    policy = explored.name, states = result.states, steps = result.steps,
    complete = result.is_complete or false, fault = result.fault, trace = list,
    probes = tried, walks = result.walks, seed = result.seed,
    notes = notes_of(explored, result),
    where = result.fault and where_of(result, rows),
  })
end

local function print_trace(explored, result, rows, probes)
  if not rows[1] then return end
  local where = where_of(result, rows)
  table.move(probes, 1, #probes, #rows + 1, rows)
  require("rlockctl.cli.trace_table").print(rows, explored:names())
  if where then print(where) end
end


local function print_result(explored, result, is_json)
  local trace, rows, probes = require "rlockctl.check.trace", nil, {}
  if result.trace then
    rows = trace.rows(explored, result.trace)
    probes = result.fault and trace.probes(explored, result) or {}
  end
  if is_json then return print_json(explored, result, rows, probes) end
  print(summary(explored, result))
  if rows then print_trace(explored, result, rows, probes) end
  for _, note in ipairs(notes_of(explored, result) or {}) do print(note) end
end

-- searching -------------------------------------------------------------------

-- Stops the search after `limit` seconds. On a terminal, shows its progress
-- twice a second.
local function progress_of(limit)
  local host = require "rlock.host.uv"
  local start, shown = host.now(), 0
  local is_terminal = host.is_terminal(2)
  return function(result)
    local now = host.now()
    if is_terminal and now - shown > 0.5 then
      shown = now
      io.stderr:write(("\r%s states, depth %d, %s steps a second "):format(
        thousands(result.states), result.depth,
        thousands(math.floor(result.steps / (now - start)))))
    end
    return now - start > limit
  end
end

local function steps_in(explored, path)
  local list, state = {}, explored:start()
  local file, problem = io.open(path)
  if not file then error("--trace: " .. problem, 0) end
  for line in file:lines() do
    ---@cast line string
    if line:find("%S") then
      local step
      step, problem = explored:read(state, line)
      if not step then error(("%s: %s: %s"):format(path, line, problem), 0) end
      list[#list + 1] = step
      explored:take(state, step)
    end
  end
  file:close()
  return list
end

-- With a seed, half of the time is for random walks, if not all states can be
-- visited in the other half.
local function explore(explored, chosen)
  local limit = bounded.seconds(chosen, "limit", 60, 0.1, 86400)
  local seed = chosen.seed
    and math.floor(bounded.number(chosen, "seed", 0, 0, 2^31))
  local search = require "rlockctl.check.explore"
  if chosen.trace then
    return search.follow(explored, steps_in(explored, chosen.trace))
  elseif not seed then
    return search.run(explored, progress_of(limit))
  end
  local result = search.run(explored, progress_of(limit / 2))
  if result.fault or result.is_complete then return result end
  return search.walk(explored, result, seed, progress_of(limit / 2))
end

-- After a complete search, runs the smaller ones, too. Returns the model and
-- the result of the first one that finds a fault or is incomplete.
local function explore_further(explored, result, name, chosen)
  local search = require "rlockctl.check.explore"
  local limit = bounded.seconds(chosen, "limit", 60, 0.1, 86400)
  if not result.is_complete or chosen.trace then return explored, result end
  local others, skipped = bounded.further(name, chosen)
  for _, other in ipairs(others) do
    local found = search.run(other, progress_of(limit))
    if not found.is_complete then return other, found end
  end
  result.skipped = skipped
  return explored, result
end

-- The lines of a trace, with the names of the keys on the server.
local function lines_of(explored, real_model, list)
  local lines = {}
  for i, row in ipairs(require("rlockctl.check.trace").rows(explored, list)) do
    lines[i] = row.text:gsub("^(e%a+) (.*)$", function(word, key)
      for k, own in ipairs(explored.keys) do
        if key:sub(1, #own) == own then
          return word .. " " .. real_model.keys[k] .. key:sub(#own + 1)
        end
      end
    end)
  end
  return lines
end

-- Runs the trace on a real server; returns whether it agrees.
local function compare(explored, result, name, chosen)
  if not result.trace then return true end
  local real_model = bounded.alone(name, chosen)
  local ok, problem = require("rlockctl.cli.real_server").compare(real_model,
    lines_of(explored, real_model, result.trace), chosen.on)
  print(ok and ("the server agrees, %d steps"):format(#result.trace)
    or "the server does not agree: " .. problem)
  return ok
end

local function run(operands, chosen)
  collectgarbage("setpause", 250)       -- almost all objects stay in use
  local name = bounded.name(operands, 1)
  local explored = bounded.of(name, chosen)
  ---@type any
  local result = explore(explored, chosen)
  explored, result = explore_further(explored, result, name, chosen)
  ---@cast result any
  if chosen.on and not result.trace then
    result.not_compared = "--on: nothing ran on the server; give the steps "
      .. "with --trace"
  end
  print_result(explored, result, chosen.json)
  local agrees = not chosen.on or compare(explored, result, name, chosen)
  if result.fault or not agrees then return 1 end
  return result.is_complete and 0 or INCOMPLETE
end

function check.run(cli, operands, chosen)
  local ok, result = pcall(run, operands, chosen)
  if ok then return result end
  return bounded.fault(cli, "check", result)
end

return check
