--- Fencing tokens (fencing.lua) for kinds of locks that are not a hash of
--- owners. The token of a hold has its own key, in addition to fencing.lua's:
---   redisson_lock_token:{name}:<kind>   string: the token and the owner of the
---                                       hold; expires with the hold
--- The key may outlive the hold: by a millisecond, or when a client without the
--- option `fenced` breaks the lock. So the token is valid only while `peek`
--- finds its owner.

local fencing = require "rlock.policy.fencing"

local token_key = {}

-- Where the token of a hold is stored, see fencing.of.
local function place_of(token_at, kind)
  local place, kind_name, bare_peek = {}, kind.name, kind.server.peek

  local function key_of_token(keys)
    return keys[token_at] .. ":" .. kind_name
  end

  local function recorded_token(keys)
    return (redis.call("get", key_of_token(keys)) or ""):match("^(%d+) (.*)$")
  end

  local function standing_token(keys)
    local token, owner = recorded_token(keys)
    return token and bare_peek(keys, { owner })[3] > 0 and token
  end

  function place.keep(keys, args, token)
    local owner, lease = args[1], args[2]
    local its, its_owner = recorded_token(keys)
    local key = key_of_token(keys)
    if its_owner ~= owner then
      redis.call("set", key, token .. " " .. owner, "px", lease)
      return token
    elseif redis.call("pttl", key) < tonumber(lease) then
      redis.call("pexpire", key, lease)
    end
    return its
  end

  place.standing = standing_token

  -- An operation of the kind, or nil, that also does with the token what its
  -- verdict means.
  local function with_token(op_of_kind)
    return op_of_kind and function(keys, args)
      local reply = op_of_kind(keys, args)
      local verdict = type(reply) == "table" and reply[1] or reply
      if verdict == "freed" then
        redis.call("del", key_of_token(keys))
      elseif verdict == "kept" or verdict == "held"
          and redis.call("pttl", key_of_token(keys)) < tonumber(args[2]) then
        redis.call("pexpire", key_of_token(keys), args[2])
      end
      return reply
    end
  end

  function place.add_to(server)
    local acquire_with_token = server.acquire

    function server.acquire(keys, args)
      local _, owner = recorded_token(keys)
      if owner == args[1] and not standing_token(keys) then
        redis.call("del", key_of_token(keys))
      end
      return acquire_with_token(keys, args)
    end

    for _, op in ipairs { "release", "renew", "break_" } do
      server[op] = with_token(server[op])
    end
  end

  return place
end

--- Derives a kind of lock with fencing tokens.
---@param kind table a policy: mutual exclusion, with `peek`
---@param name string
---@return table # a policy
function token_key.fenced(kind, name)
  return fencing.of(kind, name, place_of)
end

-- A user's policy -> the same policy with fencing tokens.
local of_users = setmetatable({}, { __mode = "k" })

-- Why a policy cannot have fencing tokens, or nil.
local function refusal(kind)
  if kind.peer then
    return "give it to the factory of a built-in read/write lock, whose writer "
      .. "gets the tokens"
  elseif not kind.exclusive then
    return "not known to be mutual exclusion (if it is, set its exclusive = "
      .. "true)"
  elseif not kind.server.peek then
    return "server.peek is missing"
  elseif kind.keys("any name")[8] then
    return "it has 8 keys, which leaves none for the last token"
  end
end

--- Adds fencing tokens to a user's policy. Raises a one-line error if that is
--- impossible.
---@param kind table
---@param level integer as in error()
---@return table # a policy, the same each time
function token_key.of_user(kind, level)
  local why = refusal(kind)
  if why then
    error(("policy %q: bad option fenced: %s"):format(kind.name, why),
      level + 1)
  end
  of_users[kind] = of_users[kind]
    or token_key.fenced(kind, "fenced_" .. kind.name)
  return of_users[kind]
end

--- A read/write lock whose writer gets fencing tokens. Its sides have different
--- policy names than the kind's, so the same task is a different owner there.
---@param sides table `read` and `write`, policies
---@return table # the same
function token_key.pair(sides)
  local read = {}
  local write = token_key.fenced(sides.write, "fenced_" .. sides.write.name)
  for field, value in pairs(sides.read) do read[field] = value end
  read.name = "fenced_" .. read.name
  read.keys, read.keeps = write.keys, write.keeps
  read.peer, write.peer = write, read
  return { read = read, write = write }
end

return token_key
