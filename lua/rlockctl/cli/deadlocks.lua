--- rlockctl deadlocks: tasks that wait for each other.

local graph = require "rlockctl.cli.wait_graph"
local host = require "rlock.host.uv"
local json = require "rlockctl.cli.json"
local stores = require "rlockctl.cli.stores"
local text = require "rlockctl.cli.text"

local deadlocks = {}

deadlocks.usage = [[
rlockctl deadlocks [URL] [--json]

Shows deadlocks across processes and machines: cycles of tasks, in which each
task holds a lock and waits for a lock that the next one holds. Shows program,
host and process of each task, and when its wait began. Read-only. The URL is as
for --url.

The library prevents deadlocks among the tasks of one client: lock() returns
"deadlock". A task that holds a lock and has waited for another one for more
than a second announces both to the server. This command reads the announcements
and the locks, and shows only cycles that persist. Announcements of a dead
process expire after 30 s.

Not part of a deadlock: a hold whose lease is not renewed, a hold with an
explicit owner, a semaphore, a permit, a latch. A hold taken by lock:hold() may
be part of one, although another task may release it: the output says so.
Independent servers are searched separately, so a cycle across them is not
found.

  --json   print one object per line, one for each deadlock

Exit status: 0 there is none, 1 there is one.
]]

deadlocks.options = { ["--json"] = { "json" } }

-- finding them ----------------------------------------------------------------

--- The owners of the locks that these waits are for: name -> set.
---@return any # the table
---@return rlock.failure? code
---@return string? detail
local function holders_of(client, waits)
  local store, holders = stores.of(client), {}
  for _, wait in ipairs(waits) do
    if not holders[wait.name] then
      local states, code, detail = store.at(client, wait.name)
      if not states and code ~= "refused" and code ~= "usage" then
        return nil, code, detail
      end
      holders[wait.name] = {}
      for _, state in ipairs(states or {}) do
        for _, holder in ipairs(state.holders) do
          holders[wait.name][holder.owner] = true
        end
      end
    end
  end
  return holders
end

-- The waits of a list that still last, in their current state.
local function lasting(waits, now)
  local by_id, left = {}, {}
  for _, wait in ipairs(now) do by_id[wait.id] = wait end
  for _, wait in ipairs(waits) do left[#left + 1] = by_id[wait.id] end
  return left
end

-- Adds the identities of the tasks of a cycle.
local function identify(client, cycle)
  local state = { name = cycle[1].wait.name, holders = {} }
  for i, step in ipairs(cycle) do state.holders[i] = step.wait end
  return stores.of(client).complete(client, { state })
end

--- Finds the deadlocks. A waiting task neither acquires nor releases locks. So
--- if it is in the same wait as before, its holds have not changed since.
---@param client table
---@return table? # a list, see wait_graph.cycles; waits have `who`, if known
---@return rlock.failure? code
---@return string? detail
function deadlocks.find(client)
  local store = stores.of(client)
  local waits, code, detail = store.waits(client)
  if not waits then return nil, code, detail end
  waits = graph.stuck(waits)
  if not waits[1] then return {} end
  local holders, now
  holders, code, detail = holders_of(client, waits)
  if not holders then return nil, code, detail end
  now, code, detail = store.waits(client)
  if not now then return nil, code, detail end
  local cycles = graph.cycles(lasting(waits, now), holders)
  for _, cycle in ipairs(cycles) do
    local ok
    ok, code, detail = identify(client, cycle)
    if not ok then return nil, code, detail end
  end
  return cycles
end

-- showing them ----------------------------------------------------------------

-- The hold by which the task of the i-th step keeps out the one before.
local function hold_at(cycle, i)
  return cycle[i > 1 and i - 1 or #cycle].hold
end

local function lines_of(cycle)
  local lines = { ("%d task%s wait%s for each other:"):format(#cycle,
    #cycle == 1 and "" or "s", #cycle == 1 and "s" or "") }
  if #cycle == 1 then lines[1] = "a task waits for itself:" end
  for i, step in ipairs(cycle) do
    local wait, hold = step.wait, hold_at(cycle, i)
    lines[i + 1] = ("  %s holds %s%s and waits for %s, for %.0f s, since %s")
      :format(text.who(wait), text.show(hold.name),
        hold.by == "object" and " (another task may release it)" or "",
        text.show(wait.name), wait.waited,
        os.date("%Y-%m-%d %H:%M:%S", os.time() - wait.waited // 1 | 0))
  end
  return lines
end

local function record_of(cycle)
  local tasks = {}
  for i, step in ipairs(cycle) do
    local wait, hold = step.wait, hold_at(cycle, i)
    tasks[i] = { owner = wait.owner, who = wait.who, address = wait.address,
      waits_for = wait.name, kind = wait.kind, holds = hold.name,
      by_object = hold.by == "object",
      waited_ms = math.floor(wait.waited * 1000 + 0.5),
      since = os.date("!%Y-%m-%dT%H:%M:%SZ", os.time() - wait.waited // 1 | 0) }
  end
  return { tasks = tasks }
end

function deadlocks.run(cli, operands, chosen)
  if operands[2] then
    return cli.fault("usage", "deadlocks: give one URL at most")
  end
  ---@type any, any, any
  local client, code, detail = require("rlock").open(operands[1])
  if not client then return cli.fault(code, detail) end
  ---@type any
  local cycles
  cycles, code, detail = deadlocks.find(client)
  if not cycles then return cli.fault(code, "deadlocks: " .. detail) end
  for _, cycle in ipairs(cycles) do
    print(chosen.json and json(record_of(cycle))
      or table.concat(lines_of(cycle), "\n"))
  end
  if not cycles[1] and not chosen.json and host.is_terminal(1) then
    print "no deadlocks"
  end
  return cycles[1] and 1 or 0
end

return deadlocks
