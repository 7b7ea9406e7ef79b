--- `require "rlock.simulate"` in a simulated process: tables that all processes
--- share and that survive their crashes, invariants, and the server's data.

local check_function = require "rlock.util.options".type "function"

---@class rlockctl.simulate.invariants
---@field [any] any
local invariants = {}
invariants.__index = invariants

---@param run table of programs.lua
function invariants.new(run)
  return setmetatable({ run = run, tables = {}, always = {}, finally = {} },
    invariants)
end

-- Adds an invariant. Each life of a process adds its invariants, which replace
-- those of the life before. The key of an invariant is the place of the call,
-- with the number of calls from there in this life.
local function add(list, own, fn)
  local counts, info = own.invariants or {}, debug.getinfo(3, "Sl")
  local at = info and info.source .. ":" .. info.currentline or "?"
  own.invariants = counts
  local key = ("%s %s"):format(list.is_single, at)
  counts[key] = (counts[key] or 0) + 1
  local entry = { process = own, fn = fn, place = at, count = counts[key],
    line = info and ("%s:%d"):format(info.short_src:match "[^/]*$",
      info.currentline) }
  for i, other in ipairs(list) do
    if other.place == at and other.count == entry.count and (list.is_single
        or other.process.number == own.number) then
      list[i] = entry
      return
    end
  end
  list[#list + 1] = entry
end

--- The module of one process, which replaces rlock/simulate.lua.
function invariants:module_for(own)
  self.finally.is_single = true
  local module = {}
  function module.shared(name)
    local tables = self.tables
    tables[name] = tables[name] or {}
    return tables[name]
  end
  function module.always(fn)
    check_function(fn, "fn of rlock.simulate.always", 2)
    add(self.always, own, fn)
    self.run:watch_invariants()
  end
  function module.finally(fn)
    check_function(fn, "fn of rlock.simulate.finally", 2)
    add(self.finally, own, fn)
  end
  function module.redis(...) return self.run:read(...) end
  return module
end

-- Why an invariant is violated, or nil. An invariant that reads data holds as
-- long as there are no servers.
local function problem_of(run, entry)
  run.reads_early = nil
  local ok, holds, why = pcall(entry.fn)
  if not ok then return not run.reads_early and tostring(holds) or nil end
  if holds ~= false then return nil end
  return why ~= nil and tostring(why) or "the invariant returned false"
end

-- The message and the entry of the first invariant that is violated.
local function check(run, list)
  for _, entry in ipairs(list) do
    if list.is_single or not entry.process.host.is_dead then
      local problem = problem_of(run, entry)
      if problem then return problem, entry end
    end
  end
end

--- Checks the invariants of `always`.
---@return string? # the message of the one that is violated
---@return table? # the entry, with its `process` and `line`
function invariants:check() return check(self.run, self.always) end

--- Checks the invariants of `finally`.
function invariants:check_end() return check(self.run, self.finally) end

return invariants
