--- The public count-down latch: tasks anywhere wait until its count is zero.

local call = require "rlock.counters.call"
local check = require "rlock.util.options"
local colon = require "rlock.util.colon"
local counter = require "rlock.counters.counter"
local deduplication = require "rlock.counters.deduplication"
local naming = require "rlock.naming"

local second = counter.second
---@class rlock.latch: rlock.counter
local latch = counter.class "latch"

--- Sets the count, unless there is one.
---@param n number a whole one
---@return true?
---@return rlock.code? code "refused": there is one
---@return string? detail
function latch:set(n)
  n = check.count(n, "n", 1)
  return deduplication.result(function(reply)
    if reply[1] == "held" then return true end
    return nil, "refused", "it was set before; its count is " .. reply[2]
  end, deduplication.try(deduplication.begin(self), "set", n))
end

--- Counts down by one; at zero all waiters continue. If no reply arrives in
--- time, the request is retried in the background: do not repeat the call.
---@return true?
---@return integer | rlock.code | nil # the remaining count; or the code
---@return string? detail
---@return_overload true, integer
---@return_overload nil, rlock.code, string
function latch:count_down()
  return deduplication.result(function(reply) return true, reply[2] end,
    deduplication.insist(deduplication.begin(self), "count_down", "1"))
end

--- The count; 0 if there is none.
---@return integer?, rlock.code? code, string? detail
function latch:count()
  return deduplication.result(second, deduplication.run(self, "count"))
end

--- Its state as a table.
---@return { state: string, count: integer, holders: table }?
---@return rlock.code? code, string? detail
function latch:peek()
  return deduplication.result(function(reply)
    return { state = reply[1], count = reply[2], holders = {} }
  end, deduplication.run(self, "count"))
end

---@class rlock.counters.latch.Call: rlock.call
local Call = call:class()

-- One attempt of `wait`: "held" when the latch is open. The 0 then wakes
-- another waiter that may have missed the message.
function Call:try(deadline, now)
  local handle = self.counter
  local reply, code, detail = deduplication.ask(handle, "count",
    handle.record.target, deadline, now)
  if not reply then return nil, nil, code, detail end
  if reply[1] == "held" then return "busy", -1 end
  self.left = 0
  return "held"
end

--- Waits until the count is zero or the latch is deleted.
---@param options? rlock.wait_options
---@return true?
---@return rlock.code? code "timeout"
---@return string? detail
function latch:wait(options)
  local its = Call:shared { counter = self,
    late = ("latch %s was not open in time"):format(
      naming.show(self.record.name)) }
  return call.run(its.wait, its, options)
end

--- Deletes the latch; all waiters continue.
---@return boolean? # whether there was one
---@return rlock.code? code, string? detail
function latch:delete()
  return deduplication.result(function(reply, may_be_applied)
    return reply[1] == "freed" or may_be_applied
  end, deduplication.run(self, "delete"))
end

return colon.methods(latch, "latch", "set count_down count wait delete")
