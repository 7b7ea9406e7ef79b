--- Watches all holders by true time, outside of the clients. A holder is one
--  successful `lock`, from its grant until its task begins to unlock, or its
--  client no longer counts it as certain.

local oracle = {}
oracle.__index = oracle

function oracle.new(universe)
  return setmetatable({
    universe = universe, holders = {}, grants = 0, faults = {},
  }, oracle)
end

local function is_certain(holder)
  return not holder.host.is_dead and not holder.is_forgiven
    and holder.lock:valid_for() > 0
end

-- May these two hold the lock at the same time?
local function may_share(a, b)
  if a.mode == "read" and b.mode == "read" then return true end
  return a.task == b.task and a.host == b.host
end

--- Records a fault.
function oracle:fault(text, ...)
  self.faults[#self.faults + 1] = ("%.6f s: "):format(self.universe.now)
    .. text:format(...)
end

--- Calls `valid_for` as the task of the holder, which owns the lock.
local function as_its_task(holder, fn)
  local host = holder.host
  local before = host.running
  local current = host.current
  host.current = function() return holder.task end
  local result = fn(holder)
  host.current, host.running = current, before
  return result
end

--- Compares all holders of a lock.
function oracle:check(name)
  local certain = {}
  for _, holder in ipairs(self.holders[name] or {}) do
    if as_its_task(holder, is_certain) then certain[#certain + 1] = holder end
  end
  for i = 1, #certain do
    for k = i + 1, #certain do
      local a, b = certain[i], certain[k]
      if not may_share(a, b) then
        self:fault("%s: %s and %s hold it at the same time", name, a.label,
          b.label)
        a.is_forgiven, b.is_forgiven = true, true      -- told once
      end
    end
  end
end

--- A lock was granted.
-- @tparam table holder name, label, host, task, lock, mode
function oracle:granted(holder)
  local list = self.holders[holder.name] or {}
  self.holders[holder.name] = list
  list[#list + 1] = holder
  self.grants = self.grants + 1
  if #list > 1 then self:check(holder.name) end
end

--- Its task begins to unlock it.
function oracle:ending(holder)
  self:check(holder.name)
  local list = self.holders[holder.name]
  for i = #list, 1, -1 do
    if list[i] == holder then table.remove(list, i) end
  end
end

--- A server lost its data: its holders are wrong without their fault.
function oracle:forgive()
  for _, list in pairs(self.holders) do
    for _, holder in ipairs(list) do holder.is_forgiven = true end
  end
end

return oracle
