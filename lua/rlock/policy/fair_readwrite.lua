--- A read/write lock granted in order of arrival; neither side starves. The
--  writer may also read, and remain a reader when it releases the write lock (a
--  downgrade). An upgrade is refused: the reader would wait for itself.
--  Holders and waiters are called "r:" or "w:" plus the owner in these keys:
--    rlock_frw:{name}          sorted set, the lock itself: holder -> end of
--                              its lease, in milliseconds of server time;
--                              expires with the last lease
--    rlock_frw_counts:{name}   hash: holder -> hold count, if more than 1
--    rlock_frw_queue:{name}    sorted set: waiter -> its place
--    rlock_frw_writers:{name}  sorted set: the same, writers only
--    rlock_frw_signs:{name}    hash: waiter -> "last heartbeat:place"; under
--                              the empty name the state of the queue: "last
--                              heartbeat of any:last start" (liveness.lua)
--    rlock_frw_wake:{name}:<who>    "0" tells waiter <who> to retry
--  This layout is rlock's own; other clients do not know it.
--
--  Liveness. A dead waiter (liveness.lua) is evicted as soon as a waiter behind
--  it retries.
--
--  Order. A reader waits for the writers ahead of it, a writer for all waiters
--  ahead of it, so readers enter together between writers. A single try is not
--  queued, and does not overtake waiters. Writers are woken one at a time;
--  readers together, up to the next writer.
--  Acquire, renew, release and leave are O(log n) in holders and waiters.
--  Waking readers is O(their number), up to 1000: the others find out when they
--  retry.

local liveness = require "rlock.policy.liveness"
local naming = require "rlock.naming"
local shared = require "rlock.policy.shared"

local now, tell = shared.now, shared.tell
local starts, time_left = liveness.starts, liveness.left

local READER, WRITER = "r:", "w:"
local WAKE = "0"
local HEARD = ""          -- the hash field for the state of the queue
local SIGNS_LAST = 3000   -- ms: expiry of the heartbeats; none: no waiters
local LINE_LASTS = 60000  -- ms: expiry of the queue
local REFRESH = 10000     -- ms between two refreshes of the latter
local FEW = 8             -- dead holders dropped by one request,
local MOST = 300          -- and dead waiters
local BATCH = 16          -- waiters examined together: to wake them,
local DEAD = 100          -- or to evict them
local MANY = 1000         -- waiters woken by one request
local LIST = 100          -- holders and waiters listed for people
local UPGRADE = "upgrade: this owner reads, and a writer waits for all readers"

-- these run inside Redis --------------------------------------------------

local function is_writer(who) return who:sub(1, 2) == "w:" end

-- holders -----------------------------------------------------------------

-- The holders whose leases end first: two at most, which is enough. If one of
-- them is a writer, the only other holder is the same owner as a reader.
-- @return { who, end, who, end }, as ZRANGE gives it
local function holders(keys, time)
  local lock, counts = keys[1], keys[3]
  local two = redis.call("zrange", lock, 0, 1, "withscores")
  for _ = 1, FEW do
    if not two[1] or tonumber(two[2]) > time then break end
    redis.call("zrem", lock, two[1])
    redis.call("hdel", counts, two[1])
    two = redis.call("zrange", lock, 0, 1, "withscores")
  end
  return two
end

-- The end of the lease of `who`; nil if it is no holder.
local function end_of(keys, two, who, time)
  local ends = two[1] == who and two[2] or two[3] == who and two[4]
  if not ends and two[3] then ends = redis.call("zscore", keys[1], who) end
  ends = tonumber(ends or 0)
  return ends > time and ends or nil
end

-- The writer among the holders, and the end of its lease.
local function writer_of(two)
  if two[1] and is_writer(two[1]) then return two[1], two[2] end
  if two[3] and is_writer(two[3]) then return two[3], two[4] end
end

-- Makes the lock expire with its last lease.
-- @return the end of that lease; nil if there is none
local function fit(lock)
  local last = redis.call("zrange", lock, -1, -1, "withscores")[2]
  if last then redis.call("pexpireat", lock, last) end
  return tonumber(last)
end

local function count(keys, who, want, last)
  local counts = keys[3]
  if want == "1" then
    redis.call("hdel", counts, who)
  else
    redis.call("hset", counts, who, want)
    redis.call("pexpireat", counts, last)
  end
end

-- waiters -----------------------------------------------------------------

-- @return a heartbeat's time and place; 0 and 0 if there is none
local function parse(sign)
  local time, place = (sign or ""):match("^(%d+):(%d+)$")
  return tonumber(time or 0), tonumber(place or 0)
end

local function sign(time, place) return ("%.0f:%.0f"):format(time, place) end

-- Reads the heartbeat and the place of an asker.
-- @return `who`, `time`, `last` (its last heartbeat; 0: none), `place` (nil:
--   not queued), `before` and `start` (as of liveness.starts), `is_new`: the
--   queue starts anew now
local function look(keys, who, time)
  local signs = redis.call("hmget", keys[6], who, HEARD)
  local me = { who = who, time = time }
  me.last, me.place = parse(signs[1])
  if me.last == 0 then
    me.place = tonumber(redis.call("zscore", keys[4], who))
  end
  local heard, start = parse(signs[2])
  me.before, me.start = starts(heard, start, time)
  me.is_new = me.start ~= start
  return me
end

local function leave_line(keys, who)
  if redis.call("zrem", keys[4], who) == 0 then return false end
  if is_writer(who) then redis.call("zrem", keys[5], who) end
  redis.call("hdel", keys[6], who)
  return true
end

-- Queues the asker, or keeps its place, and stores its heartbeat.
local function stay_in_line(keys, me)
  local queue, writers = keys[4], keys[5]
  local who, time, place = me.who, me.time, me.place
  if not place then
    local behind = redis.call("zrange", queue, -1, -1, "withscores")[2]
    place = tonumber(behind or 0) + 1
  end
  if math.floor(me.last / REFRESH) ~= math.floor(time / REFRESH) then
    redis.call("zadd", queue, place, who)
    redis.call("pexpire", queue, LINE_LASTS)
    if is_writer(who) then
      redis.call("zadd", writers, place, who)
      redis.call("pexpire", writers, LINE_LASTS)
    end
  end
  redis.call("hset", keys[6], who, sign(time, place), HEARD,
    sign(time, me.start))
  redis.call("pexpire", keys[6], SIGNS_LAST)
end

-- Those of the first `n` in `line` that are ahead of `place`.
local function those_before(line, place, n)
  local some = redis.call("zrange", line, 0, n - 1, "withscores")
  local names = {}
  for i = 1, #some, 2 do
    if tonumber(some[i + 1]) < place then names[#names + 1] = some[i] end
  end
  return names
end

-- Looks for a live waiter in `line` ahead of the asker, and evicts dead ones.
-- @param me as look returns it
-- @return ms until the live waiter counts as dead, nil if there is none; then
--   how many were evicted
local function judge(keys, line, me)
  local lost, n = 0, 1
  while lost < MOST do
    local names = those_before(line, me.place or math.huge, n)
    if not names[1] then return nil, lost end
    local signs = redis.call("hmget", keys[6], unpack(names))
    local dead, ms = {}, nil
    for i, who in ipairs(names) do
      ms = time_left((parse(signs[i])), me.before, me.start, me.time)
      if ms > 0 then break end
      dead[i] = who
    end
    if dead[1] then
      redis.call("zrem", keys[4], unpack(dead))
      redis.call("zrem", keys[5], unpack(dead))
      redis.call("hdel", keys[6], unpack(dead))
    end
    lost, n = lost + #dead, DEAD
    if ms > 0 then return ms, lost end
  end
  return 1, lost
end

-- Is it the asker's turn?
-- @param line the queue that it waits for: all waiters, or the writers
-- @param first the first of that queue, and its place
-- @return ms for which it may not be, nil if it is; then how many were evicted
local function turn(keys, line, first, me, waits)
  if me.place and me.place <= tonumber(first[2]) then return nil, 0 end
  if waits == "0" then
    if redis.call("exists", keys[6]) == 0 then return nil, 0 end
    if me.is_new then
      redis.call("hset", keys[6], HEARD, sign(me.time, me.start))
    end
  end
  return judge(keys, line, me)
end

-- Wakes the waiters that can enter. The lock is free or, if `is_reading`, held
-- by readers. A silent waiter is woken as well, but does not stop the search.
local function wake(keys, time, publish, is_reading)
  local at = 0
  while at < MANY do
    local some = redis.call("zrange", keys[4], at, at + BATCH - 1)
    if not some[1] then return end
    local signs = redis.call("hmget", keys[6], unpack(some))
    for i, who in ipairs(some) do
      local is_there = time_left((parse(signs[i])), 0, 0, time) > 0
      if not is_writer(who) then
        is_reading = is_reading or is_there
        tell(publish, keys[2] .. ":" .. who, WAKE)
      else
        if not is_reading then tell(publish, keys[2] .. ":" .. who, WAKE) end
        if is_there then return end
      end
    end
    at = at + BATCH
  end
end

-- both sides --------------------------------------------------------------

-- Makes `who` a holder, until `ends`.
local function enter(keys, who, ends, is_first)
  local lock = keys[1]
  redis.call("zadd", lock, ends, who)
  if is_first then
    redis.call("pexpireat", lock, ends)
  else
    fit(lock)
  end
  return { "held" }
end

-- Changes the hold count; `ends` is never earlier than before.
local function enter_again(keys, who, want, ends)
  redis.call("zadd", keys[1], ends, who)
  count(keys, who, want, fit(keys[1]))
  return { "held" }
end

-- Enters if it is the asker's turn, otherwise queues it.
-- @param ms for how long the holders keep it out; nil if they do not
-- @param line as for turn
local function come(keys, args, who, time, two, ms, line)
  local lease, waits, publish = args[2], args[4], args[5]
  local me, lost = nil, 0
  if not ms then
    local first = redis.call("zrange", line, 0, 0, "withscores")
    if first[1] then
      me = look(keys, who, time)
      ms, lost = turn(keys, line, first, me, waits)
    end
    if not ms then
      local is_alone = is_writer(who)
      if first[1] or not is_alone then leave_line(keys, who) end
      if lost > 0 and not is_alone then wake(keys, time, publish, true) end
      return enter(keys, who, time + lease, not two[1])
    end
  end
  if waits ~= "0" then stay_in_line(keys, me or look(keys, who, time)) end
  if lost > 0 then wake(keys, time, publish, two[1]) end
  return { "busy", ms }
end

local function renew(keys, args, who)
  local lock, lease, want = keys[1], args[2], args[3]
  local time = now()
  local ends = tonumber(redis.call("zscore", lock, who) or 0)
  if ends <= time then return { "lost" } end
  if ends < time + lease then
    redis.call("zadd", lock, time + lease, who)
    local last = fit(lock)
    if want ~= "1" then count(keys, who, want, last) end
  end
  return { "held" }
end

-- Sets the hold count to `want`, and the lease to what the remaining holds
-- need. At 0, wakes the waiters that can enter then.
local function release(keys, args, who)
  local lock, counts = keys[1], keys[3]
  local lease, want, publish = args[2], args[3], args[4]
  local time = now()
  if tonumber(redis.call("zscore", lock, who) or 0) <= time then
    return { "lost" }
  end
  if want ~= "0" then
    redis.call("zadd", lock, time + lease, who)
    local last = fit(lock)
    redis.call("pexpireat", counts, last)
    count(keys, who, want, last)
    return { "kept" }
  end
  redis.call("zrem", lock, who)
  redis.call("hdel", counts, who)
  local last = fit(lock) or 0
  if last > time then redis.call("pexpireat", counts, last) end
  if last <= time or is_writer(who) then
    wake(keys, time, publish, last > time)
  end
  return { "freed" }
end

-- The waiter gives up.
local function leave(keys, args, who)
  if leave_line(keys, who) then
    local time = now()
    local two = holders(keys, time)
    if not writer_of(two) then wake(keys, time, args[2], two[1]) end
  end
  return { "left" }
end

local function break_(keys, args, is_write)
  local token, publish = args[1], args[2]
  local time = now()
  local two = holders(keys, time)
  if two[1] and (writer_of(two) and true or false) ~= is_write then
    return { "free" }
  end
  if two[1] and token ~= "" then
    return { "refused", "a read/write lock has no fencing tokens" }
  end
  if not two[1] then
    local _, lost = judge(keys, keys[4], { before = 0, start = 0, time = time })
    if lost == 0 then return { "free" } end
  end
  redis.call("unlink", keys[1], keys[3])
  wake(keys, time, publish)
  return { "freed" }
end

local function count_of(keys, who)
  return tonumber(redis.call("hget", keys[3], who) or 1) or 1
end

local function peek(keys, owner, side)
  local lock, list, mine, time = keys[1], {}, 0, now()
  local all = redis.call("zrange", lock, 0, LIST - 1, "withscores")
  for i = 1, #all, 2 do
    local who = all[i]
    if who:sub(1, 2) == side and tonumber(all[i + 1]) > time then
      list[#list + 1], list[#list + 2] = who:sub(3), count_of(keys, who)
    end
  end
  if tonumber(redis.call("zscore", lock, side .. owner) or 0) > time then
    mine = count_of(keys, side .. owner)
  end
  local more = { "queue", redis.call("zrange", keys[4], 0, LIST - 1) }
  if not list[1] then return { "free", -2, 0, {}, more } end
  return { "held", redis.call("pttl", lock), mine, list, more }
end

-- the reader's side -------------------------------------------------------

local read = {}

--- Reads if no writer holds the lock or is ahead in the queue, or sets the
--  owner's hold count to `want`. The writer itself can read at once.
function read.acquire(keys, args)
  local owner, lease, want = args[1], args[2], args[3]
  local who, time = READER .. owner, now()
  local two = holders(keys, time)
  local ends = end_of(keys, two, who, time)
  if ends then
    return enter_again(keys, who, want, math.max(ends, time + lease))
  end
  if want ~= "1" then return { "lost" } end
  local writer, writer_ends = writer_of(two)
  if writer == WRITER .. owner then
    leave_line(keys, who)
    return enter(keys, who, time + lease)
  end
  return come(keys, args, who, time, two, writer and writer_ends - time,
    keys[5])
end

function read.renew(keys, args) return renew(keys, args, READER .. args[1]) end

function read.release(keys, args)
  return release(keys, args, READER .. args[1])
end

function read.leave(keys, args) return leave(keys, args, READER .. args[1]) end

--- Frees the lock from all readers by force, unless there is a writer. If the
--  lock is free, evicts dead waiters.
function read.break_(keys, args) return break_(keys, args, false) end

--- @return as every peek; of many readers only some are listed. Besides,
--    "queue" and the first waiters, in order
function read.peek(keys, args) return peek(keys, args[1], READER) end

-- the writer's side -------------------------------------------------------

local write = {}

--- Writes if the lock is free and no waiter is ahead, or sets the owner's hold
--  count to `want`.
function write.acquire(keys, args)
  local owner, lease, want = args[1], args[2], args[3]
  local who, time = WRITER .. owner, now()
  local two = holders(keys, time)
  local ends = end_of(keys, two, who, time)
  if ends then
    return enter_again(keys, who, want, math.max(ends, time + lease))
  end
  if want ~= "1" then return { "lost" } end
  if end_of(keys, two, READER .. owner, time) then
    return { "refused", UPGRADE }
  end
  return come(keys, args, who, time, two,
    two[1] and redis.call("pttl", keys[1]), keys[4])
end

function write.renew(keys, args) return renew(keys, args, WRITER .. args[1]) end

function write.release(keys, args)
  return release(keys, args, WRITER .. args[1])
end

function write.leave(keys, args)
  return leave(keys, args, WRITER .. args[1])
end

--- Frees the lock by force from the writer, and from its read holds. If the
--  lock is free, evicts dead waiters.
function write.break_(keys, args) return break_(keys, args, true) end

function write.peek(keys, args) return peek(keys, args[1], WRITER) end

-- the client's side -------------------------------------------------------

local function keys(name)
  return {
    naming.prefix("rlock_frw", name),
    naming.prefix("rlock_frw_wake", name),
    naming.prefix("rlock_frw_counts", name),
    naming.prefix("rlock_frw_queue", name),
    naming.prefix("rlock_frw_writers", name),
    naming.prefix("rlock_frw_signs", name),
  }
end

-- A single try is not queued.
local function extra(request)
  return { request.wait_ms == 0 and "0" or "1", request.publish }
end

local function side(name, prefix, server)
  return {
    name = name, keys = keys, extra = extra, poll = liveness.POLL,
    server = server,
    channel = function(its_keys, owner)
      return its_keys[2] .. ":" .. prefix .. owner
    end,
  }
end

local function recognise(its_keys)
  return redis.call("exists", its_keys[1], its_keys[4]) > 0 and 1
end

local sides = {
  title = "fair read/write lock", factory = "fair_read_write_lock",
  recognise = recognise,
  read = side("fair_readwrite.read", READER, read),
  write = side("fair_readwrite.write", WRITER, write),
}
sides.read.twin, sides.write.twin = sides.write, sides.read

return sides
