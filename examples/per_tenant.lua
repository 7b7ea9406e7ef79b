-- A lock of your own kind: at most N holders at once for each tenant.
--
--    rlockctl examples/per_tenant.lua [LIMIT [JOBS]]       (default 2 and 6)
--
-- Start it in several terminals: they share the limit.
--
-- The policy is the first half of this file; in a real program it would be a
-- separate file. Its key is a sorted set: owner -> end of its lease by the
-- server's clock, so a dead holder's slot is free after its lease. To see what
-- Redis runs: rlockctl script examples.per_tenant

local naming = require "rlock.naming"
local shared = require "rlock.policy.shared"

local now, tell = shared.now, shared.tell

local server = {}                       -- these run inside Redis

-- Sets the end of an owner's lease, never earlier than before, and makes the
-- set expire with the last lease.
local function hold(holders, owner, ends)
  local before = redis.call("zscore", holders, owner)
  if not before or tonumber(before) < ends then
    redis.call("zadd", holders, ends, owner)
  end
  local last = redis.call("zrange", holders, -1, -1, "withscores")[2]
  redis.call("pexpireat", holders, last)
  return "held"
end

function server.acquire(keys, args)
  local holders, owner, lease, limit =
    keys[1], args[1], args[2], tonumber(args[4])
  local time = now()
  redis.call("zremrangebyscore", holders, "-inf", time)
  if not redis.call("zscore", holders, owner)
      and redis.call("zcard", holders) >= limit then
    local first = redis.call("zrange", holders, 0, 0, "withscores")
    return { "busy", tonumber(first[2]) --[[@as number]] - time }
  end
  return hold(holders, owner, time + lease)
end

function server.renew(keys, args)
  local holders, owner, lease, time = keys[1], args[1], args[2], now()
  redis.call("zremrangebyscore", holders, "-inf", time)
  if not redis.call("zscore", holders, owner) then return "lost" end
  return hold(holders, owner, time + lease)
end

function server.release(keys, args)
  if redis.call("zrem", keys[1], args[1]) == 0 then return "lost" end
  tell(args[4], keys[2], "0")
  return "freed"
end

local per_tenant = {
  name = "per_tenant",
  reenter = false,                      -- held once, or not at all
  keys = function(name) return { name, naming.prefix("freed", name) } end,
  channel = function(keys) return keys[2] end,
  extra = function(request) return { request.options.limit } end,
  allows = function(holders, options) return #holders <= options.limit end,
  server = server,
}

-- If this file is required, it returns the policy only.
if ... == "examples.per_tenant" then return per_tenant end

-- The program: more jobs than each tenant may run at once.

local rlock = require "rlock"

local limit, jobs = tonumber(arg[1]) or 2, tonumber(arg[2]) or 6
local client <close> = assert(rlock.open())
local running, most = {}, {}            -- of this process

local function work(tenant, job)
  local slot = client:policy(per_tenant, "jobs:" .. tenant, { limit = limit })
  assert(slot:with(function()
    running[tenant] = (running[tenant] or 0) + 1
    most[tenant] = math.max(most[tenant] or 0, running[tenant])
    print(("%s job %d runs, %d of %d slots used"):format(tenant, job,
      running[tenant], limit))
    rlock.sleep(0.05)
    running[tenant] = running[tenant] - 1
    return true
  end))
end

local tasks = {}
for job = 1, jobs do
  for _, tenant in ipairs { "acme", "globex" } do
    tasks[#tasks + 1] = rlock.spawn(work, tenant, job)
  end
end
for _, task in ipairs(tasks) do task:join() end
print(("done; at most %d and %d ran at once"):format(most.acme, most.globex))
