--- A reentrant lock that is given in order of arrival.
--    name                            hash: owner -> hold count; expires with
--                                    the lease
--    redisson_lock_queue:{name}      list: who waits, the first first
--    redisson_lock_timeout:{name}    zset: who waits -> its deadline, in ms
--    redisson_lock__channel:{name}:<owner>
--                                    says "0" when it is this waiter's turn
--    rlock_fair_alive:{name}         hash: waiters of ours -> sign of life, and
--                                    under the empty name, which no owner has,
--                                    when the last of them gave one
--  But for the last key this is Redisson's RFairLock, wire compatible; what
--  Redisson computes with the clocks of its clients is server time here.
--
--  Who waits asks again within `poll` seconds, and so shows that it is alive.
--  Whoever finds that the first in line has not for SILENT ms strikes it off.
--  Redisson's waiters show nothing: a first in line who never gave a sign stays
--  until its deadline has passed. When no waiter at all was heard for GAP ms,
--  it was the server or the network that was silent: all have one new start.
--
--  A deadline is that of the waiter before, or else the end of the lease, plus
--  the time that the waiter itself would wait. When somebody gets out of line,
--  his time is therefore taken off the deadlines behind him; Redisson goes over
--  the whole line for that. But deadlines are read in two cases only: of the
--  last in line, by who comes next, and of the first, by Redisson, which
--  strikes it off when that has passed. Ours put their own off as they ask, and
--  we do not go by it. So as long as all in line are ours it is enough to
--  correct the last one; we go over the whole line only when one of Redisson's
--  waiters is in it, whose deadline nobody else would correct. What else grows
--  with the line: who gives up is looked for along the list, and after a
--  silence all have to be given their new start. No more commands are needed
--  for anything else.
--
--  Ours have USUAL seconds for a deadline, whatever they wait: so where only
--  Redisson is left, one of ours that died is in its way no longer. Redisson
--  may strike off one that is alive, by another clock, or after one of its own
--  that waited for long; that one comes back to the front, with more time.

local naming = require "rlock.naming"
local clock = require("rlock.policy.shared").now
local tell = require("rlock.policy.shared").tell

local UNLOCKED = "0"
local HEARD = ""               -- a field of the signs of life, and no owner

local SILENT = 1200            -- ms
local GAP = 650                -- ms
local PAUSE = 100              -- ms: nobody is asked to ask again before
local USUAL, LONGEST = 10, 300 -- seconds of waiting in a deadline, at most
local MENDED = 5000            -- ms until the deadline of who had lost his
local SPARE = 60000            -- ms that the keys live beyond any deadline, at
local HOUR = 3600000           -- least; and what they are given

-- A sign of life is one number: when it was given, whether it is but the new
-- start after a silence, and how many seconds its waiter's deadline has. The
-- shares are powers of two, so that it is exact.
local SECOND, START = 1024, 512

local server = {}                       -- these run inside Redis

--- After a silence: whoever has given a sign since the last one starts anew.
local function restart(signs, now)
  local all = redis.call("hgetall", signs)
  for i = 1, #all, 2 do
    local life = tonumber(all[i + 1])
    if all[i] ~= HEARD and life % SECOND < START then
      redis.call("hset", signs, all[i], now * SECOND + START + life % START)
    end
  end
  redis.call("hset", signs, HEARD, now)
end

--- So many of ours got out of the line, who would have waited `ms` altogether:
--  takes that off the deadlines from `place` on. No further than to what one
--  who came now would be given in the same place, so that nobody's time is over
--  while others hold the lock in their turn.
--  @param left ms for which the lock is still held
local function move_up(keys, place, ours, ms, now, left)
  local queue, timeouts, signs = keys[2], keys[3], keys[5]
  local waiting, alive = redis.call("llen", queue), redis.call("hlen", signs)
  local most = math.huge
  if alive == 1 then redis.call("del", signs) end      -- nobody but HEARD
  if ms == 0 or waiting <= place then return end
  if left < 0 then left = 0 end
  if alive > waiting then                              -- all in line are ours
    place = waiting - 1
    most = now + left + waiting * LONGEST * 1000
  end
  local owners = redis.call("lrange", queue, place, -1)
  for i = 1, #owners do
    local deadline = tonumber(redis.call("zscore", timeouts, owners[i]) or 0)
    local least = now + left + (place + i) * ms / ours
    if deadline > least then
      redis.call("zadd", timeouts,
        math.min(most, math.max(least, deadline - ms)), owners[i])
    end
  end
end

--- Finds the first in line that is alive, and strikes off those before it. (The
--  asker is alive.)
--  @return owner, or nil; ms until its life is in doubt; how many were struck
--    off; its sign of life, or false; that of the asker, or false; when the
--    last sign was given, or false
local function first_alive(keys, now, left, asker)
  local queue, timeouts, signs = keys[2], keys[3], keys[5]
  local ms, ours, gone = 0, 0, 0
  while true do
    local head = redis.call("lindex", queue, 0)
    local life, mine, heard, due
    if head then
      local all = redis.call("hmget", signs, head, asker, HEARD)
      heard = all[3]
      if heard and math.abs(now - heard) > GAP then
        restart(signs, now)
        all = redis.call("hmget", signs, head, asker)
      end
      life, mine = all[1], all[2]
      if life then
        due = SILENT - math.abs(now - math.floor(life / SECOND))
      else
        local deadline = redis.call("zscore", timeouts, head)
        if not deadline then
          deadline = now + math.max(left, 0) + MENDED
          redis.call("zadd", timeouts, deadline, head)
        end
        due = deadline - now
      end
    end
    if not head or due > 0 or head == asker then
      if gone > 0 then move_up(keys, 0, ours, ms, now, left) end
      return head, due, gone, life, mine, heard
    end
    redis.call("zrem", timeouts, head)
    redis.call("hdel", signs, head)
    redis.call("lpop", queue)
    if life then ours, ms = ours + 1, ms + life % START * 1000 end
    gone = gone + 1
  end
end

--- Makes the line whole: everybody is in the list, once, and has a deadline.
--  Who had lost his place in the list comes last. Signs of life of the dead who
--  are in line no more are forgotten.
local function mend(keys, now, left)
  local queue, timeouts, signs = keys[2], keys[3], keys[5]
  local line, is_known, has_deadline = {}, { [HEARD] = true }, {}
  local function add(owners)
    for _, owner in ipairs(owners) do
      if not is_known[owner] then
        is_known[owner] = true
        line[#line + 1] = owner
      end
    end
  end
  add(redis.call("lrange", queue, 0, -1))
  local timed = redis.call("zrange", timeouts, 0, -1)
  add(timed)
  for _, owner in ipairs(timed) do has_deadline[owner] = true end
  redis.call("del", queue)
  for _, owner in ipairs(line) do
    redis.call("rpush", queue, owner)
    if not has_deadline[owner] then
      redis.call("zadd", timeouts, now + left + MENDED, owner)
    end
  end
  local all = redis.call("hgetall", signs)
  for i = 1, #all, 2 do
    if not is_known[all[i]]
        and math.abs(now - math.floor(all[i + 1] / SECOND)) > SILENT then
      redis.call("hdel", signs, all[i])
    end
  end
end

--- Lets the keys live on.
local function keep(keys, now)
  local last = redis.call("zrevrange", keys[3], 0, 0, "withscores")[2]
  local ms = math.max(last - now, 0) + HOUR
  redis.call("pexpire", keys[2], ms)
  redis.call("pexpire", keys[3], ms)
  redis.call("pexpire", keys[5], ms)
end

--- The owner is not in line: he has just come, or Redisson struck him off
--  although he is alive.
--  @return his deadline, and how many seconds of it are his own
local function join(keys, owner, wait, now, left, mine)
  local queue, timeouts = keys[2], keys[3]
  if mine and math.abs(now - math.floor(mine / SECOND)) <= SILENT then
    local seconds = mine % START
    if not redis.call("lpos", queue, owner) then
      seconds = math.min(seconds * 4, LONGEST)
      redis.call("lpush", queue, owner)
    end
    return now + left + seconds * 1000, seconds
  end
  local seconds = wait < 0 and USUAL
    or math.min(math.max(math.ceil(wait / 1000), 1), USUAL)
  local last = redis.call("lindex", queue, -1)
  local before = last and redis.call("zscore", timeouts, last) or 0
  redis.call("rpush", queue, owner)
  return math.max(before, now + left) + seconds * 1000, seconds
end

--- The owner asks and has to wait: he is in line, and alive. The first who asks
--  in a second sees to the line as a whole.
--  @param mine  his last sign of life, or false
--  @param heard when the last sign of all was given, or false
local function stay(keys, owner, wait, now, left, is_first, mine, heard)
  local queue, timeouts, signs = keys[2], keys[3], keys[5]
  local deadline, seconds = redis.call("zscore", timeouts, owner), USUAL
  local has_joined = not deadline
  if mine then seconds = mine % START end
  if left < 0 then left = 0 end
  if has_joined then
    deadline, seconds = join(keys, owner, wait, now, left, mine)
  elseif is_first then
    deadline = now + left + seconds * 1000
  else
    deadline = math.max(now + seconds * 1000,
      deadline + now - (mine and math.floor(mine / SECOND) or now))
  end
  redis.call("zadd", timeouts, deadline, owner)
  redis.call("hset", signs, owner, now * SECOND + seconds, HEARD, now)
  if not heard or math.floor(heard / 1000) ~= math.floor(now / 1000) then
    local waiting = redis.call("llen", queue)
    if waiting ~= redis.call("zcard", timeouts)
        or redis.call("hlen", signs) > waiting + 1 then
      mend(keys, now, left)
    end
    keep(keys, now)
  elseif has_joined and redis.call("pttl", timeouts) < deadline - now + SPARE
  then
    keep(keys, now)
  end
end

--- There is a line, or else the lock is held: nil if it is the owner's turn,
--  otherwise the reply.
local function wait_for_turn(keys, args, left)
  local owner, lease, wait, publish =
    args[1], tonumber(args[2]), tonumber(args[4]), args[5]
  local now, is_free = clock(), left == -2
  local head, due, gone, life, mine, heard =
    first_alive(keys, now, left, owner)
  local is_turn = not head or head == owner
  if is_free and is_turn then
    if head then
      redis.call("zrem", keys[3], owner)
      redis.call("hdel", keys[5], owner)
      redis.call("lpop", keys[2])
      move_up(keys, 0, 1, life and life % START * 1000 or 0, now, lease)
    end
    return nil
  end
  if wait ~= 0 then
    stay(keys, owner, wait, now, left, is_turn, mine, heard)
  end
  if is_free then
    if gone > 0 or not life then
      tell(publish, keys[4] .. ":" .. head, UNLOCKED)
    end
    return { "busy", math.max(due, PAUSE) }
  elseif left == -1 then
    return { "busy", -1 }
  end
  return { "busy", math.max(left, is_turn and 1 or PAUSE) }
end

--- Takes it if nobody who is alive waits before the owner, or sets the owner's
--  hold count to the one wanted.
--  @param args owner, lease, want, ms to wait (0: a single try, which does not
--    get in line; -1: for ever), publish
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
  if left ~= -2 or redis.call("lindex", keys[2], 0) then
    local reply = wait_for_turn(keys, args, left)
    if reply then return reply end
  end
  redis.call("hset", lock, owner, want)
  redis.call("pexpire", lock, lease)
  return { "held" }
end

function server.renew(keys, args)
  local lock, owner, lease = keys[1], args[1], args[2]
  if not redis.call("hget", lock, owner) then return { "lost" } end
  if redis.call("pttl", lock) < tonumber(lease) then
    redis.call("pexpire", lock, lease)
  end
  return { "held" }
end

--- Frees the lock, if it is not free, and wakes the first in line.
local function hand_over(keys, publish)
  local head = redis.call("lindex", keys[2], 0)
  if head then head = first_alive(keys, clock(), 0, "") end
  redis.call("del", keys[1])
  if head then tell(publish, keys[4] .. ":" .. head, UNLOCKED) end
end

--- Takes the owner, who does not hold the lock, out of the line. If the lock is
--  free, the first in line is told, once more if need be.
local function walk_away(keys, owner, publish)
  local queue, timeouts, signs = keys[2], keys[3], keys[5]
  local place = redis.call("lpos", queue, owner)
  local deadline = redis.call("zscore", timeouts, owner)
  local life = redis.call("hget", signs, owner)
  local left = redis.call("pttl", keys[1])
  if deadline then redis.call("zrem", timeouts, owner) end
  if life then redis.call("hdel", signs, owner) end
  if place then
    redis.call("lrem", queue, 1, owner)
    move_up(keys, place, 1, life and life % START * 1000 or 0, clock(), left)
  end
  if left == -2 then hand_over(keys, publish) end
end

--- Sets the hold count to the one wanted; at none the lock goes to the next.
--  Who does not hold it and wants nothing is not in line either.
function server.release(keys, args)
  local lock, owner, lease, want, publish =
    keys[1], args[1], args[2], args[3], args[4]
  if not redis.call("hget", lock, owner) then
    if want == "0" and redis.call("exists", keys[2]) == 1 then
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

--- A waiter gives up. If the lock was given to it before it heard of that, the
--  lock goes to the next.
function server.leave(keys, args)
  local owner, publish = args[1], args[2]
  if redis.call("hget", keys[1], owner) == "1" then
    hand_over(keys, publish)
  else
    walk_away(keys, owner, publish)
  end
  return { "left" }
end

function server.break_(keys, args)
  if redis.call("exists", keys[1]) == 0 then return { "free" } end
  hand_over(keys, args[2])
  return { "freed" }
end

--- Beside the usual: "queue", and the first hundred in line.
function server.peek(keys, args)
  local lock, owner = keys[1], args[1]
  local left = redis.call("pttl", lock)
  local more = { "queue", redis.call("lrange", keys[2], 0, 99) }
  if left == -2 then return { "free", left, 0, {}, more } end
  local mine = tonumber(redis.call("hget", lock, owner) or 0) or 0
  return { "held", left, mine, redis.call("hgetall", lock), more }
end

return {
  name = "fair",
  keys = function(name)
    return {
      name, naming.prefix("redisson_lock_queue", name),
      naming.prefix("redisson_lock_timeout", name),
      naming.prefix("redisson_lock__channel", name),
      naming.prefix("rlock_fair_alive", name),
    }
  end,
  channel = function(keys, owner) return keys[4] .. ":" .. owner end,
  extra = function(request) return { request.wait_ms, request.publish } end,
  poll = 0.5,
  server = server,
}
