--- One round of requests to all servers of a red lock (quorum.lua) and its
--- outcome. It is the list of its parts, one for each server. It is decided as
--- soon as a majority has granted the lock or no longer can. Late replies are
--- still handled: an unused grant is released.

local joint = require "rlock.several.joint"
local part = require "rlock.several.part"
local verdicts = require "rlock.lock.verdicts"

---@class rlock.several.round
---@field [integer] any
---@field red any
---@field hold any
---@field owner rlock.owner
---@field lease number
---@field deadline number
---@field is_short boolean
---@field held number
---@field failed number
---@field unknown number
---@field left number
---@field flying number
---@field is_early boolean
---@field event any
---@field is_over boolean
---@field clash any
local round = {}
round.__index = round

local min = math.min

local SHARE = 4          -- a request takes at most lease/4

--- The deadline of a request to one server that is sent now.
---@param red table the lock
---@param lease? number seconds
---@param now number by host.now()
function round.time_limit(red, lease, now)
  return now + min(red.node_timeout, (lease or red.lease) / SHARE)
end

---@param red table the lock: members, majority, node_timeout, lease, host
---@param hold table gets the inner holds
---@param lease? number seconds; nil: renewed by the watchdog
---@param wait_deadline? number of the whole wait
function round.new(red, hold, lease, wait_deadline)
  local deadline = round.time_limit(red, lease, red.host.now())
  local is_short = wait_deadline and wait_deadline < deadline
  return setmetatable({
    nil, nil, nil, nil, nil,                                  -- room for parts
    red = red, hold = hold, owner = hold.task, lease = lease or false,
    deadline = is_short and wait_deadline or deadline, is_short = is_short,
    held = 0, failed = 0,     -- counts of replies
    unknown = 0,              -- count of servers not identified yet
    left = 0,                 -- count of requests that have not ended
    flying = 0,               -- see posted.lua
    is_early = false, event = false, is_over = false, clash = false,
  }, round)
end

--- Is the round decided? A majority needs all servers identified, to rule out
--- duplicates; that takes time only on new connections.
function round:is_decided()
  local red = self.red
  return self.clash or self.held >= red.majority and self.unknown == 0
    or self.failed > #red.members - red.majority
end

local function is_over(self)
  return self.left == 0 or self.is_early and self:is_decided()
end

--- A part's request has ended, while a task waits for them.
function round:changed()
  if self.flying == 0 or is_over(self) then self.event:set() end
end

--- Gives up the requests that wait for their turn.
---@param is_late boolean see posted.lua
function round:give_up(is_late)
  for i = 1, #self do
    if self[i].asks == "acquire" then self[i]:give_up(is_late) end
  end
end

-- Waits until the round is over. Requests that are flying end by themselves at
-- the deadline. Those that wait for their turn then are given up.
local function wait(self)
  local host = self.red.host
  while not is_over(self) do
    local left = self.deadline - host.now()
    if left <= 0 then
      self:give_up(true)
      if is_over(self) then break end
    end
    self.event = host.event()
    local woken, code, unwind =
      self.event:pause(left > 0 and self.flying == 0 and left or nil)
    self.event = false
    if woken == nil then return nil, code, unwind end
  end
  return true
end

--- Requests the lock from these members' servers; until `is_over` is set,
--- grants become inner holds of the hold. The requests go on after this
--- returns.
---@param members table
---@param is_early? boolean return as soon as the round is decided
---@return boolean? # true
---@return rlock.failure? code # "cancelled"
---@return any # the value to raise
function round:request(members, is_early)
  local now, n = self.red.host.now(), #members
  self.left, self.unknown, self.is_early = n, n, is_early
  for i = 1, n do
    local its = part.new(self, members[i])
    self[i] = its
    its:start(now)
  end
  return wait(self)
end

--- Counts the servers on which the lock is held by the hold's owner.
---@return any ... # as `request`
function round:count(members)
  self.unknown = #members
  for i, member in ipairs(members) do self[i] = part.new(self, member) end
  return joint.together(self.red.host, self, function(inner)
    self.unknown = self.unknown - 1
    local state, _, detail = inner.lock:state_for(self.owner, self.deadline)
    inner.code, inner.answer = "counted", detail
    if state and state.count > 0 then
      self.held, inner.answer = self.held + 1, "yes"
    elseif state then
      self.failed, inner.answer = self.failed + 1, "no"
    end
  end, nil, function() return self:is_decided() end)
end

local function show_reply(inner)
  if inner.code == nil then
    return inner:is_held() and "yes" or "not waited for"
  elseif inner.code == "busy" then
    return verdicts.busy(inner.answer)
  end
  return tostring(inner.answer)
end

--- A message that lists what each server answered.
function round:explain()
  local words = {}
  for i, inner in ipairs(self) do
    local where = inner.lock.record.target:where() .. ": "
    words[i] = where .. show_reply(inner):gsub(where:gsub("%p", "%%%0"), "")
  end
  return ("%s: %d of %d servers, %d are needed; %s"):format(self.red:show(),
    self.held, #self, self.red.majority, table.concat(words, "; "))
end

-- Classifies a server by its reply. A server without one is "away" only if its
-- deadline has passed; a round decided earlier did not wait for it.
local function kind_of(self, inner, now)
  if inner.lock.session.is_closed then return "closed" end
  if inner.code == "busy" or inner.code == "refused" then return inner.code end
  local server = inner.lock.session.server
  if inner.code == "redis"
      and not server:is_retried(inner.code, inner.answer) then
    return "broken"
  end
  if inner.code or not inner:is_held() and now >= self.deadline then
    return "away"
  end
  return "busy"
end

--- Why there is no majority.
---@return string # "refused" or "closed" (the clients are) if the other servers
---  are no majority; "busy" if a majority answers, but another owner holds too
---  many; else "quorum"
---@return string detail
---@return boolean? # true if a retry cannot succeed
function round:outcome()
  if self.clash then return "refused", self.clash, true end
  local count = { busy = 0, refused = 0, closed = 0, away = 0, broken = 0 }
  local now = self.red.host.now()
  for _, inner in ipairs(self) do
    local kind = kind_of(self, inner, now)
    count[kind] = count[kind] + 1
  end
  local code, spare = "quorum", #self - self.red.majority
  if count.refused > spare then
    code = "refused"
  elseif count.closed > spare then
    code = "closed"
  elseif count.busy >= self.red.majority then
    code = "busy"
  end
  return code, self:explain(),
    count.refused + count.closed + count.broken > spare
end

return round
