--- The state shared by all locks of a client: back end, owners, watchdog,
--- waiters.
--- client.lua is its public object, which can be garbage collected while
--- background tasks still refer to the session.

local duration = require "rlock.util.duration"
local events = require "rlock.util.events"
local heartbeats = require "rlock.lock.heartbeats"
local identity = require "rlock.util.identity"
local metrics = require "rlock.util.metrics"
local owner = require "rlock.lock.owner"
local wakeup = require "rlock.lock.wakeup"
local watchdog = require "rlock.lock.watchdog"

--- The options of a client, complete.
---@class rlock.session_options: rlock.options.local_open
---@field backend rlock.backend
---@field watchdog number
---@field timeout number
---@field connect_timeout number
---@field connection_name? string
---@field is_local? boolean

--- What all handles of one lock share.
---@class rlock.record
---@field name string
---@field target rlock.target
---@field grants table<rlock.owner, rlock.grant>
---@field series table of metrics
---@field client rlock.client
---@field policy rlock.loaded_policy
---@field family table
---@field taken table of permits
---@field member? table of a barrier
---@field undone? table<string, true> owner names that are rolled back

---@class rlock.session
---@field host rlock.host
---@field options rlock.session_options
---@field id string
---@field lease number seconds, of holds that the watchdog renews
---@field lease_ms string
---@field timeout number seconds for one command
---@field valid_until fun(sent: number, seconds: number, drift?: number): number
---@field server rlock.server
---@field watchdog rlock.watchdog
---@field wakeup rlock.wakeup
---@field heartbeats rlock.heartbeats
---@field meter rlock.meter
---@field process table of util/process.lua
---@field kinds table<rlock.policy, table>
---@field families table<string, table>
---@field owners table<string, rlock.owner>
---@field spares rlock.grant[]
---@field registration string[]
---@field last_number integer
---@field is_heard boolean
---@field waits table | false
---@field pending integer requests and background work
---@field is_closed boolean
---@field work_ended rlock.event | false
---@field gates table<any, table>
---@field closing table<rlock.event, true>
---@field closers rlock.event[] | false
---@field flights? table of recipes/compute.lua
---@field asked? table
local session = {}
session.__index = session

local BATCH = 256           -- releases sent at once when closing
local SLACK = 2             -- seconds that a close may last beyond its deadline

-- Host -> what all sessions of this process share, for deadlock.lua: the
-- `sessions` by id; `waits`, task -> its wait.
local processes = setmetatable({}, { __mode = "k" })

local function process_of(host)
  local its = processes[host]
    or { sessions = setmetatable({}, { __mode = "v" }), waits = {} }
  processes[host] = its
  return its
end

-- Opens the server of the client's back end.
local function open_server(self)
  return self.options.backend.open(self.host, self.options, {
    is_needed = function() return self.watchdog:is_needed() end,
    on_replaced = function(why, is_there)
      self.watchdog:suspect(why, function(grant)
        return is_there(grant.lock.record.target)
      end)
    end,
    on_lost = function(why, is_it)
      for _, grant in ipairs(self.watchdog:all()) do
        if is_it(grant) then self.watchdog:lose(grant, why) end
      end
    end,
  })
end

---@param host rlock.host
---@param options rlock.session_options this sets `connection_name`
---@return rlock.session
function session.new(host, options)
  local id = identity.uuid(host)
  if options.identity ~= false and host.process_identity then
    local who = host.process_identity()
    who.id, who.name = id, options.name
    options.connection_name = identity.encode(who)
  end                                   -- else only its own name
  local self = setmetatable({
    host = host, options = options, id = id,
    lease = options.watchdog, timeout = options.timeout,
    lease_ms = ("%d"):format(duration.ms(options.watchdog)),
    valid_until = options.backend.valid_until,
    -- policy -> kind, see kind_of(); weak, because kinds refer to the client
    kinds = setmetatable({}, { __mode = "v" }),
    meter = metrics.new(host, options.name, options.metrics),
    -- whether events of level info are reported
    is_heard = options.log ~= nil or host.verbosity == 2,
    last_number = 0,
    registration = { id },          -- a waiter's last argument of acquire
    families = {},                  -- name of a kind of lock -> a key of owners
    -- explicit name -> owner
    owners = setmetatable({}, { __mode = "v" }),
    spares = {},                                -- grants for reuse
    waits = false,              -- of tasks that hold something: deadlock.lua
    process = process_of(host),
    pending = 0,                                -- requests and background work
    is_closed = false, work_ended = false,
    gates = {},                     -- route -> its line, see gate.lua
    closing = {},                   -- set of events, which `close` sets
    closers = {},                   -- events of tasks in `close`; false: done
  }, session)
  self.server = open_server(self)
  self.wakeup = wakeup.new(self.server.channels, host)
  self.heartbeats = heartbeats.new(self)
  self.watchdog = watchdog.new(self)
  self.process.sessions[id] = self
  return self
end

--- The route of a grant's requests, see target:route.
---@param grant rlock.grant
function session.route_of(grant)
  return grant.lock.record.target:route(grant.owner_name)
end

-- locks -------------------------------------------------------------------

-- The metatable of a policy's records: their common fields client, policy,
-- family and series.
local function kind_of(self, client, policy)
  local kind = self.kinds[policy]
  if not kind then
    kind = {
      client = client, policy = policy, family = self:family(policy),
      series = self.meter:series(policy.name),
      records = setmetatable({}, { __mode = "v" }),
    }
    kind.__index = kind
    self.kinds[policy] = kind
  end
  return kind
end

--- The record shared by all handles of one lock: policy, name, target, and
--- `grants` (owner -> grant). Grants come and go, so they have a table of their
--- own: LuaJIT compiles a field access again for each new layout of its table.
---@param client rlock.client its locks keep it alive
---@param policy rlock.loaded_policy
---@param name string
---@param options? table of the target; default: the client's
---@return rlock.record
function session:record(client, policy, name, options)
  local kind = kind_of(self, client, policy)
  local record = kind.records[name]
  if record then
    record.target:check(name, options)
  else
    record = setmetatable({
      name = name, target = self.server:bind(policy, name, options),
      grants = {},
      series = self.meter:series(policy.name, name) or kind.series,
    }, kind)
    kind.records[name] = record
  end
  return record
end

--- The record, if it exists.
function session:known_record(policy, name)
  local kind = self.kinds[policy]
  return kind and kind.records[name]
end

--- The family of a policy: the key of a task's name in Redis for it, see
--- owner.lua. The sides of a read/write lock are of one family:
--- "readwrite.read" and ".write".
function session:family(policy)
  local name = policy.name:match("^[^.]*")
  self.families[name] = self.families[name] or {}
  return self.families[name]
end

-- work in the background --------------------------------------------------

--- Runs fn as a background task that `close` waits for, up to `timeout`. It
--- runs once, even if it raises an error. If the host refuses the task, fn runs
--- later: the caller does not wait, and may rely on fn, for example to wake the
--- next waiter.
function session:background(fn)
  local has_begun
  self.pending = self.pending + 1
  self.host.service(function()
    if has_begun then return end
    has_begun = true
    self.host.guard(self.work_done, self, fn)
    self:work_done()
  end)
end

--- Decrements `pending`: a background task or a lock's request has ended.
function session:work_done()
  self.pending = self.pending - 1
  if self.work_ended and self.pending == 0 then self.work_ended:set() end
end

--- Reports an event of this client, see events.lua.
function session:report(level, event, message, fields)
  events.report(self.host, self.options, level, event, message, fields)
end

--- Reports an event of a lock or permit.
---@param lock rlock.lock with `record` and `show`
---@param fields? table modified
function session:report_of(lock, level, event, message, fields)
  fields = fields or {}
  fields.kind, fields.lock = lock.record.policy.name, lock.record.name
  self:report(level, event, message, fields)
end

-- closing -----------------------------------------------------------------

-- The callbacks for a batch of releases, see redis/batch.lua.
local function sender_of(self, deadline, failures)
  return {
    is_in = function(_, grant) return self.watchdog:has(grant) end,
    deadline = function() return deadline end,
    words = function(grant, _, batch)
      if batch and not self.watchdog:has(grant) then return nil end
      return "1", "0"
    end,
    answered = function() end,
    failed = function(_, why)
      failures.n = failures.n + 1
      failures.why = failures.why or tostring(why)
    end,
  }
end

-- Releases the grants of one route.
local function release_on(self, list, deadline)
  for first = 1, #list, BATCH do
    local failures = { n = 0 }
    local batch = self.server:batch {
      route = list.route, name = "release", is_final = true,
      sender = sender_of(self, deadline, failures),
    }
    for i = first, math.min(first + BATCH - 1, #list) do
      batch[#batch + 1] = list[i]
    end
    batch:send()
    if failures.n > 0 then
      self:report("warn", "not_released", (failures.n == 1
        and "1 lock could not be released; its lease ends it (%s)"
        or failures.n .. " locks could not be released; their leases end them "
        .. "(%s)"):format(failures.why),
        { count = failures.n, reason = failures.why })
    end
  end
end

-- Releases the grants of all routes concurrently.
local function release_by_route(self, lists, deadline)
  local all, left = self.host.event(), #lists
  local function run(list)
    release_on(self, list, deadline)
    left = left - 1
    if left == 0 then all:set() end
  end
  for i = 2, #lists do
    if not self.host.daemon(run, lists[i]) then run(lists[i]) end
  end
  if lists[1] then run(lists[1]) end
  if left > 0 then all:pause(deadline - self.host.now()) end
end

-- A list of grants for each route.
local function by_route(self, grants)
  local lists, of = {}, {}
  for _, grant in ipairs(grants) do
    local route = self.route_of(grant)
    local list = of[route] or { route = route }
    if not of[route] then lists[#lists + 1] = list end
    of[route], list[#list + 1] = list, grant
  end
  return lists
end

-- Releases everything that is still held, best effort. First marks it as
-- invalid: another client may acquire it before the reply arrives here.
local function release_all(self, deadline, why)
  local batch = self.watchdog:all()
  for _, grant in ipairs(batch) do
    grant.valid_until = 0
    self.watchdog:ground(grant)
  end
  release_by_route(self, by_route(self, batch), deadline)
  for _, grant in ipairs(batch) do
    if self.watchdog:has(grant) then grant:end_it(why) end
  end
end

--- Called when no task is left and the program is about to end: releases all
--- holds and lets background work finish. The session stays usable.
function session:wind_down()
  if self.is_closed then return end
  release_all(self, self.host.now() + self.timeout, "the program ends")
  self.watchdog:retire()
  self.server:rest()
end

--- Lets abandoned locks outlive the client: only their leases end them.
function session:outlive()
  ---@type any
  local server = self.server
  if server.outlive then server:outlive() end
end

-- Closes the connections, and wakes the callers of `close`.
local function disconnect(self)
  self.server:close()
  self.meter:close()
  local callers = self.closers
  self.closers = false
  for _, over in ipairs(callers) do over:set() end
end

-- Releases all holds, and waits for requests in flight until the deadline.
local function release_and_wait(self, deadline)
  release_all(self, deadline, "the client was closed")
  self.process.sessions[self.id] = nil
  self.host.sleep(0)                    -- lets the woken waiters leave
  self.work_ended = self.host.event()
  while self.pending > 0 and self.host.now() < deadline do
    self.work_ended:wait(deadline - self.host.now())
  end
end

-- A callback of the program that ends it must not keep the callers waiting.
local function finish_close(self, deadline)
  self.host.guard(disconnect, self, release_and_wait, self, deadline)
  disconnect(self)
end

-- Wakes the waiters, then closes in a daemon. So an error in another task,
-- which ends the program, does not cancel the releases.
local function begin_close(self, task)
  self.is_closed = true
  for _, family in pairs(self.families) do owner.renumber(task, family) end
  local deadline = self.host.now() + self.timeout
  for event in pairs(self.closing) do event:set() end
  self.wakeup:close()
  self.watchdog:close()
  if not self.host.daemon(finish_close, self, deadline) then
    finish_close(self, deadline)
  end
end

--- Releases all holds, waits for requests in flight, and closes the
--- connections. Takes `timeout` and SLACK at most. Later callers, and a task
--- that is cancelled meanwhile, also wait until the session is closed.
function session:close()
  if not self.closers then return end
  local host = self.host
  local task = host.current()
  local latest = host.now() + self.timeout + SLACK
  if not self.is_closed then begin_close(self, task) end
  if not self.closers then return end
  local over = host.event()
  self.closers[#self.closers + 1] = over
  local _, code, cancellation = over:pause(latest - host.now())
  if code == "cancelled" then
    over:pause(latest - host.now())
    error(cancellation, 0)
  end
end

return session
