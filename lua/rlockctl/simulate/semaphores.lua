--- Finds permits of a semaphore that are never released. Permits have no
--- owners, so this counts what each process acquires and releases. Some
--- semaphores are exempt, because a process need not release what it has
--- acquired: those where a process releases permits that others acquired
--- (signals), those where no process releases any (tickets), and those whose
--- permits expire. The permits of a killed process are lost, which is a bug
--- only if a process waits for them forever. On ZooKeeper, permits end with the
--- client's session, so none are lost.

local holders = require "rlockctl.simulate.holders"
local naming = require "rlock.naming"
local sorted = require "rlock.util.sorted"

local semaphores = {}

-- What a run knows about a semaphore: the number of permits that each process
-- has, and how they are released.
local function known(semaphore)
  local session = type(semaphore) == "table" and semaphore.session
  local process = session and session.host.process
  if not process then return nil end    -- perhaps called with a dot
  local list, record = process.run.semaphores, semaphore.record
  local key = holders.key_of(semaphore)
  list[key] = list[key] or { name = record.name, taken = {} }
  return list[key], process
end

local function took(semaphore, n, ok, ...)
  local its, process = known(semaphore)
  if ok and its then its.taken[process] = (its.taken[process] or 0) + n end
  return ok, ...
end

-- Counts a release even if it fails: the client retries it in the background.
local function gives_back(semaphore, n)
  local its, process = known(semaphore)
  n = n == nil and 1 or math.tointeger(n) or 0
  if not its or n <= 0 then return end
  local has = its.taken[process] or 0
  its.is_released, its.is_exempt = true, its.is_exempt or n > has
  its.taken[process] = math.max(has - n, 0)
end

local function giving_back(former)
  return function(semaphore, n)
    gives_back(semaphore, n)
    return former(semaphore, n)
  end
end

local function drained(semaphore, n, ...)
  if n then took(semaphore, n, true) end
  return n, ...
end

--- The functions that a run replaces, see patch.lua. A run has the table
--- `semaphores`, empty at first.
semaphores.patches = {
  { "rlock.counters.semaphore", "take", function(take)
    return function(self, wait, n)
      return took(self, tonumber(n), take(self, wait, n))
    end
  end },
  { "rlock.counters.semaphore", "drain", function(drain)
    return function(self)
      if not known(self) then return drain(self) end
      return drained(self, drain(self))
    end
  end },
  { "rlock.counters.semaphore", "set", function(set)
    return function(self, n, options)
      local its = options ~= nil and known(self)
      if its then its.is_exempt = true end      -- its permits expire
      return set(self, n, options)
    end
  end },
  { "rlock.counters.semaphore", "release", giving_back },
  { "rlock.counters.semaphore", "add", giving_back },
}

-- Calls fn(its, process, n) for each semaphore and each process that has some
-- of its permits, until fn returns a value; returns that.
local function first(run, fn)
  for _, key in ipairs(sorted(run.semaphores)) do
    local its = run.semaphores[key]
    for _, process in ipairs(run.processes) do
      local n = its.taken[process] or 0
      local found = n > 0 and fn(its, process, n)
      if found then return found, process end
    end
  end
end

local function permits(n) return n == 1 and "1 permit" or n .. " permits" end

--- Finds a process that has ended with permits. Call it once all processes have
--- ended.
---@param run table of programs.lua
---@return string? # a sentence
---@return table? # the process
function semaphores.leak(run)
  return first(run, function(its, process, n)
    if process.ending == "done" and its.is_released and not its.is_exempt
        and not run.taken[its.name] then
      return ("process %s has ended without releasing %s of semaphore %s")
        :format(process.host.label, permits(n), naming.show(its.name))
    end
  end)
end

--- Explains a wait for a semaphore: a killed process had its permits.
---@param run table
---@param text string the sentence about the wait
---@return string # with the explanation, if there is one
function semaphores.explain(run, text)
  local why = first(run, function(its, process, n)
    local name = "semaphore " .. naming.show(its.name)
    if process.host.is_dead and not process.ending
        and text:find(name, 1, true) then
      return ("%s; process %s was killed while it had %s of %s: a "
        .. "semaphore does not recover them, client:permits does"):format(text,
        process.host.label, permits(n), name)
    end
  end)
  return why or text
end

return semaphores
