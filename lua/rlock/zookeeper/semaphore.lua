--- A semaphore: Curator's InterProcessSemaphoreV2. Below its path are
---   locks    a queue: the first waiter in it may take permits
---   leases   a node for each permit that is taken
---   limit    4 bytes, the number of permits: a SharedCount of Curator's
--- A permit belongs to the session of the client that took it: only that client
--- can release it, and it ends with the session.
---
--- A call takes all of its permits or none. While some are missing, the nodes
--- of the others exist already. They delay no other waiter: the first waiter in
--- the queue stays first, and the next one waits in any case.

local base = require "rlock.counters.semaphore"
local call = require "rlock.counters.call"
local check = require "rlock.util.options"
local colon = require "rlock.util.colon"
local counter = require "rlock.counters.counter"
local identity = require "rlock.util.identity"
local limit = require "rlock.zookeeper.limit"
local result = require "rlock.counters.deduplication".result

local semaphore = counter.class("semaphore", base)

local yes = counter.yes
local UNKNOWN = -1                -- milliseconds until permits may be free

local function deadline_of(self)
  return self.session.host.now() + self.session.timeout
end

local Call = call:class()

-- The places of a call: one in the queue, and one for each permit.
local function prepare(self)
  local target, policy = self.record.target, self.record.policy
  local owner, shown = identity.uuid(self.session.host), self.session.id .. ":0"
  self.channel, self.entries = target:channel(owner), {}
  self.gate = target:new_place("/locks", policy.queue, shown, self.channel)
  for i = 1, self.wants do
    local its = target:new_place("/leases", policy.leases, shown, self.channel)
    its.gate = self.gate
    -- The record, which is weak, knows which permits the client has.
    self.entries[i] = { target = target, record = self.record, is_held = false,
      owner = ("%s:%d"):format(owner, i), place = its }
    target.server.entries[self.entries[i]] = true
  end
  self.entries[1].gate = self.gate            -- for its watch
end

-- Is there nothing to do until it is woken?
local function is_waiting(self)
  if self.gate:is_waiting() then return true end
  for _, entry in ipairs(self.entries) do
    if self.gate.watching and entry.place:is_waiting() then return true end
  end
  return false
end

function Call:try(deadline)
  if is_waiting(self) then return "busy", UNKNOWN end
  local target, first = self.record.target, self.entries[1]
  local has_it, code, detail = target:check_kind(deadline)
  if has_it then
    has_it, code, detail = target.ask_gate(first, deadline, self.is_try)
  end
  for _, entry in ipairs(has_it and self.entries or {}) do
    entry.place.most = first.place.most
    has_it, code, detail = entry.place:ask(deadline, self.is_try)
    if has_it == false and entry.place:is_shut_out() then
      return self:try(deadline)           -- again from the gate
    end
    if not has_it then break end
  end
  if has_it then return "held" end
  return has_it == false and "busy" or nil, UNKNOWN, code, detail
end

-- Are all permits of the current session? It may have ended in between.
local function is_whole(self)
  local link = self.record.target.server.connection
  for _, entry in ipairs(self.entries) do
    if entry.place.epoch ~= link.epoch then return false end
  end
  return link.validity.ends > self.counter.session.host.now()
end

local function finish(self, is_held)
  local target = self.record.target
  local server = target.server
  server:leave_place(self.gate)
  self.entries[1].gate = nil
  for _, entry in ipairs(self.entries) do
    if is_held then
      entry.is_held, entry.place.ahead = true, nil
      target.entries[entry.owner] = entry
    else
      server:leave_later(entry)
    end
  end
end

-- The call has raised an error, or its job in nginx has died.
local function give_up(its) finish(its, false) end

--- Acquires permits. Internal.
function semaphore:take(wait, n)
  local its = Call:new { counter = self, wants = tonumber(n),
    is_try = wait == 0, late = self:late(n) }
  prepare(its)
  local host = self.session.host
  local is_held, code, detail = host.guard(give_up, its, its.wait, its, wait)
  local why = is_held and (not is_whole(its)
    and "the session ended in the meantime"
    or host.has_gone(host.current()) and "the task has ended")
  if why then is_held, code, detail = nil, "closed", why end
  finish(its, is_held)
  return result(yes, is_held, code, detail)
end

local function release(self, n)
  local target, deadline, list = self.record.target, deadline_of(self), {}
  for _, entry in pairs(target.entries) do list[#list + 1] = entry end
  if n > #list then
    return nil, "not_held", ("this client holds %d of its permits, and "
      .. "cannot release those of others"):format(#list)
  end
  for i = 1, n do target:forget(list[i]) end   -- another task may release, too
  local was_lost, was_there, code, detail = false, true, nil, nil
  for i = 1, n do
    if was_there == nil then
      target.server:leave_place(list[i].place)
    else
      was_there, code, detail = list[i].place:leave(deadline)
      was_lost = was_lost or was_there == false
    end
  end
  if was_there == nil then return result(yes, nil, code, detail) end
  if was_lost then return nil, "lost", "the node of a permit was deleted" end
  return true
end

--- Releases permits of this client.
---@param n? any a whole number; default: 1
---@return boolean? # true
---@return rlock.failure? code # "not_held": this client has fewer; "lost": the
---  node of one was deleted; or why the request failed: then it is retried
---  later
---@return string? detail
function semaphore:release(n)
  n = tonumber(check.count(n == nil and 1 or n, "n", 0))
  return self.session.host.whole(release, self, n)
end

local function set(self, n)
  local is_new, code, detail = limit.make(self.record.target, n,
    deadline_of(self))
  if is_new ~= false then return result(yes, is_new, code, detail) end
  local left
  left, code, detail = self:available()
  if not left then return nil, code, detail end
  return nil, "refused", ("it was set before; %d permits are available")
    :format(left)
end

--- Sets the number of permits, unless it is set already.
---@param n any a whole number;
---@return boolean? # true
---@return rlock.failure? code # "refused"
---@return string? detail # it is set already; detail
function semaphore:set(n, options)
  n = tonumber(check.count(n, "n", 0))
  if options ~= nil then
    error("bad options of semaphore:set: ttl is for Redis, a node stays", 2)
  end
  return self.session.host.whole(set, self, n)
end

local function add(self, n)
  return result(yes, limit.add(self.record.target, n, deadline_of(self)))
end

--- Adds permits, or removes some. Permits that are taken stay valid.
---@param n any a whole number; may be negative
---@return boolean? # true
---@return rlock.failure? code
---@return string? detail # after "timeout" or "closed" it may have been done
function semaphore:add(n)
  n = tonumber(check.count(n, "n", -2147483647))
  return self.session.host.whole(add, self, n)
end

--- Acquires all available permits.
---@return integer? # their number
---@return rlock.failure? code, string? detail
function semaphore:drain()
  while true do
    local n, code, detail = self:available()
    if not n then return nil, code, detail end
    if n <= 0 then return 0 end
    local ok
    ok, code, detail = self:try_acquire(n)
    if ok then return n end
    if code ~= "busy" then return nil, code, detail end
  end
end

return colon.methods(semaphore, "semaphore", "release add set drain")
