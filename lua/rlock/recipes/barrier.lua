--- The public barrier: one client sets it, and tasks in any process wait until
--- it is removed.
---
--- On Redis it stays set while at least one client that set it is alive: the
--- client's watchdog renews it. If all of them have died or were closed, it is
--- no longer set, and its waiters get "lost". On ZooKeeper it is Curator's
--- persistent node, which stays until it is removed, even if the client that
--- set it dies. So give waiters a time-out.

local call = require "rlock.counters.call"
local colon = require "rlock.util.colon"
local counter = require "rlock.counters.counter"
local deduplication = require "rlock.counters.deduplication"
local leased = require "rlock.counters.leased"
local member = require "rlock.recipes.member"
local naming = require "rlock.naming"

---@class rlock.barrier: rlock.counter
local barrier = counter.class "barrier"

local PLAIN = "0"                 -- the n of the policy
local LOST = "the clients that had set it have died, or were closed"

local function is_double(n)
  return nil, "refused", ("it is a double barrier of %s members"):format(n)
end

local function set(self)
  local session, record = self.session, self.record
  local request, id = deduplication.begin(self), member.id(self)
  local now = session.host.now()
  if session.is_closed then return nil, "closed", "the client was closed" end
  local reply, code, detail, sent = deduplication.send(request, "enter",
    now + session.timeout, now, PLAIN, { session.lease_ms, id })
  if not reply then
    member.withdraw(request, id)
    return nil, code, detail
  end
  deduplication.finish(request)
  if reply[1] == "refused" then return is_double(reply[2]) end
  if reply[1] ~= "held" then return nil, "lost", LOST end
  if reply[2] == 0 then return true end           -- it has no lease
  local former = record.member
  record.member = member.new(self, id, reply[2], false, sent)
  if former then former:drop() end
  return true
end

--- Sets the barrier. It may be set already. If all clients that set it die or
--- are closed, on Redis it is no longer set, and its waiters get "lost"; on
--- ZooKeeper it stays set.
---@return true?
---@return rlock.code? code "refused": it is a double barrier
---@return string? detail
function barrier:set()
  return deduplication.result(counter.yes, self.session.host.whole(set, self))
end

---@class rlock.recipes.barrier.Wait: rlock.call
local Wait = call:class()

-- Asks whether the round that the first request found has ended.
function Wait:try(deadline, now)
  local reply, code, detail = deduplication.ask(self.counter, "look",
    self.record.target, deadline, now, self.round)
  if not reply then return nil, nil, code, detail end
  local verdict, value = reply[1], reply[2]
  if verdict == "busy" then
    self.round = ("%d"):format(reply[3])
    return "busy", value
  end
  if verdict == "lost" then return nil, nil, "lost", LOST end
  if verdict == "refused" then return nil, is_double(value) end
  self.left = 0                   -- wakes one that may have missed the message
  return "held"
end

--- Waits until the barrier is removed. Returns at once if it is not set.
---@param options? rlock.wait_options
---@return true?
---@return rlock.code? code "timeout"; "lost", on Redis: all clients that
---  set it have died; "refused": it is a double barrier; "connect", "closed",
---  "redis"
---@return string? detail
function barrier:wait(options)
  local its = Wait:shared { counter = self, round = "0",
    late = ("barrier %s was not removed in time"):format(
      naming.show(self.record.name)) }
  return call.run(its.wait, its, options)
end

--- Removes the barrier, no matter which client set it; wakes all waiters. If no
--- reply arrives in time, retries the request in the background.
---@return boolean? # whether it was set
---@return rlock.code? code "refused": it is a double barrier
---@return string? detail
function barrier:remove()
  local record = self.record
  local former = record.member          -- it may be set again before the reply
  local reply, code, detail =
    deduplication.insist(deduplication.begin(self), "remove", PLAIN)
  if reply and former and record.member == former then
    former:drop()
    record.member = nil
  end
  return deduplication.result(function()
    if reply[1] == "refused" then return is_double(reply[2]) end
    return reply[1] == "freed"
  end, reply, code, detail)
end

-- Its members, for rlockctl.
function barrier:peek()
  return deduplication.result(function(reply)
    return { state = reply[1], count = reply[2] > 0 and reply[2] or nil,
      holders = leased.holders(reply[3]) }
  end, deduplication.run(self, "peek"))
end

return colon.methods(barrier, "barrier", "set wait remove")
