--- The kinds of locks on ZooKeeper, as policies: the fields that lock.lua and
--- its parts read. Nothing runs on the server, so `ops` only names the
--- operations, for messages. Fields of ZooKeeper's kinds:
---   queue   of its nodes: `mark` and `blocks`, see place.lua
---   most, leases   of the mutex, see below
---   class   of a counter's target: its module, loaded on first use
---   needs, of_session   of counters: their operations' replies, and whether
---                  permits belong to the session that took them
---   tells_queue    whether `peek` tells who waits
---   data           of an owner's node, a function; default: see backend.lua
---   lasts          whether its path is a persistent node, because it has data

local identity = require "rlock.util.identity"
local naming = require "rlock.naming"

local kinds = {}

-- The operations. A waiter that gives up must `leave` the queue.
local ops = {}
for _, name in ipairs { "acquire", "renew", "release", "leave", "peek",
    "break_", "set", "count", "count_down", "delete", "enter", "withdraw",
    "look", "remove" } do
  ops[name] = { op = name, name = name, where = "zookeeper." .. name }
end

-- Tells `acquire` how long the caller waits. One that does not wait leaves the
-- queue at once.
local function extra(request) return request end

local function wakes_all() return "all" end

local function kind(fields)
  fields.ops, fields.extra = ops, extra
  return fields
end

-- These have the same nodes, so they exclude each other. They wait for kazoo's
-- locks, too.
local function mutex(name, mark)
  mark = mark or "lock-"
  return kind { name = name, exclusive = true,
    queue = { mark = mark, blocks = { [mark] = true,
      ["__lock__"] = mark == "lock-" or nil } } }
end

local all = {
  reentrant = mutex "reentrant", fair = mutex "fair", fenced = mutex "fenced",
}

-- What participants of Curator's elections call themselves.
local function participant(owner)
  local who = identity.decode(owner)
  return who and identity.show(who) or owner
end

-- Elections: as the locks, or as Curator's LeaderLatch or LeaderSelector.
all.election = mutex "election"
all["election.latch"] = mutex("election.latch", "latch-")
all["election.selector"] = mutex "election.selector"
for name, one in pairs(all) do
  one.tells_queue = name:find "^election" ~= nil
  if name:find "^election%." then one.data = participant end
end

--- The layouts of an election, and their kinds.
kinds.elections = { own = "election", latch = "election.latch",
  selector = "election.selector" }

all.compute = mutex "compute"
all.compute.reenter = false

-- A semaphore with one lease: the first node of one queue waits until there
-- are at most `most` nodes in another.
all.mutex = kind { name = "mutex", exclusive = true, reenter = false, most = 1,
  queue = { mark = "lock-", blocks = { ["lock-"] = true } },
  leases = { mark = "lease-", blocks = { ["lease-"] = false } } }

-- As the mutex, but the node `limit` says how many leases there may be.
all.permits = kind { name = "permits", class = "permits", of_session = true,
  queue = all.mutex.queue, leases = all.mutex.leases,
  needs = {
    acquire = { held = "n", busy = "n" }, release = { freed = "", lost = "" },
    renew = { held = "", lost = "" }, set = { held = "" },
    count = { free = "nn", held = "nn" },
    peek = { free = "nnt", held = "nnt" },
  } }

-- It has its own driver.
all.semaphore = kind { name = "semaphore", class = "permits",
  driver = "zookeeper.semaphore", needs = all.permits.needs,
  queue = all.mutex.queue, leases = all.mutex.leases }

all.latch = kind { name = "latch", class = "latch", wakes = wakes_all,
  needs = {
    set = { held = "", refused = "s" }, count_down = { held = "n", free = "n" },
    count = { held = "n", free = "n" }, delete = { free = "", freed = "" },
  } }

-- The members of a double barrier do not wait for each other in a queue.
all.barrier = kind { name = "barrier", class = "barrier", wakes = wakes_all,
  lasts = true,
  queue = { mark = "member-", blocks = { ["member-"] = false } },
  needs = {
    enter = { held = "n", busy = "nn", lost = "", refused = "s" },
    leave = { free = "", busy = "nn", lost = "" },
    withdraw = { held = "n", freed = "" }, remove = { freed = "", free = "" },
    look = { free = "", busy = "nn" }, renew = { held = "", lost = "" },
    release = { freed = "", lost = "" },
  } }

-- A reader waits for writers, a writer for both.
local function add_pair(name)
  local read = kind { name = name .. ".read",
    queue = { mark = "__READ__",
      blocks = { ["__READ__"] = false, ["__WRIT__"] = true } } }
  local write = kind { name = name .. ".write", exclusive = true,
    queue = { mark = "__WRIT__",
      blocks = { ["__READ__"] = true, ["__WRIT__"] = true } } }
  read.peer, write.peer, read.is_shared = write, read, true
  all[read.name], all[write.name] = read, write
end

add_pair "readwrite"
add_pair "fair_readwrite"

local WHY_NOT = {
  spin = "its waiters are woken, so none has to spin; use client:lock",
  simple = "ZooKeeper has no key with a single value; use client:lock",
}

--- Finds a kind. All have fencing tokens, so "fenced_mutex" is the mutex.
--- Raises an error if ZooKeeper has no such kind.
---@param which string|table
---@param level? integer as in error(); default: 2
---@return table
function kinds.load(which, level)
  if type(which) == "string" then which = which:gsub("^fenced_", "") end
  local found = all[which]
  if found then return found end
  if type(which) == "table" and all[which.name] == which then return which end
  if type(which) == "table" then which = which.name end
  error(("%s is not for ZooKeeper: %s"):format(naming.show(tostring(which)),
    WHY_NOT[which] or "policies of users and red locks need Redis"),
    level or 2)
end

--- A kind of `load` with fencing tokens: each of them.
function kinds.fenced(loaded) return loaded end

--- The two sides of a read/write lock.
---@param name string
function kinds.sides(name)
  return { read = kinds.load(name .. ".read", 4),
    write = kinds.load(name .. ".write", 4) }
end

return kinds
