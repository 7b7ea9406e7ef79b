--- The kinds of locks, for specs that run against all of them.
---
---   local kinds = require "spec.tools.kinds"
---   local world = kinds.open("read", urls, { watchdog = 1 })
---   world.lock("a name", { owner = "me" })
---                              the lock under test: here a reader
---   world.rival("a name")      a lock that excludes it: here a writer
---   world.members("a name")    its member locks, or the lock itself
---   world.close()
---
--- kinds.of[NAME] describes a kind; each side of a read/write lock is one:
---   nodes           number of servers; default 1
---   is_built_in     whether a factory of the client makes it
---   is_fenced       whether it is another kind with the option `fenced`
---   pair            the name of the read/write lock of which it is a side
---   reader          the kind that is the other side, if this one is the writer
---   is_entered_once whether its holder cannot re-enter it
---   polls           whether its waiters poll instead of subscribing
---   crowd           how many clients may contend for it here; default 100
---   is_joint        whether it consists of member locks, without its own key
---   waiting         (client, name) -> the number of queued waiters, if it has
---                   a queue

local few = require "spec.tools.few"
local fixtures = require "spec.tools.fixtures"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local slow = require "spec.tools.slow"

local kinds = {}

local SHARED = "rlock.spec.tools.kinds"

-- Makes a lock by this method of a client, then by this one of the pair.
local function by(method, side, fenced)
  return function(clients, name, options)
    local its = { fenced = fenced and true }
    for option, value in pairs(options or {}) do its[option] = value end
    local made = clients[1][method](clients[1], name, its)
    return side and made[side](made) or made
  end
end

-- Makes a lock by the README's user policy, which here admits one holder.
local few_policy = assert(load(few))()

local function of_few(clients, name, options)
  return clients[1]:policy(few_policy, name, {
    most = 1, owner = options and options.owner,
  })
end

local function two_locks(clients, name, options)
  return {
    clients[1]:lock(name .. ":a", options),
    clients[1]:lock(name .. ":b", options),
  }
end

local function one_of_each(clients, name)
  local locks = {}
  for i, client in ipairs(clients) do locks[i] = client:lock(name) end
  return locks
end

kinds.of = {
  few = { lock = of_few, is_entered_once = true },
  multi = {
    crowd = 30, is_joint = true, members = two_locks,
    lock = function(clients, name, options)
      return rlock.multi_lock(two_locks(clients, name, options))
    end,
  },
  red = {
    nodes = 3, crowd = 30, polls = true, is_joint = true,
    members = one_of_each,
    lock = function(clients, name)
      return rlock.red_lock(clients, name, { node_timeout = slow })
    end,
  },
}

-- The number of queued waiters.
local waiting = {
  fair = function(client, name)
    return client:call("LLEN", "redisson_lock_queue:{" .. name .. "}")
  end,
  fair_write = function(client, name)
    return client:call("ZCARD", "rlock_frw_queue:{" .. name .. "}")
  end,
}
waiting.fenced_fair = waiting.fair
waiting.fenced_fair_write = waiting.fair_write

local function add(name, policy, kind)
  kind.is_built_in, kind.waiting = true, waiting[name]
  kind.is_entered_once = policy.reenter == false
  kind.polls = not policy.channel
  kinds.of[name] = kind
end

-- Adds the locks of a row of lock/kinds.lua; `fenced` is "fenced_" or nil.
local function add_all(row, fenced)
  local name = (fenced or "") .. row.name
  local policy = require("rlock.policy." .. name)
  if row.pair then
    local reader = name:gsub("readwrite", "read")
    local writer = name:gsub("readwrite", "write")
    local write_lock = by(row.factory, "write_lock", fenced)
    add(reader, policy.read, { pair = name, rival = write_lock,
      lock = by(row.factory, "read_lock", fenced), is_fenced = fenced ~= nil })
    add(writer, policy.write, { pair = name, reader = reader,
      lock = write_lock, is_fenced = fenced ~= nil })
  else
    add(name, policy, { lock = by(row.factory, nil, fenced),
      is_fenced = fenced ~= nil })
  end
end

--- The names of all built-in policies.
kinds.policies = {}

for _, row in ipairs(require "rlock.lock.kinds") do
  if not row.driver then add_all(row) end
  table.insert(kinds.policies, row.name)
  if not (row.driver or row.fenced) then
    add_all(row, "fenced_")
    table.insert(kinds.policies, "fenced_" .. row.name)
  end
end

--- The sorted names of the kinds for which test(kind) is true, or of all;
--- without those that are other kinds with the option `fenced`, unless
--- `with_fenced`.
function kinds.names(test, with_fenced)
  local names = {}
  for name, kind in pairs(kinds.of) do
    if (with_fenced or not kind.is_fenced) and (not test or test(kind)) then
      names[#names + 1] = name
    end
  end
  table.sort(names)
  return names
end

--- Starts private servers, as many as this kind needs.
function kinds.start(which, options)
  local servers = {}
  for i = 1, kinds.of[which].nodes or 1 do servers[i] = redis.start(options) end
  return servers
end

--- Servers shared by all specs of this kind.
function kinds.servers(which)
  if not kinds.of[which].nodes then return { redis.shared() } end
  local registry = debug.getregistry()
  registry[SHARED] = registry[SHARED] or kinds.start(which)
  return registry[SHARED]
end

--- Opens what one process has: a client for each server, and locks.
---@param which string
---@param urls table
---@param options? table those of rlock.open
function kinds.open(which, urls, options)
  local kind, clients, world = kinds.of[which], {}, {}
  for i, url in ipairs(urls) do
    clients[i] = fixtures.open(url, options)
  end
  local function make(how)
    return function(name, ...) return how(clients, name, ...) end
  end
  world.clients = clients
  world.lock, world.rival = make(kind.lock), make(kind.rival or kind.lock)
  world.members = kind.members and make(kind.members)
    or function(name) return { world.lock(name) } end
  function world.close()
    for _, client in ipairs(clients) do client:close() end
  end
  return world
end

return kinds
