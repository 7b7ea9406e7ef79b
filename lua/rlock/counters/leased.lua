--- Base class of what a client owns under a lease on the server: a permit, or a
--- member of a barrier. It has the interface that the watchdog expects of a
--- grant (grant.lua). `state` is "free" if the watchdog does not renew it, and
--- the end of the lease is not a loss. A derived class adds `show()`: the name,
--- for messages.

local duration = require "rlock.util.duration"
local identity = require "rlock.util.identity"
local metrics = require "rlock.util.metrics"

---@class rlock.leased
---@field class fun(self): any
---@field [integer] any for the lists of the watchdog
---@field deadline? number of its entry in the heap
---@field lock rlock.counter
---@field owner_name string
---@field valid_until number
---@field watched boolean
---@field state "free" | "held" | "at_risk" | "lost"
---@field on_lost table
---@field task any the rlock.task; false: none
---@field since number
---@field lost_because? string
---@field index? integer
---@field show fun(self): string
---@field give_up fun(self)
---@field drop fun(self)
local leased = { class = require "rlock.counters.counter".derive }

local ENDLESS = 86400000 * 36500       -- milliseconds

--- Creates an instance, and registers it with the watchdog.
---@generic T
---@param class T
---@param handle rlock.counter
---@param id string the owner on the server
---@param task table|false it ends with this task; false: with the client
---@param sent number when it was requested, by host.now()
---@param ends number until when it is certainly valid
---@param is_renewed boolean
---@return T
function leased.new(class, handle, id, task, sent, ends, is_renewed)
  ---@type any
  local self = setmetatable({
    false, false, false, false,                 -- for the watchdog's lists
    lock = handle, owner_name = id, valid_until = ends, watched = is_renewed,
    state = is_renewed and "held" or "free", on_lost = {}, task = task,
    since = sent,
  }, class)
  if task and task.grants then task.grants[self] = true end
  local watchdog = handle.session.watchdog
  if is_renewed then watchdog:watch(self, sent) else watchdog:observe(self) end
  return self
end

--- The arguments of a renewal. An explicit lease is not extended.
---@param now number by host.now()
---@return any # the lease, in milliseconds
---@return string # as for a grant: the count of holds
function leased:renewal(now)
  if self.watched then return self.lock.session.lease_ms, "1" end
  local left = math.max(self.valid_until - now, duration.least_lease)
  return duration.ms(left), "1"
end

--- Has its task ended?
function leased:is_abandoned()
  return self.lock.session.host.is_over(self.task)
end

--- Drops it: it was released, or both its task and its lease have ended.
function leased:drop()
  self.lock.session.watchdog:remove(self)
  if self.state ~= "lost" then
    metrics.observe(self.lock.record.series.hold,
      self.lock.session.host.now() - self.since)
  end
  self.state = "lost"
  if self.task and self.task.grants then self.task.grants[self] = nil end
end

--- Releases it, because its task has ended.
function leased:give_up()
  self:drop()
  leased.give_back(self.lock, self.owner_name, self.lock.session.lease)
end

--- Releases, in the background, what may have been granted.
---@param handle rlock.counter
---@param id string
---@param seconds number at most for the request
function leased.give_back(handle, id, seconds)
  local session = handle.session
  session:background(function()
    local now = session.host.now()
    handle.record.target:run("release", now + seconds, now, id, "1", "0")
  end)
end

--- Marks it as lost without a request to the server.
function leased:end_it()
  self.lock.session.watchdog:remove(self)
  self.state, self.on_lost = "lost", nil
end

--- The holders in a reply of `peek`.
---@param list table id, milliseconds left, ...
---@return table # a list of { owner =, ttl = (seconds) }
function leased.holders(list)
  local holders = {}
  for i = 1, #list, 2 do
    local id, ms = list[i], tonumber(list[i + 1])
    if type(id) == "string" and ms then
      holders[#holders + 1] = { owner = identity.hex(id),
        ttl = ms < ENDLESS and ms / 1000 or nil }
    end
  end
  return holders
end

return leased
