--- Deadlock detection: detects deadlocks among the tasks of one client, and
--- announces on the server what a waiting task holds, for `rlockctl deadlocks`.
--- Both apply only to a task that holds a lock while it waits for another one.
---
--- A task *keeps out* the waiters of a lock if they cannot acquire it before
--- this task releases it. That is certain only for a hold that
--- * excludes the waiters: that of an exclusive lock, of a writer, or of a
---   reader if writers wait;
--- * only this task can release: the hold is no object (`lock:hold()`), and has
---   no explicit owner name;
--- * has no lease that ends before the wait does;
--- * is certainly valid now.
--- A deadlock is a cycle of waiting tasks, in which each task waits for a lock
--- that the next one holds. It ends only when a wait fails. The task that
--- closes the cycle detects it, because all the others wait already. The search
--- covers only the newest holds of a client, so it is cheap even with 100 000
--- holds.

local kinds = require "rlock.lock.kinds"
local percent = require "rlock.util.percent"

local deadlock = {}

local MOST = 1000        -- holds to search
local LONGEST = 10       -- tasks of a cycle in a message
local PERIOD = 1         -- seconds of a wait before it is announced
local KEPT = 30          -- seconds for which a server keeps an announcement
local AGAIN = KEPT / 3   -- seconds until an announcement is refreshed
local MOST_TOLD = 16     -- holds in an announcement

--- Seconds for which Redis keeps an announcement, for rlockctl.
deadlock.kept = KEPT

-- Kind -> which holds exclude its waiters: "all"; for readers, only those of
-- the "peer", the write lock. Permits have no owner, so no task keeps out a
-- waiter.
local EXCLUDES = {}
for _, kind in ipairs(kinds) do
  for _, name in ipairs { kind.name, kind.fenced or "fenced_" .. kind.name } do
    if kind.pair then
      EXCLUDES[name .. ".read"] = "peer"
      EXCLUDES[name .. ".write"] = "all"
    elseif not kind.driver then
      EXCLUDES[name] = "all"
    end
  end
end

local function excluding(policy)
  return EXCLUDES[policy.name] or policy.exclusive and "all"
end

-- who keeps whom out ----------------------------------------------------------

-- Does this grant have a hold that only its own task can release, and that does
-- not expire before `deadline`?
local function is_kept(granted, deadline)
  local owner = granted.owner
  if owner.is_named or owner.has_threads or granted:valid_for() == 0 then
    return false
  end
  for _, hold in ipairs(granted.holds) do
    if not hold.object and (hold.ends or deadline) >= deadline then
      return true
    end
  end
  return false
end

-- The grants that a task owns.
local function of_task(grants, task)
  local mine = {}
  for _, granted in ipairs(grants) do
    if granted.holds and granted.owner == task then
      mine[#mine + 1] = granted
    end
  end
  return mine
end

-- Lists of grants, by record. Without permits, which have no holds.
local function by_records(grants)
  local lists = {}
  for _, granted in ipairs(grants) do
    if granted.holds and granted.owner then
      local record = granted.lock.record
      lists[record] = lists[record] or {}
      table.insert(lists[record], granted)
    end
  end
  return lists
end

-- Calls fn(grant) for each task that keeps out this wait, until it returns
-- something; returns that.
local function each_ahead(session, wait, by_record, fn)
  local record = wait.lock.record
  local policy, lists = record.policy, {}
  local which, peer = excluding(policy), policy.peer
  if which == "all" then lists[1] = by_record[record] end
  if which and peer then
    peer = session:known_record(session.options.backend.load(peer), record.name)
    lists[#lists + 1] = by_record[peer]
  end
  for _, list in ipairs(lists) do
    for _, granted in ipairs(list) do
      local found = is_kept(granted, wait.waiter.wait_deadline) and fn(granted)
      if found then return found end
    end
  end
end

-- The steps that lead to this one, in order. `ahead` is the grant that keeps
-- out its wait.
local function steps_to(step, ahead)
  local steps = {}
  repeat
    step.ahead = ahead
    table.insert(steps, 1, step)
    ahead, step = step.held, step.before
  until not step
  return steps
end

-- The steps of a cycle through this wait, or nil. A breadth-first search, so it
-- finds a shortest cycle.
local function find(session, wait, by_record)
  local of, queue, seen = session.waits.of, { { wait = wait } }, {}
  for _, step in ipairs(queue) do                   -- grows meanwhile
    local last = each_ahead(session, step.wait, by_record, function(granted)
      if granted.owner == wait.task then return granted end
      local its = of[granted.owner]
      if its and its.is_active and not seen[its] then
        seen[its] = true
        queue[#queue + 1] = { wait = its, before = step, held = granted }
      end
    end)
    if last then return steps_to(step, last) end
  end
end

-- Describes the cycle. A task is named after the owner name of its hold.
local function describe(steps)
  local parts, name = {}, steps[#steps].ahead.owner_name
  for i = 1, math.min(#steps, LONGEST) do
    local step = steps[i]
    parts[i] = ("%s waits for %s, which %s holds"):format(name,
      step.wait.lock:show(), step.ahead.owner_name)
    name = step.ahead.owner_name
  end
  if #steps > LONGEST then
    parts[#parts + 1] = ("and %d more"):format(#steps - LONGEST)
  end
  return table.concat(parts, "; ")
end

-- announcements ---------------------------------------------------------------

local function encode(text) return percent.encode(text, "[^%w_.:-]") end

-- The announcement of a wait: a number unique in the client, the milliseconds
-- waited so far, the kind and the name of the lock, and the owner name of the
-- waiter. Then for each hold: "task", or "object" if any task may release it;
-- the kind and the name of the lock, and the owner name of the holder.
local function text_of(wait, now)
  local record = wait.lock.record
  local words = { ("%d"):format(wait.number),
    ("%.0f"):format((now - wait.since) * 1000), encode(record.policy.name),
    encode(record.name), encode(wait.waiter.owner_name) }
  for i = 1, math.min(#wait.held, MOST_TOLD) do
    local one = wait.held[i]
    for _, word in ipairs(one) do words[#words + 1] = encode(word) end
  end
  return table.concat(words, " ")
end

-- What can release a grant that does not expire: only its "task", or any task
-- that has its "object". Nil: it expires.
local function releaser_of(granted)
  local which
  for _, hold in ipairs(granted.holds) do
    if not hold.ends and not hold.object then return "task" end
    if not hold.ends then which = "object" end
  end
  return which
end

-- The holds to announce.
local function described(mine)
  local list = {}
  for _, granted in ipairs(mine) do
    local record, which = granted.lock.record, releaser_of(granted)
    if which and excluding(record.policy) then
      list[#list + 1] = { which, record.policy.name, record.name,
        granted.owner_name }
    end
  end
  return list
end

--- Announces a wait if that is due. Deletes the announcement when the wait is
--- over.
---@return boolean # whether nothing is left to do
---@return string? # the code of a failure
local function tell(session, wait)
  local now, told = session.host.now(), wait.told
  local target, deadline = wait.lock.record.target, now + session.timeout
  if wait.is_over then
    if not told or now > told.at + KEPT then return true end
    local ok, code = target:announce(deadline, told.name)
    return ok ~= nil, code
  end
  local due = told and told.at + AGAIN or wait.since + PERIOD
  if now < due or not wait.held[1] then return false end
  wait.told = { at = now, name = wait.waiter.owner_name }
  local _, code = target:announce(deadline, wait.told.name,
    text_of(wait, now), KEPT)
  return false, code
end

-- Announces the waits of a client while there are any. If the server refuses,
-- stops for good; retries after any other failure.
local function keep(session)
  local waits = session.waits
  repeat
    local is_ending = waits.change:pause(PERIOD) == nil   -- the program ends
    local list, code = waits.list, nil
    waits.list = {}
    for _, wait in ipairs(list) do
      local is_done = false
      if not code then is_done, code = tell(session, wait) end
      if not is_done then table.insert(waits.list, wait) end
    end
    waits.is_refused = waits.is_refused or code == "redis"
      or code == "zookeeper"
  until not waits.list[1] or waits.is_refused or session.is_closed or is_ending
  waits.list, waits.is_kept = {}, false
end

local function announce(session, wait)
  local waits = session.waits
  if waits.is_refused then return end
  table.insert(waits.list, wait)
  if not waits.is_kept then
    waits.is_kept = session.host.daemon(keep, session) ~= nil
    if not waits.is_kept then waits.list = {} end
  end
end

-- for waiters -----------------------------------------------------------------

-- Begins a wait.
local function begin(session, waiter, lock, mine)
  local waits = session.waits or { of = {}, list = {}, last = 0,
    change = session.host.event() }
  session.waits, waits.last = waits, waits.last + 1
  local wait = { number = waits.last, lock = lock, waiter = waiter,
    task = session.host.current(), since = session.host.now(),
    held = described(mine) }
  waiter.edge, waits.of[wait.task] = wait, wait
  announce(session, wait)
  return wait
end

--- Call this before each pause of a task that waits for a lock, and `leave`
--- when the wait is over.
---@param session rlock.session
---@param waiter rlock.waiter
---@param lock rlock.lock
---@return string? # a description of the cycle, if the wait would deadlock
function deadlock.enter(session, waiter, lock)
  local had_none = waiter.edge == false         -- it gets none while it waits
  if had_none or not excluding(lock.record.policy) then return nil end
  local grants = session.watchdog:all(MOST)
  local mine = of_task(grants, session.host.current())
  if not mine[1] then
    waiter.edge = false
    return nil
  end
  local wait = waiter.edge or begin(session, waiter, lock, mine)
  wait.is_active = true
  local steps = find(session, wait, by_records(grants))
  return steps and describe(steps)
end

--- Ends a wait.
---@param session rlock.session
---@param waiter rlock.waiter with its `edge`
function deadlock.leave(session, waiter)
  ---@type any, any
  local wait, waits = waiter.edge, session.waits
  waiter.edge, wait.is_over = nil, true
  if waits.of[wait.task] == wait then waits.of[wait.task] = nil end
  if wait.told then waits.change:set() end
end

return deadlock
