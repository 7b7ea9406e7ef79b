--- What one owner has of one lock: its holds, and until when the server
--  certainly keeps the lock for it. A *hold* is one successful `lock`; each has
--  its own lease. This file asks the server and draws the conclusions; who
--  waits, and for how long, is lock.lua's affair.
--
--  Every request states the count of holds that is wanted, so that asking twice
--  is harmless. When it is not certain what became of a request, the owner gets
--  a new name for what it does next: a request that was delayed somewhere
--  can then never touch a later hold.
--
--  state: free -> held <-> at_risk -> lost, and back to free with the last
--  unlock.

local deadline = require "rlock.deadline"
local remote = require "rlock.remote"

local grant = {}
grant.__index = grant

local max = math.max
local unpack = table.unpack or unpack

--- @tparam table session
-- @tparam table lock   the handle: policy, keys, parties, name
-- @param party         who holds: a task, or the name of an owner
-- @tparam string owner what the server knows it by
function grant.new(session, lock, party, owner)
  local self = setmetatable({
    session = session, policy = lock.policy, name = lock.name,
    keys = lock.keys, parties = lock.parties, party = party, owner = owner,
    holds = {}, state = "free", valid_until = 0, pins = 0,
  }, grant)
  lock.parties[party] = self
  return self
end

--- For people: which lock this is.
function grant:show()
  local name = self.name
  if #name > 64 then name = name:sub(1, 61) .. "..." end
  return ("%s lock %q"):format(self.policy.name, (name:gsub("%c", "?")))
end

-- The arguments of remote.run after the deadline.
local function spread(keys, ...)
  local n = #keys
  if n == 2 then return 2, keys[1], keys[2], ... end
  if n == 1 then return 1, keys[1], ... end
  local all, count = { unpack(keys) }, select("#", ...)
  for i = 1, count do all[n + i] = (select(i, ...)) end
  return n, unpack(all, 1, n + count)
end

-- turns --------------------------------------------------------------------------

-- Several tasks may use one grant (an explicit owner, a hold handed on): their
-- requests go to the server one after the other.
local function take_turn(self, until_)
  if not self.acting then
    self.acting = true
    return true
  end
  local host = self.session.host
  local event = host.event()
  self.queue = self.queue or {}
  table.insert(self.queue, event)
  if event:wait(until_ - host.now()) then return true end
  for i, other in ipairs(self.queue) do
    if other == event then
      table.remove(self.queue, i)
      return false
    end
  end
  self:pass_turn()                 -- it came in the very moment
  return false
end

function grant:pass_turn()
  local queue = self.queue
  if queue and queue[1] then
    table.remove(queue, 1):set()
  else
    self.acting, self.queue = nil, nil
  end
end

-- Calls fn(self, ...) in our turn, and passes the turn on whatever happens.
local function passed_on(self, ok, ...)
  self:pass_turn()
  if not ok then error((...), 0) end
  return ...
end

local function in_turn(self, until_, fn, ...)
  if not take_turn(self, until_) then
    return nil, "timeout", "another task of this owner is busy with the lock"
  end
  return passed_on(self, pcall(fn, self, until_, ...))
end

-- what the holds need ---------------------------------------------------------------

-- Seconds of lease that the holds need from now on, and whether one of them is
-- to be kept alive.
local function needed(self, now)
  local ends, watched = 0, false
  for _, hold in ipairs(self.holds) do
    if hold.ends then ends = max(ends, hold.ends) else watched = true end
  end
  local seconds = ends - now
  if watched then seconds = max(seconds, self.session.lease) end
  return max(seconds, 0.001), watched
end

--- The arguments with which the watchdog renews it, and the lease it asks for.
function grant:renewal(now)
  local seconds = needed(self, now)
  local lease = deadline.ms(seconds)
  return lease, spread(self.keys, self.owner, lease, #self.holds)
end

local function forget(self)
  self.session.watchdog:remove(self)
  self.state, self.watched, self.on_lost = "free", nil, nil
  if self.parties[self.party] == self then self.parties[self.party] = nil end
  self.session:dropped(self)
end

-- asking for it ----------------------------------------------------------------------

-- Tells the server in the background, until it has heard, how many holds we
-- really have. For requests of which nobody knows whether they were applied.
local function settle(self, want, lease)
  local session = self.session
  session:renumber(self.party)
  session:background(function()
    local give_up = session.host.now() + lease
    remote.run(session.node, self.policy.ops.release, give_up,
      spread(self.keys, self.owner, 1, want, session.publish))
  end)
end

local function give_back(self, until_)
  local session = self.session
  local seconds = needed(self, session.host.now())
  local reply = remote.run(session.node, self.policy.ops.release, until_,
    spread(self.keys, self.owner, deadline.ms(seconds), #self.holds,
      session.publish))
  return reply
end

local function entered(self, lease, sent, hold)
  local session = self.session
  local ends = session.valid_until(sent, lease or session.lease)
  hold.ends = lease and ends or nil
  self.holds[#self.holds + 1] = hold
  if ends > self.valid_until then self.valid_until = ends end
  if self.state == "free" then session:gained(self) end
  self.state = "held"
  if not lease then self.watched = true end
  if not lease or self.on_lost then session.watchdog:watch(self, sent) end
end

local function ask(self, until_, lease, hold, ...)
  local session = self.session
  if session.is_closed then return nil, "closed", "the client was closed" end
  if self.state == "lost" then
    return nil, "lost", "this owner's earlier hold was lost ("
      .. self.lost_because .. "): unlock it first"
  end
  local seconds = lease or session.lease
  self.asked = session.host.now()
  local reply, sent, detail, may_be_applied = remote.run(session.node,
    self.policy.ops.acquire, until_, spread(self.keys, self.owner,
      deadline.ms(seconds), #self.holds + 1, ...))
  self.asked = nil
  if reply == nil then
    if may_be_applied then settle(self, #self.holds, seconds) end
    return nil, sent, detail
  end
  local verdict = reply[1]
  if verdict == "held" then
    if session.host.now() < session.valid_until(sent, seconds) then
      self.token = reply[2] or nil
      entered(self, lease, sent, hold)
      return "held"
    end
    give_back(self, max(until_, session.host.now() + session.timeout))
    return "busy", 0
  elseif verdict == "busy" then
    return "busy", reply[2]
  elseif verdict == "lost" then
    session.watchdog:lose(self, "the server does not have it any more")
    return nil, "lost", "the outer hold was lost: unlock it first"
  elseif verdict == "refused" then
    return nil, "refused", reply[2]
  end
  return nil, "redis", ("%s.acquire gave the verdict %s"):format(
    self.policy.name, tostring(verdict))
end

--- Asks the server for one more hold.
-- @tparam number until_ when to give up, by host.now()
-- @tparam number|nil lease seconds; nil: keep it alive
-- @tparam table hold what becomes the hold
-- @param ... what the policy's acquire takes besides
-- @treturn[1] string "held"
-- @treturn[2] string "busy"
-- @treturn[2] integer milliseconds until it is worth asking again
-- @treturn[3] nil, code, detail
function grant:acquire(until_, lease, hold, ...)
  return in_turn(self, until_, ask, lease, hold, ...)
end

--- Cleans up after a task that was unwound while it asked.
function grant:abandoned()
  if self.asked then
    self.asked = nil
    settle(self, #self.holds, self.session.lease)
  end
  self:sweep()
end

--- Forgets a grant that holds nothing.
function grant:sweep()
  if #self.holds == 0 and not self.acting
      and self.parties[self.party] == self then
    self.parties[self.party] = nil
  end
end

-- letting it go -----------------------------------------------------------------------

local function take_out(self, hold)
  local holds = self.holds
  if not hold then return table.remove(holds) end
  for i, other in ipairs(holds) do
    if other == hold then return table.remove(holds, i) end
  end
end

local function kept(self, sent, seconds, watched)
  local session = self.session
  self.watched = watched
  self.valid_until = session.valid_until(sent, seconds)
  if watched then
    self.state = "held"
    session.watchdog:watch(self, sent)
  else
    session.watchdog:watch(self)
  end
  return true
end

local function lost(self)
  local because = self.lost_because
    or "the server did not have it any more when it was unlocked"
  if #self.holds == 0 then
    if self.state ~= "lost" then self.session.watchdog:lose(self, because) end
    forget(self)
  else
    self.session.watchdog:lose(self, because)
  end
  return nil, "lost", because
end

-- The server could not be told: it ends with the lease at the latest.
local function untold(self, code, detail, left)
  settle(self, #self.holds, max(left, 0))
  if #self.holds == 0 then forget(self) end
  return nil, code, ("%s; the lease ends it in %.1f s at the latest"):format(
    detail, max(left, 0))
end

local function let_go(self, until_, hold)
  local session = self.session
  local now = session.host.now()
  hold = take_out(self, hold)
  if not hold then return nil, "not_held", "not held by this task" end
  if hold.pinned then self.pins = self.pins - 1 end
  hold.is_over = true
  if self.state == "lost" then return lost(self) end
  local left, want = self.valid_until - now, #self.holds
  local seconds, watched = needed(self, now)
  if want == 0 then session.watchdog:remove(self) end
  self.asked = now
  local reply, sent, again, may_be_applied = remote.run(session.node,
    self.policy.ops.release, until_, spread(self.keys, self.owner,
      deadline.ms(seconds), want, session.publish))
  self.asked = nil
  if reply == nil then return untold(self, sent, again, left) end
  local verdict = reply[1]
  if again then session:renumber(self.party) end
  if verdict == "freed" then
    forget(self)
    return true
  elseif verdict == "kept" then
    return kept(self, sent, seconds, watched)
  elseif verdict == "lost" then
    -- An earlier request may have freed it, while it was certainly ours: then
    -- the work was protected to its end.
    if again and left > 0 and want == 0 then
      forget(self)
      return true
    end
    return lost(self)
  end
  return nil, "redis", ("%s.release gave the verdict %s"):format(
    self.policy.name, tostring(verdict or may_be_applied))
end

--- Gives up one hold.
-- @tparam[opt] table hold which; the last one by default
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string "not_held", "lost", or why the server was not told
-- @treturn[2] string detail
function grant:release(hold)
  local until_ = self.session.host.now() + self.session.timeout
  return in_turn(self, until_, let_go, hold)
end

--- Seconds for which it is certainly ours.
function grant:valid_for()
  if self.state == "lost" or self.state == "free" then return 0 end
  return max(0, self.valid_until - self.session.host.now())
end

--- The arguments of the release that gives up all holds.
function grant:last_release()
  return spread(self.keys, self.owner, 1, 0, self.session.publish)
end

--- Ends it from our side, whatever the server knows.
function grant:end_it(why)
  self.session.watchdog:remove(self)
  self.session:dropped(self)
  self.state, self.lost_because, self.on_lost = "lost", why, nil
end

--- Calls fn(lock, reason) once when it is lost; at once if it already is.
function grant:when_lost(fn, lock)
  if self.state == "lost" then
    self.session.host.spawn(fn, lock, self.lost_because)
    return
  end
  self.on_lost = self.on_lost or {}
  table.insert(self.on_lost, { fn = fn, lock = lock })
  if not self.watched then self.session.watchdog:watch(self) end
end

return grant
