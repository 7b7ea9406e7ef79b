--- One computation for many callers: client:compute in client.lua. It prevents
--- a thundering herd: the first caller computes under a lock, the others wait
--- for the value.
---
--- A store keeps the value and the last failure. The back end may have its own
--- store (zookeeper/compute.lua). The one for Redis is here. With KEY =
--- rlock_compute:{name}:
---   KEY           the lock, of the kind `compute`
---   KEY:value     string: the value; expires with ttl + stale
---   KEY:state     string: "fresh"; expires with ttl. Or a failure
---
--- A waiter reads the value before it requests the lock. So a release message
--- costs one read per client. A failure is the text "<attempts> <id> <code>
--- <detail>". After the first failure another caller retries; the second one is
--- the result for all waiters. Its id distinguishes these from callers that
--- arrive later, which compute again.
---
--- In one client, tasks that need the same value form a *flight*: one task, the
--- leader, waits for the lock, and computes if necessary. The others, its
--- followers, wait for the leader and send no requests.

local PASSED = require "rlock.util.deadline".passed
local backoff = require "rlock.util.backoff"
local check = require "rlock.util.options"
local duration = require "rlock.util.duration"
local identity = require "rlock.util.identity"
local lock = require "rlock.lock.lock"
local naming = require "rlock.naming"
local waiting = require "rlock.lock.waiting"

local compute = {}

local huge, max, min = math.huge, math.max, math.min
---@diagnostic disable-next-line: access-invisible
local running, unpack = coroutine.running, table.unpack or unpack

local ATTEMPTS = 2          -- failures until all waiters get the error
local LOOK = 0.5            -- seconds between a follower's checks of its leader
local LONGEST = 1000        -- bytes of a detail
local FIRST_PAUSE, LAST_PAUSE = 0.02, 0.5   -- seconds between two reads

--- Seconds for which a failure is kept: longer than a waiter's poll.
compute.KEPT = 10

-- The options of a call. The ttl must leave waiters time to read the value.
local check_options = check.table({
  ttl = check.duration(0.1), stale = check.duration(0), wait = check.wait,
}, "a table such as { ttl = 60 }", "client:compute")

-- The results of a call for a state, as a table; nil: the call must compute.
local function results_of(self, state)
  if state.is_fresh then return { state.value, "cached" } end
  if state.attempts >= ATTEMPTS and state.id ~= self.seen then
    return { nil, state.code, state.detail }
  end
end

-- The results of a failed request: for this caller only.
local function raised(code, detail)
  if code == "cancelled" then error(detail, 0) end
  return { nil, code, detail, is_partial = true }
end

local function left_of(self)
  return self.deadline == huge and huge
    or max(self.deadline - self.session.host.now(), 0)
end

-- The deadline of one request.
local function request_deadline(self)
  local session = self.session
  return session.host.now() + (self.wait == 0 and session.timeout
    or min(left_of(self), session.timeout))
end

-- Reads the text of a failure. Any program may have written it: another text
-- is no failure.
local function failure_in(text)
  local attempts, id, code, detail =
    (text or ""):match("^(%d) (%x+) (%a+) (.*)$")
  if code ~= "failed" and code ~= "usage" then return { attempts = 0 } end
  return { attempts = tonumber(attempts), id = id, code = code,
    detail = naming.printable(detail:sub(1, LONGEST)) }
end

--- Reads the state.
---@param self table the call
---@param waiter? rlock.waiter to wake when the state changes
---@return table? # value, is_fresh; attempts (0: no failure), id, code, detail
---@return rlock.failure? code
---@return string? detail # for "cancelled", the value to raise
local function read(self, waiter)
  local value, is_fresh, failure =
    self.store.read(self, request_deadline(self), waiter)
  if value == nil then return nil, is_fresh, failure end
  local state = failure_in(failure)  --[[@as any]]
  state.value, state.is_fresh = value or nil, value and is_fresh
  return state
end

-- The lock of a computation. Its waiter checks for a result at each wake-up.
---@class rlock.recipes.compute.Turn: rlock.lock
---@field call any
local Turn = setmetatable({}, { __index = lock })
Turn.__index, Turn.__tostring = Turn, lock.__tostring

function Turn:retry(waiter, deadline)
  local call = self.call
  call.results = call.old
  if not call.results then
    local state, code, detail = read(call, waiter)
    if code == "cancelled" then return nil, nil, code, detail end
    call.results = state and results_of(call, state)
  end
  if call.results then return "found", nil, "busy", "has a result" end
  return lock.retry(self, waiter, deadline, self.session.host.now())
end

function Turn:end_wait(waiter, ...)
  if waiter.unwatch then waiter.unwatch() end
  return lock.end_wait(self, waiter, ...)
end

local function turn_of(self)
  local policy = self.session.options.backend.load "compute"
  local turn = setmetatable(lock.new(self.client, policy, self.key), Turn)
  turn.call = self
  return turn
end

-- Ends a flight, once. Without results, or with partial ones, another task
-- becomes the leader of the next flight.
local function land(flight, results)
  if flight.is_over then return end
  flight.is_over = true
  local flights = flight.flights
  if flights[flight.key] == flight then flights[flight.key] = nil end
  if results and not results.is_partial then
    flight.results = results[1] and { results[1], "cached" } or results
  end
  for event in pairs(flight.waiting) do event:set() end
end

-- The flight for this value, if its leader is alive.
local function flight_of(self)
  local flight = self.flights[self.key]
  if flight and self.session.host.is_over(flight.leader) then
    land(flight)
    return nil
  end
  return flight
end

--- Calls fn.
---@return string? # the value
---@return rlock.failure? code, string? detail
local function evaluate(self, hold)
  local is_unwind, most = self.session.host.is_unwind, self.store.most
  local ok, value, why = pcall(self.fn, hold)
  if not ok then
    if is_unwind and is_unwind(value) then error(value, 0) end
    value, why = nil, value == nil and "nil" or value
  end
  if type(value) == "string" and #value <= most then return value end
  if value == nil and why ~= nil then
    local is_text, text = pcall(tostring, why)
    return nil, "failed", naming.printable(is_text and text
      or "an error whose __tostring raises"):sub(1, LONGEST)
  end
  return nil, "usage", ("client:compute: fn returned a %s; it must return a "
    .. "string of at most %d bytes, or nil and why it has none"):format(
    type(value) == "string" and #value .. " bytes long string" or type(value),
    most)
end

-- The text of a failure, after those of a state.
local function failure_of(self, state, code, detail)
  local before = state.id ~= self.seen and state.attempts
    or state.attempts % ATTEMPTS
  return ("%d %s %s %s"):format(before + 1,
    identity.hex(self.session.host.random(8)), code, detail),
    before + 1 >= ATTEMPTS
end

-- As `read`, under the lock. Retries a passing failure, such as a lost
-- connection, until the caller's deadline or the loss of the lock.
local function read_under(self, hold)
  local session = self.session
  local host, server = session.host, session.server
  local ends = self.wait == 0 and request_deadline(self) or self.deadline
  local pause = backoff.new(FIRST_PAUSE, LAST_PAUSE, host.random_number)
  ---@type any, any, any
  local state, code, detail
  repeat
    state, code, detail = read(self)
    if state or code == "cancelled" or session.is_closed
        or not server:is_retried(code, detail) or hold:valid_for() <= 0 then
      break
    end
    host.sleep(min(pause:next(), max(ends - host.now(), 0)))
  until host.now() >= ends
  return state, code, detail
end

-- Computes under the lock, unless another caller has done so.
local function compute_under(self, hold)
  local state, code, detail = read_under(self, hold)
  if not state then return raised(code, detail) end
  local results = results_of(self, state)
  if results then return results end
  local value
  value, code, detail = evaluate(self, hold)
  if not value then
    local failure, is_final = failure_of(self, state, code, detail)
    self.store.fail(self, hold, failure, state)
    return { nil, code, detail, is_partial = not is_final }
  end
  local ok, why, more = self.store.write(self, hold, value, state)
  if ok then return { value, "computed" } end
  -- After a loss another caller may have a newer value.
  return { value, "computed", ("not stored: %s: %s"):format(why, more),
    is_partial = why == "lost" or why == "not_held" }
end

local function unlock(hold) hold:unlock() end

-- Is the lock free? Does not acquire it.
local function is_free(self, turn)
  local target, now = turn.record.target, self.session.host.now()
  local reply, code, detail =
    target:run("peek", request_deadline(self), now, "")
  if code == "cancelled" then error(detail, 0) end
  return type(reply) == "table" and reply[1] == "free"
end

--- Waits for the lock or a result, and computes if necessary.
---@return table # the results; `is_partial` if they are for this caller only
local function attempt(self, state)
  local turn = turn_of(self)
  self.old = state and self.stale > 0 and state.value
    and { state.value, "stale", is_partial = true }
  if self.old and not is_free(self, turn) then return self.old end
  local hold, code, detail = turn:hold { wait = left_of(self) }
  if not hold then
    return self.results or self.old
      or { nil, code, detail, is_partial = true }
  end
  hold.hold.is_computation = true
  local results = self.session.host.guard(unlock, hold, compute_under, self,
    hold)
  if not results.is_partial then land(self.flight, results) end
  unlock(hold)
  return results
end

local function lead(self, state)
  local host, key = self.session.host, self.key
  local flight = { flights = self.flights, key = key, seen = self.seen,
    leader = host.current(), thread = running(), waiting = {} }
  self.flights[key], self.flight = flight, flight
  local results = host.guard(land, flight, attempt, self, state)
  land(flight, results)
  return results
end

--- Waits for the end of a flight, unless the wait would deadlock.
---@return any # true
---@return rlock.failure? code, string? detail
local function await(self, flight)
  local session, event = self.session, self.session.host.event()
  local waiter = { flight = flight, wait_deadline = self.deadline }
  local cycle = left_of(self) > 0
    and waiting.deadlock(session, waiter, turn_of(self))
  ---@type any, any, any
  local ok, code, detail = nil, "deadlock", cycle
  flight.waiting[event] = true
  while not cycle do
    ok, code, detail = event:pause(min(left_of(self), LOOK))
    if ok == nil or left_of(self) == 0 or flight_of(self) ~= flight then break
    end
  end
  flight.waiting[event] = nil
  waiting.leave(session, waiter)
  return ok, code, detail
end

-- Waits for the results of a flight; nil: it has none.
local function follow(self, flight)
  if flight.thread == running() then
    return { nil, "refused", "fn of client:compute computes the same name" }
  end
  if self.seen == nil then self.seen = flight.seen end
  local ok, code, detail = await(self, flight)
  if ok == nil then return raised(code, detail) end
  return flight.results
end

-- One round: the results, or nil if a flight has ended without any.
local function step(self)
  local flight, state = flight_of(self), nil
  if not flight or self.stale > 0 then
    local code, detail
    state, code, detail = read(self)
    if code == "cancelled" or code == "usage" then
      return raised(code, detail)
    end
    if self.seen == nil then self.seen = state and state.id or false end
    local results = state and results_of(self, state)
    if results then return results end
    flight = flight_of(self)
  end
  if self.wait > 0 and left_of(self) == 0 then return nil end
  if not flight then return lead(self, state) end
  if state and state.value and self.stale > 0 then
    return { state.value, "stale" }
  end
  return follow(self, flight)
end

local function run(self)
  local results
  repeat
    results = step(self)
    if not results and left_of(self) == 0 then
      ---@type any
      local code = self.wait == 0 and "busy" or "timeout"
      results = { nil, code, naming.show(self.name)
        .. ": not computed in time" }
    end
  until results
  if results[1] then
    local series, how = self.session.meter:series "compute", results[2]
    series[how] = series[how] + 1
  end
  return unpack(results, 1, 3)
end

--- Computes, or waits for the result of another caller.
---@param store table its `key(name)`, `read`, `write`, `fail` and `most`
---@param client any options, fn as of client:compute
function compute.call(store, client, name, options, fn)
  local given = check_options(options, 2)
  if not given.ttl then
    error("bad ttl: is missing: a number of seconds for which a value is fresh",
      2)
  elseif type(fn) ~= "function" then
    error("bad argument fn of client:compute: must be a function", 2)
  end
  local session, wait = client.session, given.wait or huge
  session.host.current()                -- an error outside of a task
  if wait < 0 then return nil, "timeout", PASSED end
  session.flights = session.flights or {}
  return run { client = client, session = session, store = store, name = name,
    key = store.key(name), ttl = given.ttl, stale = given.stale or 0, fn = fn,
    wait = wait, deadline = session.host.now() + wait,
    flights = session.flights }
end

-- Redis -----------------------------------------------------------------------

local store = { most = 1048576 }

function store.key(name) return naming.prefix("rlock_compute", name) end

local function is_text(value)
  return value == false or type(value) == "string"
end

--- Reads the state.
---@return string|boolean|nil # the value; false: none
---@return any # whether it is fresh
---@return string? # the failure; detail
function store.read(self, deadline)
  local reply, code, detail = self.session.server:call(deadline,
    { "MGET", self.key .. ":value", self.key .. ":state" })
  if reply == nil then return nil, code, detail end
  if type(reply) ~= "table" or not is_text(reply[1])
      or not is_text(reply[2]) then
    return nil, "redis", "ERR a malformed reply to MGET"
  end
  return reply[1], reply[2] == "fresh", reply[2] or nil
end

local function ms(seconds) return ("%d"):format(duration.ms(seconds)) end

--- Stores a value while the hold lasts.
---@return true?, rlock.failure? code, string? detail
function store.write(self, hold, value)
  return hold:transaction(function(t)
    t:call("SET", self.key .. ":value", value, "PX", ms(self.ttl + self.stale))
    t:call("SET", self.key .. ":state", "fresh", "PX", ms(self.ttl))
  end)
end

--- Stores a failure while the hold lasts. An old value remains.
function store.fail(self, hold, failure)
  return hold:call("SET", self.key .. ":state", failure, "PX", ms(compute.KEPT))
end

---@class rlock.options.compute
---@field ttl number seconds for which a value is fresh, at least 0.1
---@field stale? number seconds after that in which callers get the stale value
--- while one of them recomputes it; default: 0
---@field wait? rlock.wait for others; 0: one attempt. It does not interrupt fn.
--- Default: forever

---@alias rlock.compute_options rlock.options.compute & {
---   ttl: any, stale?: any, wait?: any, [string]: nil }

--- client:compute(name, options, fn): the value of a name. If there is none,
--- one caller computes it, and the others wait for its result.
---@param client rlock.client
---@param name string on ZooKeeper a path
---@param options rlock.compute_options the same for all callers of a name
---@param fn fun(hold: rlock.hold): string?, any gets the hold of the lock.
---  Returns a string of at most 1 MB, on ZooKeeper 512 KB; or nil and why it
---  has none
---@return string? value
---@return "computed" | "cached" | "stale" | rlock.code # where it is from. Or
---  "failed": fn raised an error, or returned nil and why, here or in the last
---  caller that computed; "usage": fn returned anything else; "timeout", "busy"
---  (with a wait of 0): another caller still computes; "refused": fn requests
---  its own name; "deadlock": others compute, in which fn requests this one; or
---  a code of lock:lock
---@return string? # why the computed value was not stored; or the detail, at
---  most 1000 bytes
function compute.new(client, name, options, fn)
  if name:find("[{}]") then             -- raises an error, as for a lock
    local session = client.session
    session.server:bind(session.options.backend.load "compute", name)
  end
  return compute.call(store, client, name, options, fn)
end

return compute
