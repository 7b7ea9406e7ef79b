--- A semaphore: Curator's InterProcessSemaphoreV2. Below its path are
--    locks    a queue: the first waiter in it may take permits
--    leases   a node for each permit that is taken
--    limit    4 bytes, the number of permits: a SharedCount of Curator's
--  A permit belongs to the session of the client that took it: only that client
--  can release it, and it ends with the session.
--
--  A call takes all of its permits or none. While some are missing, the nodes
--  of the others exist already. They delay no other waiter: the first waiter in
--  the queue stays first, and the next one waits in any case.

local call = require "rlock.counters.call"
local check = require "rlock.options"
local codec = require "rlock.zookeeper.codec"
local colon = require "rlock.util.colon"
local errors = require "rlock.zookeeper.errors"
local identity = require "rlock.util.identity"
local naming = require "rlock.naming"
local place = require "rlock.zookeeper.place"

local semaphore = {}
semaphore.__index = semaphore

local ops = codec.ops
local UNKNOWN = -1                -- milliseconds until permits may be free
local GATE = { ["lock-"] = true }
local LEASE = { ["lease-"] = false }

--- @tparam table client the public object
-- @tparam string name
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

-- the limit -------------------------------------------------------------------

-- How many permits there are.
-- @treturn[1] integer its limit
-- @treturn[1] integer the version of that
-- @treturn[2] boolean false: it was never set
-- @treturn[3] nil, code, detail
local function read_limit(target, deadline)
  local path = target.path .. "/limit"
  local err, its, detail = target:ask(deadline, ops.get, path, codec.read(path))
  if not err then return nil, its, detail end
  if err ~= 0 then return false end
  local data = its:text() or ""
  if #data ~= 4 then
    return nil, "refused", path .. " is not a count of Curator's, of 4 bytes"
  end
  return codec.reader(data):int(), its:stat().version
end

-- Watches for a change of the limit, or for its creation.
local function watch_limit(self)
  local target = self.record.target
  local path, link = target.path .. "/limit", target.server.connection
  if self.watched_epoch == link.epoch and self.link == link.link then return end
  self.watched_epoch, self.link = link.epoch, link.link
  self.on_limit = self.on_limit or function()
    self.link, self.has_changed = nil, true
    self.on_wake()
  end
  link:watch(path, self.on_limit)
  link:post(ops.exists, codec.read(path, true))
end

-- taking ----------------------------------------------------------------------

local Call = call:class()

-- The places of a call: one in the queue, and one for each permit.
local function prepare(self)
  local target, server = self.record.target, self.record.target.server
  local owner = "permit:" .. identity.uuid(server.host)
  self.channel = target:channel(owner)
  function self.on_wake() server.channels:message(self.channel) end
  local function new_place(folder, mark, blocks)
    return place.new(server, { parent = target.path .. folder, mark = mark,
      blocks = blocks, owner = self.session.id .. ":0",
      on_wake = self.on_wake })
  end
  self.gate, self.entries = new_place("/locks", "lock-", GATE), {}
  for i = 1, self.n do
    self.entries[i] = { target = target, is_held = false,
      owner = ("%s:%d"):format(owner, i),
      place = new_place("/leases", "lease-", LEASE) }
    server.entries[self.entries[i]] = true
  end
  self.entries[1].gate = self.gate            -- for its watch
end

-- Is there nothing to do until it is woken?
local function is_waiting(self)
  if self.has_changed then return false end
  if self.gate:is_waiting() then return true end
  for _, entry in ipairs(self.entries) do
    if entry.place:is_waiting() then return true end
  end
  return false
end

function Call:try(deadline)
  if is_waiting(self) then return "busy", UNKNOWN end
  self.has_changed = false
  local target = self.record.target
  local is_first, code, detail = self.gate:ask(deadline, self.is_try)
  if not is_first then
    return is_first == false and "busy" or nil, UNKNOWN, code, detail
  end
  watch_limit(self)
  local limit
  limit, code, detail = read_limit(target, deadline)
  if limit == nil then return nil, nil, code, detail end
  if limit == false then return "busy", UNKNOWN end
  for _, entry in ipairs(self.entries) do
    entry.place.most = limit
    local has_it
    has_it, code, detail = entry.place:ask(deadline, self.is_try)
    if not has_it then
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
  server.connection:unwatch(target.path .. "/limit", self.on_limit)
  self.entries[1].gate = nil
  for _, entry in ipairs(self.entries) do
    if is_held then
      entry.is_held, entry.place.ahead = true, nil
      target.entries[entry.owner] = entry
    else
      server:leave_later(entry)
    end
  end
  server.channels:idle(self.channel)
end

local function take(self, wait, n)
  local its = Call:new { counter = self, n = n, wants = n, is_try = wait == 0,
    late = ("semaphore %s has fewer than %d permits"):format(
      naming.show(self.record.name), n) }
  prepare(its)
  local is_held, code, detail = its:wait(wait)
  if is_held and not is_whole(its) then
    is_held, code, detail = nil, "closed", "the session ended in the meantime"
  end
  finish(its, is_held)
  return result(is_held, code, detail)
end

-- The number of permits and the wait; both are optional.
local function arguments(n, options, wait, level)
  if type(n) == "table" then n, options = nil, n end
  n = check.count(n == nil and 1 or n, "n", 0, level + 1)
  return tonumber(n), check.of_wait(options, level + 1).wait or wait
end

--- Acquires permits, all or none; waits for them in order of arrival. See
--  rlock.counters.semaphore.
function semaphore:acquire(n, options)
  local wait
  n, wait = arguments(n, options, math.huge, 2)
  if n == 0 then return true end
  return take(self, wait, n)
end

--- As acquire, but `wait` defaults to 0: nil, "busy" if there are too few.
function semaphore:try_acquire(n, options)
  local wait
  n, wait = arguments(n, options, 0, 2)
  if n == 0 then return true end
  return take(self, wait, n)
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

--- Releases permits of this client.
-- @tparam[opt=1] integer n
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string "not_held": this client has fewer; "lost": the node of one
--   was deleted; or why the request failed: then it is retried later
-- @treturn[2] string detail
function semaphore:release(n)
  n = tonumber(check.count(n == nil and 1 or n, "n", 0))
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

-- setting and counting --------------------------------------------------------

-- How many permits are taken, or nil, code, detail.
local function count(self, deadline)
  local target = self.record.target
  local path = target.path .. "/leases"
  local err, its, detail = target:ask(deadline, ops.children, path,
    codec.read(path))
  if not err then return nil, its, detail end
  return err == 0 and #its:texts() or 0
end

local function available(self)
  local deadline = deadline_of(self)
  local limit, code, detail = read_limit(self.record.target, deadline)
  if not limit then return limit == nil and nil or 0, code, detail end
  local taken
  taken, code, detail = count(self, deadline)
  if not taken then return nil, code, detail end
  return limit - taken
end

--- The number of available permits.
-- @treturn[1] integer
-- @treturn[2] nil, code, detail
function semaphore:available() return result(available(self)) end

-- Makes the node of the limit.
-- @treturn boolean whether it was not there; or nil, code, detail
local function make_limit(self, n, deadline)
  local target = self.record.target
  local server, path = target.server, target.path .. "/limit"
  local ok, code, detail = server.connection:reach(deadline)
  if ok then
    ok, code, detail = place.new(server, { parent = target.path })
      :make_parents(deadline)
  end
  if not ok then return nil, code, detail end
  local err
  err, code, detail = server.connection:post(ops.create2, codec.create(path,
    codec.int(n), codec.flags.persistent)):wait(deadline)
  if not err then return nil, code, detail end
  if err == 0 or err == errors.NODE_EXISTS then return err == 0 end
  return nil, "zookeeper", errors.says(err, path)
end

--- Sets the number of permits, unless it is set already.
-- @tparam integer n
-- @treturn[1] boolean true
-- @treturn[2] nil, "refused", detail: it is set already
-- @treturn[3] nil, code, detail
function semaphore:set(n, options)
  n = tonumber(check.count(n, "n", 0))
  if options ~= nil then
    error("bad options of semaphore:set: ttl is for Redis, a node stays", 2)
  end
  local is_new, code, detail = make_limit(self, n, deadline_of(self))
  if is_new == nil then return result(nil, code, detail) end
  if is_new then return true end
  local left
  left, code, detail = self:available()
  if not left then return nil, code, detail end
  return nil, "refused", ("it was set before; %d permits are available")
    :format(left)
end

--- Adds permits, or removes some. Permits that are taken stay valid.
-- @tparam integer n may be negative
-- @treturn[1] boolean true
-- @treturn[2] nil, code, detail; after "timeout" or "closed" it may have been
--   done
function semaphore:add(n)
  n = tonumber(check.count(n, "n", -2147483647))
  local target, deadline = self.record.target, deadline_of(self)
  local path = target.path .. "/limit"
  while true do
    local limit, version, detail = read_limit(target, deadline)
    if limit == nil then return result(nil, version, detail) end
    if not limit then
      return nil, "refused", "its number of permits was never set"
    end
    local err, code, why = target.server.connection:post(ops.set,
      codec.set(path, codec.int(limit + n), version)):wait(deadline)
    if err == 0 then return true end
    if not err then return result(nil, code, why) end
    if err ~= errors.BAD_VERSION then
      return nil, "zookeeper", errors.says(err, path)
    end
  end
end

--- Acquires all available permits.
-- @treturn[1] integer their number
-- @treturn[2] nil, code, detail
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
