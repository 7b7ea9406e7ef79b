--- The holds of a grant: a list, in the order in which they were taken. Pure.
---
--- A hold is a table: `ends` is the time at which its lease ends; without it
--- the watchdog renews the hold. If `is_transferable`, any task may release it;
--- `object` is a weak reference to the program's object for it. The part of a
--- multi-lock or red lock refers to the whole as `hold`; that of a red lock has
--- a method `lost`, which is called when the grant is. A hold whose unlock got
--- no turn `is_left`: nothing renews it, and a background task releases it.

local holds = {}

local max, min = math.max, math.min

--- The hold of each `lock` without a lease: the watchdog renews it. Shared, so
--- that 100 000 of them take no memory. Nothing reads its `is_over`.
holds.RENEWED = {}

--- The lists of most grants: without a hold, and with one that is renewed. They
--- are shared for the same reason. So a function that changes a list returns
--- the list to use from then on.
holds.NONE = {}
holds.ONE = { holds.RENEWED }

local NONE, ONE, RENEWED = holds.NONE, holds.ONE, holds.RENEWED

--- Adds a hold.
---@param list table
---@param hold table
---@return table # the list, or one that replaces it
function holds.add(list, hold)
  if hold == RENEWED and not list[1] then return ONE end
  if list == NONE then return { hold } end
  if list == ONE then return { RENEWED, hold } end
  list[#list + 1] = hold
  return list
end

-- Prefers other holds to those of objects and multi-locks: each releases its
-- own, and a task of the same owner does not know of them. Those that a
-- background task releases come last, too.
local function last_of(list)
  for i = #list, 1, -1 do
    local hold = list[i]
    if not (hold.object or hold.hold or hold.is_left) then return hold, i end
  end
  return list[#list]
end

--- Stops the renewal of the most recent hold, whose unlock failed.
---@param list table
---@param ends number of the lease
---@return table # the list, or one that replaces it
---@return table? # the hold; nil if there is none to leave
function holds.leave_to_lease(list, ends)
  local hold, i = last_of(list)
  if not i or hold.is_left then return list end
  if hold == RENEWED then
    hold = { is_over = false }
    if list == ONE then list = {} end
    list[i] = hold
  end
  hold.ends, hold.is_left = min(ends, hold.ends or ends), true
  return list, hold
end

--- Removes a hold.
---@param list table
---@param hold? table default: the most recent; those of objects and of several
---  locks come last
---@return table? # the hold, if it was there
---@return table # the list, or one that replaces it
function holds.remove(list, hold)
  hold = hold or last_of(list)
  for i = #list, 1, -1 do
    if list[i] == hold then
      if list == ONE then return hold, NONE end
      return table.remove(list, i), list
    end
  end
  return nil, list
end

--- What the holds need from now on.
---@param list table
---@param now number
---@param lease number seconds, of holds that the watchdog renews
---@return number # seconds of lease; 0 or less if all leases have ended
---@return boolean # whether the watchdog must renew any of them
function holds.needed(list, now, lease)
  local ends, watched = 0, false
  for _, hold in ipairs(list) do
    if hold.ends then ends = max(ends, hold.ends) else watched = true end
  end
  local seconds = ends - now
  if watched then seconds = max(seconds, lease) end
  return seconds, watched
end

--- Marks all as over.
function holds.end_all(list)
  for _, hold in ipairs(list) do hold.is_over = true end
end

--- Can anything but its own task still release one of these holds?
function holds.are_referenced(list)
  for _, hold in ipairs(list) do
    if hold.is_transferable and hold.object[1] ~= nil then return true end
  end
  return false
end

return holds
