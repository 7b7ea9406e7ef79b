--- Permits with leases: the public object. A permit has an id, with which any
--- task of any client may release or renew it. Without an explicit lease this
--- client's watchdog renews it. A permit that is neither renewed nor released
--- becomes available again when its lease ends.

local call = require "rlock.counters.call"
local check = require "rlock.util.options"
local colon = require "rlock.util.colon"
local counter = require "rlock.counters.counter"
local deduplication = require "rlock.counters.deduplication"
local duration = require "rlock.util.duration"
local identity = require "rlock.util.identity"
local leased = require "rlock.counters.leased"
local naming = require "rlock.naming"

local second, yes = counter.second, counter.yes
local give_back = leased.give_back
---@class rlock.permits: rlock.counter
local permits = counter.class "permits"

local new = permits.new

-- As the class has it.
function permits.new(client, name)
  local self = new(client, name)
  local record = self.record
  record.client_bytes = record.client_bytes
    or identity.bytes(identity.short(client.session.id))
  -- Permits acquired here; weak, because the watchdog refers to them while they
  -- are valid.
  record.taken = record.taken or setmetatable({}, { __mode = "v" })
  return self
end

local function bytes_of(id, level)
  if type(id) ~= "string" or #id ~= 32 or id:find("%X") then
    error("bad id: must be the 32 hex digits that acquire returned", level + 1)
  end
  return identity.bytes(id)
end

local function forget(self, id)
  local permit = self.record.taken[id]
  if permit then permit:drop() end
end

---@class rlock.counters.permits.Permit: rlock.leased
---@field taker rlock.task
local Permit = leased:class()

function Permit:show()
  return ("permit %s of %s"):format(identity.hex(self.owner_name),
    naming.show(self.lock.record.name))
end

--- See leased.lua.
function Permit:drop()
  leased.drop(self)
  self.lock.record.taken[self.owner_name] = nil
end

-- A permit without an explicit lease is renewed.
local function track(self, id, lease, sent, ends)
  local host = self.session.host
  local permit = leased.new(Permit, self, id,
    host.ends_tasks and host.current(), sent, ends, not lease)
  permit.taker, self.record.taken[id] = host.current(), permit
end

local OF_CALL = 12        -- bytes that all ids of a call share: its channel may
                          -- be named by them

-- The id for a new permit; `old`: the one that its call had before.
local function new_id(self, old)
  local random = self.session.host.random(16)
  return (old or self.record.client_bytes .. random):sub(1, OF_CALL)
    .. random:sub(-16 + OF_CALL)
end

-- A call that acquires a permit.
---@class rlock.counters.permits.Call: rlock.call
---@field lease number
local Call = call:class()

function Call:try(deadline, now)
  local handle, id = self.counter, self.id
  local session = handle.session
  local seconds = self.lease or session.lease
  local reply, code, detail, may_be_applied, sent =
    deduplication.ask(handle, "acquire", handle.record.target, deadline, now,
      id, duration.ms(seconds), "1")
  if may_be_applied then self.is_in_doubt = true end
  if not reply then return nil, nil, code, detail end
  if reply[1] == "busy" then return "busy", reply[2] end
  local ends = session.valid_until(sent, seconds)
  if session.host.now() >= ends then         -- the reply arrived too late
    -- The release may outlast the wait, so the next request needs a new id.
    give_back(handle, id, seconds)
    self.id, self.is_in_doubt = new_id(handle, id), nil
    return "busy", 0
  end
  track(handle, id, self.lease, sent, ends)
  if reply[2] > 0 then self.left = reply[2] end
  return "held"
end

-- Gives back what a call may have got: it has failed or raised an error, or its
-- job in nginx has died.
local function give_up(its)
  forget(its.counter, its.id)
  give_back(its.counter, its.id, its.lease or its.session.lease)
end

local function take(self, wait, lease)
  local host, record = self.session.host, self.record
  local first = new_id(self)
  local its = Call:new {
    counter = self, id = first, lease = lease, wants = 1,
    channel = record.target:channel(first),
    late = naming.show(record.name) .. " has no permit left",
  }
  local is_held, code, detail = host.guard(give_up, its, its.wait, its, wait)
  if is_held and not host.has_gone(host.current()) then
    return identity.hex(its.id)
  end
  if is_held or its.is_in_doubt then give_up(its) end
  if is_held then return nil, "closed", "the task has ended" end
  if code == "cancelled" then error(detail, 0) end
  return nil, code, detail
end

-- Acquires a permit; to be tail-called.
local function acquire(self, options, wait)
  options = check.of_lock(options)
  return self.session.host.whole_wait(take, self, options.wait or wait,
    options.lease)
end

--- Acquires a permit, and waits for one if necessary; forever if the number of
--- permits was never set.
---@param options? rlock.lock_options
---@return string? id
---@return rlock.code? code "busy", "timeout", "connect", "closed", "redis"
---@return string? detail
function permits:acquire(options)
  return acquire(self, options, math.huge)
end

--- As acquire, but `wait` defaults to 0: nil, "busy" if there is none.
---@param options? rlock.lock_options
---@return string? id, rlock.code? code, string? detail
function permits:try_acquire(options) return acquire(self, options, 0) end

--- Stops the renewal of a permit without releasing it: only its lease ends it.
--- Internal.
---@param id string
function permits:abandon(id)
  forget(self, bytes_of(id, 2))
  self.session:outlive()
end

-- Does the permit belong to the session of another client?
local function is_foreign(self, bytes)
  local own = self.record.client_bytes
  return self.record.policy.of_session and bytes:sub(1, #own) ~= own
end

local FOREIGN = "the permit belongs to the session of another client"

--- Releases a permit of any client.
---@param id string
---@return true?
---@return rlock.code? code "lost": its lease had ended, it was released before,
---  or there never was such a permit; "not_held": on ZooKeeper, it is another
---  client's. Otherwise the lease ends it at the latest
---@return string? detail
function permits:release(id)
  local bytes = bytes_of(id, 2)
  if is_foreign(self, bytes) then return nil, "not_held", FOREIGN end
  forget(self, bytes)
  local reply, code, detail, may_be_applied =
    deduplication.run(self, "release", bytes, "1", "0")
  if not reply and not self.session.is_closed then
    give_back(self, bytes, self.session.lease)
  end
  return deduplication.result(function()
    if reply[1] == "freed" or may_be_applied then return true end
    return nil, "lost", "its lease has ended, or it was not granted"
  end, reply, code, detail)
end

--- Extends a permit to at least `lease` from now.
---@param id string of a permit of any client
---@param lease number seconds
---@return true?
---@return rlock.code? code "lost"; "not_held", as for `release`
---@return string? detail
function permits:renew(id, lease)
  local bytes, session = bytes_of(id, 2), self.session
  lease = check.lease(lease, "lease", 2)
  if is_foreign(self, bytes) then return nil, "not_held", FOREIGN end
  local ends = session.valid_until(session.host.now(), lease)
  local reply, code, detail =
    deduplication.run(self, "renew", bytes, duration.ms(lease), "1")
  local permit = self.record.taken[bytes]
  if permit and reply and reply[1] == "held" then
    permit.valid_until = math.max(permit.valid_until, ends)
    if not permit.watched then session.watchdog:observe(permit) end
  elseif permit and reply then
    session.watchdog:lose(permit, "its lease has ended")
  end
  return deduplication.result(function()
    if reply[1] == "held" then return true end
    return nil, "lost", "its lease has ended, or it was given back"
  end, reply, code, detail)
end

--- Calls fn if a permit of this client is lost: not renewed in time, or
--- released by another client.
---@param id string
---@param fn fun(id: string, reason: string) called once, as a task
---@return true?
---@return rlock.code? code "not_held"
---@return string? detail
function permits:on_lost(id, fn)
  if type(fn) ~= "function" then
    error("bad argument fn of permits:on_lost: must be a function", 2)
  end
  local permit = self.record.taken[bytes_of(id, 2)]
  if not permit or permit.state == "lost" then
    return nil, "not_held", "no permit of this client"
  end
  if not permit.watched then permit.state = "held" end
  table.insert(permit.on_lost, { fn = fn, object = id })
  return true
end

--- Seconds for which a permit of this client is certainly valid.
---@param id string
---@return number
function permits:valid_for(id)
  local permit = self.record.taken[bytes_of(id, 2)]
  if not permit or permit.state == "lost" then return 0 end
  local session = self.session
  local ends = math.min(permit.valid_until, session.server.bound or math.huge)
  return math.max(0, ends - session.host.now())
end

--- Sets the total number of permits, including those in use. If more than n are
--- in use they stay valid, and none is granted until enough are released.
---@param n number a whole one
---@return true?, rlock.code? code, string? detail
function permits:set(n)
  n = check.count(n, "n", 0)
  return deduplication.result(yes, deduplication.run(self, "set", n))
end

--- The number of available permits.
---@return integer?, rlock.code? code, string? detail
function permits:available()
  return deduplication.result(second, deduplication.run(self, "count"))
end

--- The number of permits in use.
---@return integer?, rlock.code? code, string? detail
function permits:acquired()
  return deduplication.result(function(reply) return reply[3] end,
    deduplication.run(self, "count"))
end

--- Its state as a table, with some of the holders.
---@return { state: string, available: integer, in_use: integer,
---   holders: table }?
---@return rlock.code? code, string? detail
function permits:peek()
  return deduplication.result(function(reply)
    return { state = reply[1], available = reply[2], in_use = reply[3],
      holders = leased.holders(reply[4]) }
  end, deduplication.run(self, "peek"))
end

return colon.methods(permits, "permits",
  "acquire try_acquire release renew on_lost valid_for set available acquired")
