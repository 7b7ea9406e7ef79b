--- The heartbeats of the waiters in a queue in Redis, for policies with the
--- operation `refresh`. A request refreshes many waiters of one lock, and its
--- reply names those that must retry. So a waiter itself sends nothing, and the
--- retry of a woken waiter usually queues behind one request at most.
---
--- With more than BATCH waiters of a lock, each is refreshed half as often.
--- Requests are evenly spaced, at most MOST a second. If that is too few, each
--- refreshes more waiters.

local verdicts = require "rlock.lock.verdicts"

---@class rlock.heartbeats
---@field session rlock.session
---@field lines table<rlock.record, table>
local heartbeats = {}
heartbeats.__index = heartbeats

local ceil, huge, max, min = math.ceil, math.huge, math.max, math.min

local BATCH = 128       -- waiters of one request, which takes less than 1 ms
local MOST = 200        -- requests a second for one lock
local LARGEST = 1000    -- waiters of one request: a limit of Lua
local IN_FLIGHT = 8     -- concurrent requests for one lock, at most
local LATE = 0.05       -- seconds of delay that justify each further one
local PACE = 0.9        -- leaves some time for late requests
local PERIOD = 0.8      -- between two heartbeats, as a share of `poll`
local EARLY = 0.5       -- how early one may be, as a share of that period
local LEAST = 0.01      -- seconds; a policy may reply "busy" and 0
local POLL = 0.5        -- seconds: of a policy without `poll`

---@param session rlock.session
---@return rlock.heartbeats
function heartbeats.new(session)
  return setmetatable({ session = session, lines = {} }, heartbeats)
end

-- the waiters of one lock, in order of their next heartbeat -------------------

local function append(line, waiter, due)
  local last = line.last
  waiter.line, waiter.due, waiter.ahead, waiter.behind = line, due, last, nil
  if last then last.behind = waiter else line.first = waiter end
  line.last, line.count = waiter, line.count + 1
end

local function unlink(line, waiter)
  local ahead, behind = waiter.ahead, waiter.behind
  if ahead then ahead.behind = behind else line.first = behind end
  if behind then behind.ahead = ahead else line.last = ahead end
  waiter.line, waiter.ahead, waiter.behind = nil, nil, nil
  line.count = line.count - 1
end

-- Seconds between two heartbeats of a waiter.
local function period_of(line)
  return line.count > BATCH and 2 * line.period or line.period
end

-- Seconds between two requests of a line that needs several, and the number of
-- waiters of each.
local function pace(line)
  local all = PACE * period_of(line)
  local seconds = min(line.period, max(all * BATCH / line.count, 1 / MOST))
  return seconds,
    min(LARGEST, max(BATCH, ceil(line.count * seconds / all)))
end

-- Schedules a request after `ms`, when a reply says that the lock may be free.
local function expect(line, ms, now)
  if ms < 0 then return false end
  local deadline = now + max((ms + 1) / 1000, LEAST)
  if deadline >= line.deadline then return false end
  line.deadline = deadline
  return true
end

-- requests --------------------------------------------------------------------

local function wake_all(line, batch, is_named)
  for i, waiter in ipairs(batch) do
    if waiter.line == line and (not is_named or is_named[batch.owners[i]]) then
      waiter:set()
    end
  end
end

-- After a failure, wakes all waiters of the batch: their retries report it.
local function request(line, batch)
  local session, record = line.session, line.record
  local now, op = session.host.now(), record.policy.ops.refresh
  local reply = record.target:run("refresh", now + session.timeout, now, nil,
    nil, nil, batch.owners)
  if not verdicts.of(op, reply) then return wake_all(line, batch) end
  expect(line, reply[2], session.host.now())
  if not reply[3] then return end
  local is_named = {}
  for i = 3, #reply do is_named[reply[i]] = true end
  wake_all(line, batch, is_named)
end

local function land(line)
  line.flying = line.flying - 1
  line.change:set()
end

local function send(line, batch)
  line.session.host.guard(land, line, request, line, batch)
  land(line)
end

-- Takes the waiters of the next request from the front of the line.
local function collect(line, now)
  local batch, owners, period = {}, {}, period_of(line)
  local next_due, latest = now + period, now + period * EARLY
  if line.deadline <= now then latest, line.deadline = huge, huge end
  local seconds, most = pace(line)
  line.next_at = line.count > BATCH and now + seconds or huge
  local waiter = line.first
  while waiter ~= batch[1] and #batch < most
      and (waiter.due <= latest or not batch[1]) do
    local n = #batch + 1
    batch[n], owners[n] = waiter, waiter.owner_name
    unlink(line, waiter)
    append(line, waiter, next_due)
    waiter = line.first
  end
  batch.owners = owners
  return batch
end

-- When to send the next request.
local function next_at(line)
  if line.flying >= IN_FLIGHT then return huge end
  return min(line.first.due, line.deadline, line.next_at) + line.flying * LATE
end

-- The task of a line, while there are waiters.
local function run(line)
  local session = line.session
  while line.first and not session.is_closed do
    local now, at = session.host.now(), next_at(line)
    if at <= now then
      local batch = collect(line, now)
      line.flying = line.flying + 1
      if not session.host.daemon(send, line, batch) then
        line.flying = line.flying - 1
        wake_all(line, batch)
      end
    else
      line.change:pause(at < huge and at - now or nil)
    end
  end
end

-- If the session was closed, wakes the waiters: their retries report it.
local function serve(line)
  run(line)
  line.lines[line.record] = nil
  while line.first do
    line.first:set()
    unlink(line, line.first)
  end
end

local function open(self, record)
  local session = self.session
  local line = {
    session = session, record = record, lines = self.lines, deadline = huge,
    next_at = huge, count = 0, flying = 0, change = session.host.event(),
    period = (record.policy.poll or POLL) * PERIOD,
  }
  self.lines[record] = line
  session.host.service(serve, line)
  return line
end

-- for waiters -----------------------------------------------------------------

--- Sends heartbeats for a waiter from now on.
---@param waiter rlock.waiter with its `owner_name`
---@param record rlock.record of the lock
---@param ms number until a retry may succeed; -1: unknown
function heartbeats:join(waiter, record, ms)
  local line = self.lines[record] or open(self, record)
  local now = self.session.host.now()
  local was_empty = not line.first
  append(line, waiter, now + period_of(line))
  if expect(line, ms, now) or was_empty then line.change:set() end
end

--- Sends no more heartbeats for a waiter.
---@param waiter rlock.waiter
function heartbeats.leave(_, waiter)
  if waiter.line then unlink(waiter.line, waiter) end
end

return heartbeats
