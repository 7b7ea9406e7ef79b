--- Who waits for a lock without a bound, and for whom. A wait is a fault of the
--- program if it lasts too long after the faults, and its holder will never
--- release: it waits in a cycle, or its task has ended.

local holders = require "rlockctl.simulate.holders"

local waits = {}

-- Records who waits without a bound.
local function recording(take)
  return function(self, wait, lease, hold)
    local host = self.session.host
    local task = wait == math.huge and host.process and host.current()
    if not task then return take(self, wait, lease, hold) end
    local list = host.process.run.waits
    list[task] = { task = task, lock = self, since = host.universe.now }
    local ok, code, detail = take(self, wait, lease, hold)
    list[task] = nil
    return ok, code, detail
  end
end

--- What a run replaces, see patch.lua.
waits.patches = { { "rlock.lock.lock", "take", recording } }

-- The holders of a lock, also in other processes: tasks, with their process.
local function holders_of(run, wanted)
  local list = {}
  for _, process in ipairs(run.processes) do
    for _, client in ipairs(process.host.is_dead and {} or process.clients) do
      for _, kind in next, client.session.kinds do
        local record = kind.records[wanted.record.name]
        for owner, granted in next, record and record.grants or {} do
          if granted.holds[1] and granted.state ~= "lost" then
            list[#list + 1] = { process = process, task = owner }
          end
        end
      end
    end
  end
  return list
end

local function name_of(wait)
  return ("process %s waits for %s"):format(wait.lock.session.host.label,
    wait.lock:show())
end

--- Follows the waits from one to the next holder.
---@return string? # what is wrong; nil: the holder may release
---@return string? # its sentence
---@return table? # the last wait
local function follow(run, wait)
  local seen, texts = {}, {}
  while wait and not seen[wait] do
    seen[wait], texts[#texts + 1] = true, name_of(wait)
    local holder = holders_of(run, wait.lock)[1]
    if not holder then
      texts[#texts] = texts[#texts] .. ", which nobody holds"
      return "wait", table.concat(texts, "; "), wait
    elseif holder.task.over then
      texts[#texts] = texts[#texts] .. ", whose holder, a task of process "
        .. holder.process.host.label .. ", has ended without unlocking it"
      return "unlock", table.concat(texts, "; "), wait
    end
    wait = run.waits[holder.task]
  end
  if wait then return "deadlock", table.concat(texts, "; "), wait end
end

-- The waits that have begun before a time, of processes that run; sorted.
local function old_ones(run, before)
  local list = {}
  for _, wait in next, run.waits do
    local host = wait.task.host
    if wait.since <= before and not host.is_dead and not host.process.ending
    then
      list[#list + 1] = wait
    end
  end
  table.sort(list, function(a, b) return a.task.serial < b.task.serial end)
  return list
end

--- Looks for a wait without an end. A cycle never ends; anything else must be
--- seen at each look for as long as waits may last, while the lock is granted
--- to nobody: a release or a grant may be under way, and a hold may begin and
--- end between two looks.
---@param run table of programs.lua
---@param before number only waits that have begun before this time
---@return string? # the sort of the fault
---@return string? # its sentence
---@return table? # the wait
function waits.endless(run, before)
  local now = run.universe.now
  for _, wait in ipairs(old_ones(run, before)) do
    ---@type any, any, any
    local what, text, last = follow(run, wait)
    if text ~= wait.text then wait.text, wait.seen = text, now end
    local since = what and math.max(wait.seen,
      holders.granted_at(run, last.lock))
    if what == "deadlock" or what and now - since >= run.patience then
      return what, text, wait
    end
  end
end

--- Does a process wait since a time before this one?
function waits.any(run, before) return old_ones(run, before)[1] ~= nil end

return waits
