--- The wait-for graph, by the waits that clients announce (rlock.lock.deadlock)
--- and the holders that the server knows. Pure. A wait has
---   id, kind, name, owner   of the waiter, for the lock of that name
---   waited                  seconds
---   place                   of the lock: its server and name
---   held                    { by, kind, name, owner } of each lock that its
---                           task holds; any task may release it if `by` is
---                           "object"

local percent = require "rlock.util.percent"

local graph = {}

local LONGEST = 1e12     -- ms of a wait: os.date can show when it began

--- Parses an announcement. It is untrusted: any client may write any.
---@param text string
---@return table? # a wait; `waited` is that of the announcement
function graph.parse(text)
  local words = {}
  for word in text:gmatch "%S+" do words[#words + 1] = percent.decode(word) end
  local number, ms = words[1], tonumber(words[2])
  if not ms or not (ms >= 0 and ms <= LONGEST) or not words[5]
      or #words % 4 ~= 1 then
    return nil
  end
  local wait = { kind = words[3], name = words[4], owner = words[5],
    waited = ms / 1000, held = {},
    id = table.concat({ number, words[4], words[5] }, " ") }
  for i = 6, #words, 4 do
    wait.held[#wait.held + 1] = { by = words[i], kind = words[i + 1],
      name = words[i + 2], owner = words[i + 3] }
  end
  return wait
end

-- Do holders of one kind keep out waiters of the other?
local function excludes(kind, other)
  return not (kind:find "%.read$" and other:find "%.read$")
end

-- Does a hold keep out a wait?
local function is_ahead(hold, wait, holders)
  local known = holders and holders[wait.place]
  return hold.name == wait.name and excludes(hold.kind, wait.kind)
    and (not holders or known and known[hold.owner])
end

-- The first of these waits whose task keeps out a wait, and by which hold. One
-- permit is enough, so all of its holders must be among the waits.
local function ahead_of(wait, waits, holders)
  local first, its, seen = nil, nil, {}
  for _, other in ipairs(waits) do
    for _, hold in ipairs(other.held) do
      if is_ahead(hold, wait, holders) then
        first, its, seen[hold.owner] = first or other, its or hold, true
      end
    end
  end
  local all = wait.kind == "permits" and holders and holders[wait.place]
  for owner in pairs(all or {}) do
    if not seen[owner] then return nil end
  end
  return first, its
end

--- The waits that only another one of them can end.
---@param waits table
---@param holders? table place of a lock -> the set of its owners; default: as
---  announced
---@return table # a list
function graph.stuck(waits, holders)
  local before
  repeat
    local left = {}
    for _, wait in ipairs(waits) do
      if ahead_of(wait, waits, holders) then left[#left + 1] = wait end
    end
    before, waits = waits, left
  until #before == #waits
  return waits
end

-- Follows the waits from the first one; returns a cycle.
local function cycle_in(waits, holders)
  local path, place, wait = {}, {}, waits[1]
  while not place[wait] do
    local ahead, hold = ahead_of(wait, waits, holders)
    path[#path + 1] = { wait = wait, ahead = ahead, hold = hold }
    place[wait] = #path
    wait = ahead
  end
  return table.move(path, place[wait], #path, 1, {})
end

--- The cycles of waits, of which each task is in one at most.
---@param waits table
---@param holders table as for `stuck`
---@return table # a list of cycles: steps { wait =, ahead = the wait of the
---  task that keeps it out, hold = by which }
function graph.cycles(waits, holders)
  local cycles = {}
  waits = graph.stuck(waits, holders)
  while waits[1] do
    local cycle, is_in, rest = cycle_in(waits, holders), {}, {}
    for _, step in ipairs(cycle) do is_in[step.wait] = true end
    for _, wait in ipairs(waits) do
      if not is_in[wait] then rest[#rest + 1] = wait end
    end
    cycles[#cycles + 1] = cycle
    waits = graph.stuck(rest, holders)
  end
  return cycles
end

return graph
