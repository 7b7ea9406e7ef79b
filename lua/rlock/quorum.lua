--- A lock of a majority of independent Redis servers, known as Redlock: it is
--  there as long as most of the servers are, and no one of them can give it
--  away alone. All servers are asked at once, each for a short time, and the
--  answer is certain as soon as a majority has said yes or cannot do so any
--  more. It is held for as long as a majority of the leases certainly lasts, by
--  our own clock from before the requests, less an allowance for the drift of
--  clocks. The watchdog of each client renews its part. A part that was lost,
--  or could not be had, is asked for again while a majority holds.
--
--  What is safe with any server set up in any way is only this: that a majority
--  of them does not forget what it granted. A server that was restarted and
--  does not keep an append-only file is not counted for as long as a lease, by
--  clients that knew it before.

local backoff = require "rlock.backoff"
local deadline = require "rlock.deadline"
local joint = require "rlock.joint"
local policy = require "rlock.policy"
local voter = require "rlock.voter"

local quorum = joint.class()

local floor, huge, max, min = math.floor, math.huge, math.max, math.min

--- Seconds between attempts, at random: from the first, doubled to the last.
local FIRST_PAUSE, LAST_PAUSE = 0.004, 0.128
--- Seconds before a part that a hold does not have is asked for again: the
--  first limit, which is doubled up to a third of the lease; and the least.
local FIRST_REST, LEAST_REST = 0.1, 0.01
local NODE_TIMEOUT = 0.05
local DRIFT = 0.01             -- of a lease, for the drift of clocks
local SHARE = 4                -- no server gets more than lease/4 to answer

-- what it is made of --------------------------------------------------------

local exclusive = { reentrant = true, simple = true, mutex = true, spin = true }

-- Majorities have one server in common; it is the only one to say no. So what
-- more than one may hold cannot be had from majorities.
local function unsound(name, level)
  error(("bad policy %s of red_lock: not known to be mutual exclusion (its "
    .. "definition would say exclusive = true). Two permits on three servers "
    .. "are three: A has servers 1 and 2, B 2 and 3, C 1 and 3"):format(name),
    level + 1)
end

local function check_policy(which, level)
  which = which or "reentrant"
  if type(which) == "string" and exclusive[which] then return which end
  local known = { semaphore = true, permits = true, latch = true }
  if known[which] then unsound(which, level + 1) end
  local loaded = policy.load(which, level + 2)
  if not loaded.source.exclusive then unsound(loaded.name, level + 1) end
  return which
end

local options_known = { policy = true, drift = true, node_timeout = true }

local function check_options(options, level)
  options = options or {}
  if type(options) ~= "table" then
    error("bad options of red_lock: must be a table such as "
      .. "{ policy = \"simple\" }", level + 1)
  end
  for key in pairs(options) do
    if not options_known[key] then
      error(("bad option %s of red_lock"):format(tostring(key)), level + 1)
    end
  end
  local drift = options.drift or DRIFT
  if type(drift) ~= "number" or not (drift >= 0 and drift <= 0.5) then
    error("bad drift: must be a number from 0 to 0.5", level + 1)
  end
  return check_policy(options.policy, level + 1), drift,
    deadline.check(options.node_timeout or NODE_TIMEOUT, "node_timeout", 0.001,
      nil, level + 1)
end

local function check_clients(clients, level)
  if type(clients) ~= "table" or #clients == 0 then
    error("bad clients of red_lock: must be an array of clients", level + 1)
  end
  local seen = {}
  for i, client in ipairs(clients) do
    if type(client) ~= "table" or not client.session then
      error(("bad client %d of red_lock: must be what rlock.open gave"):format(
        i), level + 1)
    elseif seen[client] then
      error(("bad client %d of red_lock: it is client %d"):format(i,
        seen[client]), level + 1)
    end
    seen[client] = i
  end
end

--- @tparam table clients
-- @tparam string name
-- @tparam[opt] table options policy, drift, node_timeout
function quorum.new(clients, name, options)
  check_clients(clients, 3)
  if type(name) ~= "string" or name == "" then
    error("bad name: must be a string that is not empty", 3)
  end
  local which, drift, node_timeout = check_options(options, 3)
  local members, longest, lease = {}, 0, huge
  for i, client in ipairs(clients) do
    members[i] = client:policy(which, name, { drift = drift })
    longest = max(longest, client.session.timeout)
    lease = min(lease, client.session.lease)
  end
  local self = joint.new(quorum, members[1].session.host, members)
  self.name, self.node_timeout = name, node_timeout
  self.timeout, self.lease = longest, lease
  self.majority = floor(#members / 2) + 1
  return self
end

--- For people.
function quorum:show()
  return ("red lock %q"):format((self.name:sub(1, 64):gsub("%c", "?")))
end

-- what a hold amounts to ----------------------------------------------------

-- Until when a majority certainly keeps it, or 0.
local function valid_until(self, hold)
  local ends = {}
  for _, part in ipairs(hold.parts) do
    if joint.is_alive(part) then ends[#ends + 1] = part.grant.valid_until end
  end
  if #ends < self.majority then return 0 end
  table.sort(ends)
  return ends[#ends - self.majority + 1]
end

function quorum:valid_of(hold)
  return max(0, valid_until(self, hold) - self.host.now())
end

function quorum:state_of(hold)
  if self:valid_of(hold) == 0 then return "lost" end
  local sure = 0
  for _, part in ipairs(hold.parts) do
    if joint.is_alive(part) and part.grant.state == "held" then
      sure = sure + 1
    end
  end
  return sure >= self.majority and "held" or "at_risk"
end

-- Releases all parts, each until its server has heard it or its lease is over.
local function drop(hold)
  local parts = hold.parts
  hold.parts = {}
  for _, part in ipairs(parts) do
    part.lock.session:background(function() joint.release(part) end)
  end
end

-- asking --------------------------------------------------------------------

local missing = { connect = true, timeout = true, closed = true }

local function restarted(seconds)
  return nil, "quorum", ("restarted, and may have forgotten what it granted: "
    .. "counts again in %.1f s"):format(seconds)
end

-- Does this server count?
-- @return its identity, or nil, code, detail
local function admit(self, round, session)
  local identity, code, detail = voter.identify(session.node, round.until_)
  if not identity then return nil, code, detail end
  round.clash = round.clash or voter.clash(session.node, self.members)
  if round.clash then return nil, "refused", round.clash end
  local pause = voter.quarantine(identity,
    max(round.lease or 0, session.lease), self.host.now())
  if pause > 0 then return restarted(pause) end
  return identity
end

-- Asks one server for the lock. On the way the connection may have been lost
-- and opened again, and the answer be that of a server restarted meanwhile.
local function ask(self, round, part)
  local session = part.lock.session
  local identity, code, detail = admit(self, round, session)
  round.unknown = round.unknown - 1
  if not identity then return nil, code, detail end
  local verdict, answer
  verdict, answer, detail = joint.acquire(part, round.until_, round.lease, 0)
  if verdict == "held" and voter.identity_of(session.node) ~= identity then
    identity, code, detail = admit(self, round, session)
    if not identity then
      joint.release(part)
      return nil, code, detail
    end
  end
  return verdict, answer, detail
end

local function ask_who_is_there(self, round, part)
  local session = part.lock.session
  local code, why = "closed", "the client was closed"
  if not session.is_closed then
    code, why = "connect", voter.why_away(session)
  end
  if why then
    round.unknown = round.unknown - 1
    return nil, code, why
  end
  local verdict, answer, detail = ask(self, round, part)
  if verdict == nil and missing[answer] and not session.is_closed then
    voter.is_gone(session, detail)
  end
  return verdict, answer, detail
end

-- Is a round over? A majority is one only when it is known who they are; that
-- takes time only on new connections.
local function is_decided(self, round)
  return round.clash ~= nil
    or round.held >= self.majority and round.unknown == 0
    or round.failed > #self.members - self.majority
end

local heal

-- One server's part in a round. Who answers when all is decided may still be
-- welcome.
local function vote(self, round, part)
  local hold = round.hold
  if is_decided(self, round) then return end
  local verdict, answer, detail = ask_who_is_there(self, round, part)
  if verdict ~= "held" then
    part.code, part.answer = verdict or answer, detail or answer
    round.failed = round.failed + 1
    if hold.is_watched then heal(self, hold) end
  elseif round.is_over or hold.is_over or hold.lost_because then
    joint.release(part)
  else
    round.held = round.held + 1
    hold.parts[#hold.parts + 1] = part
    if hold.is_watched then hold.watch_part(part) end
  end
end

-- Asks these servers at once.
-- @return true, or nil, "cancelled", what is to be raised
local function ask_all(self, round, members, decided)
  round.held, round.failed, round.parts = 0, 0, {}
  round.unknown = #members
  for i, member in ipairs(members) do
    round.parts[i] = joint.part(round.hold, member)
  end
  return joint.together(self.host, round.parts, function(part)
    vote(self, round, part)
  end, nil, decided)
end

-- Until when the servers of a round may answer.
local function round_until(self, lease)
  return self.host.now()
    + min(self.node_timeout, (lease or self.lease) / SHARE)
end

-- why not -------------------------------------------------------------------

local function said(part)
  if part.code == nil then
    return part.grant and "yes" or "not waited for"
  elseif part.code == "busy" then
    return "held by somebody else" .. (part.answer > 0
      and (" for %.1f s more"):format(part.answer / 1000) or "")
  end
  return tostring(part.answer)
end

local function explain(self, round)
  local words = {}
  for i, part in ipairs(round.parts) do
    words[i] = part.lock.session.node.where .. ": " .. said(part)
  end
  return ("%s: %d of %d servers, %d are needed; %s"):format(self:show(),
    round.held, #round.parts, self.majority, table.concat(words, "; "))
end

-- What a server's answer says of it: it is taken to be there if all was decided
-- before it had to answer.
local function kind_of(round, part, now)
  if part.lock.session.is_closed then return "closed" end
  if part.code == "busy" or part.code == "refused" then return part.code end
  if part.code or not part.grant and now >= round.until_ then return "away" end
  return "busy"
end

-- The code for a round without a majority.
local function judge(self, round)
  if round.clash then return "refused", round.clash end
  local count = { busy = 0, refused = 0, closed = 0, away = 0 }
  local now = self.host.now()
  for _, part in ipairs(round.parts) do
    local kind = kind_of(round, part, now)
    count[kind] = count[kind] + 1
  end
  local code = "quorum"
  if count.refused > 0 then
    code = "refused"
  elseif count.closed > #self.members - self.majority then
    code = "closed"
  elseif count.busy >= self.majority then
    code = "busy"
  end
  return code, explain(self, round)
end

-- taking --------------------------------------------------------------------

-- One attempt.
-- @return true; or nil, code, detail
local function attempt(self, try)
  local hold = try.hold
  local round = {
    hold = hold, lease = try.lease, until_ = round_until(self, try.lease),
  }
  hold.round = round
  if not try.is_single then round.until_ = min(round.until_, try.wait_until) end
  local ok, code, detail = ask_all(self, round, self.members, function()
    return is_decided(self, round)
  end)
  if ok and round.held >= self.majority and not round.clash
      and self:valid_of(hold) > 0 then
    return true
  end
  round.is_over = true
  if ok then code, detail = judge(self, round) end
  drop(hold)
  return nil, code, detail
end

local final = { refused = true, closed = true, cancelled = true }

-- After an attempt that failed: pauses before the next. A wait without limit is
-- none for servers that are away.
-- @return true; or nil, code, detail if there is no next
local function pause(self, try, code, detail)
  if try.is_single or final[code] then return nil, code, detail end
  local now = self.host.now()
  if code ~= "quorum" then try.quorum_until = now + self.timeout end
  local left = min(try.wait_until, try.quorum_until) - now
  if left > 0 then
    local slept, cancelled, unwind = self.host.event():pause(
      min(max(try.pause:next(), 0.001), left))
    if slept == nil then return nil, cancelled, unwind end
    if try.wait_until > self.host.now() then return true end
  end
  if code == "busy" then code = "timeout" end
  return nil, code, detail
end

-- May this task take one more hold?
local function may_enter(self, hold)
  local holds = self.held[hold.party]
  local outer = holds and holds[#holds]
  if not outer then return true end
  if outer.lost_because or self:state_of(outer) == "lost" then
    return nil, "lost", ("this task's earlier hold was lost (%s): unlock it "
      .. "first"):format(outer.lost_because or "its lease has ended")
  elseif self.members[1].site.policy.source.reenter == false then
    return nil, "refused", "held by this task already, and " .. self:show()
      .. " cannot be entered twice"
  end
  return true
end

function quorum:take(hold, wait, lease)
  local ok, code, detail = may_enter(self, hold)
  if not ok then return nil, code, detail end
  local now = self.host.now()
  local try = {
    hold = hold, lease = lease, wait_until = now + wait,
    is_single = wait == 0, quorum_until = now + self.timeout,
    pause = backoff.new(FIRST_PAUSE, LAST_PAUSE, self.host.random_number),
  }
  if wait < huge then try.quorum_until = huge end
  while true do
    ok, code, detail = attempt(self, try)
    if ok then break end
    ok, code, detail = pause(self, try, code, detail)
    if not ok then return nil, code, detail end
  end
  hold.lease = lease
  if not lease then self:watch(hold) end
  return true
end

-- keeping -------------------------------------------------------------------

local function lost_part(self, hold, part, reason)
  if part.is_over or hold.is_over or hold.lost_because then return end
  if self:valid_of(hold) > 0 then return heal(self, hold) end
  joint.lose(hold, ("no majority of %d servers keeps it any more; the last "
    .. "was %s: %s"):format(#self.members, part.lock.session.node.where,
    reason))
  drop(hold)
end

function quorum:watch(hold)
  if hold.is_watched then return end
  hold.is_watched = true
  hold.watch_part = function(part)
    part.grant:when_lost(function(_, reason)
      lost_part(self, hold, part, reason)
    end, part)
  end
  for _, part in ipairs(hold.parts) do hold.watch_part(part) end
  if hold.round.failed > 0 then heal(self, hold) end
end

-- Lets go of the parts that were lost; the locks that it has no part of.
local function without_part(self, hold)
  local alive, dead, has, others = {}, {}, {}, {}
  for _, part in ipairs(hold.parts) do
    if joint.is_alive(part) then
      alive[#alive + 1], has[part.lock] = part, true
    else
      dead[#dead + 1] = part
    end
  end
  hold.parts = alive
  for _, part in ipairs(dead) do
    if not part.is_over then joint.release(part) end
  end
  for _, member in ipairs(self.members) do
    if not has[member] then others[#others + 1] = member end
  end
  return others
end

-- Is there still somebody who could release it?
local function is_wanted(self, hold)
  return not hold.is_over and not hold.lost_because
    and self:valid_of(hold) > 0
    and (hold.is_carried or not self.host.is_over(hold.party))
end

-- Asks from time to time for the parts that a hold does not have, as long as it
-- is held. Taking more than a majority takes nothing from anybody.
local function keep_healing(self, hold)
  local third = self.lease / 3
  local rest = backoff.new(min(FIRST_REST, third), third,
    self.host.random_number)
  while not hold.healer:wait(max(rest:next(), LEAST_REST)) do
    if not is_wanted(self, hold) then return end
    local others = without_part(self, hold)
    if not others[1] then break end
    ask_all(self, { hold = hold, until_ = round_until(self) }, others)
  end
  hold.healer = nil
end

function heal(self, hold)
  if hold.healer or hold.lease or not is_wanted(self, hold) then return end
  hold.healer = self.host.event()
  self.host.daemon(keep_healing, self, hold)
end

-- letting go ----------------------------------------------------------------

-- Releases every part. As soon as a majority has confirmed it, or it is certain
-- that it had none any more, the others are left to the background.
function quorum:let_go(hold)
  if hold.healer then hold.healer:set() end
  if hold.lost_because then return nil, "lost", hold.lost_because end
  local parts, was_valid = hold.parts, self:valid_of(hold) > 0
  local freed, left = 0, #parts
  local ok, code, unwind = joint.together(self.host, parts, function(part)
    local is_freed, why = joint.release(part)
    if is_freed then freed = freed + 1 end
    if why == "lost" then left = left - 1 end
  end, round_until(self), function()
    return freed >= self.majority or left < self.majority
  end)
  if not ok then return nil, code, unwind end
  if freed >= self.majority then return true end
  if was_valid and left >= self.majority then return true end
  return nil, "lost", ("only %d of %d servers still had it"):format(left,
    #self.members)
end

--- Does the calling task hold it, by the word of a majority?
-- @treturn[1] boolean
-- @treturn[2] nil
-- @treturn[2] string "quorum": too few servers have answered
-- @treturn[2] string detail
function quorum:is_held()
  local round = { hold = { party = self.host.current() }, parts = {},
    held = 0, failed = 0, unknown = 0 }
  for i, member in ipairs(self.members) do
    round.parts[i] = joint.part(round.hold, member)
  end
  local until_ = round_until(self)
  local ok, code, unwind = joint.together(self.host, round.parts,
    function(part)
      local count, why, detail = joint.count(part, until_)
      if not count then
        part.code, part.answer = why, detail
      elseif count > 0 then
        round.held = round.held + 1
      else
        round.failed = round.failed + 1
      end
    end, nil, function() return is_decided(self, round) end)
  if not ok then error(unwind, 0) end
  if round.held >= self.majority then return true end
  if round.failed > #self.members - self.majority then return false end
  return nil, code or "quorum", explain(self, round)
end

return quorum
