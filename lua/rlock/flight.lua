--- Many tasks ask for the same thing, one goes, all get the answer.
--  The one that goes is a task of the house, so that a caller who gives up or
--  is cancelled takes nothing from the others.

local flight = {}
flight.__index = flight

local unpack = table.unpack or unpack

--- @tparam table host
function flight.new(host)
  return setmetatable({ host = host, going = {} }, flight)
end

local function land(answer, ...)
  answer.n, answer.values = select("#", ...), { ... }
end

-- No closure of `join`: nginx clears the stack of a request that has ended, and
-- with it what such a closure shares with it.
local function fly(self, key, answer)
  land(answer, answer.fn(answer.a, answer.b))
  self.going[key] = nil
  for event in pairs(answer.waiting) do event:set() end
end

--- Has `fn` run, unless it does for this key already.
-- @param key, fn, a, b as for `join`
-- @treturn table
function flight:start(key, fn, a, b)
  local answer = self.going[key]
  if not answer then
    answer = { waiting = {}, fn = fn, a = a, b = b }
    self.going[key] = answer
    self.host.daemon(fly, self, key, answer)
  end
  return answer
end

--- Gets what `fn` returns, with everybody else who asks for `key` meanwhile.
-- @param key anything that can be a table's key
-- @tparam number deadline when to give up, by host.now()
-- @tparam function fn  may wait; runs once for all. No closure of a caller that
--   waits: see `fly`
-- @param a,b its arguments
-- @return[1] what fn returned
-- @treturn[2] nil
-- @treturn[2] string "timeout", or "cancelled"
-- @return[2] detail; for "cancelled", what is to be raised
function flight:join(key, deadline, fn, a, b)
  local host, answer = self.host, self:start(key, fn, a, b)
  local event = host.event()
  answer.waiting[event] = true
  local landed, code, detail = event:pause(deadline - host.now())
  answer.waiting[event] = nil
  if landed == nil then return nil, code, detail end
  if not answer.values then return nil, "timeout", "no answer in time" end
  return unpack(answer.values, 1, answer.n)
end

return flight
