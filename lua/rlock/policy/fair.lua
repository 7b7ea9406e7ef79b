--- A reentrant lock that is granted in order of arrival.
---   name                            hash: owner -> hold count; expires with
---                                   the lease. The empty field, which no
---                                   owner has, marks a fair lock of rlock: 0,
---                                   before a fencing token (fencing.lua)
---   redisson_lock_queue:{name}      list: the queue of waiters, head first
---   redisson_lock_timeout:{name}    zset: waiter -> its deadline, in ms
---   redisson_lock__channel:{name}:<owner>
---                                   "0" when it is this waiter's turn
---   rlock_fair_alive:{name}         hash: rlock waiter -> its heartbeat; under
---                                   the empty name, which no owner has, the
---                                   state of the queue (liveness.lua)
---   rlock_fair_deaf:{name}          hash: Redisson waiters that had no
---                                   subscriber at the last probe; expires
--- Except for the last two keys this is Redisson's RFairLock, wire compatible.
--- Where Redisson uses its clients' clocks, rlock uses server time.
---
--- Liveness. An rlock waiter whose heartbeats stop is evicted (liveness.lua).
--- Redisson's waiters send none: as Redisson does, rlock evicts one that is the
--- head when its deadline has passed. A Redisson waiter is also dead if its
--- channel has no subscriber in two probes, PROBE_GAP ms apart. Probes run only
--- while the lock is free and the head's wake-up reaches no subscriber. There
--- are none in a cluster, where a server does not know all subscribers, or
--- where an ACL forbids INFO or PUBSUB NUMSUB.
---
--- Deadlines. A waiter's deadline is that of the waiter ahead plus its own
--- share, the seconds that it may take. An rlock waiter's first share is at
--- most FIRST_SHARE, so a dead one delays Redisson no longer than that. When a
--- waiter leaves, its share is subtracted from the deadlines behind it. Only
--- two deadlines are ever read: the last, by the next waiter to join, and the
--- head's, by Redisson. rlock's waiters postpone their own as they wait, so
--- in a queue without Redisson's it is enough to correct the last one.
--- Redisson may evict a live rlock waiter, because of clock skew or a long wait
--- behind a Redisson waiter, or delete the keys of the queue. The waiter then
--- takes its position again, with a larger share.
---
--- The cost of LPOS, LREM, repairs and evictions grows with the queue's length.

local liveness = require "rlock.policy.liveness"
local naming = require "rlock.naming"
local reentrant = require "rlock.policy.reentrant"
local shared = require "rlock.policy.shared"

local now, tell = shared.now, shared.tell
local starts, time_left = liveness.starts, liveness.left
local peek = reentrant.server.peek

local UNLOCKED = "0"
local STATE = ""               -- the hash field for the state of the queue
local MARK = ""                -- the lock's field that marks it as fair

local MIN_RETRY = 100          -- ms: usual minimum of the retry delay
local FIRST_SHARE = 10         -- seconds: the limit of a share, at first
local MAX_SHARE = 300          -- and of any share
local STEP = 8000              -- ms by which deadlines are postponed together
local REPAIRED = 5000          -- ms until a deadline that replaces a lost one
local SPARE = 60000            -- ms that the keys outlive any deadline: at
local HOUR = 3600000           -- least, and when their expiry is set
local BATCH = 100              -- waiters examined together
local MAX_EVICTED = 300        -- waiters, by one request;
local SOON = 5                 -- ms: retry delay if there are more
local MAX_ARGS = 1000          -- of one command; waiters evicted by force
local MAX_PROBED = 500         -- waiters, by one request
local PROBE_GAP = 2000         -- ms between two probes
local PROBE_LASTS = 30000      -- ms for which a probe's result is valid

-- A heartbeat is text such as "17920.017". Before the point are its time, times
-- SECOND, plus the waiter's share in seconds; powers of two keep that exact.
-- After ".0" is the waiter's position in the order of arrival, its `place`. The
-- state of the queue has the same form: the time of the last heartbeat of any
-- waiter, ".0", the last start (liveness.lua).
-- Older versions of rlock read either as one number, and lose only what follows
-- the point. They write no positions. If the last heartbeat is old, they start
-- the queue, and set the bit START. So for SHOWN ms after a start the time in
-- the state is AWAY ms too early; otherwise they would evict late waiters.
local SECOND, START = 1024, 512
local AWAY, SHOWN = 10000, 1200 -- ms

local server = {}                       -- these run inside Redis

-- heartbeats --------------------------------------------------------------

---@return any, any
local function numbers(text)
  local first, second = text:match("^(%d+)%.?0?(%d*)$")
  return tonumber(first or 0), tonumber(second or "")
end

---@return any ... # the heartbeat's time, the share in seconds, and the
---  position or nil
local function parse(heartbeat)
  local number, place = numbers(heartbeat)
  return math.floor(number / SECOND), number % START, place
end

local function format(time, seconds, place)
  return ("%.0f.0%.0f"):format(time * SECOND + seconds, place)
end

local function format_state(time, start)
  local heard = time - start < SHOWN and time - AWAY or time
  return ("%.0f.0%.0f"):format(heard, start)
end

-- The share in ms; 0 without a heartbeat.
local function share(heartbeat)
  local _, seconds = parse(heartbeat or "")
  return seconds * 1000
end

--- Reads the state of the queue, and heartbeats: texts or false.
---@param view any gets them: `own`: its owner's; `heartbeats`: those of
---  `waiters`; `heard`: the time of the last heartbeat, nil if no rlock waiter
---  is known; `before` and `start` from liveness.starts; `is_new`: the queue
---  restarts
local function read(keys, view, waiters)
  local all = redis.call("hmget", keys[5], view.owner, STATE, unpack(waiters))
  view.own, view.before, view.start = table.remove(all, 1), 0, 0
  local state = table.remove(all, 1)
  view.heartbeats = all
  if not state then return end
  local heard, start = numbers(state)
  start = start or 0
  view.heard = heard < start and heard + AWAY or heard
  view.before, view.start = starts(view.heard, start, view.time)
  view.is_new = view.start ~= start
end

-- Ms until an rlock waiter counts as dead.
local function left_of(view, heartbeat)
  return time_left((parse(heartbeat)), view.before, view.start, view.time)
end

-- the queue ---------------------------------------------------------------

-- Sets the expiry of the queue's keys.
local function expire(keys, time)
  local last = redis.call("zrevrange", keys[3], 0, 0, "withscores")[2]
  local ms = math.ceil(math.max((last or 0) - time, 0)) + HOUR
  redis.call("pexpire", keys[2], ms)
  redis.call("pexpire", keys[3], ms)
  redis.call("pexpire", keys[5], ms)
end

-- Removes the waiters in `gone`. They are among `first`, the head of the queue,
-- in the same order; without `first` there is only one, anywhere.
local function remove(keys, gone, first, time)
  if not gone[1] then return end
  redis.call("zrem", keys[3], unpack(gone))
  redis.call("hdel", keys[5], unpack(gone))
  if not first then return redis.call("lrem", keys[2], 1, gone[1]) end
  redis.call("ltrim", keys[2], #first, -1)
  local rest, n = {}, #gone
  for i = #first, 1, -1 do
    if first[i] == gone[n] then n = n - 1 else rest[#rest + 1] = first[i] end
  end
  if rest[1] then
    redis.call("lpush", keys[2], unpack(rest))
    expire(keys, time)
  end
end

-- Subtracts the shares of `n` rlock waiters that left, `ms` in all, from the
-- deadlines at and behind index `place`, but never below what a new waiter
-- would get at the same index. A Redisson waiter also gets the rest of the
-- holder's lease, `ttl`; if it is the head, its deadline is raised to that.
local function move_up(keys, place, n, ms, time, ttl)
  local queue, deadlines, heartbeats = keys[2], keys[3], keys[5]
  local waiting = redis.call("llen", queue)
  local alive = redis.call("hlen", heartbeats)
  if alive == 1 then redis.call("del", heartbeats) end  -- only STATE is left
  if ms == 0 or waiting <= place then return end
  local all_ours, most = alive > waiting, math.huge
  if all_ours then
    place = waiting - 1
    most = time + waiting * MAX_SHARE * 1000
  end
  for i, waiter in ipairs(redis.call("lrange", queue, place, -1)) do
    local deadline = tonumber(redis.call("zscore", deadlines, waiter) or 0)
    local is_ours = all_ours or redis.call("hexists", heartbeats, waiter) == 1
    local least = time + math.ceil((place + i) * ms / n)
    if not is_ours then least = least + math.max(ttl, 0) end
    if deadline > least then
      ---@cast deadline -nil
      redis.call("zadd", deadlines,
        math.min(most, math.max(least, deadline - ms)), waiter)
    elseif place + i == 1 and not is_ours then
      redis.call("zadd", deadlines, least, waiter)
    end
  end
end

-- Ms until the deadline of a Redisson waiter at the head; restores the deadline
-- if it was lost.
local function left_of_theirs(keys, view, waiter)
  local deadline = redis.call("zscore", keys[3], waiter)
  if not deadline then
    deadline = view.time + math.max(view.ttl, 0) + REPAIRED
    redis.call("zrem", keys[3], waiter) -- first: it needs no memory
    redis.call("zadd", keys[3], deadline, waiter)
    expire(keys, view.time)
  end
  return deadline - view.time
end

-- Evicts the dead among `waiters`, the first of the queue, up to the first live
-- one.
local function evict(keys, view, waiters)
  local dead = {}
  for i, waiter in ipairs(waiters) do
    local heartbeat = view.heartbeats[i]
    local left = heartbeat and left_of(view, heartbeat)
      or left_of_theirs(keys, view, waiter)
    if left > 0 or waiter == view.owner then
      view.head, view.heartbeat, view.left = waiter, heartbeat, left
      break
    end
    dead[i] = waiter
    if heartbeat then
      view.ours, view.ms = view.ours + 1, view.ms + share(heartbeat)
    end
  end
  remove(keys, dead, dead)
  view.gone = view.gone + #dead
end

--- Finds the first live waiter, and evicts the dead ones ahead of it. The owner
--- counts as alive.
---@param ttl any ms left of the holder's lease, from PTTL
---@return any # view: what `read` found, and `head`: the first live waiter, or
---  nil; `heartbeat`: its own, or false; `left`: ms until it counts as dead, 0
---  if that is not known yet; `gone`: the number of evicted waiters; `ours` and
---  `ms`: the number of rlock's among them, and the sum of their shares
local function first_alive(keys, time, ttl, owner)
  local view = { time = time, ttl = ttl, owner = owner,
    gone = 0, ours = 0, ms = 0 }
  local n = 1
  repeat
    local waiters = redis.call("lrange", keys[2], 0, n - 1)
    read(keys, view, waiters)
    evict(keys, view, waiters)
    n = BATCH
  until view.head or not waiters[1] or view.gone >= MAX_EVICTED
  if view.gone >= MAX_EVICTED and not view.head then   -- the rest is for later
    view.head, view.heartbeat, view.left =
      redis.call("lindex", keys[2], 0), true, 0
  end
  if view.is_new then
    redis.call("zrem", keys[3], "")     -- no waiter; first: it needs no memory
    redis.call("hset", keys[5], STATE, format_state(time, view.start))
  end
  if view.gone > 0 then move_up(keys, 0, view.ours, view.ms, time, ttl) end
  return view
end

-- repairs -----------------------------------------------------------------

-- Calls a command with the arguments in `list`, MAX_ARGS at a time.
local function call_in_parts(command, key, list)
  for i = 1, #list, MAX_ARGS do
    redis.call(command, key,
      ---@diagnostic disable-next-line: access-invisible
      unpack(list, i, math.min(i + MAX_ARGS - 1, #list)))
  end
end

-- Adds to `list` those of `waiters` that are not known.
local function add_all(list, is_known, waiters)
  for _, waiter in ipairs(waiters) do
    if not is_known[waiter] then
      is_known[waiter] = true
      list[#list + 1] = waiter
    end
  end
end

--- Finds the live rlock waiters that are not known, and deletes the heartbeats
--- of dead ones.
---@return any ... # a list in order of arrival, and waiter -> position
local function find_lost(keys, view, is_known)
  local all = redis.call("hgetall", keys[5])
  ---@type any, any, any
  local lost, dead, places = {}, {}, {}
  for i = 1, #all, 2 do
    local waiter = all[i]
    local _, _, place = parse(all[i + 1])
    if waiter ~= STATE then places[waiter] = place end
    if waiter ~= STATE and not is_known[waiter] then
      local list = left_of(view, all[i + 1]) > 0 and lost or dead
      list[#list + 1] = waiter
    end
  end
  table.sort(lost, function(a, b)
    return (places[a] or 0) < (places[b] or 0)
  end)
  call_in_parts("hdel", keys[5], dead)
  return lost, places
end

--- Inserts each lost waiter behind the last listed one with a smaller position.
---@return any # the queue in reverse order
local function merge(list, lost, places)
  local merged, n = {}, #lost
  for i = #list, 1, -1 do
    local place = places[list[i]]
    while place and n > 0 and (places[lost[n]] or 0) > place do
      merged[#merged + 1], n = lost[n], n - 1
    end
    merged[#merged + 1] = list[i]
  end
  for i = n, 1, -1 do merged[#merged + 1] = lost[i] end
  return merged
end

-- Repairs the queue, so that each waiter is in the list once and has a
-- deadline. A lost rlock waiter returns to its position; a lost Redisson waiter
-- goes to the end.
local function repair(keys, view)
  local queue, deadlines = keys[2], keys[3]
  local list, is_known, has_deadline, scores = {}, {}, {}, {}
  add_all(list, is_known, redis.call("lrange", queue, 0, -1))
  local lost, places = find_lost(keys, view, is_known)
  add_all({}, is_known, lost)
  local timed = redis.call("zrange", deadlines, 0, -1)
  add_all({}, has_deadline, timed)
  add_all(list, is_known, timed)
  list = merge(list, lost, places)
  for _, waiter in ipairs(list) do
    if not has_deadline[waiter] then
      scores[#scores + 1] = view.time + math.max(view.ttl, 0) + REPAIRED
      scores[#scores + 1] = waiter
    end
  end
  redis.call("del", queue)
  call_in_parts("lpush", queue, list)
  call_in_parts("zadd", deadlines, scores)
  if not list[1] then redis.call("del", keys[5]) end
  expire(keys, view.time)
end

-- dead Redisson waiters ----------------------------------------------------

--- Counts the subscribers of each Redisson waiter in `waiters`.
---@return any # index -> number, or nil if this server does not know all
---  subscribers
local function subscribers(keys, waiters)
  local cluster = redis.pcall("info", "cluster")
  local replication = redis.pcall("info", "replication")
  if type(cluster) ~= "string" or type(replication) ~= "string"
      or not cluster:find("cluster_enabled:0", 1, true) then
    return nil
  end
  local heartbeats = redis.call("hmget", keys[5], unpack(waiters))
  local channels, at, counts, all = {}, {}, {}, 0
  for i, waiter in ipairs(waiters) do
    if not heartbeats[i] then
      channels[#channels + 1], at[#at + 1] = keys[4] .. ":" .. waiter, i
    end
  end
  local plain = redis.pcall("pubsub", "numsub", unpack(channels))
  local sharded = redis.pcall("pubsub", "shardnumsub", unpack(channels))
  if plain.err then return nil end
  for k, i in ipairs(at) do            -- Redis before 7 has no SHARDNUMSUB
    counts[i] = plain[2 * k] + (sharded[2 * k] or 0)
    all = all + counts[i]
  end
  -- Redisson may be configured to subscribe at replicas.
  if all == 0 and not replication:find("connected_slaves:0", 1, true) then
    return nil
  end
  return counts
end

--- Probes the Redisson waiters at the front of the queue, and evicts those that
--- had no subscriber at the last probe either.
---@return any # the number of evicted waiters
local function evict_deaf(keys, time)
  local deaf = keys[6]
  if redis.call("pttl", deaf) > PROBE_LASTS - PROBE_GAP then return 0 end
  local waiters = redis.call("lrange", keys[2], 0, MAX_PROBED - 1)
  local counts = subscribers(keys, waiters) or {}
  local was_deaf = redis.call("hmget", deaf, unpack(waiters))
  local gone, fields = {}, { STATE, 1 }
  for i, waiter in ipairs(waiters) do
    if counts[i] == 0 and was_deaf[i] then
      gone[#gone + 1] = waiter
    elseif counts[i] == 0 then
      fields[#fields + 1], fields[#fields + 2] = waiter, 1
    end
  end
  remove(keys, gone, waiters, time)
  redis.call("del", deaf)
  if fields[3] or not gone[1] then    -- otherwise the next may probe at once
    redis.call("hset", deaf, unpack(fields))
    redis.call("pexpire", deaf, PROBE_LASTS)
  end
  return #gone
end

-- waiting -----------------------------------------------------------------

--- Queues the owner, which is new, or is alive but has lost its position.
---@return any ... # its deadline, its share in seconds, its position
local function join(keys, args, view)
  local queue, time = keys[2], view.time
  local owner, wait = args[1], tonumber(args[4])
  if view.own and left_of(view, view.own) > 0 then
    local _, seconds, place = parse(view.own)
    if not redis.call("lpos", queue, owner) then
      seconds = math.min(seconds * 4, MAX_SHARE)
      repair(keys, view)
    end
    return time + seconds * 1000, seconds, place
  end
  ---@cast wait -nil
  local seconds = wait < 0 and FIRST_SHARE
    or math.min(math.max(math.ceil(wait / 1000), 1), FIRST_SHARE)
  local last = redis.call("lindex", queue, -1)
  local before = last and redis.call("zscore", keys[3], last) or 0
  local waiting = redis.call("rpush", queue, owner)
  return math.max(before, time) + seconds * 1000, seconds,
    time * 1000 + waiting % 1000
end

--- Checks the whole queue, if this is the first request in the current second.
---@return any # whether it is the first
local function check_queue(keys, view)
  if view.heard
      and math.floor(view.heard / 1000) == math.floor(view.time / 1000) then
    return false
  end
  local waiting = redis.call("llen", keys[2])
  if waiting ~= redis.call("zcard", keys[3])
      or redis.call("hlen", keys[5]) > waiting + 1 then
    repair(keys, view)
  end
  expire(keys, view.time)
  return true
end

-- The owner must wait: keeps it in the queue and stores its heartbeat.
local function stay(keys, args, view)
  local deadlines, heartbeats = keys[3], keys[5]
  local owner, time = args[1], view.time
  local deadline = redis.call("zscore", deadlines, owner)
  local has_joined, last, seconds, place = not deadline, time, FIRST_SHARE, nil
  if has_joined then
    deadline, seconds, place = join(keys, args, view)
  else
    if view.own then last, seconds, place = parse(view.own) end
    deadline = view.head == owner and 0 or deadline + time - last
    deadline = math.max(time + seconds * 1000, deadline)
  end
  redis.call("zadd", deadlines, deadline, owner)
  redis.call("hset", heartbeats, owner,
    format(time, seconds, place or time * 1000),
    STATE, format_state(time, view.start))
  if not check_queue(keys, view) and has_joined
      and redis.call("pttl", deadlines) < deadline - time + SPARE then
    expire(keys, time)
  end
end

--- The lock is free: wakes the head, unless that is an rlock waiter that was
--- the head before.
---@return any # the number of subscribers that received it; nil if nothing was
---  sent
local function wake(keys, publish, view)
  local head = view.head
  if head and head ~= view.owner and (view.gone > 0 or not view.heartbeat) then
    return tell(publish, keys[4] .. ":" .. head, UNLOCKED)
  end
end

-- As first_alive, but also repairs a deleted queue, and wakes the head if the
-- lock is free.
local function find_head(keys, owner, publish, time, ttl)
  local view = first_alive(keys, time, ttl, owner)
  if not view.head and view.heard then         -- the queue was deleted
    repair(keys, view)
    view = first_alive(keys, time, ttl, owner)
  end
  if ttl == -2 and wake(keys, publish, view) == 0 and not view.heartbeat
      and evict_deaf(keys, time) > 0 then
    view = first_alive(keys, time, ttl, owner)
    view.gone = 1
    wake(keys, publish, view)
  end
  return view
end

--- Ms until a retry may succeed.
---@param view any from first_alive
---@param is_turn any whether one of the callers is the head
local function pause(view, is_turn)
  if view.ttl == -1 then return -1 end
  if view.ttl ~= -2 then
    return math.max(view.ttl, is_turn and 1 or MIN_RETRY)
  end
  return view.left == 0 and SOON or math.max(view.left or 0, MIN_RETRY)
end

--- The lock is held, or there is a queue.
---@return any # nil if it is the owner's turn, otherwise the reply
local function wait_for_turn(keys, args, ttl)
  local owner, time, is_free = args[1], now(), ttl == -2
  local view = find_head(keys, owner, args[5], time, ttl)
  local is_turn = not view.head or view.head == owner
  if is_free and is_turn then
    if view.head then
      remove(keys, { owner })
      move_up(keys, 0, 1, share(view.own), time, tonumber(args[2]))
    end
    return nil
  end
  if args[4] ~= "0" then stay(keys, args, view) end
  return { "busy", pause(view, is_turn) }
end

--- Takes the lock if no live waiter is ahead of the owner, or sets the owner's
--- hold count to `want`.
---@param args any owner, lease, want, ms to wait (0: a single try, which is not
---  queued; -1: without limit), publish
function server.acquire(keys, args)
  local lock, owner, lease, want = keys[1], args[1], args[2], args[3]
  local ttl = redis.call("pttl", lock)
  if ttl ~= -2 and redis.call("hget", lock, owner) then
    redis.call("hset", lock, owner, want)
    if ttl < tonumber(lease) then redis.call("pexpire", lock, lease) end
    return "held"
  elseif want ~= "1" then
    return "lost"
  elseif ttl ~= -2 and args[4] == "0" then
    return { "busy", ttl }
  end
  if ttl ~= -2 or redis.call("exists", keys[2], keys[5]) > 0 then
    local reply = wait_for_turn(keys, args, ttl)
    if reply then return reply end
  end
  redis.call("hset", lock, owner, want, MARK, 0)
  redis.call("pexpire", lock, lease)
  return "held"
end

-- A queued waiter's next deadline and heartbeat. Postponing a deadline costs
-- more than the rest of the request, so it is done rarely, by STEP ms at once.
local function refreshed(view, owner, deadline, heartbeat)
  local time, number, place = view.time, nil, nil
  if heartbeat then number, place = heartbeat:match("^(%d+)(%.%d+)$") end
  number = tonumber(number or time * SECOND + FIRST_SHARE)
  ---@cast number -nil
  local last, seconds = math.floor(number / SECOND), number % START
  local steps = math.floor(time / STEP) - math.floor(last / STEP)
  deadline = view.head == owner and 0 or deadline + steps * STEP
  return math.max(time + seconds * 1000, deadline),
    ("%.0f%s"):format(time * SECOND + seconds,
      place or (".0%.0f"):format(time * 1000))
end

--- Stores the heartbeats of the queued ones among `owners`.
---@return any ... # those that are not queued, and whether the head is among
---  `owners`
local function stay_all(keys, owners, view)
  local deadlines, is_turn, state =
    keys[3], false, format_state(view.time, view.start)
  local heartbeats = redis.call("hmget", keys[5], unpack(owners))
  local scores, fields, lost = {}, { STATE, state }, {}
  for i, owner in ipairs(owners) do
    local deadline = redis.call("zscore", deadlines, owner)
    if deadline then
      local later, heartbeat =
        refreshed(view, owner, deadline, heartbeats[i])
      fields[#fields + 1], fields[#fields + 2] = owner, heartbeat
      if later ~= tonumber(deadline) then
        scores[#scores + 1], scores[#scores + 2] = later, owner
      end
      is_turn = is_turn or view.head == owner
    else
      lost[#lost + 1] = owner
    end
  end
  if fields[3] then redis.call("zrem", deadlines, "") end -- needs no memory
  if scores[1] then redis.call("zadd", deadlines, unpack(scores)) end
  if fields[3] then
    redis.call("hset", keys[5], unpack(fields))
    check_queue(keys, view)
  end
  return lost, is_turn
end

--- Refreshes the heartbeats of waiters. If the lock is free, the reply names
--- the head, or wakes it if it is not among them.
---@param args any publish, owner, ...
---@return any # { "busy", ms, owner, ... }: those named must retry
function server.refresh(keys, args)
  local publish, ttl = args[1], redis.call("pttl", keys[1])
  ---@diagnostic disable-next-line: access-invisible
  local owners = { unpack(args, 2) }
  local view = find_head(keys, owners[1], publish, now(), ttl)
  local named, is_turn = stay_all(keys, owners, view)
  if ttl == -2 and is_turn then
    named[#named + 1] = view.head
  elseif ttl == -2 and view.head and view.heartbeat and view.gone == 0 then
    tell(publish, keys[4] .. ":" .. view.head, UNLOCKED)
  end
  return { "busy", pause(view, is_turn), unpack(named) }
end

server.renew = reentrant.server.renew

--- Frees the lock, if it is held, and wakes the head.
---@param head? any the first of the queue, alive or dead
local function hand_over(keys, publish, head)
  head = head or redis.call("lindex", keys[2], 0)
  if head then head = first_alive(keys, now(), 0, "").head end
  redis.call("del", keys[1])
  if head then tell(publish, keys[4] .. ":" .. head, UNLOCKED) end
end

--- Removes the owner, which does not hold the lock, from the queue. If the lock
--- is free, wakes the head, which may be a duplicate.
local function leave(keys, owner, publish)
  local place = redis.call("lpos", keys[2], owner)
  local heartbeat = redis.call("hget", keys[5], owner)
  local ttl = redis.call("pttl", keys[1])
  if place or heartbeat or redis.call("zscore", keys[3], owner) then
    remove(keys, { owner })
  end
  if place then move_up(keys, place, 1, share(heartbeat), now(), ttl) end
  if ttl == -2 then hand_over(keys, publish) end
end

-- Ends a hold, or a wait. The operations use only this one, so a run that does
-- not call it need not create the helpers.
local function give_up(keys, owner, publish, is_held, head)
  if is_held then return hand_over(keys, publish, head) end
  leave(keys, owner, publish)
end

--- Sets the hold count to `want`; at 0 the lock passes to the next waiter. An
--- owner that wants 0 and does not hold the lock is removed from the queue.
function server.release(keys, args)
  local lock, owner, lease, want, publish =
    keys[1], args[1], args[2], args[3], args[4]
  local is_held = redis.call("hget", lock, owner)
  if is_held and want ~= "0" then
    redis.call("pexpire", lock, lease)  -- first: it needs no memory
    redis.call("hset", lock, owner, want)
    return "kept"
  end
  local head = is_held and redis.call("lindex", keys[2], 0)
  if head or not is_held and want == "0"
      and redis.call("exists", keys[2], keys[5]) > 0 then
    give_up(keys, owner, publish, is_held, head)
  elseif is_held then
    redis.call("del", lock)
  end
  return is_held and "freed" or "lost"
end

--- Removes a waiter that has given up. Does not end a hold: another task of the
--- same owner may have acquired the lock before this request arrives.
function server.leave(keys, args)
  leave(keys, args[1], args[2])
  return "left"
end

--- Evicts, by force, the waiters at the front of the queue that are not known
--- to be alive. A Redisson waiter is alive if its wake-up reaches a subscriber.
---@return any # the number of evicted waiters
local function evict_silent(keys, publish)
  local waiters = redis.call("lrange", keys[2], 0, MAX_ARGS - 1)
  local heartbeats = redis.call("hmget", keys[5], STATE, unpack(waiters))
  local gone, time = {}, now()
  for i, waiter in ipairs(waiters) do
    local heartbeat = heartbeats[i + 1]
    local left = heartbeat and time_left((parse(heartbeat)), 0, 0, time)
      or tell(publish, keys[4] .. ":" .. waiter, UNLOCKED)
    if left <= 0 then gone[#gone + 1] = waiter end
  end
  remove(keys, gone, waiters, time)
  return #gone
end

--- Frees the lock by force. If it is free, evicts dead waiters instead.
function server.break_(keys, args)
  local publish = args[2]
  local is_free = redis.call("exists", keys[1]) == 0
  if is_free and evict_silent(keys, publish) == 0 then
    return "free"
  end
  hand_over(keys, publish)
  return "freed"
end

--- As the reentrant lock's, then "queue" and the first hundred waiters.
function server.peek(keys, args)
  local reply = peek(keys, args)
  reply[5] = { "queue", redis.call("lrange", keys[2], 0, 99) }
  return reply
end

return {
  name = "fair",
  keys = function(name)
    return {
      name, naming.prefix("redisson_lock_queue", name),
      naming.prefix("redisson_lock_timeout", name),
      naming.prefix("redisson_lock__channel", name),
      naming.prefix("rlock_fair_alive", name),
      naming.prefix("rlock_fair_deaf", name),
    }
  end,
  channel = function(keys, owner) return keys[4] .. ":" .. owner end,
  extra = function(request) return { request.wait_ms, request.publish } end,
  poll = liveness.POLL,
  fair = true,
  slack = liveness.DEAD,
  lasts = function(keys)
    return {
      [keys[2]] = 4000, [keys[3]] = 4000, [keys[5]] = 4000, [keys[6]] = 30,
    }
  end,
  server = server,
}
