--- Deadlock detection: detects deadlocks among the tasks of one process, also
--- those of several clients, and announces on the server what a waiting task
--- holds, for `rlockctl deadlocks`. Both apply only to a task that holds a lock
--- while it waits for another one.
---
--- A task *keeps out* the waiters of a lock if they cannot acquire it before
--- this task releases it. That is certain only for a hold that
--- * excludes the waiters: that of an exclusive lock, of a writer, or of a
---   reader if writers wait;
--- * only this task can release: the hold is no object (`lock:hold()`), except
---   that of a computation, and has no explicit owner name;
--- * has no lease that ends before the wait does;
--- * is certainly valid now.
--- The leader of a flight of client:compute keeps out its followers.
--- A deadlock is a cycle of waiting tasks, in which each task waits for a lock
--- that the next one holds. It ends only when a wait fails. The task that
--- closes the cycle detects it, because all the others wait already. So a task
--- searches when its wait begins; then at most once a second, in case a hold
--- was not certainly valid. The search covers only the newest holds of each
--- client, so it is cheap even with 100 000 holds.

local identity = require "rlock.util.identity"
local kinds = require "rlock.lock.kinds"
local owner = require "rlock.lock.owner"
local percent = require "rlock.util.percent"
local sorted = require "rlock.util.sorted"

local deadlock = {}

local MOST = 1000        -- holds to search
local LONGEST = 10       -- tasks of a cycle in a message
local PERIOD = 1         -- seconds of a wait before it is announced, and from
                         -- one search to the next
local KEPT = 30          -- seconds for which a server keeps an announcement
local AGAIN = KEPT / 3   -- seconds until an announcement is refreshed
local MOST_TOLD = 16     -- holds in an announcement

--- Seconds for which Redis keeps an announcement, for rlockctl.
deadlock.kept = KEPT

-- Kind -> which holds exclude its waiters: "all"; for readers, only those of
-- the "peer", the write lock; "some": any task may release a permit, so these
-- waits are only announced.
local EXCLUDES = { permits = "some" }
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
  return EXCLUDES[policy.name]
    or (policy.exclusive or policy.excludes) and "all"
end

-- who keeps whom out ----------------------------------------------------------

-- May any task release it?
local function is_object(hold)
  return hold.object and not hold.is_computation
end

-- Does this grant have a hold that only its own task can release, and that does
-- not expire before `deadline`?
local function is_kept(granted, deadline)
  local its = granted.owner
  if its.is_named or its.has_threads or granted:valid_for() == 0 then
    return false
  end
  for _, hold in ipairs(granted.holds) do
    if not is_object(hold) and (hold.ends or deadline) >= deadline then
      return true
    end
  end
  return false
end

-- The grants that a task owns, and the permits that it has taken.
local function of_task(grants, task)
  local mine = {}
  for _, granted in ipairs(grants) do
    if granted.holds and granted.owner == task or granted.taker == task then
      mine[#mine + 1] = granted
    end
  end
  return mine
end

-- The newest grants of all clients of the process.
local function all_grants(process)
  local all = {}
  for _, id in ipairs(sorted(process.sessions)) do
    local session = process.sessions[id]
    for _, granted in ipairs(session and session.watchdog:all(MOST) or {}) do
      all[#all + 1] = granted
    end
  end
  return all
end

-- Lists of grants, by the name of the lock. Without permits, which have no
-- holds.
local function by_names(grants)
  local lists = {}
  for _, granted in ipairs(grants) do
    if granted.holds and granted.owner then
      local name = granted.lock.record.name
      lists[name] = lists[name] or {}
      table.insert(lists[name], granted)
    end
  end
  return lists
end

-- Is the record that of a lock, as this policy has it? It may be another
-- client's.
local function is_of(record, policy, lock)
  if record.policy.name ~= policy.name then return false end
  local server, key = record.target:address()
  local its_server, its_key = lock.target:address()
  return server == its_server and key == its_key
end

-- The name of a task that waits for a lock, or leads its flight.
local function name_of(task, lock)
  return owner.name_for(task, lock.session, lock.record.family)
end

-- Calls fn(grant) for each task that keeps out this wait, until it returns
-- something; returns that. Of a grant, fn needs its owner and owner name.
local function each_ahead(wait, by_name, fn)
  local record, flight = wait.lock.record, wait.waiter.flight
  if flight then
    local leader = flight.leader
    return not leader.has_threads
      and fn { owner = leader, owner_name = name_of(leader, wait.lock) }
  end
  local policy = record.policy
  local which, peer = excluding(policy), policy.peer
  for _, granted in ipairs(by_name[record.name] or {}) do
    local its = granted.lock.record
    if (which == "all" and is_of(its, policy, record)
        or peer and is_of(its, peer, record))
        and is_kept(granted, wait.waiter.wait_deadline) then
      local found = fn(granted)
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
local function find(wait, waits, by_name)
  local queue, seen = { { wait = wait } }, {}
  for _, step in ipairs(queue) do                   -- grows meanwhile
    local last = each_ahead(step.wait, by_name, function(granted)
      if granted.owner == wait.task then
        -- Alone, it may be two owners on purpose: with two clients.
        return (step.before or granted.lock.session == wait.lock.session)
          and granted
      end
      local its = waits[granted.owner]
      -- nginx kills a request's task, even while it waits.
      if its and wait.lock.session.host.is_over(its.task) then
        waits[granted.owner], its = nil, nil
      end
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
  if granted.taker then return granted.watched and "object" end
  local which
  for _, hold in ipairs(granted.holds) do
    if not hold.ends and not is_object(hold) then return "task" end
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
        granted.taker and identity.hex(granted.owner_name)
          or granted.owner_name }
    end
  end
  return list
end

local function remove(waits, wait)
  if waits.of[wait.task] == wait then waits.of[wait.task] = nil end
end

--- Announces a wait if that is due. Deletes the announcement when the wait is
--- over.
---@return boolean # whether nothing is left to do
---@return string? # the code of a failure
local function tell(session, wait)
  local now, told = session.host.now(), wait.told
  local target, deadline = wait.lock.record.target, now + session.timeout
  if wait.is_over or session.host.is_over(wait.task) then
    remove(session.waits, wait)
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
  local waits = session.waits or { of = session.process.waits, list = {},
    last = 0, change = session.host.event() }
  session.waits, waits.last = waits, waits.last + 1
  local wait = { number = waits.last, lock = lock, waiter = waiter,
    task = session.host.current(), since = session.host.now(),
    held = described(mine) }
  waiter.edge, waits.of[wait.task] = wait, wait
  waiter.owner_name = waiter.owner_name or name_of(wait.task, lock)
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
  local wait, now = waiter.edge, session.host.now()
  if wait == false or not excluding(lock.record.policy) then return nil end
  if wait and now < wait.next_search then return nil end
  local process = session.process
  local grants = all_grants(process)
  local mine = of_task(grants, session.host.current())
  if not mine[1] then
    waiter.edge = false               -- it gets none while it waits
    return nil
  end
  wait = wait or begin(session, waiter, lock, mine)
  wait.is_active, wait.next_search = true, now + PERIOD
  local steps = find(wait, process.waits, by_names(grants))
  return steps and describe(steps)
end

--- Ends a wait.
---@param session rlock.session
---@param waiter rlock.waiter with its `edge`
function deadlock.leave(session, waiter)
  ---@type any, any
  local wait, waits = waiter.edge, session.waits
  waiter.edge, wait.is_over = nil, true
  remove(waits, wait)
  if wait.told then waits.change:set() end
end

return deadlock
