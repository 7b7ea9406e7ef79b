--- The public semaphore. Its permits have no owner: any task may acquire or
--- release some, and those of a task that dies are lost (permits.lua has
--- leases). zookeeper/semaphore.lua inherits it.

local call = require "rlock.counters.call"
local check = require "rlock.util.options"
local colon = require "rlock.util.colon"
local counter = require "rlock.counters.counter"
local deduplication = require "rlock.counters.deduplication"
local duration = require "rlock.util.duration"
local naming = require "rlock.naming"

local second, yes = counter.second, counter.yes
---@class rlock.semaphore: rlock.counter
local semaphore = counter.class "semaphore"

-- A call that acquires permits.
---@class rlock.counters.semaphore.Call: rlock.call
---@field request any
---@field n string
local Call = call:class()

function Call:try(deadline, now)
  local reply, code, detail = deduplication.send(self.request, "acquire",
    deadline, now, self.n)
  if not reply then return nil, nil, code, detail end
  if reply[1] == "busy" then
    self.left = reply[3]
    return "busy", reply[2]
  end
  if reply[2] > 0 then self.left = reply[2] end
  return "held"
end

-- Adds permits; retries in the background if no reply arrives in time.
local function add(self, n)
  return deduplication.insist(deduplication.begin(self), "release", n)
end

--- Releases the permits of a task that has ended: it cannot do that itself.
---@return nil, rlock.failure code, string detail
local function give_back(self, n)
  add(self, n)
  return nil, "closed", "the task has ended"
end

--- Why there is no time left, for messages. Internal.
function semaphore:late(n)
  return ("semaphore %s has fewer than %s permits"):format(
    naming.show(self.record.name), n)
end

--- Acquires permits. Internal.
function semaphore:take(wait, n)
  local its = Call:new {
    counter = self, request = deduplication.begin(self), n = n,
    wants = tonumber(n), channel = self.record.target:channel(),
    late = self:late(n),
  }
  local is_held, code, detail = its:wait(wait)
  if is_held then
    deduplication.finish(its.request)
    local host = self.session.host
    if not host.has_gone(host.current()) then return true end
    return give_back(self, n)
  end
  deduplication.undo(its.request, n)
  if code == "cancelled" then error(detail, 0) end
  return nil, code, detail
end

-- Acquires permits; to be tail-called. The number and the options are optional.
local function acquire(self, n, options, wait)
  if type(n) == "table" then n, options = nil, n end
  n = check.count(n == nil and 1 or n, "n", 0)
  wait = check.of_wait(options).wait or wait
  if n == "0" then return true end
  return self.session.host.whole_wait(self.take, self, wait, n)
end

--- Acquires permits, all or none, and waits for them if necessary. It waits
--- forever if the number of permits was never set. A waiter for many permits
--- does not block waiters for fewer.
---@param n? number default: 1
---@param options? rlock.wait_options
---@return true?
---@return rlock.code? code "timeout", "connect", "closed", "redis"
---@return string? detail
---@overload fun(self, options: rlock.wait_options): true?, rlock.code?, string?
function semaphore:acquire(n, options)
  return acquire(self, n, options, math.huge)
end

--- As acquire, but `wait` defaults to 0: nil, "busy" if there are too few.
---@param n? number default: 1
---@param options? rlock.wait_options
---@return true?, rlock.code? code, string? detail
---@overload fun(self, options: rlock.wait_options): true?, rlock.code?, string?
function semaphore:try_acquire(n, options)
  return acquire(self, n, options, 0)
end

--- Releases permits and wakes waiters. If no reply arrives in time, the request
--- is retried in the background: do not repeat the call.
---@param n? number default: 1
---@return true?, rlock.code? code, string? detail
function semaphore:release(n)
  n = check.count(n == nil and 1 or n, "n", 0)
  if n == "0" then return true end
  return deduplication.result(yes, add(self, n))
end

--- Adds permits, or removes some. Permits in use stay valid, so the number of
--- available ones may be negative until enough are released.
---@param n number may be negative
---@return true?, rlock.code? code, string? detail
function semaphore:add(n)
  n = check.count(n, "n", -2147483647)
  return deduplication.result(yes, add(self, n))
end

local check_ttl = check.table({ ttl = check.lease },
  "a table such as { ttl = 60 }")

--- Sets the number of permits, unless it is set already.
---@param n number a whole one
---@param options? { ttl?: number, [string]: nil } seconds after which the
---  semaphore expires
---@return true?
---@return rlock.code? code "refused": it is set already
---@return string? detail
function semaphore:set(n, options)
  n = check.count(n, "n", 0)
  local ttl = check_ttl(options).ttl
  return deduplication.result(function(reply)
    if reply[1] == "held" then return true end
    return nil, "refused", ("it was set before; %s permits are available")
      :format(reply[2])
  end, deduplication.try(deduplication.begin(self), "set", n,
    ttl and { duration.ms(ttl) }))
end

local function drain(self)
  local request, host = deduplication.begin(self), self.session.host
  request.target[4] = request.target[3] .. ":drained"
  local reply, code, detail = deduplication.try(request, "drain", "0")
  if not reply then
    deduplication.undo(request, "0")
  elseif reply[2] > 0 and host.has_gone(host.current()) then
    return give_back(self, ("%d"):format(reply[2]))
  end
  return reply, code, detail
end

--- Acquires all available permits. If no reply arrives in time, those that it
--- may have acquired are released in the background.
---@return integer? # their number
---@return rlock.code? code, string? detail
function semaphore:drain()
  return deduplication.result(second, self.session.host.whole(drain, self))
end

--- The number of available permits.
---@return integer?, rlock.code? code, string? detail
function semaphore:available()
  return deduplication.result(second, deduplication.run(self, "count"))
end

--- Its state as a table.
---@return { state: string, available: integer, holders: table }?
---@return rlock.code? code, string? detail
function semaphore:peek()
  return deduplication.result(function(reply)
    return { state = reply[1], available = reply[2], holders = {} }
  end, deduplication.run(self, "count"))
end

return colon.methods(semaphore, "semaphore",
  "acquire try_acquire release add set drain available")
