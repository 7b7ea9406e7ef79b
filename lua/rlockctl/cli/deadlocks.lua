--- rlockctl deadlocks: tasks that wait for each other.

local graph = require "rlockctl.cli.wait_graph"
local host = require "rlock.host.uv"
local json = require "rlockctl.cli.json"
local stores = require "rlockctl.cli.stores"
local text = require "rlockctl.cli.text"

local deadlocks = {}

deadlocks.usage = [[
rlockctl deadlocks [URL...] [--json]

Shows deadlocks across processes and machines: cycles of tasks, in which each
task holds a lock and waits for a lock that the next one holds. Shows program,
host and process of each task, and when its wait began. Read-only. A URL is as
for --url. With several URLs, also finds cycles across their servers.

The library prevents deadlocks among the tasks of one process: lock() returns
"deadlock". A task that holds a lock and has waited for another one for more
than a second announces both to the server. This command reads the announcements
and the locks, and shows only cycles that persist. Announcements of a dead
process expire after 30 s.

Not part of a deadlock: a hold whose lease is not renewed, a hold with an
explicit owner, a semaphore, a latch. A hold taken by lock:hold(), or a permit,
may be part of one, although another task may release it: the output says so.

  --json   print one object per line, one for each deadlock

Exit status: 0 there is none, 1 there is one. If a master of a cluster fails,
shows the deadlocks of the others; without any, the status is 202.
]]

deadlocks.options = { ["--json"] = { "json" } }

-- finding them ----------------------------------------------------------------

--- The waits that clients announce at their servers. If a master of a cluster
--- fails, `gap` gets its `code` and `detail`.
---@return any # a list
---@return rlock.failure? code, string? detail
local function waits_of(clients, gap)
  local all = {}
  for i, client in ipairs(clients) do
    local waits, code, detail = stores.of(client).waits(client)
    if not waits then return nil, code, detail end
    gap.code, gap.detail = code or gap.code, detail or gap.detail
    for _, wait in ipairs(waits) do
      wait.client, wait.place = client, i .. " " .. wait.name
      all[#all + 1] = wait
    end
  end
  return all
end

--- The owners of the locks that these waits are for: place -> set. None if the
--- lock's server fails; see `waits_of` for `gap`.
---@return any # the table
local function holders_of(waits, gap)
  local holders = {}
  for _, wait in ipairs(waits) do
    if not holders[wait.place] then
      local states, code, detail =
        stores.of(wait.client).at(wait.client, wait.name)
      if not states and code ~= "refused" and code ~= "usage" then
        gap.code, gap.detail = code, detail
      end
      local owners = {}
      for _, state in ipairs(states or {}) do
        for _, holder in ipairs(state.holders) do
          owners[holder.owner] = true
        end
        -- Other permits, of which one is enough.
        if (state.available or 0) > 0 or (state.in_use or 0) > #state.holders
        then
          owners[""] = true
        end
      end
      holders[wait.place] = owners
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
local function identify(cycle)
  for _, step in ipairs(cycle) do
    local wait = step.wait
    local ok, code, detail = stores.of(wait.client).complete(wait.client,
      { { name = wait.name, holders = { wait } } })
    if not ok then return nil, code, detail end
  end
  return true
end

--- Finds the deadlocks. A waiting task neither acquires nor releases locks. So
--- if it is in the same wait as before, its holds have not changed since.
---@param clients table
---@return table? # a list, see wait_graph.cycles; waits have `who`, if known
---@return rlock.failure? code, string? detail also with a list: there may be
---  more, at a master of a cluster that fails
function deadlocks.find(clients)
  local gap = {}
  local waits, code, detail = waits_of(clients, gap)
  if not waits then return nil, code, detail end
  waits = graph.stuck(waits)
  if not waits[1] then return {}, gap.code, gap.detail end
  local holders = holders_of(waits, gap)
  local now
  now, code, detail = waits_of(clients, gap)
  if not now then return nil, code, detail end
  local cycles = graph.cycles(lasting(waits, now), holders)
  for _, cycle in ipairs(cycles) do
    local ok
    ok, code, detail = identify(cycle)
    if not ok then return nil, code, detail end
  end
  return cycles, gap.code, gap.detail
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
  local clients = {}
  for i = 1, math.max(#operands, 1) do
    local client, code, detail = require("rlock").open(operands[i])
    if not client then return cli.fault(code, detail) end
    clients[i] = client
  end
  local cycles, code, detail = deadlocks.find(clients)
  if not cycles then return cli.fault(code, "deadlocks: " .. detail) end
  for _, cycle in ipairs(cycles) do
    print(chosen.json and json(record_of(cycle))
      or table.concat(lines_of(cycle), "\n"))
  end
  local status = 0
  if code then
    status = cli.fault(code, "deadlocks: incomplete search: " .. detail)
  elseif not cycles[1] and not chosen.json and host.is_terminal(1) then
    print "no deadlocks"
  end
  return cycles[1] and 1 or status
end

return deadlocks
