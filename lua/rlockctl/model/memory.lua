--- Writes that need memory. A server over its `maxmemory` refuses them, unless
--- the script has called another write before, even one that changes nothing.
--- Operations that release or renew must succeed there, too, so their first
--- write needs no memory.

local script = require "rlock.script"

local memory = {}

local OOM = "OOM command not allowed when used memory > 'maxmemory'."

--- Command -> whether it needs memory. Other commands do not write.
memory.writes = {}

local writes = memory.writes

local function set(needs, names)
  for name in names:gmatch "%a+" do writes[name] = needs end
end

set(true, [[append copy decr decrby getset hincrby hincrbyfloat hmset hset
  hsetnx incr incrby incrbyfloat linsert lmove lpush lpushx lset mset msetnx
  psetex rpoplpush rpush rpushx sadd sdiffstore set setbit setex setnx setrange
  sinterstore sort sunionstore xadd zadd zdiffstore zincrby zinterstore
  zrangestore zunionstore]])
set(false, [[del expire expireat flushall flushdb getdel getex hdel lmpop lpop
  lrem ltrim persist pexpire pexpireat rename renamenx rpop smove spop srem
  unlink xdel xtrim zmpop zpopmax zpopmin zrem zremrangebylex zremrangebyrank
  zremrangebyscore]])

local lower = setmetatable({}, { __index = function(list, name)
  list[name] = name:lower()
  return list[name]
end })

--- Records a command of a script that has not written before. Raises OOM if it
--- needs memory and the server `is_full`.
---@param server table gets `has_written` and `needs_memory`
---@param name string
function memory.note(server, name)
  local needs = writes[lower[name]]
  if needs == nil then return end
  if needs and server.is_full then error({ err = OOM }, 0) end
  server.has_written, server.needs_memory = true, needs
end

-- Operations that a full server may refuse.
local takes = { acquire = true, set = true, drain = true }

-- The line of a script at which a full server refuses it.
local function line_of(server, op, keys, words)
  local full = server:fork()
  full.is_full = true
  return full:line_of(op.text, keys, words, OOM)
end

--- The fault of an operation that a full server refuses.
---@param server table before the operation
---@param op table the result of script.compile
---@param keys table
---@param words table
---@param after table the server that has executed it
---@return string? # a fault
function memory.fault(server, op, keys, words, after)
  if not after.needs_memory or takes[op.op] then return end
  local line = line_of(server, op, keys, words)
  local where = script.translate(op, ("user_script:%d"):format(line or 0))
  return ("a server over its maxmemory refuses %s at %s; begin it with a write "
    .. "that needs no memory, such as ZREM, HDEL or PEXPIRE"):format(op.op,
    where)
end

return memory
