--- Many readers or one writer, in order of arrival: a reader waits for the
--  writers that came before it, a writer for everybody that did. So readers go
--  in together between writers, and neither side starves. The writer may read
--  too, and then go on as a reader when it lets the writing go (a downgrade); a
--  reader that asks to write is refused, because it would wait for itself.
--  Everybody is called "r:" or "w:" and the owner, in these keys:
--    rlock_frw:{name}          sorted set, the lock itself: who holds it -> end
--                              of its lease, in milliseconds of server time;
--                              expires with the last lease
--    rlock_frw_counts:{name}   hash: who holds it more than once -> how often
--    rlock_frw_queue:{name}    sorted set: who waits -> its place in the line
--    rlock_frw_writers:{name}  sorted set: the writers of the line alone
--    rlock_frw_signs:{name}    hash: who waits -> "last sign of life:place"
--    rlock_frw_wake:{name}:<who>    says "0" when <who> should ask again
--  This layout is ours; other clients do not know it.
--
--  Who waits asks at least every half second, which is its sign of life. One
--  that was silent for a second loses its place as soon as somebody behind it
--  asks whose turn it would be; but only who showed its own last sign in time
--  may judge, so that a server that stood still for a while loses nobody's
--  place. Who only tries takes no place, and is not let in before others.
--  Writers are told one at a time; readers together, up to the next writer.
--  To hold, leave or ask is O(log n) of those who hold and wait, and to wake
--  readers O(how many).

local naming = require "rlock.naming"
local shared = require "rlock.policy.shared"

local now, tell = shared.now, shared.tell

local READER, WRITER = "r:", "w:"
local WAKE = "0"
local POLL = 0.5          -- seconds between two signs of life, at most
local SILENT = 1000       -- ms without a sign: not there any more
local TIMELY = 750        -- ms without a sign: may not judge others
local SIGNS_LAST = 3000   -- ms: nobody waits if there was no sign for so long
local LINE_LASTS = 60000  -- ms that the line lasts without signs
local REFRESH = 10000     -- ms between two refreshments of that
local FEW = 8             -- dead holders dropped by one request
local BATCH = 16          -- of the line, looked at together
local MANY = 1000         -- waiters woken, or looked at, by one request
local LIST = 100          -- holders and waiters listed for people
local UPGRADE = "upgrade: this owner reads, and a writer waits for all readers"

-- these run inside Redis --------------------------------------------------

local function is_writer(who) return who:sub(1, 2) == "w:" end

-- who holds it ------------------------------------------------------------

-- The holders whose leases end first: one, or two, for no more are needed. If
-- one of them is a writer, there is no other holder but its own reading.
-- @return { who, end, who, end }, as Redis gives it
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

-- The end of the lease that `who` has; nil if it holds nothing.
local function end_of(keys, two, who, time)
  if not two[1] then return nil end
  if two[1] == who then return tonumber(two[2]) end
  if two[3] == who then return tonumber(two[4]) end
  if not two[3] then return nil end
  local ends = tonumber(redis.call("zscore", keys[1], who) or 0)
  return ends > time and ends or nil
end

-- The writer among the holders, and the end of its lease.
local function writer_of(two)
  if two[1] and is_writer(two[1]) then return two[1], tonumber(two[2]) end
  if two[3] and is_writer(two[3]) then return two[3], tonumber(two[4]) end
end

-- The lock lasts as long as its last lease.
-- @return the end of that; nil if there is none
local function fit(lock)
  local last = redis.call("zrange", lock, -1, -1, "withscores")[2]
  if last then redis.call("pexpireat", lock, last) end
  return last
end

-- Makes it hold so often, until `ends`.
local function hold(keys, who, want, ends)
  local lock, counts = keys[1], keys[3]
  redis.call("zadd", lock, ends, who)
  local last = fit(lock)
  if want ~= "1" then
    redis.call("hset", counts, who, want)
    redis.call("pexpireat", counts, last)
  end
end

-- who waits ---------------------------------------------------------------

local function leave_line(keys, who)
  if redis.call("zrem", keys[4], who) == 0 then return false end
  if is_writer(who) then redis.call("zrem", keys[5], who) end
  redis.call("hdel", keys[6], who)
  return true
end

-- A sign of life, in numbers: when, and its place.
local function parse(sign)
  local time, place = sign:match("^(%d+):(%d+)$")
  return tonumber(time or 0), tonumber(place or 0)
end

local function enter_line(keys, who, place)
  redis.call("zadd", keys[4], place, who)
  redis.call("pexpire", keys[4], LINE_LASTS)
  if is_writer(who) then
    redis.call("zadd", keys[5], place, who)
    redis.call("pexpire", keys[5], LINE_LASTS)
  end
end

-- The place of who waits, or the one behind the last.
local function place_of(keys, who)
  local queue = keys[4]
  return tonumber(redis.call("zscore", queue, who)
    or (redis.call("zrange", queue, -1, -1, "withscores")[2] or 0) + 1)
end

-- Gives a sign of life.
-- @param sign the last one, if there was one
local function wait(keys, who, time, sign)
  local last, place = 0, nil
  if sign then
    last, place = parse(sign)
  else
    place = place_of(keys, who)
  end
  if not sign or time % REFRESH < last % REFRESH or time - last > REFRESH then
    enter_line(keys, who, place)
  end
  redis.call("hset", keys[6], who, ("%.0f:%.0f"):format(time, place))
  redis.call("pexpire", keys[6], SIGNS_LAST)
end

-- Looks through those in `line`, from its first to the place of `who`, for one
-- that is there. Those that are not lose their place. One that has shown no
-- sign at all is given the time to do so.
-- @return milliseconds for which it is not the turn of `who`, nil if it is;
--   then how many have lost their place
local function judge(keys, line, who, place, time)
  local all = redis.call("zrange", line, 0, BATCH - 1, "withscores")
  local lost = 0
  for i = 1, #all, 2 do
    local other = all[i]
    if other == who or tonumber(all[i + 1]) >= place then return nil, lost end
    local sign = redis.call("hget", keys[6], other)
    local last, its_place = parse(sign or "")
    if last + SILENT > time then return last + SILENT - time, lost end
    if not sign then
      redis.call("hset", keys[6], other, ("%.0f:%.0f"):format(time,
        all[i + 1]))
      return SILENT, lost
    end
    leave_line(keys, other)
    lost = lost + 1
  end
  return all[2 * BATCH] and 1 or nil, lost
end

-- Tells those that can go in, when nobody holds it or, if `is_reading`, none
-- but readers do. One that is silent is told, too, but not counted on.
local function wake(keys, time, publish, is_reading)
  local at = 0
  while at < MANY do
    local some = redis.call("zrange", keys[4], at, at + BATCH - 1)
    if not some[1] then return end
    local signs = redis.call("hmget", keys[6], unpack(some))
    for i, who in ipairs(some) do
      local is_there = parse(signs[i] or "") + SILENT > time
      if not is_writer(who) then
        tell(publish, keys[2] .. ":" .. who, WAKE)
        is_reading = is_reading or is_there
      else
        if not is_reading then tell(publish, keys[2] .. ":" .. who, WAKE) end
        if is_there then return end
      end
    end
    at = at + BATCH
  end
end

-- Is it the turn of `who`? Then it is not in the line any more.
-- @param line in which to be the first: that of all, or that of the writers
-- @return milliseconds for which it is not; nil if it is
local function turn(keys, line, who, time, is_waiting, publish)
  local first = redis.call("zrange", line, 0, 0)[1]
  if not first or first == who then
    leave_line(keys, who)
    return nil
  end
  local sign = redis.call("hget", keys[6], who)
  if not is_waiting and not sign then
    return redis.call("exists", keys[6]) == 1 and -1 or nil
  end
  local ms, lost = SILENT, 0
  local last, place = parse(sign or "")
  if last + TIMELY > time or (sign and line == keys[5]) then
    ...
  end
end
