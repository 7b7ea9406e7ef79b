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

--- Gets what `fn` returns, with everybody else who asks for `key` meanwhile.
-- @param key anything that can be a table's key
-- @tparam number deadline when to give up, by host.now()
-- @tparam function fn  may wait; runs once for all
-- @return[1] what fn returned
-- @treturn[2] nil
-- @treturn[2] string "timeout", or "cancelled"
-- @return[2] detail; for "cancelled", what is to be raised
function flight:join(key, deadline, fn)
  local host, answer = self.host, self.going[key]
  if not answer then
    answer = { waiting = {} }
    self.going[key] = answer
    host.daemon(function()
      local function land(...)
        answer.n, answer.values = select("#", ...), { ... }
      end
      land(fn())
      self.going[key] = nil
      for event in pairs(answer.waiting) do event:set() end
    end)
  end
  local event = host.event()
  answer.waiting[event] = true
  local landed, code, detail = event:pause(deadline - host.now())
  answer.waiting[event] = nil
  if landed == nil then return nil, code, detail end
  if not answer.values then return nil, "timeout", "no answer in time" end
  return unpack(answer.values, 1, answer.n)
end

return flight
