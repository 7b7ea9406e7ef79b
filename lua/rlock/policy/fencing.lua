--- Gives an exclusive kind of lock a fencing token: a number greater than that
--  of every earlier hold. Send it with each write, and let the resource refuse
--  a token less than the greatest it has seen. The kind keeps its operations,
--  keys and channels. So clients that know of tokens and those that do not
--  exclude each other; the holds of the latter draw no token. The keys are
--  those of the kind, and:
--    redisson_lock_token:{name}   string: the last token; never expires. That
--                                 of Redisson's RFencedLock
--  The token of a hold is in the empty field of a lock that is a hash of
--  owners: no owner has that name. Other locks have a key for it, see
--  token_key.lua.
--
--  A nested hold, and a repeated request, have the same token. The next token
--  is the last plus one or the server's time in microseconds, whichever is
--  greater, so tokens grow even if the server loses the last one. Redisson
--  takes the next one by INCR, which would restart at 1. So the key has no
--  expiry, and SET removes an expiry that an older rlock set.

local naming = require "rlock.naming"

local fencing = {}

local TOKENS_END = 9007199254740992     -- 2^53: numbers are exact below it
local OVER = "the hold with that token is over"

-- The functions that run inside Redis ship those of the kind. So their names,
-- and those of what they use, must differ from all names there.

local in_hash = {}

function in_hash.keep(keys, _, token)
  if redis.call("hsetnx", keys[1], "", token) == 1 then return token end
  local its = redis.call("hget", keys[1], "")
  if its ~= "0" then return its end     -- the mark of a fair lock
  redis.call("hset", keys[1], "", token)
  return token
end

function in_hash.standing(keys)
  local its = redis.call("hget", keys[1], "")
  return its ~= "0" and its
end

-- Adds the operations that differ from those of the kind.
local function add_operations(server, kind, token_at, place)
  local keep_token, standing_token = place.keep, place.standing
  local acquire_of_kind, break_of_kind, bare_peek =
    kind.server.acquire, kind.server.break_, kind.server.peek

  --- As that of the kind, with a token. Reads the last token first, so an error
  --  leaves no hold without a token.
  function server.acquire(keys, args)
    local last = tonumber(redis.call("get", keys[token_at]) or 0) or 0
    if last + 1 >= TOKENS_END then
      return { "refused", "the tokens are used up" }
    end
    local reply = acquire_of_kind(keys, args)
    if reply ~= "held" and (type(reply) ~= "table" or reply[1] ~= "held") then
      return reply
    end
    local time = redis.call("time")
    local token = ("%d"):format(        -- once: Redis formats numbers slowly
      math.max(time[1] * 1000000 + time[2], last + 1))
    local its = keep_token(keys, args, token)
    if its == token then redis.call("set", keys[token_at], token) end
    return { "held", tonumber(its) }
  end

  --- Frees the lock by force; with a token, only if the hold with that token
  --  still stands.
  function server.break_(keys, args)
    local token, publish = args[1], args[2]
    if token ~= ""
        and tonumber(standing_token(keys) or "") ~= tonumber(token) then
      local is_held = bare_peek(keys, { "" })[1] == "held"
      return is_held and { "refused", OVER } or "free"
    end
    return break_of_kind(keys, { "", publish })
  end

  --- As that of the kind, then "token".
  function server.peek(keys, args)
    local reply = bare_peek(keys, args)
    local its = reply[1] == "held" and standing_token(keys)
    local more = reply[5] or {}
    more[#more + 1], more[#more + 2] = "token", tonumber(its or "") or false
    reply[5] = more
    return reply
  end

  if not break_of_kind then server.break_ = nil end
end

--- A kind of lock with fencing tokens.
--  @tparam table kind  a policy: mutual exclusion, with `peek`
--  @tparam string name
--  @tparam[opt] function place_of  (token_at, kind) -> where a hold has its
--    token; default: in the lock's hash. Functions that run inside Redis:
--    keep(keys, args, token) keeps it for a new hold, and returns it, or the
--    token that the hold has already; standing(keys) returns the token of the
--    hold. add_to(server) adds operations that maintain it
--  @treturn table a policy
function fencing.of(kind, name, place_of)
  local fenced, server = {}, {}
  local token_at = #kind.keys("any name") + 1
  for field, value in pairs(kind) do fenced[field] = value end
  for op, fn in pairs(kind.server) do server[op] = fn end
  fenced.name, fenced.server = name, server
  fenced.exclusive = nil                -- red locks have no tokens

  function fenced.keys(its_name)
    local keys = kind.keys(its_name)
    keys[token_at] = naming.prefix("redisson_lock_token", its_name)
    return keys
  end

  function fenced.keeps(keys)
    local kept = kind.keeps and kind.keeps(keys) or {}
    kept[#kept + 1] = keys[token_at]
    return kept
  end

  local place = place_of and place_of(token_at, kind) or in_hash
  add_operations(server, kind, token_at, place)
  if place.add_to then place.add_to(server) end
  return fenced
end

return fencing
