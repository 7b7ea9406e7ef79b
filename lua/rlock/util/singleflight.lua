--- Coalesces concurrent calls with the same key: fn runs once and all callers
--- get its results. It runs in a background task, so a caller that times out or
--- is cancelled does not affect the others. A call always ends: if its task is
--- refused, raises or is killed, its callers get an error code.

---@class rlock.util.singleflight
---@field host rlock.host
---@field calls table
local singleflight = {}
singleflight.__index = singleflight

---@diagnostic disable-next-line: access-invisible
local unpack = table.unpack or unpack

---@param host table
function singleflight.new(host)
  return setmetatable({ host = host, calls = {} }, singleflight)
end

-- Not a closure of `join`: nginx clears the stack of a request that has ended,
-- and with it the upvalues that are still on that stack.
local function finish(call, ...)
  local calls, key = call.group.calls, call.key
  if calls[key] ~= call then return end
  call.n, call.values = select("#", ...), { ... }
  calls[key] = nil
  for event in pairs(call.waiting) do event:set() end
end

-- For a call whose function has raised, or whose task was killed.
local function fail(call)
  finish(call, nil, "closed", "the background task of this request ended early")
end

local function execute(call) finish(call, call.fn(call.a, call.b)) end

local function run(call) call.group.host.guard(fail, call, execute, call) end

-- Ends a call whose task was killed.
local function check(self, call)
  if call.task and self.host.is_over(call.task) then fail(call) end
end

--- Abandons a call in flight: its callers get these results, and the next
--- `join` starts another one. Its function continues.
---@param ... any results
function singleflight:abandon(key, ...)
  local call = self.calls[key]
  if call then finish(call, ...) end
end

--- Starts `fn`, unless a call for this key is in flight.
---@param key any a, b as for `join`
---@return table
function singleflight:start(key, fn, a, b)
  local call = self.calls[key]
  if call then check(self, call) end
  if self.calls[key] then return call end
  call = { group = self, key = key, waiting = {}, fn = fn, a = a, b = b }
  self.calls[key] = call
  local task, code, detail = self.host.daemon(run, call)
  if task then
    call.task = task
  else
    finish(call, nil, code, detail)
  end
  return call
end

--- Returns the results of `fn`, shared with all concurrent callers for `key`.
---@param key any anything that can be a table's key
---@param deadline number by host.now()
---@param fn function may wait. Must not be a closure of a waiting caller: see
---  `run`
---@param a any its arguments
---@return any # what fn returned
---@return rlock.failure? code # "timeout"; "refused" or "closed": its task did
---  not run or did not finish; or "cancelled"
---@return any detail # for "cancelled", the value to raise
function singleflight:join(key, deadline, fn, a, b)
  local host, call = self.host, self:start(key, fn, a, b)
  if not call.values then
    local event = host.event()
    call.waiting[event] = true
    local is_over, code, detail = event:pause(deadline - host.now())
    call.waiting[event] = nil
    if is_over == nil then return nil, code, detail end
    check(self, call)
  end
  if not call.values then return nil, "timeout", "no answer in time" end
  return unpack(call.values, 1, call.n)
end

return singleflight
