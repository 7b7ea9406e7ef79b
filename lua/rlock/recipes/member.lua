--- A member of a barrier on Redis (policy/barrier.lua): its membership of a
--- round is a lease that the watchdog renews.

local deduplication = require "rlock.counters.deduplication"
local identity = require "rlock.util.identity"
local leased = require "rlock.counters.leased"
local naming = require "rlock.naming"

local member = {}

---@class rlock.recipes.member.Member: rlock.leased
---@field round any
local Member = leased:class()

function Member:show()
  return ("member %s of barrier %s"):format(identity.hex(self.owner_name),
    naming.show(self.lock.record.name))
end

function Member:renewal()
  return self.lock.session.lease_ms, ("%d"):format(self.round)
end

--- Its round has ended normally.
Member.removed = leased.drop

--- Creates a member, and registers it with the watchdog.
---@param handle table the barrier
---@param id string
---@param round integer
---@param task table|false as for leased.new
---@param sent number when it entered, by host.now()
function member.new(handle, id, round, task, sent)
  local session = handle.session
  local self = leased.new(Member, handle, id, task, sent,
    session.valid_until(sent, session.lease), true)
  self.round = round
  return self
end

--- The id of a new member. Like a permit's, it begins with the client's id.
function member.id(handle)
  local session = handle.session
  return identity.bytes(identity.short(session.id)) .. session.host.random(8)
end

--- Withdraws a member in the background. If its round has opened in the
--- meantime, the other members see this as a death.
---@param request table to enter, of deduplication.begin
---@param id string
function member.withdraw(request, id)
  deduplication.renumber(request)
  deduplication.retry(request, "withdraw", "0", { id }, function(reply)
    if reply[1] == "held" then
      leased.give_back(request.handle, id, request.handle.session.lease)
    end
  end)
end

return member
