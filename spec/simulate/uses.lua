--- What a task does with locks: one function for each sort of thing. Each takes
--- the thing, holds it for a while under the eyes of the oracle, and gives it
--- back, in one of many ways.

local barriers = require "spec.simulate.barriers"
local multi = require "rlock.several.multi"
local oracle = require "spec.simulate.oracle"
local quorum = require "rlock.several.quorum"
local server_identity = require "rlock.redis.server_identity"

local uses = {}

-- holding ---------------------------------------------------------------------

local Holder = {}
Holder.__index = Holder

local COLLECTED = 12      -- seconds until all garbage is collected, see world

-- The hold of a cancelled task may last until it is garbage.
function Holder:__close()
  if self.has_ended then return end
  self.world.oracle:ending(self)
  self.thing.garbage_until = self.world.universe.now + COLLECTED
end

-- Few are held for long: the others cost little while they wait for those.
local function seconds_of(random)
  local dice = random()
  if dice < 0.005 then return random() * 4 end
  if dice < 0.025 then return random() end
  return random() * 0.005
end

-- The client's grant of a handle, for the calling task.
local function grant_of(task, lock)
  return lock.record.grants[lock.owner or task.host.current()]
end

-- What the servers know it by: its key, or its path.
local function key_of(record) return record.target[1] or record.target.path end

local function executed_at(thing, lock, granted)
  local keys = thing.servers[1].granted[lock.record.target[1]]
  local given = keys and granted and keys[granted.owner_name]
  return given and given.at
end

-- The holder of a lock of one server, for the oracle.
local function holder_of(task, thing, lock, mode)
  local host = task.host
  local granted, zookeeper = grant_of(task, lock), task.world.zookeeper
  local node, session
  if zookeeper then node, session = zookeeper:given(thing, lock, granted) end
  return setmetatable({
    node = node, session = session,
    is_forgiven = node and zookeeper:may_be_unaware(node),
    world = task.world, thing = thing, label = task.label, host = host,
    party = lock.owner and lock.owner.name or task.label, mode = mode,
    style = task.style,
    began = task.began, executed = executed_at(thing, lock, granted),
    token = granted and granted.token, n = 1, tells_time = true,
    owner = granted and granted.owner_name,
    is_renewed = function() return granted.watched end,
    valid_for = function()
      return granted and granted.owner and granted.lock.record == lock.record
        and granted:valid_for() or 0
    end,
  }, Holder)
end

local function ask_to_tell(task, holder)
  if task.random() < 0.3 and holder.ask_to_tell then
    local told = {}                     -- not the holder: it refers to the hold
    holder.told = told
    holder.tells = holder.ask_to_tell(function() told.is_true = true end)
  end
end

local function held(task, holder)
  task.world.oracle:granted(holder)
  ask_to_tell(task, holder)
  task.host.sleep(seconds_of(task.random))
end

local SURE = 0.5          -- seconds of a hold that cannot end during its unlock

local function unlocked(holder, unlock, ...)
  local troubles, oracle_ = holder.host.troubles or 0, holder.world.oracle
  local left, began = holder.valid_for(), holder.host.universe.now
  oracle_:ending(holder)
  local ok, code, detail = unlock(...)
  oracle_:ended(holder, ok, troubles)
  if not ok and left > SURE and holder.world.is_calm
      and not holder.is_forgiven and code ~= "quorum"
      and (holder.thing.lost_at or -1) < began then
    oracle_:fault("not unlocked", "%s of %s was valid for %.3f s: %s",
      holder.thing.name, holder.label, left, tostring(code))
  end
  return ok, code, detail
end

local function asks_to_tell(holder, lock)
  function holder.ask_to_tell(fn) return lock:on_lost(fn) end
  return holder
end

-- asking ----------------------------------------------------------------------

local Asking = {}
function Asking:__close()
  for _, thing in ipairs(self) do oracle.gone(thing, self.task) end
end

-- Tells the oracle that a task asks for these things, until this is closed.
local function asking(task, things)
  local self = setmetatable({ task = task }, Asking)
  for i, thing in ipairs(things) do
    oracle.asking(thing, task)
    self[i] = thing
  end
  return self
end

-- waiting ---------------------------------------------------------------------

local OVERDUE = 0.1       -- seconds by which a wait may be exceeded
local TIMEOUT = 0.5       -- of the clients
local UNLOCKS = 1         -- seconds for an unlock, which is part of a compute
local TOGETHER = 0.08     -- seconds within which a whole crowd is woken: eight
                          -- round trips, for connections and scripts

-- Those of a crowd that may have it together are not woken one by one.
local function check_together(task, thing, user, began, is_held)
  local opened = (user.one or thing).opened_at or 0
  local late = task.host.universe.now - opened
  if is_held and opened > began and late > TOGETHER then
    task.world.oracle:fault("delayed", "%s gets %s %.3f s after it was free "
      .. "for all", task.label, thing.name, late)
  end
end

local function waited(task, thing, began, options, ...)
  local now, user = task.host.universe.now, thing.users[task.label]
  if user then user.waits = nil end
  local most = math.max(options.wait or 1e9, TIMEOUT) + OVERDUE
    + (thing.use == "compute" and UNLOCKS or 0)
  if now - began > most and task.host.stalls_until <= began then
    task.world.oracle:fault("overdue", "%s waited %.3f s for %s, at most %.3f "
      .. "s were wanted", task.label, now - began, thing.name, options.wait)
  end
  if task.reads then check_together(task, thing, user, began, (...)) end
  return ...
end

-- Calls fn(...), which waits for a thing by these options of lock().
local function wait_for(task, thing, options, fn, ...)
  local began = task.host.universe.now
  local user = thing.users[task.label]
  if user then user.waits = began end
  return waited(task, thing, began, options, fn(...))
end

local function lock_it(task, thing, lock, options)
  return wait_for(task, thing, options, lock.lock, lock, options)
end

local function hold_it(task, thing, lock, options)
  return wait_for(task, thing, options, lock.hold, lock, options)
end

-- styles of one lock ----------------------------------------------------------

local styles = {}

function styles.plain(task, thing, lock, mode, options)
  if not lock_it(task, thing, lock, options) then return end
  local holder <close> = asks_to_tell(holder_of(task, thing, lock, mode), lock)
  held(task, holder)
  unlocked(holder, lock.unlock, lock)
end

function styles.try(task, thing, lock, mode)
  if not lock:try_lock() then return lock:request_release(task.label) end
  local holder <close> = holder_of(task, thing, lock, mode)
  held(task, holder)
  lock:need(0.01)
  unlocked(holder, lock.unlock, lock)
end

-- Unlocks a hold when another task asks for it, if the oracle knows it.
local function heed_requests(holder, hold)
  hold:on_release_request(function()
    holder.world.oracle:note "holders asked"
    if holder.since and not holder.has_ended then
      unlocked(holder, hold.unlock, hold)
    end
  end)
end

-- A hold that guards commands; watch.lua checks those that are executed.
function styles.hold(task, thing, lock, mode, options)
  local hold <close> = hold_it(task, thing, lock, options)
  if not hold then return end
  local holder <close> = asks_to_tell(holder_of(task, thing, lock, mode), hold)
  heed_requests(holder, hold)
  hold:call("DEL", thing.key .. ":effect")
  held(task, holder)
  hold:call("DEL", thing.key .. ":effect")
  if task.random() < 0.5 and not holder.has_ended then
    unlocked(holder, hold.unlock, hold)
  end
end

styles["in another task"] = function(task, thing, lock, mode, options)
  local hold = hold_it(task, thing, lock, options)
  if not hold then return end
  local holder <close> = holder_of(task, thing, lock, mode)
  held(task, holder)
  task.host.spawn(function() unlocked(holder, hold.unlock, hold) end):join()
end

styles["with"] = function(task, thing, lock, mode, options)
  local holder, troubles
  local user = thing.users[task.label]
  user.waits = task.host.universe.now
  local ok, code = lock:with(options, function()
    user.waits = nil
    local own <close> = holder_of(task, thing, lock, mode)
    held(task, own)
    holder, troubles = own, task.host.troubles or 0
    return true
  end)
  if holder then
    task.world.oracle:ended(holder, ok or code ~= "lost" and nil, troubles)
  end
end

function styles.nested(task, thing, lock, mode, options)
  if not lock_it(task, thing, lock, options) then return end
  local holder <close> = holder_of(task, thing, lock, mode)
  held(task, holder)
  if lock:lock { wait = task.random(), lease = 0.1 + task.random() } then
    task.host.sleep(seconds_of(task.random))
    lock:unlock()
    task.host.sleep(seconds_of(task.random) * 3)
  end
  unlocked(holder, lock.unlock, lock)
end

-- A writer also reads, and remains a reader. Whichever it unlocks first, it
-- keeps the other.
local function downgrade(task, thing, write, read)
  local writer <close> = holder_of(task, thing, write, "write")
  held(task, writer)
  local ok, code = read:lock { wait = 1 }
  if not ok then
    -- "lost": another task of this owner has not unlocked a lost hold yet
    if code ~= "lost" and task.world.is_calm and not writer.is_forgiven
        and writer.valid_for() > 0 then
      task.world.oracle:fault("refused", "%s: %s may not read what it writes",
        thing.name, task.label)
    end
    return unlocked(writer, write.unlock, write)
  end
  local reader <close> = holder_of(task, thing, read, "read")
  held(task, reader)
  if task.random() < 0.5 then
    unlocked(writer, write.unlock, write)
    task.host.sleep(seconds_of(task.random))
    return unlocked(reader, read.unlock, read)
  end
  unlocked(reader, read.unlock, read)
  return unlocked(writer, write.unlock, write)
end

-- A writer reads, too, and remains a reader for the seconds task.reads_on.
local function read_on(task, thing, write, read)
  local writer <close> = holder_of(task, thing, write, "write")
  task.world.oracle:granted(writer)
  task.host.sleep(task.stay)
  if not read:lock { wait = 1 } then
    return unlocked(writer, write.unlock, write)
  end
  local reader <close> = holder_of(task, thing, read, "read")
  task.world.oracle:granted(reader)
  unlocked(writer, write.unlock, write)
  task.host.sleep(task.reads_on)
  return unlocked(reader, read.unlock, read)
end

-- Does a server count a reader as the writer, too? It may share its owner with
-- the writer, or a failover may have lost the release of that.
local function is_writer(task, thing, reader)
  local split = task.world.cluster and task.world.cluster.split
  return thing.servers[1]:is_writer(thing.key, reader.owner)
    or split and split:is_writer(thing.key, reader.owner)
end

-- An upgrade is refused, at once: the reader would wait for itself.
local function upgrade(task, thing, read, write)
  local reader <close> = holder_of(task, thing, read, "read")
  held(task, reader)
  for _ = 1, 1 + math.floor(task.random() * 3) do
    local began, writes = task.host.universe.now,
      reader.owner and is_writer(task, thing, reader)
    local ok = write:lock { wait = task.random() }
    if ok and not writes and not reader.is_forgiven and reader.valid_for() > 0
        and (thing.rolled_back_at or -1) < began then
      task.world.oracle:fault("upgraded", "%s: %s reads and writes", thing.name,
        task.label)
    end
    if ok then write:unlock() end
  end
  unlocked(reader, read.unlock, read)
end

function styles.both(task, thing, lock, mode, options, pair)
  if not pair then return styles.plain(task, thing, lock, mode, options) end
  if not lock_it(task, thing, lock, options) then return end
  if mode == "write" then
    return downgrade(task, thing, lock, pair:read_lock())
  end
  return upgrade(task, thing, lock, pair:write_lock())
end

-- The task ends without unlocking, and nobody counts it as held.
function styles.abandon(task, thing, lock, _, options)
  if lock:lock(options) then thing.moved_at = task.world.universe.now end
end

function styles.look(_, _, lock)
  lock:peek()
  lock:is_locked()
  lock:is_held()
  lock:hold_count()
  lock:ttl()
  lock:state()
  lock:token()
end

-- The world tells the oracle when the server does it.
styles["break"] = function(_, _, lock) lock:break_lock() end

local ODDS = { { "plain", 0.42 }, { "both", 0.08 }, { "try", 0.08 },
  { "hold", 0.1 },
  { "in another task", 0.06 }, { "with", 0.1 }, { "nested", 0.12 },
  { "abandon", 0.02 }, { "look", 0.015 }, { "break", 0.005 } }

local function pick(odds, dice)
  for _, pair in ipairs(odds) do
    dice = dice - pair[2]
    if dice < 0 then return pair[1] end
  end
  return odds[1][1]
end

-- Options of lock(): how long to wait, and the lease.
local function options_of(random, leases)
  local options = {}
  local dice = random()
  if dice < 0.9 then options.wait = random() * 3 end
  if random() < (leases or 0.3) then options.lease = 0.05 + random() * 1.2 end
  return options
end

-- Some handles have a named owner: of the task's own, or of the process.
local function owner_of(task)
  local dice = task.random()
  if task.may_end then return nil end       -- it would leave the lock held
  local only = task.world.only.owner
  if only == "none" then return nil end
  if only == "task" or not only and dice < 0.2 then
    return { owner = task.label }
  elseif not only and dice < 0.3 then
    return { owner = task.host.label }
  end
end

-- Locks of one server -------------------------------------------------------

-- Every other process has fencing tokens; not the crowd, which is for the wakes
-- of each kind.
local function open_lock(task, thing, owner)
  local client = task.open[thing.servers[1].name]
  local kind = thing.kind
  local process = task.process
  owner = { owner = owner and owner.owner,
    fenced = process.number % 2 == 0 and not process.is_crowd }
  if kind ~= "read_write_lock" and kind ~= "fair_read_write_lock" then
    return client[kind](client, thing.name, owner), "exclusive"
  end
  local pair = client[kind](client, thing.name, owner)
  local reads = task.reads
  if reads == nil then reads = task.random() < 0.6 end
  if reads then return pair:read_lock(), "read", pair end
  return pair:write_lock(), "write", pair
end

local function handle(task, thing, owner)
  local lock, mode, pair = open_lock(task, thing, owner)
  thing.key = key_of(lock.record)
  local user = thing.users[task.label]
  if user then user.mode = mode end
  task.world.by_key[thing.key] = thing
  return lock, mode, pair
end

-- Elections -------------------------------------------------------------------

-- A leader that steps down tells so before its hold ends, unless its process
-- was stopped, or the lock was lost earlier.
local function check_change(task, election, leads, why)
  local host, now = task.host, task.host.universe.now
  local is_late = not leads and why:find "^not renewed"
    and election:valid_for() == 0 and host.stalls_until < now - task.world.lease
  if is_late or leads == election.was_leader then
    task.world.oracle:fault("changed", "%s of %s: %s", election.name,
      task.label, why or "leads twice")
  end
  election.was_leader = leads
end

-- The candidate of a task: one for each thing.
local function candidate_of(task, thing)
  local all = task.process.candidates
  local election = all[task.label .. thing.name]
  if election then return election end
  election = task.open[thing.servers[1].name]:election(thing.name)
  election:on_change(function(...) check_change(task, election, ...) end)
  all[task.label .. thing.name] = election
  thing.key = key_of(election.lock.record)
  task.world.by_key[thing.key] = thing
  return election
end

local function leader_of(task, thing, election)
  local holder = holder_of(task, thing, election.term.hold.lock, "exclusive")
  function holder.valid_for()
    return election:is_leader() and math.max(election:valid_for(), 0.001) or 0
  end
  return holder
end

-- Campaigns for so many seconds, leads for a while, and resigns; perhaps only
-- the next time. So a wait has a limit: two such tasks may wait for each other.
local function lead(task, thing, wait, stays)
  local election, options = candidate_of(task, thing), { wait = wait }
  if election.holder then task.world.oracle:ending(election.holder) end
  task.style, task.began = "elected", task.host.universe.now
  local ok, code, detail = wait_for(task, thing, options, election.campaign,
    election, options)
  if not ok then return nil, code, detail end
  local holder = leader_of(task, thing, election)
  if stays then
    election.holder = holder
    task.world.oracle:granted(holder)
    return true
  end
  local _ <close> = holder
  held(task, holder)
  if task.random() < 0.05 then
    election:leader()
    election:candidates()
  end
  return unlocked(holder, election.resign, election)
end

-- Must lead and resign once, in time: it may have led since before the last
-- fault, so the first attempts may fail.
local function must_lead(task, thing, seconds)
  local universe = task.host.universe
  local ends, ok, code, detail = universe.now + seconds
  repeat
    ok, code, detail = lead(task, thing, ends - universe.now)
    if not ok then task.host.sleep(0.1) end
  until ok or universe.now >= ends
  return ok, code, detail
end

-- locks -----------------------------------------------------------------------

function uses.lock(task, thing)
  if thing.kind == "election" then
    return lead(task, thing, task.random() * 3, task.random() < 0.1)
  end
  local style = task.world.only.style or pick(ODDS, task.random())
  local owner = owner_of(task)
  if style == "abandon" then owner = nil end  -- a named owner would keep it
  local lock, mode, pair = handle(task, thing, owner)
  task.style, task.began = style, task.host.universe.now
  if style == "abandon" then
    return task.host.spawn(styles.abandon, task, thing, lock, mode,
      options_of(task.random)):join()
  end
  styles[style](task, thing, lock, mode,
    options_of(task.random, task.world.only.leases), pair)
end

--- Must get it, in time: nothing is broken any more. Holds it for the seconds
--- task.stay; as a writer that reads on, then for task.reads_on.
---@return any # true, or nil, code, detail of the last lock or unlock
local function must_lock(task, thing, seconds)
  local _ <close> = asking(task, { thing })
  if thing.kind == "election" then return must_lead(task, thing, seconds) end
  local lock, mode, pair = handle(task, thing)
  task.style, task.began = "at the end", task.host.universe.now
  local ends = task.began + seconds
  local ok, code, detail = lock_it(task, thing, lock, { wait = seconds })
  if code == "refused" then
    -- An upgrade: a read hold whose unlock failed during the faults lasts
    -- until its lease ends.
    task.host.sleep(0.1)
    return must_lock(task, thing, ends - task.host.universe.now)
  end
  if not ok then return nil, code, detail end
  if task.reads_on then
    return read_on(task, thing, lock, pair:read_lock())
  end
  local holder <close> = holder_of(task, thing, lock, mode)
  task.world.oracle:granted(holder)
  local left = holder.valid_for()
  task.host.sleep(task.stay or 0.001)
  ok, code, detail = unlocked(holder, lock.unlock, lock)
  if code == "lost" and left < SURE then
    -- The session was last confirmed during the faults, so the hold was valid
    -- only briefly.
    return must_lock(task, thing, ends - task.host.universe.now)
  end
  -- The retry of a break_lock that was sent during the faults may have broken
  -- this hold.
  local is_broken = code == "lost" and holder.is_forgiven
  return ok or is_broken or nil, code, detail
end

-- Several locks --------------------------------------------------------------

local function all_ending(holders)
  for _, holder in ipairs(holders) do holder:__close() end
end

local KEPT = 5            -- seconds, at most

--- Takes several locks of one server that nobody else wants, and keeps them
--- while their renewals share requests.
---@param task table
---@param things table
function uses.keep(task, things)
  local _ <close> = asking(task, things)
  local holders <close> = setmetatable({}, { __close = all_ending })
  local locks = {}
  for _, thing in ipairs(things) do
    local lock, mode = handle(task, thing)
    task.style, task.began = "kept", task.host.universe.now
    if lock_it(task, thing, lock, { wait = 1 }) then
      local holder = holder_of(task, thing, lock, mode)
      task.world.oracle:granted(holder)
      holders[#holders + 1], locks[#locks + 1] = holder, lock
    end
  end
  task.host.sleep(task.random() * KEPT)
  for i, lock in ipairs(locks) do unlocked(holders[i], lock.unlock, lock) end
end

local function several_held(task, parts, valid_for, style)
  local holders = setmetatable({}, { __close = all_ending })
  for i, part in ipairs(parts) do
    local holder = holder_of(task, part.thing, part.lock, part.mode)
    holder.valid_for, holder.style, holder.is_joint = valid_for, style, true
    holders[i] = holder
  end
  for _, holder in ipairs(holders) do task.world.oracle:granted(holder) end
  return holders
end

-- The validity of the calling task's last hold, for any task.
local function validity(task, joint)
  local holds = joint.held[task.host.current()]
  local hold = holds and holds[#holds]
  return function()
    local is_over = not hold or hold.is_over or hold.lost_because
    return is_over and 0 or joint:valid_of(hold)
  end
end

local function use_joint(task, joint, parts, options)
  local hold = joint:hold(options)
  if not hold then return end
  local style = parts[1].style
  local holders <close> = several_held(task, parts,
    function() return hold:valid_for() end, style)
  local holder = holders[1]
  hold:state()
  if holder.thing.key then hold:call("DEL", holder.thing.key .. ":effect") end
  ask_to_tell(task, asks_to_tell(holder, hold))
  task.host.sleep(seconds_of(task.random))
  local troubles = task.host.troubles or 0
  all_ending(holders)
  local ok, code = hold:unlock()
  for _, one in ipairs(holders) do
    task.world.oracle:ended(one, ok, troubles)
  end
  return ok or code, holder
end

--- A multi-lock over some of the plain locks.
function uses.multi(task, thing)
  local things, parts, locks, chosen = thing.parts, {}, {}, {}
  local first, n = math.floor(task.random() * #things),
    2 + math.floor(task.random() * (math.min(#things, 4) - 1))
  for i = 1, n do
    local one = things[(first + i) % #things + 1]
    local lock, mode = handle(task, one)
    parts[i] = { thing = one, lock = lock, mode = mode, style = "multi" }
    locks[i], chosen[i] = lock, one
  end
  local _ <close> = asking(task, chosen)
  task.began = task.host.universe.now
  local joint = multi.new(locks)
  if task.random() < 0.05 then joint:is_held() end
  if task.random() < 0.2 then
    return joint:with({ wait = 1 }, function()
      local holders <close> = several_held(task, parts,
        validity(task, joint), "multi with")
      task.host.sleep(seconds_of(task.random))
      return #holders
    end)
  end
  use_joint(task, joint, parts, options_of(task.random))
end

local function red_of(task, thing)
  local clients = {}
  for i, server in ipairs(thing.servers) do
    clients[i] = task.open[server.name]
  end
  local lock = quorum.new(clients, thing.name, { policy = thing.policy,
    node_timeout = 0.05 })
  return lock
end

-- Does the client count a restarted server because it never knew its
-- predecessor?
local function is_ignorant(task, thing)
  local now, result = task.world.universe.now, false
  for _, server in ipairs(thing.servers) do
    local session = task.open[server.name].session
    local restart = thing.restarted[server]
    if restart and now < restart.till and not restart.knowing[session] then
      result = true
    end
    if server_identity.of(session.server.node) then
      thing.knowing[server][session] = true
    end
  end
  return result
end

local function red_holder(task, thing, valid_for)
  return setmetatable({
    is_forgiven = is_ignorant(task, thing),
    world = task.world, thing = thing, label = task.label, host = task.host,
    party = task.label, mode = "exclusive", style = "red", n = 1,
    began = task.began, valid_for = valid_for,
  }, Holder)
end

-- The server that a session is connected to, or nil.
local function server_of(task, session)
  local sentinel = session.server.node.sentinel
  local place = sentinel and sentinel.address or session.options
  return task.world.network.servers[place.host]
end

-- Do most servers have this hold?
local function is_kept(task, thing, hold)
  local count = 0
  for _, part in ipairs(hold.inner_holds) do
    local server = server_of(task, part.lock.session)
    if server and not part.is_over
        and server:holds(part.lock.record.target[1], part.grant.owner_name) then
      count = count + 1
    end
  end
  return count > #thing.servers // 2
end

-- Enters it again, if its policy allows that.
local function nested_red(task, thing, lock)
  if not lock:lock { wait = task.random() * 3 } then return end
  local holder <close> = red_holder(task, thing, validity(task, lock))
  task.world.oracle:granted(holder)
  task.host.sleep(seconds_of(task.random))
  if lock:lock { wait = task.random() } then lock:unlock() end
  unlocked(holder, lock.unlock, lock)
end

--- A red lock.
function uses.red(task, thing)
  local lock = red_of(task, thing)
  task.began = task.host.universe.now
  if task.random() < 0.1 then return nested_red(task, thing, lock) end
  local hold = lock:hold(options_of(task.random))
  if not hold then return end
  local holder <close> = asks_to_tell(red_holder(task, thing, function()
    return hold:valid_for()
  end), hold)
  holder.tells_time = true
  function holder.is_kept() return is_kept(task, thing, hold.hold) end
  held(task, holder)
  hold:state()
  hold:call "PING"                      -- it is not sent
  if task.random() < 0.1 then lock:is_held() end
  unlocked(holder, hold.unlock, hold)
end

local function must_red(task, thing, seconds)
  local _ <close> = asking(task, { thing })
  local lock, universe = red_of(task, thing), task.host.universe
  local ends = universe.now + seconds
  local ok, code, detail
  repeat
    task.began = universe.now
    ok, code, detail = lock:lock { wait = ends - universe.now }
    -- A failover may still be under way.
    if code == "quorum" then task.host.sleep(0.1) end
  until code ~= "quorum" or universe.now >= ends
  if not ok then return nil, code, detail end
  local holder <close> = red_holder(task, thing, validity(task, lock))
  task.world.oracle:granted(holder)
  task.host.sleep(0.001)
  ok, code, detail = unlocked(holder, lock.unlock, lock)
  -- A slow majority: the release goes on in the background.
  return ok or code == "quorum" or nil, code, detail
end

-- Semaphores and permits ------------------------------------------------------

-- After a loss of data, another name: what is given back later would count.
local function name_of(thing)
  return ("%s:%d"):format(thing.name, thing.generation)
end

-- Each generation is a thing of its own.
local function generation_of(task, thing)
  local name = name_of(thing)
  local one = thing.generations[name]
  if not one then
    one = { name = name, servers = thing.servers, holders = {},
      users = thing.users, most = thing.most, lost = 0, ready = {},
      generations = {}, lost_at = thing.lost_at, takers = {} }
    thing.generations[name] = one
  end
  return one, task.open[thing.servers[1].name]
end

local function counted_holder(task, thing, n, valid_for)
  return setmetatable({
    world = task.world, thing = thing, label = task.label, host = task.host,
    party = task.label, style = "counted", n = n, began = task.began,
    valid_for = valid_for,
  }, Holder)
end

local function always() return 1 end

-- A task asks for n of a counter, which is `one`.
local function asks_for(task, thing, one, n)
  local user = thing.users[task.label]
  user.one, user.n = one, n
  return user
end

-- As wait_for, of a counter's method with these options.
local function count_on(task, thing, fn, counter, options, ...)
  return wait_for(task, thing, options, fn, counter, ...)
end

-- Sets the number of permits once; any reply of the server will do.
local function prepare(task, one, counter)
  one.key = one.key or key_of(counter.record)
  task.world.by_key[one.key] = one
  if one.ready[task.host] then return true end
  local ok, code = counter:set(one.most)
  one.ready[task.host] = ok or code == "refused"
  return one.ready[task.host]
end

-- Permits that their task does not release: it is cancelled, or its client has
-- lost a hold, perhaps these.
local Lost = {}
function Lost:__close() self.one.missing = (self.one.missing or 0) + self.n end

-- Uses permits of a semaphore, and returns them. Those of ZooKeeper end with
-- the session.
local function use_permits(task, one, semaphore, n)
  local zookeeper = task.world.zookeeper
  local lost <close> = setmetatable({ one = one, n = n }, Lost)
  local holder <close> = counted_holder(task, one, n, always)
  if zookeeper then
    holder.losses = zookeeper:losses(semaphore)
    function holder.valid_for()
      return zookeeper:permits_are_valid_for(holder, semaphore)
    end
  end
  held(task, holder)
  task.world.oracle:ending(holder)
  if zookeeper and holder.losses ~= zookeeper:losses(semaphore) then return end
  lost.n = 0
  if not semaphore:release(n) then one.is_doubtful = true end
end

function uses.semaphore(task, thing)
  local one, client = generation_of(task, thing)
  local semaphore = client:semaphore(one.name)
  if not prepare(task, one, semaphore) then return end
  local n, random = 1 + math.floor(task.random() * 2), task.random
  task.began = task.host.universe.now
  local ok, code
  local user = asks_for(task, thing, one, n)
  if random() < (task.world.only.drains or 0.05) then
    user.n = one.most
    ok, code = semaphore:drain()
    n = ok or 0
  elseif random() < 0.3 then
    ok, code = semaphore:try_acquire(n)
  else
    local options = { wait = random() * 3 }
    ok, code = count_on(task, thing, semaphore.acquire, semaphore, options, n,
      options)
  end
  if code and code ~= "busy" and code ~= "timeout" then
    one.is_doubtful = true
  elseif ok and n > 0 then
    use_permits(task, one, semaphore, n)
  end
  if random() < 0.05 then semaphore:available() end
end

-- A cancelled task gives its permit back.
local Returned = {}
function Returned:__close()
  for _, id in ipairs(self) do
    if self.permits:valid_for(id) > 0 then
      self.task.host.spawn(self.permits.release, self.permits, id)
    end
  end
end

-- Records the key of the leases for the oracle. On ZooKeeper there is none.
local function note_leases(task, one, permits)
  one.leases = permits.record.target[2]
  if one.leases then task.world.by_key[one.leases] = one end
end

function uses.permits(task, thing)
  local one, client = generation_of(task, thing)
  local permits, random = client:permits(one.name), task.random
  if not prepare(task, one, permits) then return end
  task.began = task.host.universe.now
  local options = options_of(random)
  options.wait = options.wait or 3          -- it may be gone forever
  note_leases(task, one, permits)
  asks_for(task, thing, one, 1)
  local id = count_on(task, thing, permits.acquire, permits, options, options)
  if not id then return end
  local _ <close> = setmetatable({ id, task = task, permits = permits },
    Returned)
  local holder <close> = counted_holder(task, one, 1, function()
    return permits:valid_for(id)
  end)
  holder.tells_time, holder.owner = true, id
  function holder.ask_to_tell(fn) return permits:on_lost(id, fn) end
  held(task, holder)
  if random() < 0.1 then
    permits:renew(id, 0.5)
    task.host.sleep(seconds_of(random))
  end
  task.world.oracle:ending(holder)
  permits:release(id)
  if random() < 0.05 then permits:acquired() end
end

-- Latches ---------------------------------------------------------------------

local PATIENCE = 4        -- seconds

-- Makes a request whose outcome is in doubt until it has returned: forever if
-- it raises or fails.
local function surely(cycle, fn, ...)
  cycle.doubts = cycle.doubts + 1
  local ok, value = fn(...)
  if ok ~= nil then cycle.doubts = cycle.doubts - 1 end
  return ok, value
end

-- May a request still be executed, or retried in the background? What a closed
-- client gave up is never sealed, because it does not connect again.
local function is_in_doubt(cycle)
  for session in next, cycle.settling do
    if session.pending > 0 or session.is_closed then return true end
  end
  return cycle.doubts > 0
end

-- A latch is set, counted down and opened: `cycle` is its current use. The next
-- one has the same name as soon as the outcome of all requests is known; if it
-- is not in time, another name.
local function cycle_of(thing, now)
  local cycle, generation = thing.cycle, thing.generation
  local is_old = not cycle or cycle.generation ~= generation
  if not is_old and not cycle.is_over then return cycle end
  if is_old or is_in_doubt(cycle) then
    if not is_old and now < cycle.since + PATIENCE then return nil end
    thing.names = (thing.names or 0) + 1
  end
  thing.cycle = { generation = generation, begun = 0, needed = 2, doubts = 0,
    settling = {}, since = now,
    name = ("%s:%d:%d"):format(thing.name, generation, thing.names) }
  return thing.cycle
end

-- In a split, the other master does not know what this one has counted.
local function check_latch(task, cycle, left)
  local thing, cluster = task.latch, task.world.cluster
  if cycle ~= thing.cycle or cycle.generation ~= thing.generation
      or (thing.lost_at or 0) > task.host.universe.now
      or cluster and cluster:is_split(thing) then
    return
  end
  if left < cycle.needed - cycle.begun then
    task.world.oracle:fault("counted twice", "%s: %d left after %d of %d",
      cycle.name, left, cycle.begun, cycle.needed)
  end
end

local function count_down(task, cycle, latch)
  cycle.begun = cycle.begun + 1
  cycle.doubts = cycle.doubts + 1
  local ok, left = latch:count_down()
  cycle.doubts = cycle.doubts - 1
  if ok then return check_latch(task, cycle, left) end
  cycle.settling[latch.session] = true
end

local function set(cycle, latch)
  cycle.is_claimed = true
  cycle.is_set = surely(cycle, latch.set, latch, cycle.needed)
  if not cycle.is_set then cycle.is_over = true end
end

-- Deletes it if it is not open.
local function open(task, cycle, latch)
  local options = { wait = task.random() * 2 }
  asks_for(task, task.latch, cycle, 0)
  local ok = count_on(task, task.latch, latch.wait, latch, options, options)
  if cycle.is_over then return end
  if ok then check_latch(task, cycle, 0) end
  task.world.oracle:note "latches"
  cycle.is_over = true
  if not ok or task.random() < 0.2 then
    surely(cycle, latch.delete, latch)
  end
end

-- Counts down more often than is needed, too.
function uses.latch(task, thing)
  local cycle = cycle_of(thing, task.host.universe.now)
  if not cycle then return end
  local latch = task.open[thing.servers[1].name]:latch(cycle.name)
  task.latch = thing
  if not cycle.is_claimed then
    set(cycle, latch)
  elseif cycle.is_set
      and (cycle.begun < cycle.needed or task.random() < 0.2) then
    count_down(task, cycle, latch)
  elseif cycle.is_set then
    open(task, cycle, latch)
  end
end

--- A double barrier.
uses.double_barrier = barriers.use

-- Computations ----------------------------------------------------------------

local FAILS = 0.1         -- of the computations

-- Whoever computes has seen that there is no value.
local function check_needed(task, thing, holder)
  local server = thing.servers[1]
  if not task.world.is_calm or task.world.zookeeper
      or holder.valid_for() <= 0 then
    return
  end
  server:tick()
  local state = server.redis:entry(thing.key .. ":state")
  if state and state.value == "fresh" then
    task.world.oracle:fault("computed again", "%s: %s, although there is a "
      .. "value", thing.name, task.label)
  end
end

-- The function of a task: it counts. The oracle compares those that run. It is
-- not interrupted when the `wait` of the options has passed.
local function computes(task, thing, options, is_sure)
  return function(hold)
    local lock, user = hold.lock, thing.users[task.label]
    if user then user.waits = nil end
    options.wait = nil
    thing.key = key_of(lock.record)
    task.world.by_key[thing.key] = thing
    thing.serial = (thing.serial or 0) + 1
    local serial = thing.serial
    local holder <close> = holder_of(task, thing, lock, "exclusive")
    check_needed(task, thing, holder)
    held(task, holder)
    task.world.oracle:ending(holder)
    if not is_sure and task.random() < FAILS then
      if task.random() < 0.5 then error("it fails", 0) end
      return nil, "it fails"
    end
    return ("%d"):format(serial)
  end
end

-- Nobody gets an older value than others have had before, unless the servers
-- have lost data. After a failover a server may have an old value: replicas do
-- not confirm what is read.
local function check_value(task, thing, latest, value)
  local only = task.world.only
  if value < latest.value and (thing.lost_at or -1) < latest.at
      and not thing.went_back
      and not (only.cluster or only.sentinel or only.replicas) then
    task.world.oracle:fault("old value", "%s: %s gets %d after %d", thing.name,
      task.label, value, latest.value)
  end
  if value > thing.latest.value then
    thing.latest = { value = value, at = task.began }
  end
end

local function compute(task, thing, options, is_sure)
  local client = task.open[thing.servers[1].name]
  task.style, task.began = "compute", task.host.universe.now
  thing.latest = thing.latest or { value = 0, at = 0 }
  local latest = thing.latest
  options.ttl, options.stale = thing.ttl, thing.stale
  local value, how, detail = wait_for(task, thing, options, client.compute,
    client, thing.name, options, computes(task, thing, options, is_sure))
  if not value then return nil, how, detail end
  if not detail then check_value(task, thing, latest, tonumber(value)) end
  task.world.oracle:note("values " .. how)
  return value
end

function uses.compute(task, thing)
  compute(task, thing, { wait = task.random() < 0.9 and task.random() * 3
    or nil })
  task.host.sleep(task.random() * thing.ttl / 4)
end

-- A failure may be that of a task that has begun earlier.
local function must_compute(task, thing, seconds)
  local _ <close> = asking(task, { thing })
  local value, code, detail
  repeat
    value, code, detail = compute(task, thing, { wait = seconds }, true)
  until value or code ~= "failed"
  return value, code, detail
end

-- Crowds ----------------------------------------------------------------------

-- The first task of a crowd takes all permits, holds them for task.stay, and
-- returns them. The others get some of them, in time.
local function in_crowd(fn)
  return function(task, thing, seconds)
    local _ <close> = asking(task, { thing })
    task.began = task.host.universe.now
    return fn(task, thing, { wait = seconds })
  end
end

local function crowd_semaphore(task, thing, options)
  local one, client = generation_of(task, thing)
  local semaphore = client:semaphore(one.name)
  if not prepare(task, one, semaphore) then return end
  local n = task.is_first and one.most
    or 1 + math.floor(task.random() * one.most)
  asks_for(task, thing, one, n)
  if not count_on(task, thing, semaphore.acquire, semaphore, options, n,
      options) then
    return
  end
  local lost <close> = setmetatable({ one = one, n = n }, Lost)
  local holder <close> = counted_holder(task, one, n, always)
  task.world.oracle:granted(holder)
  task.host.sleep(task.stay)
  lost.n = 0
  semaphore:release(n)
end

local function crowd_permits(task, thing, options)
  local one, client = generation_of(task, thing)
  local permits = client:permits(one.name)
  if not prepare(task, one, permits) then return end
  note_leases(task, one, permits)
  asks_for(task, thing, one, 1)
  local ids <close> = setmetatable({ task = task, permits = permits }, Returned)
  for _ = 1, task.is_first and one.most or 1 do
    ids[#ids + 1] = count_on(task, thing, permits.acquire, permits, options,
      options)
  end
  task.host.sleep(task.stay)
  while ids[1] do permits:release(table.remove(ids)) end
end

-- Opens a latch for which the others wait.
local function crowd_latch(task, thing, options)
  local cycle = thing.cycle
  local latch = task.open[thing.servers[1].name]:latch(cycle.name)
  task.world.by_key[latch.record.target[1]] = cycle
  if task.is_first then
    latch:set(1)
    task.host.sleep(task.stay)
    return latch:count_down()
  end
  asks_for(task, thing, cycle, 0)
  count_on(task, thing, latch.wait, latch, options, options)
end

--- What a task of a crowd does with a thing.
uses.crowd = { lock = must_lock, semaphore = in_crowd(crowd_semaphore),
  permits = in_crowd(crowd_permits), latch = in_crowd(crowd_latch) }

--- Must get each thing at the end, when nothing is broken.
uses.must = { lock = must_lock, red = must_red, compute = must_compute }

--- One round of a task.
---@param task table host, label, world, open, random
---@param thing table
function uses.use(task, thing)
  local _ <close> = asking(task, { thing })
  return uses[thing.use](task, thing)
end

return uses
