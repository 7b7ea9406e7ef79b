--- Tells the kind of a lock by its keys: a function for each kind, which runs
--- inside Redis. It gets the keys of that kind; and in `args` the type of the
--- first one and the channel of the waiters. It returns false or a rank, which
--- is higher if the keys show the kind more clearly (inspect.lua).

local LONGEST = 1024                    -- bytes of the owner of a simple lock
local MANY = 100                        -- fields of a hash that is a lock
local MARK = ""                         -- a field: a fair lock's begins with 0

-- May this key hold a hash of owner -> count, or nothing?
local function may_have_counts(key, type)
  if type ~= "hash" then return type == "none" end
  if redis.call("hlen", key) > MANY then return false end
  for _, count in ipairs(redis.call("hvals", key)) do
    if not count:find("^%d+$") then return false end
  end
  return true
end

-- Does this key hold a whole number, as a semaphore does?
local function is_number(key, type)
  return type == "string" and redis.call("strlen", key) <= 11
    and redis.call("get", key):find("^%-?%d+$") ~= nil
end

local function has_subscribers(channel)
  return redis.call("pubsub", "numsub", channel)[2] > 0
end

local recognise = {}

function recognise.barrier(keys)
  return redis.call("hexists", keys[2], "n") == 1 and 4
end

-- Without waiters, Redisson's fair lock looks like a reentrant lock.
function recognise.fair(keys, args)
  local mark = args[1] == "hash" and redis.call("hget", keys[1], MARK)
  return (mark and mark:find("^0") or redis.call("exists", keys[2]) == 1)
    and may_have_counts(keys[1], args[1]) and 4
end

function recognise.fair_readwrite(keys)
  return redis.call("exists", keys[1], keys[4]) > 0 and 1
end

-- The token of a free lock may be left over from long ago.
function recognise.fenced(keys, args)
  return redis.call("exists", keys[3]) == 1
    and may_have_counts(keys[1], args[1]) and (args[1] == "none" and 1 or 3)
end

-- It differs from a semaphore only in its waiters' channel.
function recognise.latch(keys, args)
  return is_number(keys[1], args[1]) and (has_subscribers(args[2]) and 2 or 1)
end

function recognise.permits(keys, args)
  return redis.call("exists", keys[2], keys[4]) > 0
    and is_number(keys[1], args[1]) and 4
end

function recognise.readwrite(keys, args)
  local mode = args[1] == "hash" and redis.call("hget", keys[1], "mode")
  return (mode == "read" or mode == "write")
    and redis.call("hlen", keys[1]) > 1 and 1
end

function recognise.reentrant(keys, args)
  return args[1] == "hash" and may_have_counts(keys[1], args[1]) and 1
end

-- It differs from a latch only in its waiters' channel.
function recognise.semaphore(keys, args)
  return is_number(keys[1], args[1]) and (has_subscribers(args[2]) and 3 or 1)
end

-- It expires, and its value is an owner: letters, digits and punctuation.
function recognise.simple(keys, args)
  local lock, type = keys[1], args[1]
  return type == "string" and redis.call("strlen", lock) <= LONGEST
    and not is_number(lock, type)
    and redis.call("get", lock):find("^[%w%-_.:+/=@]+$")
    and redis.call("pttl", lock) >= 0 and 1
end

return recognise
