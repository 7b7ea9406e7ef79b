--- A read/write lock granted in order of arrival; neither side starves. The
--- writer may also read, and remain a reader when it releases the write lock (a
--- downgrade). An upgrade is refused: the reader would wait for itself.
--- Holders and waiters are called "r:" or "w:" plus the owner in these keys:
---   rlock_frw:{name}          sorted set, the lock itself: holder -> end of
---                             its lease, in milliseconds of server time;
---                             expires with the last lease
---   rlock_frw_counts:{name}   hash: holder -> hold count, if more than 1
---   rlock_frw_queue:{name}    sorted set: waiter -> its position
---   rlock_frw_writers:{name}  sorted set: the same, writers only
---   rlock_frw_signs:{name}    hash: waiter -> "last heartbeat:position"; under
---                             the empty name the state of the queue: "last
---                             heartbeat of any:last start" (liveness.lua)
---   rlock_frw_wake:{name}:<who>    "0" when waiter <who> must retry
--- This layout is rlock's own; other clients do not know it.
---
--- Liveness. A dead waiter (liveness.lua) is evicted as soon as a waiter behind
--- it retries.
---
--- Order. A reader waits for the writers ahead of it, a writer for all waiters
--- ahead of it, so readers enter together between writers. A single try is not
--- queued, and does not overtake waiters. Writers are woken one at a time;
--- readers together, up to the next writer.
---
--- Acquire, renew, release and leave are O(log n) in holders and waiters.
--- Waking readers is linear in their number, up to MAX_WOKEN: the others enter
--- when they retry.

local liveness = require "rlock.policy.liveness"
local naming = require "rlock.naming"
local shared = require "rlock.policy.shared"

local now, tell = shared.now, shared.tell
local starts, time_left = liveness.starts, liveness.left

local READER, WRITER = "r:", "w:"
local UNLOCKED = "0"
local STATE = ""               -- the hash field for the state of the queue

local HEARTBEATS_LAST = 3000   -- ms: their expiry; none: no waiters
local QUEUE_LASTS = 60000      -- ms: expiry of the queue
local REFRESH = 10000          -- ms between two refreshes of that expiry
local BATCH = 100              -- waiters examined together, to evict them
local WAKE_BATCH = 16          -- the same, to wake them
local MAX_EVICTED = 300        -- waiters, by one request
local MAX_DROPPED = 8          -- dead holders, by one request
local MAX_WOKEN = 1000         -- waiters, by one request
local MAX_LISTED = 100         -- holders and waiters listed by `peek`
local UPGRADE = "upgrade: this owner reads, and a writer waits for all readers"

-- These run inside Redis. `who` is "r:" or "w:" and the owner.

local function is_writer(who) return who:sub(1, 2) == "w:" end

-- holders -----------------------------------------------------------------

--- The holders whose leases end first: two at most, which is enough. If one of
--- them is a writer, the only other holder is the same owner as a reader.
---@return any # { who, end, who, end }, as returned by ZRANGE
local function holders(keys, time)
  local lock, counts = keys[1], keys[3]
  local two = redis.call("zrange", lock, 0, 1, "withscores")
  for _ = 1, MAX_DROPPED do
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

--- Makes the lock expire with its last lease.
---@return any # the end of that lease; nil if there is none
local function fit(lock)
  local last = redis.call("zrange", lock, -1, -1, "withscores")[2]
  if last then redis.call("pexpireat", lock, last) end
  return tonumber(last)
end

--- Extends a lease, and the lock's expiry if necessary.
---@return any # the end of the last lease
local function extend(lock, who, ends)
  local last = redis.call("zrange", lock, -1, -1, "withscores")[2]
  last = math.max(tonumber(last) --[[@as number]], ends)
  redis.call("pexpireat", lock, last)   -- first: it needs no memory
  redis.call("zadd", lock, ends, who)
  return last
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

-- heartbeats --------------------------------------------------------------

---@return any ... # a heartbeat's time and position; 0 and 0 if there is none
local function parse(heartbeat)
  local time, place = (heartbeat or ""):match("^(%d+):(%d+)$")
  return tonumber(time or 0), tonumber(place or 0)
end

local function format(time, place) return ("%.0f:%.0f"):format(time, place) end

--- Reads the state of the queue, and the heartbeat of `who`.
---@return any # view: `who`, `time`, `last` (its last heartbeat; 0: none),
---  `place` (its position; nil: not queued), `before` and `start` (from
---  liveness.starts), `is_new`: the queue restarts now
local function look_up(keys, who, time)
  local all = redis.call("hmget", keys[6], who, STATE)
  local view = { who = who, time = time }
  view.last, view.place = parse(all[1])
  if view.last == 0 then
    view.place = tonumber(redis.call("zscore", keys[4], who))
  end
  local heard, start = parse(all[2])
  view.before, view.start = starts(heard, start, time)
  view.is_new = view.start ~= start
  return view
end

-- the queue ---------------------------------------------------------------

---@return any # whether it was queued
local function remove(keys, who)
  if redis.call("zrem", keys[4], who) == 0 then return false end
  if is_writer(who) then redis.call("zrem", keys[5], who) end
  redis.call("hdel", keys[6], who)
  return true
end

--- Puts a waiter into the queue. Refreshes the queue's expiry occasionally.
---@param last any its last heartbeat; 0: none
local function put(keys, who, time, last, place)
  if math.floor(last / REFRESH) == math.floor(time / REFRESH) then return end
  redis.call("zadd", keys[4], place, who)
  redis.call("pexpire", keys[4], QUEUE_LASTS)
  if is_writer(who) then
    redis.call("zadd", keys[5], place, who)
    redis.call("pexpire", keys[5], QUEUE_LASTS)
  end
end

-- Queues a waiter, or keeps its position, and stores its heartbeat.
local function stay(keys, view)
  local who, time, place = view.who, view.time, view.place
  if not place then
    local last = redis.call("zrange", keys[4], -1, -1, "withscores")[2]
    place = tonumber(last or 0) --[[@as number]] + 1
  end
  put(keys, who, time, view.last, place)
  redis.call("hset", keys[6], who, format(time, place), STATE,
    format(time, view.start))
  redis.call("pexpire", keys[6], HEARTBEATS_LAST)
end

--- Stores the heartbeats of the queued ones among `all`.
---@param view any from look_up
---@return any # who -> position
local function stay_all(keys, all, view)
  local time, places = view.time, {}
  local fields = { STATE, format(time, view.start) }
  local heartbeats = redis.call("hmget", keys[6], unpack(all))
  redis.call("zrem", keys[4], "")       -- no waiter; first: it needs no memory
  for i, who in ipairs(all) do
    local last, place = parse(heartbeats[i])
    if last == 0 then place = tonumber(redis.call("zscore", keys[4], who)) end
    if place then
      put(keys, who, time, last, place)
      places[who] = place
      fields[#fields + 1], fields[#fields + 2] = who, format(time, place)
    end
  end
  if fields[3] then
    redis.call("hset", keys[6], unpack(fields))
    redis.call("pexpire", keys[6], HEARTBEATS_LAST)
  end
  return places
end

--- Finds the first live waiter in `queue` ahead of the caller, and evicts the
--- dead ones ahead of it.
---@param view any from look_up
---@return any ... # ms until the live waiter counts as dead, nil if there is
---  none; the number of evicted waiters; the live waiter
local function first_alive(keys, queue, view)
  local gone, n = 0, 1
  local limit = view.place and ("(%.0f"):format(view.place) or "+inf"
  while gone < MAX_EVICTED do
    local waiters = redis.call("zrangebyscore", queue, "-inf", limit,
      "limit", 0, n)
    if not waiters[1] then return nil, gone end
    local heartbeats = redis.call("hmget", keys[6], unpack(waiters))
    local dead, left, alive = {}, nil, nil
    for i, who in ipairs(waiters) do
      alive = who
      left = time_left((parse(heartbeats[i])), view.before, view.start,
        view.time)
      if left > 0 then break end
      dead[i] = who
    end
    if dead[1] then
      redis.call("zrem", keys[4], unpack(dead))
      redis.call("zrem", keys[5], unpack(dead))
      redis.call("hdel", keys[6], unpack(dead))
    end
    gone, n = gone + #dead, BATCH
    if left > 0 then return left, gone, alive end
  end
  return 1, gone
end

-- Wakes the waiters that can enter. The lock is free or, if `is_reading`, held
-- by readers. A silent waiter is woken as well, but does not stop the search.
local function wake(keys, time, publish, is_reading)
  for at = 0, MAX_WOKEN - 1, WAKE_BATCH do
    local waiters = redis.call("zrange", keys[4], at, at + WAKE_BATCH - 1)
    if not waiters[1] then return end
    local heartbeats = redis.call("hmget", keys[6], unpack(waiters))
    for i, who in ipairs(waiters) do
      local is_alive = time_left((parse(heartbeats[i])), 0, 0, time) > 0
      if not (is_reading and is_writer(who)) then
        tell(publish, keys[2] .. ":" .. who, UNLOCKED)
      end
      if is_alive and is_writer(who) then return end
      is_reading = is_reading or is_alive
    end
  end
end

-- the operations ----------------------------------------------------------

-- Makes `who` a holder, until `ends`.
local function enter(keys, who, ends, is_first)
  local lock = keys[1]
  redis.call("zadd", lock, ends, who)
  if is_first then
    redis.call("pexpireat", lock, ends)
  else
    fit(lock)
  end
  return "held"
end

--- Is it the caller's turn?
---@param queue any what it waits for: all waiters, or the writers
---@param first any the first of that queue, and its position
---@return any ... # nil if it is, else ms until it may be; then the number of
---  evicted waiters
local function turn(keys, queue, first, view, waits)
  if view.place and view.place <= tonumber(first[2]) then return nil, 0 end
  if waits == "0" then
    if redis.call("exists", keys[6]) == 0 then return nil, 0 end
    if view.is_new then
      redis.call("hset", keys[6], STATE, format(view.time, view.start))
    end
  end
  return first_alive(keys, queue, view)
end

--- Makes the caller a holder if it is its turn, otherwise queues it.
---@param ms any for how long the holders exclude it; nil if they do not
---@param queue any as for turn
local function enter_in_turn(keys, args, who, time, two, ms, queue)
  local lease, waits, publish = args[2], args[4], args[5]
  local view, gone = nil, 0
  if not ms then
    local first = redis.call("zrange", queue, 0, 0, "withscores")
    if first[1] then
      view = look_up(keys, who, time)
      ms, gone = turn(keys, queue, first, view, waits)
    end
    if not ms then
      local reads = not is_writer(who)
      if first[1] or reads then remove(keys, who) end
      if gone > 0 and reads then wake(keys, time, publish, true) end
      return enter(keys, who, time + lease, not two[1])
    end
  end
  if waits ~= "0" then stay(keys, view or look_up(keys, who, time)) end
  if gone > 0 then wake(keys, time, publish, two[1]) end
  return { "busy", ms }
end

-- Reads if no writer holds the lock or is ahead in the queue. The writer itself
-- can read at once.
local function enter_as_reader(keys, args, who, time, two)
  local writer, ends = writer_of(two)
  if writer == WRITER .. args[1] then
    remove(keys, who)
    return enter(keys, who, time + args[2])
  end
  return enter_in_turn(keys, args, who, time, two, writer and ends - time,
    keys[5])
end

-- Writes if the lock is free and no waiter is ahead.
local function enter_as_writer(keys, args, who, time, two)
  if end_of(keys, two, READER .. args[1], time) then
    return { "refused", UPGRADE }
  end
  return enter_in_turn(keys, args, who, time, two,
    two[1] and redis.call("pttl", keys[1]), keys[4])
end

local function renew(keys, args, side)
  local lock, who, lease, want = keys[1], side .. args[1], args[2], args[3]
  local time = now()
  local ends = tonumber(redis.call("zscore", lock, who) or 0)
  if ends <= time then return "lost" end
  if ends < time + lease then
    local last = extend(lock, who, time + lease)
    if want ~= "1" then count(keys, who, want, last) end
  end
  return "held"
end

-- Sets the hold count to `want`, and the lease to what the remaining holds
-- need. At 0, wakes the waiters that can enter then.
local function release(keys, args, side)
  local lock, counts, who = keys[1], keys[3], side .. args[1]
  local lease, want, publish = args[2], args[3], args[4]
  local time = now()
  if tonumber(redis.call("zscore", lock, who) or 0) <= time then
    return "lost"
  end
  if want ~= "0" then
    redis.call("hdel", counts, who)     -- first: it needs no memory
    redis.call("zadd", lock, time + lease, who)
    local last = fit(lock)
    redis.call("pexpireat", counts, last)
    count(keys, who, want, last)
    return "kept"
  end
  redis.call("zrem", lock, who)
  redis.call("hdel", counts, who)
  local last = fit(lock) or 0
  if last > time then redis.call("pexpireat", counts, last) end
  if last <= time or is_writer(who) then
    wake(keys, time, publish, last > time)
  end
  return "freed"
end

--- Which of the waiters in `all` can enter: the first waiter of all; or the
--- readers ahead of the first writer.
---@param first any the first live waiter, or writer; nil: there is none
---@param places any as returned by stay_all
local function can_enter(keys, side, all, first, places)
  if side == WRITER then return places[first] and { first } or {} end
  local limit = first and tonumber(redis.call("zscore", keys[4], first))
  local list = {}
  for _, who in ipairs(all) do
    local place = places[who]
    if place and (not limit or place < limit) then list[#list + 1] = who end
  end
  return list
end

--- Finds the waiters in `all` that can enter. If the lock is free, and none of
--- them can, wakes those that can.
---@return any ... # ms until another waiter may enter, -1: unknown; then the
---  list
local function find_turn(keys, publish, side, all, view, places, is_read)
  local left, gone, first = first_alive(keys,
    side == READER and keys[5] or keys[4],
    { before = view.before, start = view.start, time = view.time })
  local list = {}
  if first or not left then
    list = can_enter(keys, side, all, first, places)
  end
  if gone > 0 or not (is_read or list[1]) then
    wake(keys, view.time, publish, is_read)
  end
  return left or -1, list
end

--- Refreshes the heartbeats of waiters.
---@return any # { "busy", ms, owner, ... }: those named must retry, because
---  they can enter, or are not queued
local function refresh(keys, args, side)
  ---@type any, any, any
  local all, reply, time = {}, { "busy" }, now()
  for i = 2, #args do all[i - 1] = side .. args[i] end
  local two = holders(keys, time)
  local view = look_up(keys, all[1], time)
  local places, list = stay_all(keys, all, view), {}
  local writer, ends = writer_of(two)
  if side == WRITER and two[1] then
    reply[2] = redis.call("pttl", keys[1])
  elseif side == READER and writer then
    reply[2] = ends - time
  else
    reply[2], list =
      find_turn(keys, args[1], side, all, view, places, two[1] ~= nil)
  end
  for _, who in ipairs(list) do reply[#reply + 1] = who:sub(3) end
  for _, who in ipairs(all) do
    if not places[who] then reply[#reply + 1] = who:sub(3) end
  end
  return reply
end

-- Removes a waiter that gives up.
local function leave(keys, args, side)
  if remove(keys, side .. args[1]) then
    local time = now()
    local two = holders(keys, time)
    if not writer_of(two) then wake(keys, time, args[2], two[1]) end
  end
  return "left"
end

-- Frees the lock from all readers by force, unless there is a writer; or from
-- the writer, and from its read holds. If it is free, evicts dead waiters,
-- unless a token names a hold.
local function break_(keys, args, side)
  local token, publish, time = args[1], args[2], now()
  local two = holders(keys, time)
  if two[1] and (writer_of(two) ~= nil) ~= is_writer(side) then
    return "free"
  end
  if two[1] and token ~= "" then
    return { "refused", "a read/write lock has no fencing tokens" }
  end
  if not two[1] and token ~= "" then return "free" end
  if not two[1] then
    local _, gone = first_alive(keys, keys[4],
      { before = 0, start = 0, time = time })
    if gone == 0 then return "free" end
  end
  redis.call("unlink", keys[1], keys[3])
  wake(keys, time, publish)
  return "freed"
end

local function count_of(keys, who)
  return tonumber(redis.call("hget", keys[3], who) or 1) or 1
end

---@return any # the reply of `peek`, with at most MAX_LISTED readers; then
---  "queue" and the first waiters, in order
local function peek(keys, owner, side)
  ---@type any, any, any, any
  local lock, list, mine, time = keys[1], {}, 0, now()
  local all = redis.call("zrange", lock, 0, MAX_LISTED - 1, "withscores")
  for i = 1, #all, 2 do
    local who = all[i]
    if who:sub(1, 2) == side and tonumber(all[i + 1]) > time then
      list[#list + 1], list[#list + 2] = who:sub(3), count_of(keys, who)
    end
  end
  if tonumber(redis.call("zscore", lock, side .. owner) or 0) > time then
    mine = count_of(keys, side .. owner)
  end
  local more = { "queue", redis.call("zrange", keys[4], 0, MAX_LISTED - 1) }
  if not list[1] then return { "free", -2, 0, {}, more } end
  return { "held", redis.call("pttl", lock), mine, list, more }
end

--- The operations of a side.
---@param side any READER or WRITER
---@param enter_first any makes a caller that holds nothing a holder, or queues
---  it
local function operations(side, enter_first)
  local server = {}

  --- Enters, or sets the owner's hold count to `want`.
  function server.acquire(keys, args)
    local lease, want = args[2], args[3]
    local who, time = side .. args[1], now()
    local two = holders(keys, time)
    local ends = end_of(keys, two, who, time)
    if ends then
      count(keys, who, want,
        extend(keys[1], who, math.max(ends, time + lease)))
      return "held"
    end
    if want ~= "1" then return "lost" end
    return enter_first(keys, args, who, time, two)
  end

  function server.renew(keys, args) return renew(keys, args, side) end

  function server.release(keys, args) return release(keys, args, side) end

  function server.leave(keys, args) return leave(keys, args, side) end

  function server.refresh(keys, args) return refresh(keys, args, side) end

  function server.break_(keys, args) return break_(keys, args, side) end

  function server.peek(keys, args) return peek(keys, args[1], side) end

  return server
end

local read = operations(READER, enter_as_reader)
local write = operations(WRITER, enter_as_writer)

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

-- The keys of the queue may outlive it.
local function lasts(its_keys)
  return { [its_keys[4]] = 60, [its_keys[5]] = 60, [its_keys[6]] = 3 }
end

local function side(name, prefix, server)
  return {
    name = name, keys = keys, extra = extra, poll = liveness.POLL,
    slack = liveness.DEAD, lasts = lasts, server = server,
    channel = function(its_keys, owner)
      return its_keys[2] .. ":" .. prefix .. owner
    end,
  }
end

local sides = {
  read = side("fair_readwrite.read", READER, read),
  write = side("fair_readwrite.write", WRITER, write),
}
sides.read.peer, sides.write.peer = sides.write, sides.read

return sides
