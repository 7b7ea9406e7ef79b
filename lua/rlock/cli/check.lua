--- rlockctl check: explores every order in which the operations of a policy can
--  run, and prints the shortest trace of a fault.

local json = require "rlock.cli.json"

local check = {}

check.usage = [[
rlockctl check POLICY [options]

Explores every order in which several clients can run the operations of a
policy: acquire, re-enter, renew, release, leave. Time passes, replies get lost
and requests are retried, clients die. In every state it checks that the lock
excludes, that each operation is idempotent, that no client loses or frees what
is another's, and that nothing is stuck. It needs no server.

POLICY is as for `rlockctl script`. A policy that is not exclusive says in its
field `allows` who may hold it together.

  --option K=V    an option of the lock, such as most=2; may be repeated
  --clients N     default 2        --ops N     acquires of each; default 2
  --ticks N       default 3        --tick S    seconds of one; default 1
  --faults LIST   of crash, lost, late, break, remove; default crash,lost
  --limit S       seconds to search; default 60
  --no-symmetry   do not treat the clients as alike
  --trace FILE    replay the steps in a file, one on each line
  --json          print one object

Exit status: 0 no fault, 1 a fault, 3 incomplete.
]]

check.options = {
  ["--option"] = { "option", "K=V", all = true },
  ["--clients"] = { "clients", "N" }, ["--ops"] = { "ops", "N" },
  ["--ticks"] = { "ticks", "N" }, ["--tick"] = { "tick", "S" },
  ["--faults"] = { "faults", "LIST" }, ["--limit"] = { "limit", "S" },
  ["--no-symmetry"] = { "no_symmetry" }, ["--trace"] = { "trace", "FILE" },
  ["--json"] = { "json" },
}

local INCOMPLETE = 3

-- options ---------------------------------------------------------------------

local FAULTS = { crash = true, lost = true, late = true, ["break"] = true,
  remove = true }

local function faults_of(text)
  local faults = {}
  for word in (text or "crash,lost"):gmatch("[^,%s]+") do
    if not FAULTS[word] then return nil, "--faults: unknown fault " .. word end
    faults[word] = true
  end
  return faults
end

local function number(chosen, name, default, least, most)
  local text = chosen[name]
  if text == nil then return default end
  local value = tonumber(text)
  if not value or value < least or value > most then
    error(("--%s must be a number from %g to %g"):format(name, least, most), 0)
  end
  return value
end

-- Values of options of the lock: numbers and booleans are recognised.
local function lock_options(list)
  local options = {}
  for _, text in ipairs(list or {}) do
    local key, value = text:match("^([^=]+)=(.*)$")
    if not key then error("--option must be K=V", 0) end
    if value == "true" or value == "false" then value = value == "true" end
    options[key] = tonumber(value) or value
  end
  return options
end

local function bounds_of(chosen)
  local faults, problem = faults_of(chosen.faults)
  if not faults then error(problem, 0) end
  local tick = math.floor(number(chosen, "tick", 1, 0.01, 3600) * 1000)
  return {
    clients = math.floor(number(chosen, "clients", 2, 1, 5)),
    ops = math.floor(number(chosen, "ops", 2, 1, 100)),
    ticks = math.floor(number(chosen, "ticks", 3, 0, 1000)),
    tick = tick, leases = { 2 * tick }, most_holds = 2, faults = faults,
    breaks = faults["break"] and 1 or 0,
    evictions = faults.remove and 1 or 0,
    options = lock_options(chosen.option),
    is_symmetric = not chosen.no_symmetry,
  }
end

-- The sides of a policy: itself, or read and write.
local function sides_of(name)
  local load = require("rlock.policy").load
  local is_own = not name:find(".", 1, true)
  local ok, found = pcall(require, is_own and "rlock.policy." .. name or name)
  if ok and type(found) == "table" and not found.server
      and type(found.read) == "table" and type(found.write) == "table" then
    return { load(found.read, 0), load(found.write, 0) }
  end
  return { load(name, 0) }
end

-- output ----------------------------------------------------------------------

local function pad(text, width) return text .. (" "):rep(width - #text) end

local function print_table(rows)
  local widths = {}
  local function cells(row)
    local list = { row.text, row.answer }
    for _, belief in ipairs(row.beliefs) do list[#list + 1] = belief end
    return list
  end
  local head = { text = "step", answer = "answer", beliefs = {}, keys = { "keys" } }
  for i = 1, #rows[1].beliefs do head.beliefs[i] = string.char(64 + i) end
  table.insert(rows, 1, head)
  for _, row in ipairs(rows) do
    for i, cell in ipairs(cells(row)) do
      widths[i] = math.max(widths[i] or 0, #cell)
    end
  end
  for n, row in ipairs(rows) do
    local line = { pad(n > 1 and tostring(n - 1) or "", 3) }
    for i, cell in ipairs(cells(row)) do line[#line + 1] = pad(cell, widths[i]) end
    local left = table.concat(line, "  ")
    for i, key in ipairs(row.keys[1] and row.keys or { "-" }) do
      print((i == 1 and left or (" "):rep(#left)) .. "  " .. key)
    end
  end
end

local function thousands(n)
  local text = ("%d"):format(n):reverse():gsub("(%d%d%d)", "%1 "):reverse()
  return (text:gsub("^ ", ""))
end

local function summary(lock, result)
  return ("%s: %s states, %s steps, %d clients x %d operations, %s: %s"):format(
    lock.name, thousands(result.states), thousands(result.steps),
    lock.bounds.clients, lock.bounds.ops,
    result.fault and "stopped" or result.is_complete and "complete"
      or ("incomplete at depth %d"):format(result.depth),
    result.fault or "no fault found")
end

local function print_result(lock, result, is_json)
  local rows = result.trace and require("rlock.check.trace")
    .rows(lock, result.trace)
  if is_json then
    print(json {
      policy = lock.name, states = result.states, steps = result.steps,
      complete = result.is_complete or false, fault = result.fault,
      trace = rows,
    })
    return
  end
  print(summary(lock, result))
  if rows then
    local where = rows[#rows].where
    print_table(rows)
    if where then print(where) end
  end
end

-- running ---------------------------------------------------------------------

-- Shows how far the search is, on a terminal, twice a second.
local function progress_of(limit)
  local host = require "rlock.host.uv"
  local start, shown = host.now(), 0
  local is_terminal = host.is_terminal(2)
  return function(result)
    local now = host.now()
    if is_terminal and now - shown > 0.5 then
      shown = now
      io.stderr:write(("\r%s states, depth %d "):format(
        thousands(result.states), result.depth))
    end
    return now - start > limit
  end
end

local function replay(lock, path)
  local trace = require "rlock.check.trace"
  local file = assert(io.open(path))
  local list = {}
  for line in file:lines() do
    local _, state = trace.rows(lock, list)
    if line:find("%S") then
      local step, problem = trace.read(lock, state, line)
      if not step then error(path .. ": " .. problem, 0) end
      list[#list + 1] = step
    end
  end
  file:close()
  return list
end

local function run(name, chosen)
  local explore = require "rlock.check.explore"
  local bounds = bounds_of(chosen)
  local limit = number(chosen, "limit", 60, 0.1, 86400)
  local lock = explore.lock(sides_of(name), bounds)
  local result
  if chosen.trace then
    result = explore.follow(lock, replay(lock, chosen.trace))
  else
    result = explore.run(lock, progress_of(limit))
  end
  print_result(lock, result, chosen.json)
  return result.fault and 1 or result.is_complete and 0 or INCOMPLETE
end

function check.run(cli, operands, chosen)
  local name = operands[1]
  if not name or operands[2] then
    return cli.fault("usage", "check: give one policy")
  end
  local ok, result = pcall(run, name, chosen)
  if ok then return result end
  return cli.fault("usage", "check: " .. tostring(result))
end

return check
