--- Several permits of a semaphore as one lock, for rlockctl run. Acquires all
--- or none: if one is missing, it releases the others before it waits, so two
--- clients cannot deadlock.

local backoff = require "rlock.util.backoff"
local host = require "rlock.host.uv"

local permit_group = {}

local huge, max, min = math.huge, math.max, math.min
local FIRST_PAUSE, LAST_PAUSE = 0.002, 0.128

---@class rlockctl.cli.permit_group.Permits
---@field permits any
---@field name string
---@field count any
---@field limit any
---@field ids table
local Permits = {}
Permits.__index = Permits

---@param client table
---@param name string
---@param count integer the number of permits to acquire
---@param limit integer the semaphore's number of permits
---@return table # a lock; `former_limit`: the limit that it has replaced
function permit_group.new(client, name, count, limit)
  return setmetatable({ permits = client:permits(name), name = name,
    count = count, limit = limit, ids = {} }, Permits)
end

-- Sets the limit. Fails if the semaphore is in use with another one.
local function set_limit(self)
  local state, code, detail = self.permits:peek()
  if not state then return nil, code, detail end
  local total = state.available + state.in_use
  if total == self.limit then return true end
  if state.in_use > 0 then
    return nil, "usage", ("%q is in use with a limit of %d"):format(
      self.name, total)
  end
  if total > 0 then self.former_limit = total end
  return self.permits:set(self.limit)
end

local function give_back(self)
  for _, id in ipairs(self.ids) do self.permits:release(id) end
  self.ids = {}
end

-- Waits for the first permit only.
local function take_all(self, wait)
  for i = 1, self.count do
    local id, code, detail = self.permits:try_acquire {
      wait = i == 1 and wait or 0 }
    if not id then
      give_back(self)
      return nil, code, detail, i
    end
    self.ids[i] = id
  end
  return true
end

--- As lock:lock.
function Permits:lock(options)
  local ok, code, detail = set_limit(self)
  if not ok then return nil, code, detail end
  local wait = options.wait or huge
  local deadline = host.now() + wait
  local pause = backoff.new(FIRST_PAUSE, LAST_PAUSE, host.random_number)
  repeat
    local missing
    ok, code, detail, missing = take_all(self, max(0, deadline - host.now()))
    if ok then return true end
    if code ~= "busy" or missing == 1 or wait == 0 then break end
    host.sleep(pause:next())
  until host.now() >= deadline
  if code == "busy" and wait > 0 then code = "timeout" end
  return nil, code, detail
end

--- As lock:try_lock.
function Permits:try_lock() return self:lock { wait = 0 } end

function Permits:unlock()
  ---@type any, any, any
  local ok, code, detail = true, nil, nil
  for _, id in ipairs(self.ids) do
    local freed, why, text = self.permits:release(id)
    if not freed then ok, code, detail = nil, why, text end
  end
  self.ids = {}
  return ok, code, detail
end

function Permits:valid_for()
  local least = huge
  for _, id in ipairs(self.ids) do
    least = min(least, self.permits:valid_for(id))
  end
  return least
end

--- As grant:abandon.
function Permits:abandon()
  for _, id in ipairs(self.ids) do self.permits:abandon(id) end
  self.ids = {}
end

function Permits:state() return self:valid_for() > 0 and "held" or "lost" end

function Permits:on_lost(fn)
  for _, id in ipairs(self.ids) do self.permits:on_lost(id, fn) end
end

function Permits:owner() return table.concat(self.ids, ",") end

function Permits:peek() return self.permits:peek() end

return permit_group
