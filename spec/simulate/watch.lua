--- Inspects the servers of a run ten times a second, from outside of the
--- clients. Reports holds that no client knows, that outlast their lease, or
--- that end earlier than the client believes. Reports waiters that are delayed
--- although the lock or counter is free, or only read by others.
---
--- In a calm run nothing disturbs clients, servers and the network. So a
--- released lock is granted at once, renewals are punctual, and nothing is
--- lost. In other runs this is true only after the faults.

local subscriptions = require "spec.simulate.subscriptions"

local watch = {}

local EVERY = 0.1         -- seconds between two looks
local SLACK = 0.005       -- seconds
local UNKNOWN = 0.35      -- seconds for which a release may be in flight
local UNKNOWN_THEN = 0.7  -- the same, with faults
local PROMPT = 0.5        -- seconds, with slow routes and back-offs
local CLAIM = 1           -- seconds for which a lock is reserved for a waiter
local DOUBT = 0.5         -- seconds until a request of unknown outcome expires
local EXPIRED = 2         -- the same after a lease that has ended: the busy
                          -- reply's time, and the spread of the waiters
local POLL = 6            -- seconds of a poll and a round trip, with drift
local LATE = 0.5          -- seconds by which a renewal may be late: four round
                          -- trips on a slow route, for scripts, TIME and itself
local AWAY = 1            -- seconds out of reach: a lease without the last
                          -- attempt, and the pause before it

local abs, huge, max, min = math.abs, math.huge, math.max, math.min

-- what servers have -----------------------------------------------------------

-- The owner in a field of a lock's key; nil if it has none.
local function owner_in(field)
  if field == "" or field == "mode" then return nil end
  return field:match("^[rw]:(.+)$") or field:match("^(.*):write$") or field
end

-- Calls fn(owner, ...) for the owners that a live entry has.
local function each_owner(entry, fn, ...)
  if type(entry.value) == "string" then return fn(entry.value, ...) end
  for field in pairs(entry.value) do
    local owner = entry.kind == "zset" and #field == 16 and field
      or owner_in(field)
    if owner then fn(owner, ...) end
  end
end

-- The owner for which a lock is reserved, see policy/handover.lua; or nil. An
-- empty name marks a fair lock.
local function reserved_for(entry)
  if entry.kind ~= "hash" then return nil end
  for field, count in pairs(entry.value) do
    if count == "0" and field ~= "" then return field end
  end
end

-- Does anybody have the key of a lock? One that is reserved is free for its
-- waiters.
local function is_taken(entry)
  return entry ~= nil and not reserved_for(entry)
end

-- Seconds until an entry of the server ends.
local function rest_of(server, entry)
  return entry.expires and (entry.expires - server.redis.now / 1000) / 1000
    or huge
end

-- what clients know -----------------------------------------------------------

-- The process of an owner's name, and its session; nil for an id of a permit.
local function process_of(self, owner)
  local id = owner:match("^(.*):%d+$") or owner
  for _, process in ipairs(self.processes) do
    local label = process.host.label
    if label == id or owner:find(label .. ".", 1, true) then
      return process
    end
    for _, open in pairs(process.open) do
      if open.session.id == id then return process end
    end
  end
end

local function knows(record, owner)
  for _, grant in next, record.grants do
    if grant.owner_name == owner then return true end
  end
  return record.taken and record.taken[owner] ~= nil
end

-- Does a process know that this owner has the lock, or may it still be about to
-- release it?
local function is_known(process, owner)
  for _, open in pairs(process.open) do
    local session = open.session
    if session.is_closed or session.pending > 0 then return true end
    for _, kind in next, session.kinds do
      for _, record in next, kind.records do
        if knows(record, owner) then return true end
      end
    end
  end
  return false
end

local function is_up(process, now)
  return not process.host.is_dead and not process.is_closed
    and process.host.stalls_until <= now
end

-- Who has been granted this; the process.
local function taker_of(self, thing, owner)
  if thing.takers and thing.takers[owner] then return thing.takers[owner] end
  return process_of(self, owner)
end

local function has_holder(thing, owner)
  for _, holder in ipairs(thing.holders) do
    if holder.owner == owner then return true end
  end
  return false
end

-- orphans ---------------------------------------------------------------------

local function printable(owner) return (owner:gsub("[^%w:.-]", "?")) end

-- Seconds for which a request that was given up may still be executed.
local function doubt_of(self, server)
  return watch.is_sealed(self, server) and 0 or DOUBT
end

-- With faults a request may be in flight, or be given up for good, for long.
-- An orphan is one that its client has released on a newer connection before.
local function may_be_wanted(self, given)
  return not self.is_calm and not given.is_late
end

-- A client must release a hold that it does not know. It tries until the lease
-- ends, by its own knowledge. Without sealing, it first waits until its former
-- request has expired.
local function check_owner(owner, self, server, thing, key, seen)
  local now = self.universe.now
  local given = server.granted[key] and server.granted[key][owner]
  if not given or self.excused[owner]
      or now > min(given.ends, given.counted) - SLACK
      or has_holder(thing, owner) or may_be_wanted(self, given) then
    return
  end
  local process = taker_of(self, thing, owner)
  if not process or not is_up(process, now) then return end
  local before = thing.unknown and thing.unknown[owner]
  if is_known(process, owner) then      -- cancels a look at an unknown one
    local since = before and before + 2 * EVERY
    seen[owner] = since and since < now and since or nil
    return
  end
  seen[owner] = before or now
  if now - seen[owner] >= (self.is_calm and UNKNOWN or UNKNOWN_THEN)
      + doubt_of(self, server) then
    self.excused[owner] = true
    self.oracle:fault("orphan", "%s is held by %s of %s, which does not know "
      .. "it", key, printable(owner), process.host.label)
  end
end

-- `entry` is that of the key, or nil.
local function check_owners(self, server, thing, key, entry)
  if not is_taken(entry) then
    thing.unknown = nil
    return
  end
  local seen = {}
  each_owner(entry, check_owner, self, server, thing, key, seen)
  thing.unknown = next(seen) and seen or nil
end

-- leases ----------------------------------------------------------------------

local function is_sure(holder)
  return not holder.is_forgiven and not holder.host.is_dead
end

-- What a holder believes must be true, and renewals are not late.
local function check_holder(self, server, thing, entry, holder)
  local claim = holder.valid_for()
  if claim <= 0 or not is_sure(holder) then return end
  local rest = entry and server:holds(thing.key, holder.owner)
    and rest_of(server, entry) or 0
  if claim > rest + SLACK then
    holder.is_forgiven = true
    self.oracle:fault("believed", "%s counts on %s for %.3f s, and %s keeps it "
      .. "for %.3f s", holder.label, thing.name, claim, server.name, rest)
  elseif self.is_calm and holder.is_renewed and holder.is_renewed()
      and claim < self.lease * 2 / 3 - LATE then
    holder.is_forgiven = true
    self.oracle:fault("late renewal", "%s of %s is valid for %.3f s only",
      thing.name, holder.label, claim)
  end
end

local function note_end(owner, given, last)
  last.till = max(last.till, given[owner] and given[owner].till or huge)
end

-- When the last lease of an entry's owners ends, by true time; huge: an owner
-- is unknown.
local function end_of(self, server, key, entry)
  if reserved_for(entry) then return self.universe.now + CLAIM end
  local last = { till = 0 }
  each_owner(entry, note_end, server.granted[key] or {}, last)
  return last.till
end

local function check_end(self, server, key, till, rest)
  local left = till - self.universe.now
  if rest <= max(left, 0) + SLACK + abs(left) * 0.001 then return true end
  self.oracle:fault("kept", "%s keeps %s for %.3f s, %.3f s longer than its "
    .. "holders' leases", server.name, key, rest, rest - left)
end

-- Are the leases of a thing what this server has granted? It may have older
-- data again, or have got the key from another server.
local function is_known_of(self, thing)
  local at = max(thing.rolled_back_at or -10, thing.lost_at or -10)
  return not self.cluster and not thing.went_back and not thing.is_kept
    and at < self.universe.now - self.lease
end

-- Nobody is kept for longer than the leases of those who have it.
local function check_rest(self, server, thing, key, entry)
  if not entry or not is_known_of(self, thing) then return end
  thing.is_kept = not check_end(self, server, key,
    end_of(self, server, key, entry), rest_of(server, entry))
end

-- The same for each permit.
local function check_leases(self, server, thing)
  local entry = server.redis:entry(thing.leases)
  if not entry or not is_known_of(self, thing) then return end
  local given = server.granted[thing.leases] or {}
  for id, ends in pairs(entry.value) do
    local its = given[id]
    thing.is_kept = thing.is_kept or its and not check_end(self, server,
      thing.leases, its.till, ends / 1000 - server.redis.now / 1000000) or nil
  end
end

-- waiters ---------------------------------------------------------------------

--- Can clients seal connections to this server? They kill none that they cannot
--- identify.
---@param self table world
---@param server table
---@return boolean
function watch.is_sealed(self, server)
  return self.seal == "kill" and not server.refuses_kill
    and not server.hides_run_id
end

-- How long may a waiter wait now, beside a lock that is free? Without sealing,
-- one that is cancelled keeps its place until its request has expired.
local function patience(self, server, thing)
  if not self.is_calm then return POLL end
  return (thing.freed_at and PROMPT or EXPIRED)
    + doubt_of(self, server)
end

local function check_waiter(self, server, thing, user, since, how)
  local now = self.universe.now
  local host = user.host
  if not user.waits or host.is_dead or user.process.is_closed then return end
  since = max(since, user.waits, host.stalls_until, self.mended_at or 0)
  if now - since <= patience(self, server, thing) then return end
  user.waits = nil
  self.oracle:fault("delayed", "%s waits for %s, which is %s for %.3f s",
    user.label, thing.name, how or "free", now - since)
end

-- Does a writer wait in the queue of a fair lock? It may be that of a
-- multi-lock, whose wait is not in `users`.
local function has_writer(server, thing)
  local name = thing.key:match "^rlock_frw:(.*)$"
  return name and server.redis:entry("rlock_frw_writers:" .. name) ~= nil
end

-- May a task read now, since only readers hold the lock, and nobody waits to
-- write?
local function is_shared(server, thing, entry)
  if has_writer(server, thing) then return false end
  local readers = entry.kind == "hash" and entry.value.mode == "read"
  for field in pairs(entry.kind == "zset" and entry.value or {}) do
    if field:find "^w:" then return false end
    readers = true
  end
  for _, user in pairs(thing.users) do
    if user.waits and user.mode ~= "read" then return false end
  end
  return readers
end

-- Does this owner of a read/write lock only read?
local function reads(entry, owner)
  local value = entry and entry.value or {}
  return value[owner .. ":write"] == nil and value["w:" .. owner] == nil
end

-- In a calm run, readers let others read at once.
local function check_readers(self, server, thing, entry)
  local now = self.universe.now
  if not is_shared(server, thing, entry) then
    thing.shared_since = nil
    return
  end
  thing.shared_since = thing.shared_since or now
  local since = max(thing.shared_since, thing.changed_at or 0)
  for _, user in pairs(thing.users) do
    check_waiter(self, server, thing, user, since, "read by others only")
  end
end

local function check_waiters(self, server, thing, entry)
  if entry and self.is_calm and thing.kind:find "read" then
    check_readers(self, server, thing, entry)
  end
  if is_taken(entry) then               -- perhaps another reader has it
    thing.free_since, thing.freed_at = nil, nil
  end
  if is_taken(entry) or not self.is_calm and not self.mended_at then return end
  thing.free_since = thing.free_since or self.universe.now
  local since = thing.freed_at or thing.free_since
  for _, user in pairs(thing.users) do
    check_waiter(self, server, thing, user, since)
  end
end

-- What a counter has for a task that waits for it: a boolean; and whether only
-- because leases have ended, which publishes nothing.
local function suffices(server, user)
  local one = user.one
  local entry = server.redis:entry(one.name)
  local left = entry and tonumber(entry.value) or 0
  if one.needed then return left <= 0 end
  if left >= user.n then return true end
  local leases = one.leases and server.redis:entry(one.leases)
  for _, ends in pairs(leases and leases.value or {}) do
    if ends <= server.redis.now / 1000 then left = left + 1 end
  end
  return left >= user.n, true
end

-- Does a calm run delay those that wait for a counter, although nobody else
-- gets any of it?
local function check_counted(self, server, user)
  local now = self.universe.now
  local is_free, is_late = suffices(server, user)
  user.free_since = is_free and (user.free_since or now) or nil
  if not user.free_since then return end
  local since = max(user.free_since, user.waits, user.one.changed_at or 0,
    user.host.stalls_until)
  if now - since <= (is_late and EXPIRED or PROMPT)
      + doubt_of(self, server) then
    return
  end
  user.waits = nil
  self.oracle:fault("delayed", "%s waits for %s, which is free for %.3f s",
    user.label, user.one.name, now - since)
end

local function look_at_counter(self, thing)
  local server = thing.servers[1]
  if not self.is_calm then return end
  server:tick()
  for _, user in pairs(thing.users) do
    if user.waits and user.one and not user.host.is_dead
        and not user.process.is_closed then
      check_counted(self, server, user)
    end
  end
end

-- looking ---------------------------------------------------------------------

local function is_in_doubt(self, thing)
  return (thing.lost_at or -1) >= self.universe.now
end

local function look_at_lock(self, thing)
  local key, server = thing.key, thing.servers[1]
  if not key or not server or is_in_doubt(self, thing) then return end
  if server.is_down or self.cluster and self.cluster:is_moving(thing) then
    return
  end
  server:tick()
  local entry = server.redis:entry(key)
  check_owners(self, server, thing, key, entry)
  for _, holder in ipairs(thing.holders) do
    if holder.owner then check_holder(self, server, thing, entry, holder) end
  end
  check_rest(self, server, thing, key, entry)
  check_waiters(self, server, thing, entry)
end

local function look_at_permits(self, thing)
  local server = thing.servers[1]
  if not server or server.is_down or is_in_doubt(self, thing)
      or self.cluster and self.cluster:is_moving(thing) then
    return
  end
  server:tick()
  for _, one in pairs(thing.generations) do
    if one.leases then
      check_owners(self, server, one, one.leases,
        server.redis:entry(one.leases))
      one.went_back, one.rolled_back_at = thing.went_back, thing.rolled_back_at
      check_leases(self, server, one)
    end
  end
  look_at_counter(self, thing)
end

local function look_at_red(self, thing)
  for _, server in ipairs(thing.servers) do
    if not server.is_down and not is_in_doubt(self, thing) then
      server:tick()
      local one = thing.parts_on[server.name]
      if not one then
        one = { holders = thing.holders }
        thing.parts_on[server.name] = one
      end
      local entry = server.redis:entry(thing.name)
      check_owners(self, server, one, thing.name, entry)
      one.went_back, one.rolled_back_at = thing.went_back, thing.rolled_back_at
      one.lost_at = thing.lost_at
      check_rest(self, server, one, thing.name, entry)
    end
  end
end

local looks = { lock = look_at_lock, compute = look_at_lock,
  permits = look_at_permits, red = look_at_red, semaphore = look_at_counter,
  latch = look_at_counter }

local function look(self)
  for _, thing in ipairs(self.things) do
    local fn = looks[thing.use]
    if fn then fn(self, thing) end
  end
  for _, thing in ipairs(self.crowded or {}) do
    looks[thing.use](self, thing)
  end
  subscriptions.look(self)
end

--- Begins to look, until the world's `is_over`.
---@param self table world
function watch.start(self)
  self.universe:at(self.universe.now + EVERY, { fire = function(item)
    if self.is_over then return end
    look(self)
    self.universe:at(self.universe.now + EVERY, item)
  end })
end

-- what servers execute --------------------------------------------------------

local function remember(list, key)
  list[key] = list[key] or {}
  return list[key]
end

-- Records a lease: the owner has the lock at least until it ends (`till`). The
-- client relies on that end (`counted`), not on one that an inner unlock sets.
local function extend(self, server, key, owner, ms)
  local given = server.granted[key] and server.granted[key][owner]
  if not given then return end
  given.counted = self.universe.now + ms / 1000
  given.till = max(given.till or 0, given.counted)
end

-- What is kept has a new lease; the key of a lost one may remain. An owner that
-- frees one side of a pair may still have the other.
local function released(self, server, key, args, verdict)
  local given = server.granted[key] and server.granted[key][args[1]]
  if given and verdict == "kept" then
    given.ends = self.universe.now + tonumber(args[2]) / 1000
    given.till = max(given.ends,
      server:holds_both(key, args[1]) and given.till or 0)
  elseif given and verdict == "freed" and not server:holds(key, args[1]) then
    server.granted[key][args[1]] = nil
  elseif given and verdict == "lost" then
    given.ends = 0
  end
end

-- Without sealing, cancelled waiters keep their places one after the other,
-- each until its request has expired.
local function left(self, server, thing)
  if thing and thing.freed_at and not watch.is_sealed(self, server) then
    thing.freed_at = self.universe.now
  end
end

-- Remembers who waits, and when a client was out of reach for long.
local function heard(self, server, link, operation, args, verdict)
  local now, host = self.universe.now, link.host
  if operation == "refresh" then
    for i = 2, #args do self.waited[args[i]] = now end
  elseif verdict == "busy" then
    self.waited[args[1]] = now
  end
  if link.is_closed then return end
  if now - (server.heard[host] or 0) > AWAY then server.back[host] = now end
  server.heard[host] = now
end

--- May a client have given up to leave a queue on this server? It tries for the
--- time of a lease, as often as that allows.
---@param self table world
---@param server table
---@param host table the client's
---@param owner string a waiter that was in the queue
---@return boolean
function watch.was_away(self, server, host, owner)
  return self.universe.now - (server.heard[host] or 0) > AWAY
    or (server.back[host] or 0) > (self.waited[owner] or 0)
end

-- An owner gets a fencing token, or has it already.
local function give(self, thing, owner, token)
  if token and thing.tokens and not thing.tokens[token] then
    thing.tokens[token] = { owner = owner, at = self.universe.now }
  end
end

-- Checks that a server executes guarded commands only while no other owner
-- certainly has the lock, and refuses them only if the hold is missing. With
-- several holds, any one may be missing.
local function check_effect(self, server, thing, args, verdict)
  local entry, owner = server.redis:entry(thing.key), args[1]
  -- An owner that is lost as a reader may be the writer in another task.
  if verdict == "lost" and args[2] == "1" and not thing.kind:find "read"
      and server:holds(thing.key, owner) and reserved_for(entry) ~= owner then
    self.oracle:fault("refused", "%s does not execute a command of %s, which "
      .. "has %s", server.name, printable(owner), thing.name)
  end
  if verdict ~= "done" then return end
  for _, holder in ipairs(thing.holders) do
    local both_read = holder.mode == "read" and reads(entry, owner)
    if holder.owner ~= owner and not both_read and is_sure(holder)
        and holder.valid_for() > 0 then
      holder.is_forgiven = true
      self.oracle:fault("late effect", "%s executes a command of %s, but %s "
        .. "has %s", server.name, printable(owner), holder.label, thing.name)
    end
  end
end

-- Operations that take nothing and give nothing.
local UNCHANGED = { renew = true, count = true, peek = true, call = true }

--- A server has executed an operation of a policy.
---@param self table world
---@param server table
---@param link table the connection
---@param operation string
---@param key string
---@param args table
---@param reply table
function watch.executed(self, server, link, operation, key, args, reply)
  local thing, verdict = self.by_key[key], reply[1]
  heard(self, server, link, operation, args, verdict)
  if thing and verdict ~= "busy" and not UNCHANGED[operation] then
    thing.changed_at = self.universe.now
  end
  if operation == "acquire" and verdict == "held" then
    local lease = tonumber(args[2]) / 1000
    local given = remember(server.granted, key)
    local before = given[args[1]]
    local newer = link.is_closed and remember(server.released, key)[args[1]]
    given[args[1]] = { at = self.universe.now, ends = self.universe.now + lease,
      till = before and before.till, is_late = newer
        and newer.server == link.server and newer.id > link.id }
    if thing then
      thing.freed_at = nil
      thing.takers[args[1]] = link.host.process
      give(self, thing, args[1], math.tointeger(reply[2]))
    end
  elseif operation == "release" then
    remember(server.released, key)[args[1]] = link
    released(self, server, key, args, verdict)
    if thing and verdict == "freed" then
      thing.opened_at = self.universe.now
      -- If others still read, its last lease may end without a message.
      if not is_taken(server.redis:entry(key)) then
        thing.freed_at = self.universe.now
      end
    end
  elseif operation == "call" then
    if thing then check_effect(self, server, thing, args, verdict) end
  elseif operation == "count_down" and verdict == "free" then
    if thing then thing.opened_at = self.universe.now end
  elseif operation == "leave" then
    left(self, server, thing)
    if thing and verdict == "freed" then thing.freed_at = self.universe.now end
  end
  if verdict == "held" and (operation == "acquire" or operation == "renew")
  then
    extend(self, server, key, args[1], tonumber(args[2]))
  end
end

return watch
