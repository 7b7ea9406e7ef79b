--- Adds fencing tokens to an exclusive kind of lock. A token is a number that
--- exceeds those of all earlier holds. Send it with each write, and let the
--- resource reject a token smaller than the greatest it has seen. The kind
--- keeps its operations, keys and channels, so clients with and without the
--- option `fenced` exclude each other; a hold without it gets no token. The
--- keys are those of the kind, plus:
---   redisson_lock_token:{name}   string: the last token; never expires. The
---                                same key as that of Redisson's RFencedLock
--- If the lock is a hash of owners, the hash has the token of the hold in its
--- empty field: no owner has an empty name. There, the mark of a fair lock, 0,
--- precedes the token. Other locks have a separate key for it, see
--- token_key.lua.
---
--- A nested hold or a retried request gets the same token. The next token is
--- the last one plus one, or the server's time in microseconds, whichever is
--- greater. So tokens increase even if the server loses the last one. Redisson
--- gets its next token by INCR, which would restart at 1 if the key expired. So
--- it never expires, and SET removes an expiry that an older rlock set.

local naming = require "rlock.naming"

local fencing = {}

local TOKENS_END = 9007199254740992     -- 2^53: numbers are exact below it
local OVER = "the hold with that token is over"

-- The functions that run inside Redis include those of the kind. So their names
-- and upvalues must differ from all names in the kind.

local in_hash = {}

function in_hash.keep(keys, _, token)
  if redis.call("hsetnx", keys[1], "", token) == 1 then return token end
  local its = redis.call("hget", keys[1], "")
  if its ~= "0" then return its end     -- the mark of a fair lock
  redis.call("hset", keys[1], "", its .. token)
  return token
end

function in_hash.standing(keys)
  local its = redis.call("hget", keys[1], "")
  return its ~= "0" and its
end

-- Adds the operations that differ from the kind's.
local function add_operations(server, kind, token_at, place)
  local keep_token, standing_token = place.keep, place.standing
  local acquire_of_kind, break_of_kind, bare_peek =
    kind.server.acquire, kind.server.break_, kind.server.peek

  --- As in the kind, plus a token. Reads the last token first, so that an error
  --- leaves no hold without a token.
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
  --- still stands.
  function server.break_(keys, args)
    local token, publish = args[1], args[2]
    if token ~= ""
        and tonumber(standing_token(keys) or "") ~= tonumber(token) then
      local is_held = bare_peek(keys, { "" })[1] == "held"
      return is_held and { "refused", OVER } or "free"
    end
    return break_of_kind(keys, { "", publish })
  end

  --- As in the kind, plus "token".
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

--- Derives a kind of lock with fencing tokens.
---@param kind table a policy: mutual exclusion, with `peek`
---@param name string
---@param place_of? function (token_at, kind) -> where the token of a hold is
---  stored; default: in the lock's hash. These run inside Redis: keep(keys,
---  args, token) stores the token of a new hold, and returns it, or returns the
---  token that the hold has already; standing(keys) returns the token of the
---  current hold. add_to(server) adds operations that maintain it
---@return table # a policy
function fencing.of(kind, name, place_of)
  local fenced, server = {}, {}
  local token_at = #kind.keys("any name") + 1
  for field, value in pairs(kind) do fenced[field] = value end
  for op, fn in pairs(kind.server) do server[op] = fn end
  fenced.name, fenced.server = name, server
  fenced.exclusive = nil                -- red locks have no tokens
  fenced.excludes = kind.exclusive

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
