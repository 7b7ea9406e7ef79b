--- Checks all holders by true time, from outside of the clients. A holder is
--- one successful `lock`: from its grant until its task begins to unlock it, or
--- until its client no longer counts it as certain.
---
--- A thing is what is held: `name`, `servers`, `holders`, `users` (the tasks
--- that hold it or ask for it), `most`, the number of permits, if it has
--- some, and `tokens`: for each fencing token the owner that a server gave it
--- to, and the time.

local oracle = {}
oracle.__index = oracle

local SLACK = 0.05                      -- seconds
local TIMEOUT = 0.5                     -- of the clients, in seconds
local IDLE = 4.5                        -- seconds: a lease, the spread of the
                                        -- waiters after it, and a round trip

function oracle.new(universe)
  return setmetatable({
    universe = universe, grants = 0, contended = 0, faults = {}, counts = {},
    longest = 0, reported = {},         -- the sorts of the faults
  }, oracle)
end

--- Records a fault.
---@param what string a word or two, the same for all faults of this sort
function oracle:fault(what, text, ...)
  self.reported[what] = true
  self.faults[#self.faults + 1] = {
    what = what, time = self.universe.now,
    text = ("%.6f s: %s: "):format(self.universe.now, what)
      .. text:format(...),
  }
  if self.on_fault then self.on_fault(self.faults[#self.faults]) end
end

function oracle:note(what) self.counts[what] = (self.counts[what] or 0) + 1 end

-- exclusion -------------------------------------------------------------------

local function is_certain(holder)
  return not holder.host.is_dead and not holder.is_forgiven
    and holder.valid_for() > 0
end

-- May these two hold it at the same time?
local function may_share(a, b)
  return a.mode == "read" and b.mode == "read" or a.party == b.party
end

local function certain_of(thing)
  local certain = {}
  for _, holder in ipairs(thing.holders) do
    if is_certain(holder) then certain[#certain + 1] = holder end
  end
  return certain
end

local function check_count(self, thing, certain)
  local taken = 0
  for _, holder in ipairs(certain) do taken = taken + holder.n end
  if taken > thing.most then
    self:fault("too many permits", "%s: %d of %d", thing.name, taken,
      thing.most)
    for _, holder in ipairs(certain) do holder.is_forgiven = true end
  end
end

--- Checks the holders of a thing.
function oracle:check(thing)
  if not thing.holders[2] and not thing.most then return end
  local certain = certain_of(thing)
  if thing.most then return check_count(self, thing, certain) end
  for i = 1, #certain do
    for k = i + 1, #certain do
      local a, b = certain[i], certain[k]
      if not may_share(a, b) then
        self:fault(a.style == "elected" and a.style == b.style and "two leaders"
          or thing.use == "compute" and "two computations"
          or "two holders", "%s: %s (%s) and %s (%s)", thing.name,
          a.label, a.style, b.label, b.style)
        a.is_forgiven, b.is_forgiven = true, true      -- told once
      end
    end
  end
end

-- Was it granted by data that the server has lost in the meantime?
local function is_of_lost_data(thing, executed)
  return thing.lost_at and (not executed or executed <= thing.lost_at)
end

-- Does the owner have a token that was given to it before? It has if it enters
-- again, or if the servers have lost its release in the meantime.
local function is_given_again(holder, token)
  local thing = holder.thing
  local given = thing.tokens[token]
  return given and given.owner == holder.owner
    and (token == thing.token or (thing.lost_at or -1) >= given.at)
end

local function check_token(self, holder)
  local thing, token = holder.thing, math.tointeger(holder.token)
  -- A program that was stopped may get a hold after its end.
  if not token or holder.valid_for() <= 0 then return end
  if thing.token and token <= thing.token
      and not is_given_again(holder, token)
      and not holder.is_forgiven and not thing.went_back then
    self:fault("token", "%s: %d of %s after %d of %s", thing.name, token,
      holder.party, thing.token, thing.token_of)
  end
  -- Readers of one thing may be told in any order.
  if holder.mode ~= "read" then
    thing.token, thing.token_of = token, holder.party
  end
end

-- contention ------------------------------------------------------------------

-- Does a task other than this one hold the thing, or ask for it?
local function is_wanted(thing, label)
  for other, user in next, thing.users do
    if other ~= label and not user.host.is_dead then return true end
  end
  return false
end

-- Was it wanted when the task of this label asked for it, or is it now?
local function is_contended(thing, label)
  local user = thing.users[label]
  return user and user.was_wanted or is_wanted(thing, label)
end

--- A task begins to ask for a thing.
function oracle.asking(thing, task)
  thing.users[task.label] = {
    host = task.host, process = task.process, label = task.label,
    was_wanted = is_wanted(thing, task.label),
    waits = nil,          -- since when it waits for it, see watch.lua
  }
end

--- The task has no more to do with it.
function oracle.gone(thing, task) thing.users[task.label] = nil end

-- Do the servers have it? A red lock acquires the parts that it loses again.
local function is_kept(holder)
  return holder.is_kept and holder.is_kept() or false
end

-- In a calm run nobody waits for long while nobody else gets it or gives it
-- back.
local function check_wait(self, holder)
  if not holder.world or not holder.world.is_calm or not holder.began
      or holder.is_joint then           -- another member may have been held
    return
  end
  local thing = holder.thing
  -- Behind a writer, which waits for these readers and may give up, a reader
  -- waits in the fair queue.
  if thing.kind == "fair_read_write_lock" and thing.holders[1] then return end
  local idle = self.universe.now - math.max(holder.began, thing.moved_at or 0,
    thing.garbage_until or 0)
  if idle > IDLE then
    self:fault("delayed", "%s gets %s, which nobody has taken or given back "
      .. "for %.3f s", holder.label, thing.name, idle)
  end
end

--- Something was granted.
---@param holder table thing, label, style, host, party, mode, n, valid_for();
---  tells_time: whether it must find out that it was lost; is_kept(): whether a
---  red lock is held by most servers; began: when its task asked; executed:
---  when the server granted it; token; owner: its name in the server;
---  is_renewed(): whether the watchdog renews it
function oracle:granted(holder)
  local thing = holder.thing
  holder.since = self.universe.now
  check_wait(self, holder)
  thing.moved_at = self.universe.now
  if holder.mode ~= "read" and not thing.most then thing.garbage_until = nil end
  if is_of_lost_data(thing, holder.executed or holder.began) then
    holder.is_forgiven = true
  end
  table.insert(thing.holders, holder)
  self.grants = self.grants + 1
  if is_contended(thing, holder.label) then
    self.contended = self.contended + 1
  end
  if self.on_change then self.on_change(holder, "has") end
  if holder.token then check_token(self, holder) end
  self:check(thing)
end

--- Its task begins to give it back, or ends without.
function oracle:ending(holder)
  if holder.has_ended then return end
  holder.has_ended, holder.ended_at = true, self.universe.now
  if self.on_change then self.on_change(holder, "ends") end
  self:check(holder.thing)
  holder.thing.moved_at = self.universe.now
  local list = holder.thing.holders
  for i = #list, 1, -1 do
    if list[i] == holder then table.remove(list, i) end
  end
end

--- It was given back; the outcome. Not judged for a red lock: a server that has
--- lost its part may be unreachable, and unlock counts those that answer.
---@param holder table
---@param ok any what unlock returned; not judged if a request had no answer,
---  since it may have released the lock
---@param troubles integer of its host, before
function oracle:ended(holder, ok, troubles)
  if ok and holder.is_gone and not holder.is_kept
      and (holder.host.troubles or 0) == troubles
      and self.universe.now - holder.ended_at < TIMEOUT then
    self:fault("not told", "%s of %s: unlock returned true, but the server had "
      .. "lost it", holder.thing.name, holder.label)
  end
end

-- losses ----------------------------------------------------------------------

-- A holder whose data was lost must be lost after its lease. A closed client
-- reports nothing: it has released what it held.
local function check_told(self, holder, lost_at)
  if holder.has_ended or not holder.is_gone or holder.gone_at > lost_at
      or holder.host.is_dead or holder.host.process.is_closed
      or is_kept(holder) then
    return
  end
  if holder.valid_for() > 0 then
    self:fault("not told", "%s counts %s as held, %.1f s after it was lost",
      holder.label, holder.thing.name, self.universe.now - holder.gone_at)
  elseif holder.tells and not holder.told.is_true
      and holder.host.stalls_until <= self.universe.now then
    self:fault("not told", "%s: on_lost of %s was not called", holder.label,
      holder.thing.name)
  end
  self:note "losses checked"
end

--- What is granted until this moment may be of data that the server loses.
---@param thing table
---@param till number true time; an earlier one than is known changes nothing
function oracle.doubt(thing, till)
  thing.lost_at = math.max(thing.lost_at or till, till)
end

--- The holders of a thing have lost it, or may have.
---@param thing table
---@param lease? number seconds, if all are lost for certain: after that time
---  they must know it
---@param split? table the old master in a split: it keeps its grants
function oracle:lost(thing, lease, split)
  for _, holder in ipairs(thing.holders) do
    holder.is_forgiven = true
    if lease and holder.tells_time and not is_kept(holder)
        and not (split and split:holds(thing.key, holder.owner))
        and (not holder.is_gone or holder.is_kept) then
      local lost_at = self.universe.now
      holder.is_gone, holder.gone_at = true, lost_at
      self.universe:after(lease * 1.01 + SLACK, function()
        check_told(self, holder, lost_at)
      end)
    end
  end
end

--- A server has the data of an earlier time again: it has some holders that had
--- lost the thing.
---@param thing table
---@param server table
function oracle.restored(thing, server)
  for _, holder in ipairs(thing.holders) do
    if holder.is_gone and holder.owner and thing.key
        and server:holds(thing.key, holder.owner) then
      holder.is_gone = nil
    end
  end
end

return oracle
