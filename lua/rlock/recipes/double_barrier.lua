--- The public double barrier: `n` members enter it together, and leave it
--- together. It is reusable: the next round begins when all members have left.
--- A surplus member waits for the next round.

local call = require "rlock.counters.call"
local check = require "rlock.util.options"
local colon = require "rlock.util.colon"
local counter = require "rlock.counters.counter"
local deduplication = require "rlock.counters.deduplication"
local member = require "rlock.recipes.member"
local naming = require "rlock.naming"

---@class rlock.double_barrier: rlock.counter
---@field id? string
---@field round? any
---@field n string
---@field member? table
---@field request? table
local double_barrier = counter.class "barrier"

---@type function
local new = double_barrier.new

--- Creates a member, which can enter and leave repeatedly.
---@param client rlock.client
---@param name string
---@param n number the number of members, from 1 to 1000; the same for all of
---  them
---@return rlock.double_barrier
function double_barrier.new(client, name, n)
  n = check.count(n, "n", 1, 2, 1000)
  local self = new(client, name)
  self.n = n
  return self
end

local LOST = "a member has died, or its client was closed"

local function late(self, what)
  return ("double barrier %s: not all %s members %s in time"):format(
    naming.show(self.record.name), self.n, what)
end

---@class rlock.recipes.double_barrier.Entry: rlock.call
---@field counter rlock.double_barrier
---@field request any
---@field id string
---@field task rlock.task
---@field member? table
---@field round? any
local Entry = call:class()

local function refusal(self, n)
  local name = naming.show(self.record.name)
  if n == "0" then return name .. " is a plain barrier, and is set" end
  return ("double barrier %s has %s members, not %s"):format(name, n,
    self.counter.n)
end

-- Sends the idempotent request to enter, which also checks whether the round is
-- open.
function Entry:try(deadline, now)
  local session = self.session
  if self.member and self.member.state == "lost" then
    return nil, nil, "lost", self.member.lost_because
  end
  local reply, code, detail, sent = deduplication.send(self.request, "enter",
    deadline, now, self.counter.n, { session.lease_ms, self.id })
  if not reply then return nil, nil, code, detail end
  local verdict, number = reply[1], reply[1] == "held" and reply[2] or reply[3]
  if verdict == "lost" then return nil, nil, "lost", LOST end
  if verdict == "refused" then
    return nil, nil, "refused", refusal(self, reply[2])
  end
  if number > 0 and not self.member then
    self.member = member.new(self.counter, self.id, number, self.task, sent)
  end
  if verdict == "busy" then return "busy", reply[2] end
  self.round = number
  self.left = 0                   -- wakes one that may have missed the message
  return "held"
end

-- Withdraws in the background, after the call was cancelled or the server did
-- not reply in time.
local function give_up(its)
  its.counter.request = nil
  if its.member then its.member:drop() end
  member.withdraw(its.request, its.id)
end

-- The member is not in a round.
local function is_out(its)
  its.counter.request = nil
  if its.member then its.member:drop() end
  deduplication.finish(its.request)
end

--- Withdraws the member at the end of its wait, unless the round has opened
--- with it.
---@return any ... # whether the round has opened; or nil, code, detail
local function withdraw(its)
  local session, request = its.session, its.request
  local now = session.host.now()
  deduplication.renumber(request)
  local reply, code, detail, sent = deduplication.send(request, "withdraw",
    now + session.timeout, now, session.lease_ms, { its.id })
  if not reply then
    give_up(its)
  elseif reply[1] == "freed" then
    is_out(its)
  else
    its.round = reply[2]
    its.member = its.member        -- the replies to its requests may be lost
      or member.new(its.counter, its.id, its.round, its.task, sent)
  end
  return reply and reply[1] == "held", code, detail
end

local function enter(self, wait)
  if self.request then
    return nil, "refused", "this member is in already; or it is entering or "
      .. "leaving"
  end
  local host = self.session.host
  self.request, self.round = deduplication.begin(self), nil
  ---@type any
  local its = Entry:shared { counter = self, late = late(self, "entered"),
    request = self.request, id = member.id(self), task = host.current() }
  local is_in, code, detail = host.guard(give_up, its, its.wait, its, wait)
  if code == "busy" then code = "timeout" end
  if code == "timeout" and not its.session.is_closed then
    local why, unwind
    is_in, why, unwind = withdraw(its)
    if why == "cancelled" then code, detail = why, unwind end
  elseif code == "lost" or code == "refused" then
    is_out(its)
  elseif not is_in then
    give_up(its)
  end
  if is_in and host.has_gone(host.current()) then
    its.member:give_up()
    self.request = nil
    is_in, code, detail = nil, "closed", "the task has ended"
  end
  if not is_in then return nil, code, detail end
  self.member, self.id, self.round = its.member, its.id, its.round
  return true
end

--- Enters, and waits until `n` members have entered. If the wait times out,
--- withdraws. The client's watchdog renews the membership until `leave` is
--- called or the task ends.
---@param options? rlock.wait_options
---@return true? # all members have entered
---@return rlock.code? code "timeout"; "lost": another member died while
---  this one waited; "refused": this member is in already, or others use
---  another n; "connect", "closed", "redis"
---@return string? detail
function double_barrier:enter(options)
  return call.run(enter, self, options)
end

---@class rlock.recipes.double_barrier.Exit: rlock.call
---@field counter rlock.double_barrier
---@field request any
---@field number any
---@field id string
local Exit = call:class()

-- Is it the member's present request? If several tasks leave, the first one
-- ends the request, and the member may be in again.
local function is_present(its) return its.counter.request == its.request end

-- Sends the request to leave, which also checks whether the round has ended.
function Exit:try(deadline, now)
  local reply, code, detail = deduplication.send(self.request, "leave",
    deadline, now, self.number, { self.id })
  if not reply then return nil, nil, code, detail end
  local handle = self.counter
  local is_first = is_present(self)
  if is_first and handle.member then
    handle.member:drop()
    handle.member = nil
  end
  if reply[1] == "busy" then return "busy", reply[2] end
  if is_first then
    handle.request = nil
    if not self.request.is_retried then deduplication.finish(self.request) end
  end
  if reply[1] == "lost" then return nil, nil, "lost", LOST end
  self.left = 0                   -- as in `enter`
  return "held"
end

-- Leaves in the background, after the call was cancelled or the server did not
-- reply in time. `is_kept`: keeps the request, so that another call of `leave`
-- retries it.
local function leave_later(its, is_kept)
  local handle = its.counter
  if not handle.member or not is_present(its) then return end
  handle.member:drop()
  handle.member, handle.request = nil, is_kept and its.request or nil
  its.request.is_retried = true
  deduplication.retry(its.request, "leave", its.number, { its.id })
end

local function leave(self, wait)
  if not self.request or not self.round then
    return nil, "not_held", "it has not entered"
  end
  local request = self.request
  if self.member then deduplication.renumber(request) end
  local its = Exit:shared { counter = self, late = late(self, "left"),
    request = request, id = self.id, number = ("%d"):format(self.round) }
  local have_left, code, detail = self.session.host.guard(leave_later, its,
    its.wait, its, wait)
  if not have_left then leave_later(its, code ~= "cancelled") end
  return have_left, code, detail
end

--- Leaves, and waits until all members have left. After a time-out, this member
--- has left but others have not; call it again to continue the wait.
---@param options? rlock.wait_options
---@return true? # all have left
---@return rlock.code? code "timeout"; "lost": a member died before it
---  left; "not_held": this member has not entered; "connect", "closed", "redis"
---@return string? detail
function double_barrier:leave(options)
  return call.run(leave, self, options)
end

return colon.methods(double_barrier, "double barrier", "enter leave")
