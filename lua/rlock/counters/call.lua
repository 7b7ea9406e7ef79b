--- A call of a counter that waits: for permits, or for a latch to open. Each
--- counter derives a class with the method
---   try(deadline, now)  sends one request; returns the results of
---                       grant:acquire, and sets `left`, the number of permits
---                       left, or nil
--- The fields of a call:
---   counter   the public object, with `record` and `session`
---   channel   the channel to wait on; `wakes` as for wakeup:join
---   wants     the number of permits that it needs, see wakeup:pass
---   late      the detail of a timeout

local PASSED = require "rlock.util.deadline".passed
local check = require "rlock.util.options"
local metrics = require "rlock.util.metrics"
local naming = require "rlock.naming"
local waiting = require "rlock.lock.waiting"

---@class rlock.call
---@field class fun(self): any
---@field counter rlock.counter
---@field session rlock.session
---@field record rlock.record
---@field channel string
---@field wakes? function
---@field wants? integer
---@field late string
---@field left? integer
---@field try fun(self, deadline: number, now: number): any...
local call = { class = require "rlock.counters.counter".derive }

--- Creates a call.
---@generic T
---@param class T
---@param fields table see above
---@return T
function call.new(class, fields)
  fields.session, fields.record = fields.counter.session, fields.counter.record
  return setmetatable(fields, class)
end

--- As `new`, for a call that needs no permits: a message wakes all waiters.
function call:shared(fields)
  local record = fields.counter.record
  fields.wants, fields.wakes = 0, record.policy.wakes
  fields.channel = record.target:channel()
  return self:new(fields)
end

--- Runs fn(object, wait), and returns the results of a public method that ends
--- with this tail call.
---@param fn function
---@param object table with `session`
---@param options? table wait: seconds, default: forever
---@return true?, rlock.code? code, string? detail
function call.run(fn, object, options)
  local wait = check.of_wait(options).wait or math.huge
  local is_over, code, detail = object.session.host.whole_wait(fn, object, wait)
  if is_over then return true end
  if code == "cancelled" then error(detail, 0) end
  return nil, code == "busy" and "timeout" or code, detail
end

--- The counter's kind and name, for messages.
function call:show()
  return self.record.policy.name .. " " .. naming.show(self.record.name)
end

local function attempt(self, deadline, now)
  local session = self.session
  if session.is_closed then
    return nil, nil, "closed", "the client was closed"
  end
  self.left = nil
  local verdict, ms, code, detail = self:try(deadline, now)
  if verdict == "held" then
    metrics.observe(self.record.series.round_trip, session.host.now() - now)
  end
  return verdict, ms, code, detail
end

--- Retries the request, see waiting.lua. If too few permits are free, wakes
--- another waiter for them.
function call:retry(waiter, deadline, now)
  local verdict, ms, code, detail = attempt(self, deadline, now)
  if verdict == "busy" and self.left and self.left > 0 then
    self.session.wakeup:pass(self.channel, self.left, waiter)
  end
  return verdict, ms, code, detail
end

-- Counts the outcome of a call, and reports a success.
local function count_call(self, is_held, code, since)
  local series, session = self.record.series, self.session
  if not is_held then return metrics.failed(series, code) end
  local waited = since and session.host.now() - since or 0
  series.acquired = series.acquired + 1
  if since then metrics.observe(series.wait, waited) end
  if session.is_heard then
    session:report_of(self, "info", "acquired",
      ("acquired %s after %.3f s"):format(self:show(), waited),
      { wait = waited })
  end
end

--- Ends the call, see waiting.lua.
---@return any ... # as `wait`
function call:end_wait(waiter, is_held, code, detail)
  local wakeup = self.session.wakeup
  if waiter then waiting.leave(self.session, waiter, is_held) end
  count_call(self, is_held, code, waiter and waiter.since)
  if not is_held then return nil, code, detail end
  if self.left then wakeup:pass(self.channel, self.left) end
  return true
end

local function join(self)
  local waiter = waiting.join(self.session, self.channel, self.wakes)
  waiter.wants = self.wants
  return waiter
end

--- Tries, then waits and retries until success or the deadline.
---@param wait number seconds; 0: one attempt; negative: its deadline is over
---@return boolean? # true
---@return rlock.failure? code # "busy" after a single attempt, "timeout" after
---  the wait, "cancelled"
---@return any detail # for "cancelled", the value to raise
function call:wait(wait)
  if wait < 0 then return self:end_wait(nil, false, "timeout", PASSED) end
  local session, waiter = self.session, nil
  local now = session.host.now()
  if wait > 0 and session.wakeup:is_live(self.channel) then
    waiter = join(self)
  end
  local verdict, ms, code, detail = attempt(self,
    waiting.request_deadline(session, now, now + wait), now)
  if verdict == "busy" and wait > 0 then
    if not waiter then waiter, ms = join(self), nil end
    return waiting.start(self, waiter, now, now + wait, ms)
  end
  if verdict == "busy" then code, detail = "busy", self.late end
  return self:end_wait(waiter, verdict == "held", code, detail)
end

return call
