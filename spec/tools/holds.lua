--- Checks recorded holds of one lock, without rlock: which overlapped, and
--- which updates were lost.
---
---   local seen = holds.judge { "file", ... }
---   seen.grants.nginx                      how many holds of a kind there were
---   seen.overlaps["redisson rlock"]        by the holds' kinds, that of the
---                                          older hold first; nil: none
---   seen.lost                              updates that a hold did not see
---                                          although neither overlapped
---   seen.unfinished                        holds without an end
---
--- A record is "acquire|release KIND/N TICKET NUMBER". The tickets order the
--- records of all processes; NUMBER is what the holder has written.

local holds = {}

local MAKERS = { rlockctl = "rlock", nginx = "rlock", redisson = "redisson" }

-- Reads a file's holds into a list. A process numbers its owners, so that they
-- are known by file and name.
local function read(path, list)
  local open = {}
  for line in io.lines(path) do
    local what, owner, ticket, number =
      line:match "^(%l+) (%S+) (%d+) (%d+)$"
    ticket, number = tonumber(ticket), tonumber(number)
    if what == "acquire" then
      local kind = owner:match "^%l+"
      open[owner] = { kind = kind, maker = MAKERS[kind], from = ticket,
        to = math.huge }
      list[#list + 1] = open[owner]
    else
      assert(what == "release", line)
      local hold = open[owner]
      hold.to, hold.number, open[owner] = ticket, number, nil
    end
  end
end

local function add(counts, key) counts[key] = (counts[key] or 0) + 1 end

-- Compares a hold with those that had not ended when it began.
local function compare(hold, current, overlaps)
  local still = { hold }
  for _, older in ipairs(current) do
    if older.to > hold.from then
      add(overlaps, older.maker .. " " .. hold.maker)
      older.is_shared, hold.is_shared = true, true
      still[#still + 1] = older
    end
  end
  return still
end

-- Counts holds that have not continued the number of the one before.
local function count_lost(list)
  local lost = 0
  for i = 2, #list do
    local before, after = list[i - 1], list[i]
    if not before.is_shared and not after.is_shared
        and after.number ~= before.number + 1 then
      lost = lost + 1
    end
  end
  return lost
end

--- Judges the holds in files.
function holds.judge(paths)
  local list, current = {}, {}
  local seen = { grants = {}, overlaps = {}, unfinished = 0 }
  for _, path in ipairs(paths) do read(path, list) end
  table.sort(list, function(a, b) return a.from < b.from end)
  for _, hold in ipairs(list) do
    add(seen.grants, hold.kind)
    if not hold.number then seen.unfinished = seen.unfinished + 1 end
    current = compare(hold, current, seen.overlaps)
  end
  seen.lost = count_lost(list)
  return seen
end

return holds
