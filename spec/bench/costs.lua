--- The server's cost of each operation of each kind of lock: commands inside
--- its requests, and microseconds. Prints a table.
---
---   rlockctl costs.lua [ROUNDS]              the server is RLOCK_URL; two
---                                            more for red locks RLOCK_URLS
---
--- The servers must be private: statistics and data are reset.

local rlock = require "rlock"
local server_time = require "spec.bench.server_time"

local ROUNDS = tonumber(arg[1] or 3000)
local ROW = "%-18s %-24s %8s %8s   %s"

local client = assert(rlock.open())

-- Commands that Redisson 4.7 needs for the same, where known; "+1" is a
-- separate request, and a range depends on the state.
local redisson = {
  lock = {
    ["take, free"] = "3", ["take, held by another"] = "3",
    ["enter again"] = "4", ["give one back"] = "5+1", ["give back"] = "6+1",
  },
  mutex = {
    ["take, free"] = "3", ["take, held by another"] = "3",
    ["give back"] = "6+1",
  },
  spin_lock = {
    ["take, free"] = "3", ["take, held by another"] = "3",
    ["enter again"] = "4", ["give one back"] = "4+1", ["give back"] = "5+1",
  },
  fenced_lock = {
    ["take, free"] = "4", ["take, held by another"] = "3",
    ["enter again"] = "5", ["give one back"] = "5+1", ["give back"] = "6+1",
  },
  fair_lock = { ["take, free"] = "8", ["give back"] = "10+1" },
  read_lock = { ["take, free"] = "6-7", ["give back"] = "10+1" },
  write_lock = { ["take, free"] = "4-5" },
  semaphore = { ["take"] = "2", ["take, none left"] = "1", ["give"] = "2" },
  permits = {
    ["take"] = "5", ["take, one is over"] = "8", ["take, none left"] = "3",
    ["give back"] = "4",
  },
  latch = { ["set"] = "3", ["count down"] = "1", ["count to nothing"] = "3" },
  ["multi_lock of 2"] = { ["take, free"] = "3+3", ["give back"] = "7+7" },
}

local function measure(kind, operation, fn)
  local cost = server_time.of(client, ROUNDS, fn)
  print(ROW:format(kind, operation, ("%.1f"):format(cost.commands),
    ("%.2f"):format(cost.usec), (redisson[kind] or {})[operation] or ""))
end

local function ok(result, code, detail)
  if result == nil then error(("%s: %s"):format(code, detail), 2) end
  return result
end

local function clear() assert(client:call("FLUSHDB")) end

-- The operations of a lock; make(i) returns our lock for one round, and
-- rival(i) the same lock for another owner.
local function lock(kind, make, rival, is_entered_once)
  measure(kind, "take, free", function(i) ok(make(i):try_lock()) end)
  measure(kind, "take, held by another", function(i)
    assert(not rival(i):try_lock())
  end)
  if not is_entered_once then
    measure(kind, "enter again", function(i) ok(make(i):try_lock()) end)
    measure(kind, "give one back", function(i) ok(make(i):unlock()) end)
  end
  measure(kind, "give back", function(i) ok(make(i):unlock()) end)
  clear()
end

local function by(owner, method, side, its)
  its = its or client
  return function(i)
    local made = its[method](its, "costs:" .. i, { owner = owner })
    return side and made[side](made) or made
  end
end

local function plain(kind, is_entered_once)
  lock(kind, by("me", kind), by("you", kind), is_entered_once)
end

-- The cost of a deadline in each request, see rlock/redis/expiry.lua.
local function expiring()
  local its <close> = assert(rlock.open { seal = "time" })
  lock("lock, seal = time", by("me", "lock", nil, its),
    by("you", "lock", nil, its))
end

local function pair(prefix, method)
  for _, side in ipairs { "read_lock", "write_lock" } do
    lock(prefix .. side, by("me", method, side),
      by("you", method, "write_lock"))
  end
end

-- Caches handles, for locks whose handle tracks its own holds.
local function kept(make)
  local made = {}
  return function(i)
    made[i] = made[i] or make(i)
    return made[i]
  end
end

local function multi_lock()
  local function two(owner)
    return function(i)
      return rlock.multi_lock {
        client:lock("costs:a" .. i, { owner = owner }),
        client:lock("costs:b" .. i, { owner = owner }),
      }
    end
  end
  lock("multi_lock of 2", kept(two "me"), two "you")
end

local function red_lock(urls)
  local function of_three(first)
    local clients = { first }
    for url in urls:gmatch("%S+") do
      clients[#clients + 1] = assert(rlock.open(url))
    end
    return function(i)
      return rlock.red_lock(clients, "costs:" .. i, { node_timeout = 3 })
    end
  end
  lock("red_lock, 1 of 3", kept(of_three(client)), of_three(rlock.open()))
end

local function semaphore()
  local its = client:semaphore("costs")
  ok(its:set(ROUNDS + 1))
  measure("semaphore", "take", function() ok(its:try_acquire()) end)
  measure("semaphore", "take, none left", function()
    assert(not its:try_acquire())
  end)
  measure("semaphore", "give", function() ok(its:release()) end)
  clear()
end

local function permits()
  local its, ids = client:permits("costs"), {}
  ok(its:set(ROUNDS + 1))
  measure("permits", "take", function(i)
    ids[i] = ok(its:acquire { lease = 600 })
  end)
  measure("permits", "take, none left", function()
    assert(not its:acquire { wait = 0 })
  end)
  measure("permits", "renew", function(i) ok(its:renew(ids[i], 700)) end)
  measure("permits", "give back", function(i) ok(its:release(ids[i])) end)
  for i = 0, ROUNDS do
    ok(client:call("SET", "costs:" .. i, 0))
    ok(client:call("ZADD", ("{costs:%d}:timeout"):format(i), 1, "its id"))
  end
  measure("permits", "take, one is over", function(i)
    ok(client:permits("costs:" .. i):acquire { lease = 600, wait = 0 })
  end)
  clear()
end

local function latch()
  local function its(i) return client:latch("costs:" .. i) end
  measure("latch", "set", function(i) ok(its(i):set(2)) end)
  measure("latch", "count down", function(i) ok(its(i):count_down()) end)
  measure("latch", "count to nothing", function(i) ok(its(i):count_down()) end)
  clear()
end

print(ROW:format("", "", "commands", "us", "Redisson's commands"))
plain "lock"
expiring()
plain("mutex", true)
plain("simple_lock", true)
plain "spin_lock"
plain "fenced_lock"
plain "fair_lock"
pair("", "read_write_lock")
pair("fair ", "fair_read_write_lock")
multi_lock()
if os.getenv "RLOCK_URLS" then red_lock(os.getenv "RLOCK_URLS") end
semaphore()
permits()
latch()
client:close()
