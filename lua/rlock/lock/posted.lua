--- A hold whose requests need no task: they are posted, and a reply is handled
--- where it arrives, outside of any task. So nothing here waits. What may wait
--- runs in a background task: a retry, a reply that is reported to the program,
--- the check of a server. The parts of red locks inherit this. A hold has one
--- request at a time:
---   asks      "acquire", "release" or "undo" while that request is in flight
---             or waits for the grant's turn; else false. "undo" releases a new
---             hold that is not wanted, without passing the turn on before
---   sent      when the request was sent, by host.now()
---   grant     the grant for which it asks, or asked; false if that was in vain
--- A subclass has the fields `lock`, and `round` with the `deadline` of
--- requests to acquire, the `lease` (false: renewed by the watchdog), and
--- `flying`, the number of requests to acquire that end at the deadline by
--- themselves; the method `accept` (see requests.acquire); and:
---   is_accepted()   as `accept`, but without waiting: true; false; or nil if
---                   only `accept` can tell
---   is_wanted()     whether it is still to be acquired, when its turn comes
---   acquired(verdict, ms, code, detail)   what grant:acquire would return
---   released(ok, code, detail)            what grant:release would return

local duration = require "rlock.util.duration"
local requests = require "rlock.lock.requests"
local turn = require "rlock.lock.turn"

---@class rlock.lock.posted
---@field grant any a rlock.grant; false: none
---@field asks string | false
---@field set function
---@field lock rlock.lock
---@field sent number
---@field is_wanted function
---@field round any
---@field acquired function
---@field is_over boolean
---@field released function
local posted = {}
posted.__index = posted

local huge = math.huge

local count_text, entered, may_enter, removed =
  requests.count_text, requests.entered, requests.may_enter, requests.removed

--- Can the requests of this lock be posted? The policy's `extra` may wait; and
--- those of a read/write lock wait for the other side.
---@param lock rlock.lock
function posted.suits(lock)
  local policy = lock.record.policy
  return policy.ops.renew ~= nil and not (policy.extra or policy.peer
    or lock.session.host.ends_tasks)
end

local function in_background(self, fn)
  self.lock.session:background(function() fn(self) end)
end

-- The arguments of the request.
local function arguments(self)
  local granted, session = self.grant, self.lock.session
  local n = #granted.holds
  if self.asks == "acquire" then
    local lease = self.round.lease
    return granted.owner_name, lease and duration.ms(lease)
      or session.lease_ms, n == 0 and "1" or count_text(n + 1)
  elseif n == 0 then
    return granted.owner_name, "1", "0"
  end
  return granted.owner_name, duration.ms(self.seconds), count_text(n)
end

local function deadline_of(self)
  if self.asks == "acquire" then return self.round.deadline end
  return self.sent + 2 * self.lock.session.timeout   -- allows one lost reply
end

-- ends ------------------------------------------------------------------------

-- The request to acquire it has ended.
local function acquired(self, verdict, ms, code, detail)
  local granted = self.grant
  self.asks = false
  requests.passed_on(granted)
  if verdict ~= "held" then
    self.grant = false
    granted:recycle()
  end
  return self:acquired(verdict, ms, code, detail)
end

-- The request to release it has ended.
local function released(self, ok, code, detail)
  local granted = self.grant
  if self.asks == "undo" then
    return acquired(self, nil, nil, "busy", 0)
  end
  self.asks = false
  requests.passed_on(granted)
  granted:recycle()
  return self:released(ok, code, detail)
end

-- In a task: decides whether a new hold is wanted, which may wait.
local function confirm(self)
  acquired(self, requests.accepted(self.grant, self))
end

---@type function
local send_release

-- Handles the results of grant:acquire. The turn is still ours.
local function decide(self, verdict, ms, code, detail)
  local round = self.round
  round.flying = round.flying - 1
  if verdict ~= "held" then
    return acquired(self, verdict, ms, code, detail)
  end
  local is_accepted, host = self:is_accepted(), self.lock.session.host
  if is_accepted == nil then return in_background(self, confirm) end
  if is_accepted and not host.has_gone(self.grant.owner) then
    return acquired(self, "held")
  end
  self.asks = "undo"
  send_release(self, host.now())
end

-- Handles the outcome of the request, as target:run returns it.
local function ended(self, reply, code, detail, may_be_applied, sent)
  local granted = self.grant
  if self.asks == "acquire" then
    return decide(self, requests.acquired(granted, self.round.lease, self,
      reply, code, detail, may_be_applied, sent))
  end
  return released(self, requests.released(granted,
    granted.valid_until - self.sent, self.seconds, reply, code, detail,
    may_be_applied, sent))
end

-- requests --------------------------------------------------------------------

-- The name of the operation.
local function operation_of(self)
  return self.asks == "acquire" and "acquire" or "release"
end

-- In a task: sends the request, because it cannot be posted.
local function run(self)
  ended(self, self.lock.record.target:run(operation_of(self),
    deadline_of(self), self.lock.session.host.now(), arguments(self)))
end

-- Sends the request. The caller has the grant's turn. The posted request times
-- out after the client's `timeout`, or at `deadline` if that is earlier. A
-- retry then has the deadline of `deadline_of`.
local function send(self, operation, deadline, now, a, b, c)
  local lock = self.lock
  self.sent = now
  if lock.record.target:post(operation, self, deadline, now, a, b, c) then
    local session = lock.session
    session.pending = session.pending + 1
  else
    in_background(self, run)
  end
end

-- In a task: handles a reply that may be reported, or that is missing.
local function go_on(self, carrier, reply, code, detail)
  if reply ~= nil then return ended(self, reply, nil, nil, false, self.sent) end
  ended(self, self.lock.record.target:retry(carrier, operation_of(self),
    deadline_of(self), self.sent, code, detail, arguments(self)))
end

-- Handles the verdict "held".
local function held(self)
  if self.lock.session.is_closed then
    return ended(self, "held", nil, nil, false, self.sent)
  end
  return decide(self,
    entered(self.grant, nil, self.round.lease, self, self.sent))
end

-- Handles the verdict "freed".
local function freed(self)
  local granted = self.grant
  if granted.holds[1] then
    return ended(self, "freed", nil, nil, false, self.sent)
  end
  granted:clear()
  return released(self, true)
end

-- The verdicts that are not reported: a `log` callback may wait.
local QUIET = {
  acquire = { held = held, busy = true },
  release = { freed = freed, kept = true },
}
QUIET.undo = QUIET.release

--- Handles the reply to a posted request.
function posted:replied(reply, code, detail)
  local session, word, value = self.lock.session, reply, nil
  if type(reply) == "table" then word, value = reply[1], reply[2] end
  local handle = QUIET[self.asks][word]
  if handle == nil then
    local carrier = self.lock.record.target:carrier()
    in_background(self, function()
      go_on(self, carrier, reply, code, detail)
    end)
  end
  if session.work_ended then
    session:work_done()
  else
    session.pending = session.pending - 1
  end
  ---@diagnostic disable-next-line: call-non-callable
  if handle and handle ~= true and value == nil then return handle(self) end
  if handle then return ended(self, reply, nil, nil, false, self.sent) end
end

local function send_acquire(self, now)
  local granted, round, session = self.grant, self.round, self.lock.session
  local lease = round.lease
  round.flying = round.flying + 1
  if granted.state == "free" and not session.is_closed then    -- the usual case
    return send(self, "acquire", round.deadline, now, granted.owner_name,
      lease and duration.ms(lease) or session.lease_ms, "1")
  end
  local ok, code, detail = may_enter(granted, lease)
  if not ok then return decide(self, nil, nil, code, detail) end
  send(self, "acquire", round.deadline, now, arguments(self))
end

function send_release(self, now)
  local granted = self.grant
  local left, seconds, code, detail = removed(granted, self, now)
  if not left then return released(self, seconds, code, detail) end
  if not granted.holds[1] then                             -- the usual case
    return send(self, "release", huge, now, granted.owner_name, "1", "0")
  end
  self.seconds = seconds
  send(self, "release", huge, now, arguments(self))
end

--- Requests it. Calls `acquired`, perhaps at once.
---@param granted rlock.grant its grant
---@param now number by host.now()
function posted:acquire(granted, now)
  self.asks, self.grant = "acquire", granted
  if granted.acting then return turn.join(granted, self) end
  granted.acting = true
  send_acquire(self, now)
end

--- Gives the request its turn, see turn.lua.
function posted:set()
  local now = self.lock.session.host.now()
  if self.asks == "release" then return send_release(self, now) end
  if not self:is_wanted() then
    return acquired(self, nil, nil, "busy", 0)
  elseif now >= self.round.deadline then
    return acquired(self, nil, nil, "timeout", turn.LATE)
  end
  send_acquire(self, now)
end

--- Gives the request to acquire it up, if that waits for its turn.
---@param is_late boolean its deadline has passed; else it is not wanted
function posted:give_up(is_late)
  if self.asks ~= "acquire" or not turn.leave(self.grant, self) then return end
  self.asks, self.grant = false, false
  if is_late then return self:acquired(nil, nil, "timeout", turn.LATE) end
  self:acquired(nil, nil, "busy", 0)
end

--- Releases it. Calls `released`, perhaps at once.
function posted:release()
  local granted, session = self.grant, self.lock.session
  if self.is_over then
    return self:released(nil, "not_held", "it was released before")
  elseif session.host.ends_tasks then
    return in_background(self, function()
      self:released(granted:release(self))
    end)
  end
  self.asks = "release"
  if granted.acting then return turn.join(granted, self) end
  granted.acting = true
  send_release(self, session.host.now())
end

return posted
