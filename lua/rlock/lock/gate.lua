--- The gate for the first requests of tasks that wait for a lock with its queue
--- on the server (a policy with the operation `refresh`). A server answers the
--- requests of a connection in order. If a client sent thousands at once, the
--- last ones would get no reply within `timeout`, and their retries neither.
--- Meanwhile, holds would not be renewed, and waiters would count as dead
--- before their first heartbeat. So, once FEW requests are pending (lock.lua),
--- at most MOST more are in flight on one route. The others wait here, in order
--- of arrival. Retries of waiters, releases and renewals bypass the gate.
---
--- Not used while few requests of the session are pending: those that wait here
--- are pending, so no first request overtakes them.

local owner = require "rlock.lock.owner"
local waiting = require "rlock.lock.waiting"
local wakeup = require "rlock.lock.wakeup"

local gate = {}

local append, unlink = wakeup.append, wakeup.unlink

--- First requests in flight on one route, beyond FEW. If each takes 0.3 ms, as
--- on a busy machine, all of them delay others by 77 ms.
local MOST = 128

-- The line of a route has the number of its requests in flight, `flying`, and
-- the list of the tickets that wait. A ticket stands for a request.

local function admit(line, ticket)
  line.flying, ticket.is_admitted = line.flying + 1, true
end

local function admit_first(line)
  local ticket = line.first
  if not ticket then return end
  unlink(line, ticket)
  admit(line, ticket)
  ticket.event:set()
end

-- Its request has ended, or is not sent.
local function leave(ticket)
  local line, session = ticket.line, ticket.session
  session.closing[ticket.event] = nil
  if ticket.is_admitted then
    line.flying = line.flying - 1
    admit_first(line)
  else
    unlink(line, ticket)
  end
  if line.flying == 0 then session.gates[line.route] = nil end
  session:work_done()
end

local function left(ticket, ...)
  leave(ticket)
  return ...
end

-- Waits for admission. If the session is closed, the request is sent at once,
-- and fails.
---@return boolean? # false: not in time
---@return rlock.failure? code # "cancelled"
---@return any # the value to raise
local function wait(ticket, deadline)
  local line, session = ticket.line, ticket.session
  if line.flying < MOST or session.is_closed then
    return admit(line, ticket)
  end
  append(line, ticket)
  session.closing[ticket.event] = true
  return ticket.event:pause(deadline - session.host.now())
end

local function pass(ticket, lock, deadline, fn, ...)
  local is_in_time, code, unwind = wait(ticket, deadline)
  if code then return nil, nil, nil, nil, code, unwind end
  if is_in_time == false or ticket.session.host.now() >= deadline then
    return nil, nil, nil, nil, "timeout", waiting.late(lock)
  end
  return fn(...)
end

local function line_of(session, route)
  local line = session.gates[route] or { route = route, flying = 0 }
  session.gates[route] = line
  return line
end

--- Sends the first request of a task when it may pass. One that holds the lock
--- already does not wait.
---@param lock rlock.lock
---@param its rlock.owner of the request
---@param deadline number of the wait, by host.now()
---@param fn function sends the request
---@param ... any its arguments
---@return any ... # what fn returned; or four nils, code and detail; for
---  "cancelled", the value to raise
function gate.pass(lock, its, deadline, fn, ...)
  local session, record = lock.session, lock.record
  local granted = record.grants[its]
  if granted and granted.holds[1] then return fn(...) end
  local route = record.target:route(owner.name_for(its, session, record.family))
  local ticket = { session = session, line = line_of(session, route),
    event = session.host.event() }
  session.pending = session.pending + 1
  return left(ticket, session.host.guard(leave, ticket, pass, ticket, lock,
    deadline, fn, ...))
end

return gate
