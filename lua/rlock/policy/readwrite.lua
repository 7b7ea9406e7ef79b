--- A read/write lock. The writer may also read, and remain a reader when it
--- releases the write lock (a downgrade). An upgrade is refused: the reader
--- would wait for itself.
---   name                      hash: "mode" -> "read" or "write", owner ->
---                             count of its read holds, owner:write -> of its
---                             write holds; expires with the last lease
---   {name}:<owner>:rwlock_timeout:<n>
---                             string: the n-th read hold of an owner; expires
---                             with its lease. rlock maintains only the last
---   redisson_rwlock:{name}    "0" when the last reader has left, "1" when the
---                             writer has, or remains a reader
---   rlock_rw_holds:{name}     sorted set, the index: field of the hash -> end
---                             of its lease, in milliseconds of server time
--- Except for the index this is Redisson's RReadWriteLock, wire compatible.
--- When a reader leaves, Redisson reads the hold keys of all others to find out
--- how long the lock is needed. The index gives that in O(log n), and shows
--- which readers are dead; each new reader drops a few of them. A writer is in
--- the index only while it also reads; otherwise the hash expires with it.
---
--- In a mixed fleet
--- * Redisson's watchdog sets the expiry of the hash, and of all hold keys, to
---   its own timeout. rlock's readers reassert theirs, with a lease or without.
--- * Redisson finds rlock's readers by their hold keys alone. rlock adds no
---   field to the hash, because Redisson counts the fields.
--- * Fields beyond those in the index are Redisson's readers. While there are
---   any, the expiry is not shortened, unless 16 fields are enough to find the
---   leases of all of them; dead ones that are found are dropped.
--- * Redisson may delete the hash but not the index. Fields and members are
---   added and removed together, so if one member is not in the hash, none is,
---   and the next reader deletes the index before it adds itself.
--- * If the index is lost, rlock's readers are treated as Redisson's are.

local naming = require "rlock.naming"
local shared = require "rlock.policy.shared"

local now, tell = shared.now, shared.tell

local READERS_GONE, WRITER_GONE = "0", "1"
local MAX_DROPPED = 4          -- dead holds, by one request
local MAX_EXAMINED = 16        -- fields, by one request
local MAX_LISTED = 100         -- holders listed by `peek`; keys deleted singly
local MAX_COUNT = 1000000000   -- a greater hold count is treated as garbage
local SOONER = 1000            -- ms: a smaller change of expiry wakes no waiter
local UPGRADE = "upgrade: this owner reads, and a writer waits for all readers"

-- these run inside Redis --------------------------------------------------

-- Would the owner's field clash with others?
local function is_bad(owner)
  return owner == "mode" or owner:sub(-6) == ":write"
end

local function refused()
  return { "refused", "an owner of a read/write lock cannot be called \"mode\""
    .. " or end in \":write\"" }
end

local function hold_key(keys, owner, n)
  return keys[4] .. ":" .. owner .. ":rwlock_timeout:" .. n
end

-- Deletes the keys of the holds after the first `want` out of `count`.
local function drop_holds(keys, owner, want, count)
  for n = want + 1, math.min(tonumber(count) or 1, want + MAX_LISTED) do
    redis.call("unlink", hold_key(keys, owner, n))
  end
end

-- The end of a hold's lease; false if it has passed. The lease of a hold that
-- is not in the index is unknown, and counts as running.
local function end_of(index, field, time)
  local ends = tonumber(redis.call("zscore", index, field) or time + 1)
  return ends > time and ends
end

-- Sets the end of a hold's lease, and makes the hash and the index last at
-- least as long. Until now the hash expires at `last`.
local function keep(keys, field, ends, last)
  local lock, index = keys[1], keys[3]
  if last < ends then
    last = ends
    redis.call("pexpireat", lock, last) -- first: it needs no memory
  else
    redis.call("pexpireat", index, last)
  end
  redis.call("zadd", index, ends, field)
  redis.call("pexpireat", index, last)
end

--- Moves the end of a hold's lease from `before` to `ends`.
---@return any # whether that is sooner
local function change(keys, field, time, ends, before)
  if ends > before then
    keep(keys, field, ends, time + redis.call("pttl", keys[1]))
  else
    redis.call("zadd", keys[3], ends, field)
  end
  return ends < before
end

-- As keep, and sets the hold key for Redisson.
local function keep_read(keys, owner, want, time, ends, last)
  keep(keys, owner, ends, last)
  redis.call("set", hold_key(keys, owner, want), "1", "px", ends - time)
end

--- Drops some of the holds whose lease has ended. Of a writer that also reads,
--- this may leave only the reader or only the writer.
---@return any # the mode of the lock after that
local function drop_dead(keys, mode, time)
  local lock, index = keys[1], keys[3]
  local dead = redis.call("zrangebyscore", index, "-inf", time,
    "limit", 0, MAX_DROPPED)
  if not dead[1] then return mode end
  redis.call("zrem", index, unpack(dead))
  redis.call("hdel", lock, unpack(dead))
  local rest = mode == "write" and redis.call("zrange", index, 0, 0)[1]
  if not rest then return mode end
  if dead[1] ~= rest .. ":write" then
    redis.call("unlink", index)
    return mode
  end
  redis.call("hset", lock, "mode", "read")
  return "read"
end

-- The end of a reader's last hold, by its hold keys; 0 if all have ended.
local function end_by_keys(keys, owner, count, time)
  local ttl = 0
  if count % 1 ~= 0 or count > MAX_COUNT then count = 1 end
  for n = count, math.max(1, count - MAX_EXAMINED), -1 do
    ttl = math.max(ttl, redis.call("pttl", hold_key(keys, owner, n)))
  end
  return ttl > 0 and time + ttl or 0
end

--- Examines some fields of the hash for readers that are not in the index, and
--- drops dead ones.
---@param others any the number of such readers
---@return any # the end of their last lease, or nil if not all were found
local function examine(keys, size, others, time)
  local lock, index, last = keys[1], keys[3], 0
  local fields = size <= MAX_EXAMINED and redis.call("hgetall", lock)
    or redis.call("hscan", lock, time, "count", MAX_EXAMINED)[2]
  local n = #fields / 2
  for i = time, time + math.min(n, MAX_EXAMINED) - 1 do
    local owner, count = fields[i % n * 2 + 1], tonumber(fields[i % n * 2 + 2])
    if count and not redis.call("zscore", index, owner) then
      local ends = end_by_keys(keys, owner, count, time)
      if ends == 0 then redis.call("hdel", lock, owner) end
      last, others = math.max(last, ends), others - 1
    end
  end
  return others == 0 and last or nil
end

--- Makes the hash expire when the remaining holds do, instead of at `before`;
--- at once if all are dead. The expiry stays while other holds may need it.
--- Wakes the waiters if the change is large, because they sleep until `before`.
---@param size any the number of fields of the hash
local function fit(keys, mode, size, time, publish, before)
  local lock, index = keys[1], keys[3]
  local others = size - 1 - redis.call("zcard", index)
  ---@type any
  local last = tonumber(redis.call("zrange", index, -1, -1, "withscores")[2]
    or 0)
  if others ~= 0 then
    local ends = mode == "read" and others > 0
      and examine(keys, size, others, time)
    if not ends then return end
    last = math.max(last, ends)
  end
  if last > time then
    redis.call("pexpireat", lock, last)
    if last > before - SOONER then return end
  else
    redis.call("unlink", lock, index)
  end
  tell(publish, keys[2], mode == "write" and WRITER_GONE or READERS_GONE)
end

local function break_(keys, args, wanted, message)
  local token, publish = args[1], args[2]
  local lock, index = keys[1], keys[3]
  if redis.call("hget", lock, "mode") ~= wanted then return "free" end
  if token ~= "" then
    return { "refused", "a read/write lock has no fencing tokens" }
  end
  redis.call("unlink", lock, index)
  tell(publish, keys[2], message)
  return "freed"
end

--- Some of the live holders: readers, or the writer.
---@return any # a list: owner, hold count, ...
local function holders(keys, mode, is_writer, time)
  local lock, index, result, dead = keys[1], keys[3], {}, {}
  for _, field in ipairs(redis.call("zrangebyscore", index, "-inf", time,
      "limit", 0, MAX_LISTED)) do
    dead[field] = true
  end
  local fields = redis.call("hscan", lock, 0, "count", MAX_LISTED)[2]
  for i = 1, math.min(#fields, 2 * MAX_LISTED), 2 do
    local field = fields[i]
    local writes = mode == "write" and field:sub(-6) == ":write"
    if field ~= "mode" and not dead[field] and writes == is_writer then
      result[#result + 1] = writes and field:sub(1, -7) or field
      result[#result + 1] = fields[i + 1]
    end
  end
  return result
end

local function peek(keys, owner, field, is_writer)
  local lock = keys[1]
  local state = redis.call("hmget", lock, "mode", field)
  local mode, mine, ttl = state[1], state[2], redis.call("pttl", lock)
  local time = now()
  local list = mode and holders(keys, mode, is_writer, time) or {}
  if not list[1] then return { "free", -2, 0, {}, { "mode", mode } } end
  if is_bad(owner) or (is_writer and mode ~= "write")
      or (mine and not end_of(keys[3], field, time)) then
    mine = 0
  end
  return { "held", ttl, tonumber(mine or 0) or 0, list, { "mode", mode } }
end

-- the reader's side -------------------------------------------------------

local read = {}

--- Reads unless another owner writes, or sets the owner's hold count to `want`.
function read.acquire(keys, args)
  local lock, index = keys[1], keys[3]
  local owner, lease, want = args[1], args[2], args[3]
  if is_bad(owner) then return refused() end
  local first = redis.call("zrange", index, 0, 0, "withscores")
  local state = redis.call("hmget", lock, "mode", owner, owner .. ":write",
    first[1] or "mode")
  local mode, mine, writes, is_known = state[1], state[2], state[3], state[4]
  if mode == "write" and not writes and not first[1] then
    return { want == "1" and "busy" or "lost", redis.call("pttl", lock) }
  end
  local time = now()
  mine = mine and end_of(index, owner, time)
  if want ~= "1" and not mine then return "lost" end
  if first[1] and not is_known then
    redis.call("unlink", index)
  elseif first[1] and tonumber(first[2]) <= time then
    mode = drop_dead(keys, mode, time)
  end
  local ttl = redis.call("pttl", lock)
  if not mode and ttl ~= -2 then return { "busy", ttl } end
  if mode == "write" and not writes then
    return { "busy", math.min(ttl, math.max(first[2] - time, 1)) }
  end
  if mode == "write" then
    redis.call("zadd", index, "nx", time + ttl, owner .. ":write")
  end
  if mode then
    redis.call("hset", lock, owner, want)
  else
    redis.call("hset", lock, "mode", "read", owner, want)
    ttl = 0
  end
  keep_read(keys, owner, want, time, math.max(time + lease, mine or 0),
    time + ttl)
  return "held"
end

--- A call that reasserts extends no lease: it restores the expiries that
--- Redisson's watchdog has shortened.
function read.renew(keys, args)
  local lock, index = keys[1], keys[3]
  local owner, lease, want, reasserts = args[1], args[2], args[3], args[4]
  local time = now()
  local mine = redis.call("hget", lock, owner) and not is_bad(owner)
    and end_of(index, owner, time)
  if not mine then return "lost" end
  local ends = math.max(time + lease, mine)
  if reasserts and redis.call("zscore", index, owner) then ends = mine end
  keep_read(keys, owner, want, time, ends, time + redis.call("pttl", lock))
  return "held"
end

--- Sets the hold count to `want`. The lock expires with the last of the
--- remaining holds, and is free if there is none.
function read.release(keys, args)
  local lock, index = keys[1], keys[3]
  local owner, lease, want, publish = args[1], args[2], args[3], args[4]
  local state = redis.call("hmget", lock, "mode", owner)
  local mode, count = state[1], state[2]
  if not count or is_bad(owner) then return "lost" end
  local size = redis.call("hlen", lock)
  if want == "0" and mode == "read" and size == 2 then
    redis.call("unlink", lock, index, hold_key(keys, owner, 1))
    drop_holds(keys, owner, 1, count)
    tell(publish, keys[2], READERS_GONE)
    return "freed"
  end
  local time = now()
  local before = end_of(index, owner, time)
  if want == "0" or not before then
    redis.call("hdel", lock, owner)
    redis.call("zrem", index, owner)
    drop_holds(keys, owner, 0, count)
    fit(keys, mode, size - 1, time, publish, before or 0)
    if mode == "write" then redis.call("unlink", index) end
    return before and "freed" or "lost"
  end
  -- First: it needs no memory.
  redis.call("unlink", hold_key(keys, owner, want + 1))
  redis.call("hset", lock, owner, want)
  redis.call("set", hold_key(keys, owner, want), "1", "px", lease)
  drop_holds(keys, owner, want + 1, count)
  if change(keys, owner, time, time + lease, before) then
    fit(keys, mode, size, time, publish, before)
  end
  return "kept"
end

--- Frees the lock from all readers by force, unless there is a writer.
function read.break_(keys, args)
  return break_(keys, args, "read", READERS_GONE)
end

---@return any # the reply of `peek`, with only some of many readers; and the
---  lock's mode
function read.peek(keys, args)
  return peek(keys, args[1], args[1], false)
end

-- the writer's side -------------------------------------------------------

local write = {}

--- What an owner holds.
---@return any ... # the mode; its count of write holds, if it writes; its count
---  of read holds, if it reads; and the server's time, if it does both
local function standing(keys, owner, field)
  local state = redis.call("hmget", keys[1], "mode", field, owner)
  local mode, writes, reads = state[1], state[2], state[3]
  if mode ~= "write" or is_bad(owner) then return mode, nil, reads end
  if not writes or not reads then return mode, writes end
  local time = now()
  writes = end_of(keys[3], field, time) and writes
  reads = end_of(keys[3], owner, time) and reads
  if not writes or not reads then mode = drop_dead(keys, mode, time) end
  return mode, writes, reads, writes and reads and time
end

--- Extends a write hold's lease; never shortens it.
---@param time any the server's time, if the writer also reads
local function keep_write(keys, field, lease, time)
  local lock, index = keys[1], keys[3]
  local ttl = redis.call("pttl", lock)
  if time then
    keep(keys, field, math.max(end_of(index, field, time), time + lease),
      time + ttl)
  elseif ttl < tonumber(lease) then
    redis.call("pexpire", lock, lease)
  end
end

--- Writes if the lock is free, or sets the owner's hold count to `want`.
function write.acquire(keys, args)
  local lock = keys[1]
  local owner, lease, want = args[1], args[2], args[3]
  if is_bad(owner) then return refused() end
  local field = owner .. ":write"
  local mode, writes, reads, time = standing(keys, owner, field)
  if writes then
    redis.call("hset", lock, field, want)
    keep_write(keys, field, lease, time)
    return "held"
  end
  if want ~= "1" then return "lost" end
  if not mode then
    local ttl = redis.call("pttl", lock)
    if ttl ~= -2 then return { "busy", ttl } end
    redis.call("hset", lock, "mode", "write", field, want)
    redis.call("pexpire", lock, lease)
    return "held"
  end
  if reads and mode == "read" and end_of(keys[3], owner, now()) then
    return { "refused", UPGRADE }
  end
  return { "busy", redis.call("pttl", lock) }
end

function write.renew(keys, args)
  local owner, lease = args[1], args[2]
  local field = owner .. ":write"
  local _, writes, _, time = standing(keys, owner, field)
  if not writes then return "lost" end
  keep_write(keys, field, lease, time)
  return "held"
end

--- Sets the hold count to `want`. At 0 an owner that also reads remains a
--- reader, and other readers can enter; otherwise the lock is free.
function write.release(keys, args)
  local lock, index = keys[1], keys[3]
  local owner, lease, want, publish = args[1], args[2], args[3], args[4]
  local field = owner .. ":write"
  local _, writes, reads, time = standing(keys, owner, field)
  if not writes then return "lost" end
  if want ~= "0" then
    if reads then
      redis.call("zrem", index, "")     -- no owner; first: it needs no memory
    else
      redis.call("pexpire", lock, lease)
    end
    redis.call("hset", lock, field, want)
    if reads and change(keys, field, time, time + lease,
        end_of(index, field, time)) then
      fit(keys, "write", 3, time, publish, time)
    end
    return "kept"
  end
  if reads then
    redis.call("hdel", lock, field)
    redis.call("hset", lock, "mode", "read")
    redis.call("zrem", index, field)
    fit(keys, "read", 2, time, publish, time)
  else
    redis.call("unlink", lock, index)
  end
  tell(publish, keys[2], WRITER_GONE)
  return "freed"
end

--- Frees the lock by force from the writer, and from its read holds.
function write.break_(keys, args)
  return break_(keys, args, "write", WRITER_GONE)
end

function write.peek(keys, args)
  return peek(keys, args[1], args[1] .. ":write", true)
end

-- the client's side -------------------------------------------------------

local function keys(name)
  return {
    name, naming.prefix("redisson_rwlock", name),
    naming.prefix("rlock_rw_holds", name),
    name:find("{", 1, true) and name or "{" .. name .. "}",
  }
end

local function channel(its_keys) return its_keys[2] end

local function side(side_name, server)
  return { name = side_name, keys = keys, channel = channel, server = server }
end

local sides = {
  read = side("readwrite.read", read), write = side("readwrite.write", write),
}

-- When a writer has left, all readers can enter, or one writer.
function sides.read.wakes(payload)
  return payload == WRITER_GONE and "all" or "one"
end

-- A Redisson writer that remains a reader publishes nothing, though all readers
-- can enter.
sides.read.poll_shared = 1

sides.read.reasserts = true
sides.read.peer, sides.write.peer = sides.write, sides.read

return sides
