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

local call = require "rlock.counters.call"
local check = require "rlock.util.options"
local colon = require "rlock.util.colon"
local identity = require "rlock.util.identity"
local limit = require "rlock.zookeeper.limit"
local naming = require "rlock.naming"
local place = require "rlock.zookeeper.place"

---@class rlock.zookeeper.semaphore
---@field session rlock.session
---@field record rlock.record
local semaphore = {}
semaphore.__index = semaphore

local UNKNOWN = -1                -- milliseconds until permits may be free
local GATE = { ["lock-"] = true }
local LEASE = { ["lease-"] = false }

---@param client table the public object
---@param name string
function semaphore.new(client, name)
  local session = client.session
  local policy = session.options.backend.load "semaphore"
  return setmetatable({
    session = session, record = session:record(client, policy, name),
  }, semaphore)
end

-- Raises a cancellation.
local function result(ok, code, detail)
  if code == "cancelled" then error(detail, 0) end
  if ok == nil then return nil, code, detail end
  return ok
end

local function deadline_of(self)
  return self.session.host.now() + self.session.timeout
end

-- taking ----------------------------------------------------------------------

---@class rlock.zookeeper.semaphore.Call: rlock.call
---@field gate any
---@field is_try any
---@field entries any
local Call = call:class()

-- The places of a call: one in the queue, and one for each permit.
local function prepare(self)
  local target, server = self.record.target, self.record.target.server
  local owner = "permit:" .. identity.uuid(server.host)
  self.channel = target:channel(owner)
  local function on_wake() server.channels:message(self.channel) end
  local function new_place(folder, mark, blocks, gate)
    return place.new(server, { lock = target.path,
      parent = target.path .. folder, mark = mark, blocks = blocks, gate = gate,
      owner = self.session.id .. ":0", on_wake = on_wake })
  end
  self.gate, self.entries = new_place("/locks", "lock-", GATE), {}
  for i = 1, self.n do
    self.entries[i] = { target = target, is_held = false,
      owner = ("%s:%d"):format(owner, i),
      place = new_place("/leases", "lease-", LEASE, self.gate) }
    server.entries[self.entries[i]] = true
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
  ---@type any
  local target = self.record.target
  local is_first, code, detail = target:check_kind(deadline)
  if is_first then
    is_first, code, detail = self.gate:ask(deadline, self.is_try)
  end
  if not is_first then
    return is_first == false and "busy" or nil, UNKNOWN, code, detail
  end
  local most
  most, code, detail = limit.watch(target, self.gate, deadline)
  if most == nil then return nil, nil, code, detail end
  if most == false then return "busy", UNKNOWN end
  for _, entry in ipairs(self.entries) do
    entry.place.most = most
    local has_it
    has_it, code, detail = entry.place:ask(deadline, self.is_try)
    if has_it == false and entry.place:is_shut_out() then
      return self:try(deadline)           -- again from the gate
    elseif not has_it then
      return has_it == false and "busy" or nil, UNKNOWN, code, detail
    end
  end
  return "held"
end

-- Are all permits of the current session? It may have ended in between.
local function is_whole(self)
  local epoch = self.record.target.server.connection.epoch
  for _, entry in ipairs(self.entries) do
    if entry.place.epoch ~= epoch then return false end
  end
  return true
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

local function take(self, wait, n)
  local its = Call:new { counter = self, n = n, wants = n, is_try = wait == 0,
    late = ("semaphore %s has fewer than %d permits"):format(
      naming.show(self.record.name), n) }
  prepare(its)
  local host = self.session.host
  local is_held, code, detail = host.guard(give_up, its, its.wait, its, wait)
  if is_held and not is_whole(its) then
    is_held, code, detail = nil, "closed", "the session ended in the meantime"
  elseif is_held and host.has_gone(host.current()) then
    is_held, code, detail = nil, "closed", "the task has ended"
  end
  finish(its, is_held)
  return result(is_held, code, detail)
end

local function take_permits(self, n, wait)
  if n == 0 then return true end
  return self.session.host.whole_wait(take, self, wait, n)
end

-- The number of permits and the wait; both are optional.
local function arguments(n, options, wait, level)
  if type(n) == "table" then n, options = nil, n end
  n = check.count(n == nil and 1 or n, "n", 0, level + 1)
  return tonumber(n), check.of_wait(options, level + 1).wait or wait
end

--- Acquires permits, all or none; waits for them in order of arrival. See
--- rlock.counters.semaphore.
function semaphore:acquire(n, options)
  local wait
  n, wait = arguments(n, options, math.huge, 2)
  return take_permits(self, n, wait)
end

--- As acquire, but `wait` defaults to 0: nil, "busy" if there are too few.
function semaphore:try_acquire(n, options)
  local wait
  n, wait = arguments(n, options, 0, 2)
  return take_permits(self, n, wait)
end

-- releasing -------------------------------------------------------------------

-- The permits that this client holds.
local function held(self)
  local list = {}
  for _, entry in pairs(self.record.target.entries) do
    list[#list + 1] = entry
  end
  return list
end

local function release(self, n)
  local list, lost, failed, code, detail = held(self), false, false, nil, nil
  if n > #list then
    return nil, "not_held", ("this client holds %d of its permits, and "
      .. "cannot release those of others"):format(#list)
  end
  local target, deadline = self.record.target, deadline_of(self)
  for i = 1, n do target:forget(list[i]) end   -- another task may release, too
  for i = 1, n do
    local was_there
    if failed then
      target.server:leave_place(list[i].place)
    else
      was_there, code, detail = list[i].place:leave(deadline)
      failed, lost = was_there == nil, lost or was_there == false
    end
  end
  if failed then return result(nil, code, detail) end
  if lost then return nil, "lost", "the node of a permit was deleted" end
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

-- setting and counting --------------------------------------------------------

--- The number of available permits.
---@return integer?
---@return rlock.failure? code
---@return string? detail
function semaphore:available()
  ---@type any, any, any
  local n, code, detail = limit.count(self.record.target, deadline_of(self))
  return result(n, code, detail)
end

local function set(self, n)
  local is_new, code, detail = limit.make(self.record.target, n,
    deadline_of(self))
  if is_new == nil then return result(nil, code, detail) end
  if is_new then return true end
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
  return result(limit.add(self.record.target, n, deadline_of(self)))
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
---@return rlock.failure? code
---@return string? detail
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

--- Its state as a table: `state`, `available`, `holders`.
function semaphore:peek()
  local n, code, detail = self:available()
  if not n then return nil, code, detail end
  return { state = n > 0 and "free" or "held", available = n, holders = {} }
end

return colon.methods(semaphore, "semaphore",
  "acquire try_acquire release add set drain available")
