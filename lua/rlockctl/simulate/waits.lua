--- Finds waits that never end: deadlocks, and locks that nobody will release.
--- Only unbounded waits count. A wait is a bug of the program if it lasts too
--- long after the injected faults and the holder will never release the lock,
--- because the holder waits in a cycle or its task has ended.

local holders = require "rlockctl.simulate.holders"

local waits = {}

-- recording -------------------------------------------------------------------

-- Calls fn(...), and records that the running task waits until fn returns.
-- `locks` are the locks of which at least one must be released first.
local function recorded(self, locks, fn, ...)
  local host = self.session.host
  local task = host.process and host.current()
  if not task then return fn(...) end
  local list = host.process.run.waits
  local outer = list[task]
  local _ <close> = setmetatable({}, { __close = function()
    list[task] = outer                  -- a cancellation raises
  end })
  list[task] = { task = task, what = self, locks = locks, host = host,
    since = host.universe.now }
  return fn(...)
end

local function taking(locks_of)
  return function(take)
    return function(self, wait, ...)
      if wait ~= math.huge then return take(self, wait, ...) end
      return recorded(self, locks_of(self), take, self, wait, ...)
    end
  end
end

local function members(lock) return lock.members end

-- A majority is enough, so one holder keeps nobody out.
local function none() return {} end

local function calling(start)
  return function(call, waiter, since, wait_deadline, ms)
    if not call.counter or wait_deadline ~= math.huge then
      return start(call, waiter, since, wait_deadline, ms)
    end
    return recorded(call, {}, start, call, waiter, since, wait_deadline, ms)
  end
end

--- The functions that a run replaces, see patch.lua.
waits.patches = {
  { "rlock.lock.lock", "take", taking(function(lock) return { lock } end) },
  { "rlock.several.multi", "take", taking(members) },
  { "rlock.several.quorum", "take", taking(none) },
  { "rlock.lock.waiting", "start", calling },
}

-- holders ---------------------------------------------------------------------

-- The clients of a live process that have the same server as a lock.
local function clients_at(process, wanted)
  local list, server = {}, holders.server_of(wanted.session)
  for _, client in ipairs(process.host.is_dead and {} or process.clients) do
    if holders.server_of(client.session) == server then
      list[#list + 1] = client
    end
  end
  return list
end

-- Adds the holders of a lock in all processes: tasks, with their process.
local function add_holders(list, run, wanted)
  for _, process in ipairs(run.processes) do
    for _, client in ipairs(clients_at(process, wanted)) do
      for _, kind in next, client.session.kinds do
        local record = kind.records[wanted.record.name]
        for owner, granted in next, record and record.grants or {} do
          if granted.holds[1] and granted.state ~= "lost" then
            list[#list + 1] = { process = process, task = owner,
              granted = granted }
          end
        end
      end
    end
  end
end

local function serial_of(holder) return holder.task.serial or 0 end

local function is_before(one, other)
  local a, b = one.process.number, other.process.number
  if a ~= b then return a < b end
  return serial_of(one) < serial_of(other)
end

-- The holders of what a wait needs.
local function holders_of(run, wait)
  local list = {}
  for _, lock in ipairs(wait.locks) do add_holders(list, run, lock) end
  table.sort(list, is_before)
  return list
end

local function name_of(wait)
  return ("process %s waits for %s"):format(wait.host.label, wait.what:show())
end

-- Follows a wait to its holders, and their waits: each has to release.
-- `path` has the waits that have led here, and whether each is among them;
-- `texts`, their sentences; `seen`, the waits that may end.
local function visit(run, wait, path, texts, seen)
  if not wait or not wait.locks[1] or seen[wait] then return nil end
  texts[#texts + 1], path[wait] = name_of(wait), true
  local list = holders_of(run, wait)
  if not list[1] then
    texts[#texts] = texts[#texts] .. ", which nobody holds"
    return "wait", table.concat(texts, "; "), wait
  end
  for _, holder in ipairs(list) do
    local its = run.waits[holder.task]
    if path[its] then
      return "deadlock", table.concat(texts, "; "), wait
    elseif holder.granted:is_abandoned() then
      texts[#texts] = texts[#texts] .. ", whose holder, a task of process "
        .. holder.process.host.label .. ", has ended without unlocking it"
      return "unlock", table.concat(texts, "; "), wait
    end
    local what, text, last = visit(run, its, path, texts, seen)
    if what then return what, text, last end
  end
  path[wait], seen[wait], texts[#texts] = nil, true, nil
end

--- Follows a wait to its holders, and on (the wait-for graph).
---@return string? # what is wrong; nil: the holders may release
---@return string? # its sentence
---@return table? # the last wait
local function follow(run, wait)
  return visit(run, wait, {}, {}, {})
end

-- The time at which one of the locks of a wait was last granted, or -1.
local function granted_at(run, wait)
  local last = -1
  for _, lock in ipairs(wait.locks) do
    last = math.max(last, holders.granted_at(run, lock))
  end
  return last
end

-- processes -------------------------------------------------------------------

local function runs(process)
  return not process.host.is_dead and not process.ending
end

local function holds_anything(process)
  for _, client in ipairs(process.clients) do
    if client.session.watchdog:is_needed() then return true end
  end
  return false
end

-- Does a task wait, without a bound, for an event or for another task to end?
local function is_parked(task)
  local event = task.wait_of
  return event and event.pause and not event.deadline and not event.is_delayed
end

-- The tasks of the program that have not ended, in the order in which they
-- started.
local function tasks_of(host)
  local list = {}
  for task in next, host.tasks do
    if not task.is_daemon then list[#list + 1] = task end
  end
  table.sort(list, function(a, b) return a.serial < b.serial end)
  return list
end

--- What each task of a process waits for; nil if a task does something else, or
--- if a callback of a hold may wake one.
---@return table? # texts, perhaps with duplicates
---@return string? # a mark that identifies this state
local function all_waiting(run, process)
  local texts, marks, parked = {}, {}, false
  local tasks = tasks_of(process.host)
  for i, task in ipairs(tasks) do
    local wait = run.waits[task]
    if wait then
      texts[#texts + 1] = name_of(wait)
    elseif is_parked(task) then
      parked = true
    else
      return nil
    end
    marks[i] = ("%d:%s"):format(task.serial,
      wait and wait.since or task.wait_of.serial)
  end
  if not tasks[1] or parked and holds_anything(process) then return nil end
  if not texts[1] then
    texts[1] = ("process %s waits for an event or a task"):format(
      process.host.label)
  end
  return texts, table.concat(marks, " ")
end

--- Does every task of every process wait? Then no process makes progress.
---@return string? # a sentence that describes it, or nil
---@return string? # a mark that identifies this state
---@return table? # the first process
local function standstill(run)
  if run.coming > 0 then return nil end
  local texts, marks, first = {}, {}, nil
  for _, process in ipairs(run.processes) do
    if runs(process) then
      local its, mark = all_waiting(run, process)
      if not its then return nil end
      table.move(its, 1, #its, #texts + 1, texts)
      marks[#marks + 1], first = mark, first or process
    end
  end
  if not first then return nil end
  return table.concat(texts, "; ") .. "; and no task does anything else",
    table.concat(marks, " "), first
end

-- the check -------------------------------------------------------------------

-- The waits of running processes that began before a time; sorted.
local function old_ones(run, before)
  local list = {}
  for _, wait in next, run.waits do
    if wait.since <= before and wait.locks[1] and runs(wait.host.process) then
      list[#list + 1] = wait
    end
  end
  table.sort(list, function(a, b) return a.task.serial < b.task.serial end)
  return list
end

-- Has no process made progress for as long as waits may last?
local function look_at_all(run)
  ---@type any, any, any
  local text, mark, first = standstill(run)
  local now, still = run.universe.now, run.still
  if not text then
    run.still = nil
  elseif not still or still.mark ~= mark then
    run.still = { mark = mark, since = now }
  elseif now - still.since >= run.patience then
    return "wait", text, first.host
  end
end

--- Finds a wait that never ends. A cycle never ends. Any other wait counts only
--- if every check sees it for as long as waits may last, and if nobody acquires
--- the lock meanwhile: a release or a grant may be in flight, and a hold may
--- begin and end between two checks.
---@param run table of programs.lua
---@param before number only waits that began before this time
---@return string? # the sort of the bug
---@return string? # a sentence that describes it
---@return table? # the host of the process that waits
function waits.endless(run, before)
  local now = run.universe.now
  for _, wait in ipairs(old_ones(run, before)) do
    ---@type any, any, any
    local what, text, last = follow(run, wait)
    if text ~= wait.text then wait.text, wait.seen = text, now end
    local since = what and math.max(wait.seen, granted_at(run, last))
    if what == "deadlock" or what and now - since >= run.patience then
      return what, text, wait.host
    end
  end
  return look_at_all(run)
end

--- Has a process been waiting since before a time, or do all processes wait?
function waits.any(run, before)
  return old_ones(run, before)[1] ~= nil or run.still ~= nil
end

return waits
