--- A reentrant lock that is granted in order of arrival.
--    name                            hash: owner -> hold count; expires with
--                                    the lease
--    redisson_lock_queue:{name}      list: the queue of waiters, head first
--    redisson_lock_timeout:{name}    zset: waiter -> its deadline, in ms
--    redisson_lock__channel:{name}:<owner>
--                                    "0" tells this waiter that it is its turn
--    rlock_fair_alive:{name}         hash: rlock waiter -> its heartbeat; under
--                                    the empty name, which no owner has, the
--                                    state of the queue (liveness.lua)
--    rlock_fair_deaf:{name}          hash: Redisson waiters that had no
--                                    subscriber at the last probe; expires
--  Except for the last two keys this is Redisson's RFairLock, wire compatible.
--  Where Redisson uses its clients' clocks, rlock uses server time.
--
--  Liveness. An rlock waiter whose heartbeats stop is evicted (liveness.lua).
--  Redisson's waiters send none. If the head is Redisson's, it is evicted when
--  its deadline has passed, as Redisson does. Besides, a Redisson waiter is
--  dead if its channel has no subscriber in two probes, DEAF ms apart. Probes
--  run only while the lock is free and the head's wake-up reaches no
--  subscriber. There are none in a cluster, where a server does not know all
--  subscribers, or where an ACL forbids INFO or PUBSUB NUMSUB.
--
--  Deadlines. A waiter's deadline is that of the waiter ahead plus its own
--  share, the seconds that it may take. When a waiter leaves, its share is
--  subtracted from the deadlines behind it; Redisson updates the whole queue
--  for that. But only two deadlines are ever read: the last, by the next
--  waiter to join, and the head's, by Redisson. An rlock waiter postpones its
--  own with each retry, and rlock does not evict by it. So in a queue without
--  Redisson waiters it is enough to correct the last deadline. Other costs
--  that grow with the queue: LPOS, LREM, repairs and evictions.
--  The first share of an rlock waiter is USUAL seconds at most, however long it
--  waits and the lock is held: a dead one delays Redisson no longer than that.
--  Redisson may evict a live rlock waiter, because of clock skew or behind a
--  Redisson waiter that waited for long. The evicted waiter takes its place
--  again, with a larger share. So do all rlock waiters if the keys of the queue
--  are deleted, as Redisson's delete() does.

local liveness = require "rlock.policy.liveness"
local naming = require "rlock.naming"
local reentrant = require "rlock.policy.reentrant"
local shared = require "rlock.policy.shared"

local clock, tell = shared.now, shared.tell
local starts, time_left = liveness.starts, liveness.left
local peek = reentrant.server.peek

local UNLOCKED = "0"
local HEARD = ""               -- the hash field for the state of the queue

local PAUSE = 100              -- ms: usual minimum of the retry delay
local USUAL, LONGEST = 10, 300 -- seconds: limits of a share: first, and ever
local MENDED = 5000            -- ms until a deadline that replaces a lost one
local SPARE = 60000            -- ms that the keys outlive any deadline: at
local HOUR = 3600000           -- least, and when their expiry is set
local BATCH = 100              -- waiters examined together
local FEW = 300                -- evictions by one request, at most;
local SOON = 5                 -- ms: retry delay if there are more
local SOME = 500               -- waiters probed by one request
local MANY = 1000              -- arguments of one command
local DEAF = 2000              -- ms between two probes
local COUNTS = 30000           -- ms for which a probe's result is valid

-- A heartbeat is text such as "17920.017". Before the point are its time, times
-- SECOND, plus the waiter's share in seconds; powers of two keep that exact.
-- After ".0" is the waiter's place, which gives the order of arrival. The
-- state of the queue has the same form: the time of the last heartbeat of any
-- waiter, ".0", the last start (liveness.lua).
-- Older versions of rlock read either as one number, and lose only what is
-- after the point. They write no places, and set the bit START when they start
-- the queue anew, which they do if the last heartbeat is old. So for SHOWN ms
-- after a start the time in the state is AWAY ms too early; otherwise they
-- would evict late waiters.
local SECOND, START = 1024, 512
local AWAY, SHOWN = 10000, 1200 -- ms

local server = {}                       -- these run inside Redis

-- heartbeats --------------------------------------------------------------

local function numbers(text)
  local first, second = text:match("^(%d+)%.?0?(%d*)$")
  return tonumber(first or 0), tonumber(second or "")
end

-- @return the heartbeat's time, the share in seconds, and the place or nil
local function parse(sign)
  local number, place = numbers(sign)
  return math.floor(number / SECOND), number % START, place
end

local function format(now, seconds, place)
  return ("%.0f.0%.0f"):format(now * SECOND + seconds, place)
end

local function format_state(now, start)
  local heard = now - start < SHOWN and now - AWAY or now
  return ("%.0f.0%.0f"):format(heard, start)
end

-- Reads the heartbeats of the calling owner (`asker`) and of `owners`.
-- @return `mine` and `signs`: texts or false; `heard`: when any waiter was
--   heard last, nil if no rlock waiter is known; `before` and `start` as of
--   liveness.starts; `is_new`: the queue starts anew now
local function read_line(keys, now, asker, owners)
  local all = redis.call("hmget", keys[5], asker, HEARD, unpack(owners))
  local line = { mine = table.remove(all, 1), before = 0, start = 0 }
  local state = table.remove(all, 1)
  line.signs = all
  if state then
    local heard, start = numbers(state)
    start = start or 0
    if heard < start then heard = heard + AWAY end
    line.heard = heard
    line.before, line.start = starts(heard, start, now)
    line.is_new = line.start ~= start
  end
  return line
end

local function left_to(line, sign, now)
  return time_left((parse(sign)), line.before, line.start, now)
end

-- the queue ---------------------------------------------------------------

-- Sets the expiry of the queue's keys.
local function keep(keys, now)
  local last = redis.call("zrevrange", keys[3], 0, 0, "withscores")[2]
  local ms = math.max((last or 0) - now, 0) + HOUR
  redis.call("pexpire", keys[2], ms)
  redis.call("pexpire", keys[3], ms)
  redis.call("pexpire", keys[5], ms)
end

-- Removes the waiters in `gone`: those of `first`, the first of the queue, in
-- the same order; or, without `first`, a single one anywhere.
local function remove(keys, gone, first, now)
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
    keep(keys, now)
  end
end

-- Subtracts the shares of rlock waiters that left from the deadlines from
-- `place` on, but never below what a new waiter would get in the same place.
-- A Redisson waiter keeps the rest of the holder's lease on top; if it is the
-- head, its deadline is raised to at least that.
-- @param ours how many left
-- @param ms   the sum of their shares
-- @param left ms left of the holder's lease
local function move_up(keys, place, ours, ms, now, left)
  local queue, timeouts, signs = keys[2], keys[3], keys[5]
  local waiting, alive = redis.call("llen", queue), redis.call("hlen", signs)
  if alive == 1 then redis.call("del", signs) end      -- only HEARD is left
  if ms == 0 or waiting <= place then return end
  local all_ours, most = alive > waiting, math.huge
  if all_ours then
    place = waiting - 1
    most = now + waiting * LONGEST * 1000
  end
  local owners = redis.call("lrange", queue, place, -1)
  for i = 1, #owners do
    local deadline = tonumber(redis.call("zscore", timeouts, owners[i]) or 0)
    local is_ours = all_ours or redis.call("hexists", signs, owners[i]) == 1
    local least = now + (place + i) * ms / ours
    if not is_ours then least = least + math.max(left, 0) end
    if deadline > least then
      redis.call("zadd", timeouts,
        math.min(most, math.max(least, deadline - ms)), owners[i])
    elseif place + i == 1 and not is_ours then
      redis.call("zadd", timeouts, least, owners[i])
    end
  end
end

-- Ms until the deadline of a Redisson waiter at the head; restores a lost one.
local function left_to_theirs(keys, owner, now, left)
  local deadline = redis.call("zscore", keys[3], owner)
  if not deadline then
    deadline = now + math.max(left, 0) + MENDED
    redis.call("zadd", keys[3], deadline, owner)
    keep(keys, now)
  end
  return deadline - now
end

-- The dead waiters at the front of `owners`. Sets `head`, `due` and `life` of
-- `line` if one is alive.
local function dead_of(keys, owners, now, left, asker, line)
  local dead = {}
  for i, owner in ipairs(owners) do
    local life = line.signs[i]
    local due = life and left_to(line, life, now)
      or left_to_theirs(keys, owner, now, left)
    if due > 0 or owner == asker then
      line.head, line.due, line.life = owner, due, life
      break
    end
    dead[i] = owner
  end
  return dead
end

-- Finds the first live waiter, and evicts the dead ones ahead of it. The asker
-- (the calling owner) counts as alive.
-- @return as read_line, and `gone`: how many were evicted; `head`: the first
--   live waiter, or nil; `life`: its heartbeat, or false; `due`: ms until it
--   counts as dead, 0 if that is not known yet
local function first_alive(keys, now, left, asker)
  local ms, ours, gone, n = 0, 0, 0, 1
  local line
  repeat
    local owners = redis.call("lrange", keys[2], 0, n - 1)
    line = read_line(keys, now, asker, owners)
    local dead = dead_of(keys, owners, now, left, asker, line)
    remove(keys, dead, dead)
    gone = gone + #dead
    for i = 1, #dead do
      if line.signs[i] then
        local _, seconds = parse(line.signs[i])
        ours, ms = ours + 1, ms + seconds * 1000
      end
    end
    n = BATCH
  until line.head or not owners[1] or gone >= FEW
  if gone >= FEW and not line.head then       -- the next request goes on
    line.head, line.due, line.life = redis.call("lindex", keys[2], 0), 0, true
  end
  if line.is_new then
    redis.call("hset", keys[5], HEARD, format_state(now, line.start))
  end
  if gone > 0 then move_up(keys, 0, ours, ms, now, left) end
  line.gone = gone
  return line
end

-- repairs -----------------------------------------------------------------

local function add_all(list, is_known, owners)
  for _, owner in ipairs(owners) do
    if not is_known[owner] then
      is_known[owner] = true
      list[#list + 1] = owner
    end
  end
end

-- Finds the live rlock waiters that are not known, and deletes the heartbeats
-- of dead ones.
-- @return a list in order of arrival, and owner -> place
local function find_lost(keys, now, line, is_known)
  local all = redis.call("hgetall", keys[5])
  local lost, dead, places = {}, {}, {}
  for i = 1, #all, 2 do
    local owner = all[i]
    local _, _, place = parse(all[i + 1])
    if owner ~= HEARD then places[owner] = place end
    if owner ~= HEARD and not is_known[owner] then
      local list = left_to(line, all[i + 1], now) > 0 and lost or dead
      list[#list + 1] = owner
    end
  end
  table.sort(lost, function(a, b)
    return (places[a] or 0) < (places[b] or 0)
  end)
  for i = 1, #dead, MANY do
    redis.call("hdel", keys[5], unpack(dead, i, math.min(i + MANY - 1, #dead)))
  end
  return lost, places
end

-- Inserts each lost waiter behind the last listed one with a smaller place.
-- @return the queue in reverse order
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
-- deadline. A lost rlock waiter gets its place back; a lost Redisson waiter
-- goes to the end.
local function mend(keys, now, left, line)
  local queue, timeouts, signs = keys[2], keys[3], keys[5]
  local list, is_known, has_deadline, scores = {}, {}, {}, {}
  add_all(list, is_known, redis.call("lrange", queue, 0, -1))
  local lost, places = find_lost(keys, now, line, is_known)
  for _, owner in ipairs(lost) do is_known[owner] = true end
  local timed = redis.call("zrange", timeouts, 0, -1)
  for _, owner in ipairs(timed) do has_deadline[owner] = true end
  add_all(list, is_known, timed)
  list = merge(list, lost, places)
  for _, owner in ipairs(list) do
    if not has_deadline[owner] then
      scores[#scores + 1] = now + math.max(left, 0) + MENDED
      scores[#scores + 1] = owner
    end
  end
  redis.call("del", queue)
  for i = 1, #list, MANY do
    redis.call("lpush", queue, unpack(list, i, math.min(i + MANY - 1, #list)))
  end
  for i = 1, #scores, MANY do
    redis.call("zadd", timeouts,
      unpack(scores, i, math.min(i + MANY - 1, #scores)))
  end
  if not list[1] then redis.call("del", signs) end
  keep(keys, now)
end

-- dead Redisson waiters ----------------------------------------------------

-- Counts the subscribers of each Redisson waiter in `owners`.
-- @return index -> number, or nil if this server cannot tell
local function listeners(keys, owners)
  local cluster = redis.pcall("info", "cluster")
  local replication = redis.pcall("info", "replication")
  if type(cluster) ~= "string" or type(replication) ~= "string"
      or not cluster:find("cluster_enabled:0", 1, true) then
    return nil
  end
  local signs = redis.call("hmget", keys[5], unpack(owners))
  local channels, at, counts, all = {}, {}, {}, 0
  for i, owner in ipairs(owners) do
    if not signs[i] then
      channels[#channels + 1], at[#at + 1] = keys[4] .. ":" .. owner, i
      counts[i] = 0
    end
  end
  local told = redis.pcall("pubsub", "numsub", unpack(channels))
  local sharded = redis.pcall("pubsub", "shardnumsub", unpack(channels))
  if told.err then return nil end
  for k, i in ipairs(at) do            -- Redis before 7 has no SHARDNUMSUB
    counts[i] = told[2 * k] + (sharded[2 * k] or 0)
    all = all + counts[i]
  end
  -- Redisson may be configured to subscribe at replicas.
  if all == 0 and not replication:find("connected_slaves:0", 1, true) then
    return nil
  end
  return counts
end

-- Probes the Redisson waiters at the front of the queue, and evicts those that
-- had no subscriber at the last probe either.
-- @return how many were evicted
local function strike_deaf(keys, now)
  local deaf = keys[6]
  if redis.call("pttl", deaf) > COUNTS - DEAF then return 0 end
  local owners = redis.call("lrange", keys[2], 0, SOME - 1)
  local counts = listeners(keys, owners) or {}
  local was_deaf = redis.call("hmget", deaf, unpack(owners))
  local gone, fields = {}, { HEARD, 1 }
  for i, owner in ipairs(owners) do
    if counts[i] == 0 and was_deaf[i] then
      gone[#gone + 1] = owner
    elseif counts[i] == 0 then
      fields[#fields + 1], fields[#fields + 2] = owner, 1
    end
  end
  remove(keys, gone, owners, now)
  redis.call("del", deaf)
  if fields[3] or not gone[1] then    -- otherwise the next may probe at once
    redis.call("hset", deaf, unpack(fields))
    redis.call("pexpire", deaf, COUNTS)
  end
  return #gone
end

-- waiting -----------------------------------------------------------------

-- Queues the owner, which is new or lost its place although it is alive.
-- @return its deadline, its share in seconds, its place
local function join(keys, args, now, left, line)
  local queue, owner, wait = keys[2], args[1], tonumber(args[4])
  if line.mine and left_to(line, line.mine, now) > 0 then
    local _, seconds, place = parse(line.mine)
    if not redis.call("lpos", queue, owner) then
      seconds = math.min(seconds * 4, LONGEST)
      mend(keys, now, left, line)
    end
    return now + seconds * 1000, seconds, place
  end
  local seconds = wait < 0 and USUAL
    or math.min(math.max(math.ceil(wait / 1000), 1), USUAL)
  local last = redis.call("lindex", queue, -1)
  local before = last and redis.call("zscore", keys[3], last) or 0
  local waiting = redis.call("rpush", queue, owner)
  return math.max(before, now) + seconds * 1000, seconds,
    now * 1000 + waiting % 1000
end

-- The owner has to wait: keeps it in the queue and stores its heartbeat. The
-- first request in each second checks the queue as a whole.
local function stay(keys, args, now, left, line)
  local queue, timeouts, signs, owner = keys[2], keys[3], keys[5], args[1]
  local deadline = redis.call("zscore", timeouts, owner)
  local has_joined, time, seconds, place = not deadline, now, USUAL, nil
  if has_joined then
    deadline, seconds, place = join(keys, args, now, left, line)
  else
    if line.mine then time, seconds, place = parse(line.mine) end
    deadline = line.head == owner and 0 or deadline + now - time
    deadline = math.max(now + seconds * 1000, deadline)
  end
  redis.call("zadd", timeouts, deadline, owner)
  redis.call("hset", signs, owner, format(now, seconds, place or now * 1000),
    HEARD, format_state(now, line.start))
  if not line.heard
      or math.floor(line.heard / 1000) ~= math.floor(now / 1000) then
    local waiting = redis.call("llen", queue)
    if waiting ~= redis.call("zcard", timeouts)
        or redis.call("hlen", signs) > waiting + 1 then
      mend(keys, now, left, line)
    end
    keep(keys, now)
  elseif has_joined and redis.call("pttl", timeouts) < deadline - now + SPARE
  then
    keep(keys, now)
  end
end

-- The lock is free: wakes the head, unless that is an rlock waiter that was the
-- head before.
-- @return how many subscribers received it; nil if nothing was sent
local function wake(keys, publish, owner, line)
  local head = line.head
  if head and head ~= owner and (line.gone > 0 or not line.life) then
    return tell(publish, keys[4] .. ":" .. head, UNLOCKED)
  end
end

-- Evicts dead waiters ahead of the owner, and wakes the head if the lock is
-- free.
-- @return as first_alive
local function look(keys, owner, publish, now, left)
  local line = first_alive(keys, now, left, owner)
  if not line.head and line.heard then         -- the queue was deleted
    mend(keys, now, left, line)
    line = first_alive(keys, now, left, owner)
  end
  if left == -2 and wake(keys, publish, owner, line) == 0 and not line.life
      and strike_deaf(keys, now) > 0 then
    line = first_alive(keys, now, left, owner)
    line.gone = 1
    wake(keys, publish, owner, line)
  end
  return line
end

-- The lock is held, or there is a queue.
-- @return nil if it is the owner's turn, otherwise the reply
local function wait_for_turn(keys, args, left)
  local owner, lease = args[1], tonumber(args[2])
  local now, is_free = clock(), left == -2
  local line = look(keys, owner, args[5], now, left)
  local is_turn = not line.head or line.head == owner
  if is_free and is_turn then
    if line.head then
      local seconds = line.mine and select(2, parse(line.mine)) or 0
      remove(keys, { owner })
      move_up(keys, 0, 1, seconds * 1000, now, lease)
    end
    return nil
  end
  if args[4] ~= "0" then stay(keys, args, now, left, line) end
  if is_free then
    return { "busy", line.due == 0 and SOON or math.max(line.due, PAUSE) }
  end
  if left == -1 then return { "busy", -1 } end
  return { "busy", math.max(left, is_turn and 1 or PAUSE) }
end

--- Takes the lock if no live waiter is ahead of the owner, or sets the owner's
--  hold count to `want`.
--  @param args owner, lease, want, ms to wait (0: a single try, which is not
--    queued; -1: without limit), publish
function server.acquire(keys, args)
  local lock, owner, lease, want = keys[1], args[1], args[2], args[3]
  local left = redis.call("pttl", lock)
  if left ~= -2 and redis.call("hget", lock, owner) then
    redis.call("hset", lock, owner, want)
    if left < tonumber(lease) then redis.call("pexpire", lock, lease) end
    return { "held" }
  elseif want ~= "1" then
    return { "lost" }
  elseif left ~= -2 and args[4] == "0" then
    return { "busy", left }
  end
  if left ~= -2 or redis.call("exists", keys[2], keys[5]) > 0 then
    local reply = wait_for_turn(keys, args, left)
    if reply then return reply end
  end
  redis.call("hset", lock, owner, want)
  redis.call("pexpire", lock, lease)
  return { "held" }
end

server.renew = reentrant.server.renew

--- Frees the lock, if it is held, and wakes the head.
local function hand_over(keys, publish)
  local head = redis.call("lindex", keys[2], 0)
  if head then head = first_alive(keys, clock(), 0, "").head end
  redis.call("del", keys[1])
  if head then tell(publish, keys[4] .. ":" .. head, UNLOCKED) end
end

--- Removes the owner, which does not hold the lock, from the queue. If the lock
--  is free, wakes the head, which may be a duplicate.
local function walk_away(keys, owner, publish)
  local place = redis.call("lpos", keys[2], owner)
  local life = redis.call("hget", keys[5], owner)
  local left = redis.call("pttl", keys[1])
  if place or life or redis.call("zscore", keys[3], owner) then
    remove(keys, { owner })
  end
  if place then
    local seconds = life and select(2, parse(life)) or 0
    move_up(keys, place, 1, seconds * 1000, clock(), left)
  end
  if left == -2 then hand_over(keys, publish) end
end

--- Sets the hold count to `want`; at 0 the lock goes to the next waiter. An
--  owner that wants 0 and does not hold the lock is removed from the queue.
function server.release(keys, args)
  local lock, owner, lease, want, publish =
    keys[1], args[1], args[2], args[3], args[4]
  if not redis.call("hget", lock, owner) then
    if want == "0" and redis.call("exists", keys[2], keys[5]) > 0 then
      walk_away(keys, owner, publish)
    end
    return { "lost" }
  end
  if want ~= "0" then
    redis.call("hset", lock, owner, want)
    redis.call("pexpire", lock, lease)
    return { "kept" }
  end
  hand_over(keys, publish)
  return { "freed" }
end

--- A waiter gives up. If it was granted the lock without learning of it, the
--  lock goes to the next waiter.
function server.leave(keys, args)
  local owner, publish = args[1], args[2]
  if redis.call("hget", keys[1], owner) == "1" then
    hand_over(keys, publish)
  else
    walk_away(keys, owner, publish)
  end
  return { "left" }
end

-- Evicts, by force, waiters at the front of the queue that are not known to be
-- alive. A Redisson waiter is alive if its wake-up reaches a subscriber.
-- @return how many were evicted
local function clear(keys, publish)
  local owners, now = redis.call("lrange", keys[2], 0, MANY - 1), clock()
  local line = read_line(keys, now, "", owners)
  local gone = {}
  for i, owner in ipairs(owners) do
    local sign = line.signs[i]
    local left = sign and time_left((parse(sign)), 0, 0, now)
      or tell(publish, keys[4] .. ":" .. owner, UNLOCKED)
    if left <= 0 then gone[#gone + 1] = owner end
  end
  remove(keys, gone, owners, now)
  return #gone
end

--- Frees the lock by force. If it is free, evicts dead waiters instead.
function server.break_(keys, args)
  local publish = args[2]
  if redis.call("exists", keys[1]) == 0 and clear(keys, publish) == 0 then
    return { "free" }
  end
  hand_over(keys, publish)
  return { "freed" }
end

--- As the reentrant lock's; besides, "queue" and the first hundred waiters.
function server.peek(keys, args)
  local reply = peek(keys, args)
  reply[5] = { "queue", redis.call("lrange", keys[2], 0, 99) }
  return reply
end

-- Without waiters it looks like a reentrant lock.
local function recognise(keys, args)
  return redis.call("exists", keys[2]) == 1
    and shared.may_have_counts(keys[1], args[1]) and 2
end

return {
  name = "fair",
  title = "fair lock",
  factory = "fair_lock",
  recognise = recognise,
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
  server = server,
}
