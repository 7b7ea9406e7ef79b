--- rlockctl check: explores every order in which the operations of a policy can
--  run, and prints the shortest trace of a fault.

local json = require "rlock.cli.json"
local model = require "rlock.cli.model"

local check = {}

check.usage = [[
rlockctl check POLICY [options]

Explores every order in which several clients can run the operations of a
policy: acquire, re-enter, renew, release, leave. Time passes, requests and
replies get lost, requests are retried, clients die. In every state it checks
mutual exclusion; that each operation is idempotent; that no client loses its
hold, or frees, renews or re-enters another's; that tokens grow and hold counts
are right; that a fair lock keeps the order; that no waiter is stuck, no key
stays for ever, only the lock's keys are used, and no script fails. It needs no
server. A fault is shown as a shortest list of steps, with what each client
believes, the keys, and the operation's place in the policy.

POLICY is as for `rlockctl script`; its fields are described in
lua/rlock/policy/README.md.

  --option K=V    an option of the lock, such as most=2; may be repeated
  --clients N     how many; default 2
  --ops N         acquires of each; default 2
  --ticks N       steps of time; default 3 (2 for a read/write lock)
  --tick S        seconds of one; default 1 (300 for a semaphore or a latch)
  --leases LIST   at most three; default: two ticks
  --faults LIST   what goes wrong; default: crash,lost,twice
                    crash   all clients but one die
                    lost    a request or a reply gets lost
                    twice   an operation is done twice
                    late    an old request is executed again
                    break   the lock is broken by force
                    evict   a key is lost
                    expire  a key with an expiry is lost
                    jump    the server's clock jumps, forward or back
  --limit S       seconds to search; default 60
  --seed N        random walks for half of the limit, if not all is explored
  --no-symmetry   do not treat the clients as alike
  --trace FILE    do the steps in a file, one on each line, as they are printed
  --on URL        then do them on this server as well: it must agree
  --json          print one object

Exit status: 0 no fault, 1 a fault, 3 incomplete.
]]

check.options = {
  ["--limit"] = { "limit", "S" }, ["--trace"] = { "trace", "FILE" },
  ["--on"] = { "on", "URL" }, ["--json"] = { "json" },
  ["--seed"] = { "seed", "N" },
}
for name, option in pairs(model.options) do check.options[name] = option end

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

-- The place of the faulty operation in the policy.
local function where_of(result, rows)
  return result.op and result.op.where or rows and rows[#rows].where
end

local function print_json(explored, result, rows)
  local list
  for i, row in ipairs(rows or {}) do
    list = list or {}
    list[i] = {
      step = row.text, answer = row.answer, beliefs = row.beliefs,
      keys = row.keys, where = row.where,
    }
  end
  print(json {
    policy = explored.name, states = result.states, steps = result.steps,
    complete = result.is_complete or false, fault = result.fault, trace = list,
    walks = result.walks, seed = result.seed,
    where = result.fault and where_of(result, rows),
  })
end

local function print_trace(explored, result, rows)
  if not rows[1] then return end
  require("rlock.cli.rows").print(rows, explored:names())
  local where = where_of(result, rows)
  if where then print(where) end
end

local function print_result(explored, result, is_json)
  local rows = result.trace
    and require("rlock.check.trace").rows(explored, result.trace)
  if is_json then return print_json(explored, result, rows) end
  print(summary(explored, result))
  if rows then print_trace(explored, result, rows) end
end

-- searching -------------------------------------------------------------------

-- Stops the search after `limit` seconds. Shows how far it is on a terminal,
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
  local limit = model.seconds(chosen, "limit", 60, 0.1, 86400)
  local seed = chosen.seed
    and math.floor(model.number(chosen, "seed", 0, 0, 2^31))
  local search = require "rlock.check.explore"
  if chosen.trace then
    return search.follow(explored, steps_in(explored, chosen.trace))
  elseif not seed then
    return search.run(explored, progress_of(limit))
  end
  local result = search.run(explored, progress_of(limit / 2))
  if result.fault or result.is_complete then return result end
  return search.walk(explored, result, seed, progress_of(limit / 2))
end

-- The words of a trace; a key has its name on the server.
local function lines_of(explored, real_model, list)
  local lines = {}
  for i, row in ipairs(require("rlock.check.trace").rows(explored, list)) do
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

-- Does the trace on a real server; returns whether it agrees.
local function compare(explored, result, name, chosen)
  if not result.trace then return true end
  local real_model = model.alone(name, chosen)
  local ok, problem = require("rlock.cli.real").compare(real_model,
    lines_of(explored, real_model, result.trace), chosen.on)
  print(ok and ("the server agrees, %d steps"):format(#result.trace)
    or "the server does not agree: " .. problem)
  return ok
end

local function run(operands, chosen)
  local name = model.name(operands, 1)
  local explored = model.of(name, chosen)
  local result = explore(explored, chosen)
  print_result(explored, result, chosen.json)
  local agrees = not chosen.on or compare(explored, result, name, chosen)
  if result.fault or not agrees then return 1 end
  return result.is_complete and 0 or INCOMPLETE
end

function check.run(cli, operands, chosen)
  local ok, result = pcall(run, operands, chosen)
  if ok then return result end
  return cli.fault("usage", "check: " .. tostring(result))
end

return check
