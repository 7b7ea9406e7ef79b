--- A barrier, which has rounds. Double barrier: a round of `n` members opens
--- when all of them have entered, and ends when all have left. Plain barrier:
--- `n` is 0, the members are the clients that set it, and the round ends when
--- any client removes it.
---   name                   sorted set: id of a member, 16 bytes -> end of its
---                          lease, in milliseconds of the server's time
---   rlock_barrier:{name}   hash: `round`, the number of the current round,
---                          at first the server's time, so that no number is
---                          used again after the hash has expired; `n`, while
---                          it has members; `open`, once all have entered;
---                          `good` and `lost`, the last round that ended
---                          normally, and the last that a death ended
---   rlock_barrier:{name}:changed   channel: "0" when a round opens or ends
---   rlock_request:{name}:SLOT   string: the number of the last request that
---                          was executed under SLOT; kept for minutes
--- A member whose lease expires has died. That ends the round as lost; a plain
--- barrier's round only when no member is left. The end of a round deletes its
--- members. Waiters compare the number of their round with the fields of the
--- hash. Requests to enter, leave, withdraw and remove are deduplicated
--- (counters/deduplication.lua), so a delayed duplicate changes no later round.
--- The drivers are recipes/barrier.lua and recipes/double_barrier.lua.

local naming = require "rlock.naming"
local shared = require "rlock.policy.shared"

local is_done, now, tell = shared.is_done, shared.now, shared.tell

local MEMORY = 600000                   -- milliseconds, as in deduplication.lua
local PLAIN = "0"                       -- the n of a plain barrier
local CHANNEL = ":changed"

local server = {}                       -- these run inside Redis

-- Ends the round: all have left, or it is lost.
local function finish(keys, number, is_lost, publish)
  local members, state = keys[1], keys[2]
  redis.call("del", members)            -- first: it needs no memory
  redis.call("hdel", state, "n", "open")
  redis.call("hset", state, "round", number + 1, is_lost and "lost" or "good",
    number)
  redis.call("pexpire", state, MEMORY)
  tell(publish, state .. CHANNEL, "0")
end

--- The round. How forgotten rounds have ended is unknown: they count as lost.
---@return any # its `number`; `n`, false if it has no members; `is_open`;
---  `good` and `lost`, as in the hash
local function read(keys, time)
  local fields =
    redis.call("hmget", keys[2], "round", "n", "open", "good", "lost")
  local number = tonumber(fields[1] or time) --[[@as number]]
  return { number = number, n = fields[2], is_open = fields[3],
    good = tonumber(fields[4] or 0), lost = tonumber(fields[5] or number - 1) }
end

--- The current round. If it has lost a member, ends it first.
---@return any # as `read`; `ms` until the round may lose a member, or -1
local function current(keys, time, publish)
  local round = read(keys, time)
  round.ms = -1
  if not round.n then return round end
  local at = round.n == PLAIN and -1 or 0     -- the last to die, or the first
  local ends = redis.call("zrange", keys[1], at, at, "withscores")[2]
  if ends and tonumber(ends) > time then
    round.ms = ends - time
    return round
  end
  finish(keys, round.number, true, publish)
  round.lost, round.number = round.number, round.number + 1
  round.n, round.is_open = false, false
  return round
end

-- The reply to a waiter about its round. If a later round was lost, this one
-- may have been lost too.
local function outcome(round, number)
  if round.good == number then return { "free" } end
  if round.lost >= number then return { "lost" } end
  if round.number > number then return { "free" } end
  if round.number < number or not round.n then return { "lost" } end
  return { "busy", round.ms, number }
end

-- Extends the expiry of the keys to at least the lease.
local function keep(keys, ms)
  if redis.call("pttl", keys[1]) < tonumber(ms) then
    redis.call("pexpire", keys[1], ms)
    redis.call("pexpire", keys[2], ms + MEMORY)
  end
end

-- Extends a member's lease, which ends at `score`.
local function prolong(keys, id, score, lease, time)
  if tonumber(score) >= time + lease then return end
  redis.call("zrem", keys[1], "")       -- no member; first: it needs no memory
  redis.call("zadd", keys[1], time + lease, id)
  keep(keys, lease)
end

-- Adds the member `id` to the round.
local function join(keys, round, n, id, lease, time)
  if n == PLAIN then            -- drops those that have set it, and have died
    redis.call("zremrangebyscore", keys[1], "-inf", time)
  end
  redis.call("zadd", keys[1], time + lease, id)
  if not round.n then
    redis.call("hset", keys[2], "round", round.number, "n", n, "lost",
      round.lost)
  end
  keep(keys, lease)
end

--- Enters the round, or checks whether it is open. Idempotent; a duplicate
--- extends the member's lease, because the client counts the lease from its
--- last copy. While an earlier round is open, the member has to wait outside.
---@return any # "held" and the number of the open round; "busy", milliseconds
---  until the round may lose a member, or -1, and its number, 0 while the
---  member has to wait outside; "lost": the member's round has lost a member;
---  "refused" and the round's n
function server.enter(keys, args)
  local members, state, slot = keys[1], keys[2], keys[3]
  local number, memory, n, publish, lease, id =
    args[1], args[2], args[3], args[4], args[5], args[6]
  local time = now()
  local round, score =
    current(keys, time, publish), redis.call("zscore", members, id)
  if not is_done(slot, number) then
    if round.n and round.n ~= n then return { "refused", round.n } end
    if round.is_open and n ~= PLAIN then return { "busy", round.ms, 0 } end
    join(keys, round, n, id, lease, time)
    if not round.is_open and redis.call("zcard", members) >= tonumber(n) then
      round.is_open = "1"
      redis.call("hset", state, "open", "1")
      tell(publish, state .. CHANNEL, "0")
    end
  elseif not score then
    return { "lost" }
  else
    prolong(keys, id, score, lease, time)
  end
  redis.call("set", slot, number, "px", memory)
  if round.is_open then return { "held", round.number } end
  return { "busy", round.ms, round.number }
end

--- Leaves the round with this number, which ends when all members have left.
---@return any # as `look`
function server.leave(keys, args)
  local members, slot = keys[1], keys[3]
  local number, memory, wanted, publish, id =
    args[1], args[2], tonumber(args[3]), args[4], args[5]
  local round = current(keys, now(), publish)
  if not is_done(slot, number) then
    if redis.call("zrem", members, id) == 1    -- first: it needs no memory
        and redis.call("exists", members) == 0 then
      finish(keys, round.number, false, publish)
      round.good = round.number
    end
    redis.call("set", slot, number, "px", memory)
  end
  return outcome(round, wanted)
end

-- Removes a member from a round that is not open.
local function take_out(keys, id)
  local members, state = keys[1], keys[2]
  redis.call("zrem", members, id)
  if redis.call("exists", members) == 0 then
    redis.call("hdel", state, "n")
    redis.call("pexpire", state, MEMORY)
  end
end

--- Withdraws a member, unless the round has opened with it. Then extends its
--- lease.
---@return any # "held" and the number of that round; or "freed"
function server.withdraw(keys, args)
  local members, slot = keys[1], keys[3]
  local number, memory, lease, publish, id =
    args[1], args[2], args[3], args[4], args[5]
  local time = now()
  local round = current(keys, time, publish)
  if not is_done(slot, number) then
    if round.is_open then
      redis.call("zrem", members, "")   -- no member; first: it needs no memory
    else
      take_out(keys, id)
    end
    redis.call("set", slot, number, "px", memory)
  end
  local score = redis.call("zscore", members, id)
  if not score then return { "freed" } end
  prolong(keys, id, score, lease, time)
  return { "held", round.number }
end

--- Removes a plain barrier.
---@return any # "freed"; "free": it is not set; "refused" and the round's n
function server.remove(keys, args)
  local slot, number, memory, publish = keys[3], args[1], args[2], args[4]
  if is_done(slot, number) then return { "freed" } end
  local round = current(keys, now(), publish)
  if not round.n then return { "free" } end
  if round.n ~= PLAIN then return { "refused", round.n } end
  finish(keys, round.number, false, publish)
  redis.call("set", slot, number, "px", memory)
  return { "freed" }
end

--- Checks whether a round has ended. The number 0 stands for the current round
--- of a plain barrier, if it is set.
---@return any # "free": it has ended; "busy", milliseconds until it may lose a
---  member, and its number; "lost": it has lost a member; "refused" and the
---  round's n
function server.look(keys, args)
  local wanted, publish = tonumber(args[1]), args[2]
  local round = current(keys, now(), publish)
  if wanted == 0 then
    if not round.n then return { "free" } end
    if round.n ~= PLAIN then return { "refused", round.n } end
    wanted = round.number
  end
  return outcome(round, wanted)
end

--- Renews a member's lease, unless its round has ended.
---@return any # "held"; or "lost", with a second value if the round ended
---  normally
function server.renew(keys, args)
  local members, id, lease, number = keys[1], args[1], args[2],
    tonumber(args[3])
  local score, time = redis.call("zscore", members, id), now()
  if not score then
    local is_over = outcome(read(keys, time), number)[1] == "free"
    return is_over and { "lost", "removed" } or "lost"
  end
  if tonumber(score) <= time then return "lost" end
  prolong(keys, id, score, lease, time)
  return "held"
end

--- Ends a membership when its client is closed or its task has ended. An open
--- round is lost at once; a plain barrier's round if no other member is left.
function server.release(keys, args)
  local members, id, publish = keys[1], args[1], args[4]
  local round = current(keys, now(), publish)
  if redis.call("zrem", members, id) == 0 then return "lost" end
  if not round.is_open then
    take_out(keys, id)
  elseif round.n ~= PLAIN or redis.call("exists", members) == 0 then
    finish(keys, round.number, true, publish)
  end
  return "freed"
end

--- The first hundred members; of a plain barrier, the clients that set it.
---@return any # "held" or "free": whether there are any; their count; a list:
---  id, milliseconds left, ...
function server.peek(keys)
  local members, time = keys[1], now()
  local live = redis.call("zrangebyscore", members, "(" .. time, "inf",
    "withscores", "limit", 0, 100)
  for i = 2, #live, 2 do live[i] = live[i] - time end
  local count = redis.call("zcount", members, "(" .. time, "inf")
  return { count > 0 and "held" or "free", count, live }
end

return {
  name = "barrier",
  keys = function(name)
    return {
      name, naming.prefix("rlock_barrier", name),
      naming.prefix("rlock_request", name),
    }
  end,
  channel = function(keys) return keys[2] .. CHANNEL end,
  lasts = function(keys) return { [keys[2]] = 600, [keys[3]] = 600 } end,
  wakes = function() return "all" end,
  needs = {
    enter = { held = "n", busy = "nn", lost = "", refused = "s" },
    leave = { free = "", busy = "nn", lost = "" },
    withdraw = { held = "n", freed = "" },
    remove = { freed = "", free = "", refused = "s" },
    look = { free = "", busy = "nn", lost = "", refused = "s" },
    renew = { held = "", lost = "" }, release = { freed = "", lost = "" },
    peek = { free = "nt", held = "nt" },
  },
  server = server,
}
