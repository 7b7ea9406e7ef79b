--- Late delivery: what an abandoned request must not do when the server runs it
--- later. Each row is a scenario, run for all its kinds of locks at once.
---
---   local late_rows = require "spec.rows.late"
---   assert.equal("", late_rows(network))
---
--- A network is { server =, url =, options =, lose(names), arrive() }; options
--- are those of its clients. lose() makes it hold back the next request that
--- contains one of the lock names; arrive() returns once each of those requests
--- has run or never will. Returns the failures, a line or more each.

local assert = require "luassert"
local eventually = require "spec.tools.eventually"
local kinds = require "spec.tools.kinds"
local rlock = require "rlock"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

local PATIENCE = 30 * slow
local LONG = 60 * slow                 -- lease, in seconds

local EVERY = kinds.names(function(kind) return not kind.nodes end)
local EXCLUSIVE = kinds.names(function(kind)
  return not kind.nodes and not kind.rival
end)
local BUILT_IN = kinds.names(function(kind)
  return kind.is_built_in and not kind.rival
end)
local ENTERED_AGAIN = kinds.names(function(kind)
  return kind.is_built_in and not kind.rival and not kind.is_entered_once
end)
local PAIRS = { "read_write_lock", "fair_read_write_lock" }
local LINES = kinds.names(function(kind) return kind.waiting end)

local function is_taken(actor)
  local ok, code = task.run(function()
    return actor.rivals.rival(actor.name):try_lock()
  end)
  assert.same({ nil, "busy" }, { ok, code })
end

local function is_free(actor)
  assert.is_true((task.run(function()
    local its = actor.rivals.rival(actor.name)
    local ok, code = its:try_lock()
    return ok and its:unlock(), code
  end)))
end

-- The server keeps the lock at least as long as its holder believes.
local function lasts(actor, lock)
  local seconds = actor.rivals.lock(actor.name):ttl()
    or actor.rival:call("PTTL", actor.name) / 1000
  assert.is_true(seconds >= lock:valid_for(),
    ("%.3f s on the server, %.3f s here"):format(seconds, lock:valid_for()))
end

-- An actor's lock, with its scripts already loaded: so that the only requests
-- on its connection that can be lost are those of the lock.
local function known(actor, options)
  local lock = actor.world.lock(actor.name, options)
  assert(lock:lock { wait = PATIENCE })
  assert(lock:unlock())
  return lock
end

-- Unlocks; the outage may cause a timeout.
local function let_go(lock)
  local ok, code, detail = lock:unlock()
  assert(ok or code == "timeout", detail)
end

-- Retries while the outcome is unknown, as a program would.
local function insist(fn, ...)
  local arguments = table.pack(...)
  return eventually(function()
    local ok, code = fn(table.unpack(arguments, 1, arguments.n))
    if not ok and code ~= "timeout" and code ~= "connect" then return true end
    return ok
  end, PATIENCE, "an answer")
end

-- What each of the kinds does. Each row calls `lose` and `arrive` once.
local rows = {
  { "a release does not free a later hold of the same named owner",
    EVERY, function(actor)
      local lock = known(actor, { owner = "me" })
      assert(lock:lock())
      actor.lose()
      let_go(lock)
      assert(lock:lock { wait = PATIENCE })
      actor.arrive()
      is_taken(actor)
      assert.is_true(lock:valid_for() > 0)
      assert(lock:unlock())
    end },

  { "a partial release does not shorten the lease of a later hold",
    ENTERED_AGAIN, function(actor)
      local lock = known(actor)
      assert(lock:lock { lease = LONG / 4 })
      assert(lock:lock { lease = LONG / 4 })
      actor.lose()
      let_go(lock)
      assert(lock:lock { lease = LONG, wait = PATIENCE })
      actor.arrive()
      lasts(actor, lock)
      assert(lock:unlock())
      assert(lock:unlock())
    end },

  { "an acquire does not change the lease of a later hold", EXCLUSIVE,
    function(actor)
      local lock = known(actor, { owner = "me" })
      actor.lose()
      assert(lock:lock { lease = LONG / 4, wait = PATIENCE })
      assert(lock:unlock())
      assert(lock:lock { lease = LONG, wait = PATIENCE })
      actor.arrive()
      is_taken(actor)
      if not kinds.of[actor.kind].is_joint then lasts(actor, lock) end
      assert(lock:unlock())
    end },

  { "an acquire does not take it for nobody", EVERY, function(actor)
      local lock = known(actor)
      actor.lose()
      assert(lock:lock { wait = PATIENCE })
      assert(lock:unlock())
      actor.arrive()
      is_free(actor)
    end },

  { "an acquire that was given up does not take it for nobody", EVERY,
    function(actor)
      local lock = known(actor)
      actor.lose()
      if lock:try_lock() then assert(lock:unlock()) end    -- by a retry in time
      actor.world.close()
      actor.arrive()
      is_free(actor)
    end },

  { "an acquire whose task was cancelled does not take it for nobody", EVERY,
    function(actor)
      local lock = known(actor)
      actor.lose()
      local waiting = task.start(function() return lock:lock() end)
      rlock.sleep(0.6 * actor.timeout)
      waiting:cancel()
      actor.world.close()
      actor.arrive()
      is_free(actor)
    end },

  { "the read release of a writer does not free its later read", PAIRS,
    function(actor)
      local pair = actor.client[actor.kind](actor.client, actor.name)
      local read, write = pair:read_lock(), pair:write_lock()
      assert(read:lock())
      assert(read:unlock())            -- loads its script
      assert(write:lock())
      assert(read:lock())
      actor.lose()
      let_go(read)
      assert(read:lock { wait = PATIENCE })
      assert(write:unlock())
      actor.arrive()
      local its = actor.rival[actor.kind](actor.rival, actor.name)
      assert.same({ nil, "busy" }, { task.run(function()
        local ok, code = its:write_lock():try_lock()
        return ok, code
      end) })
      assert(read:unlock())
    end },

  { "a waiter that has left does not stand in line again", LINES,
    function(actor)
      local lock = known(actor)
      local held = actor.rivals.rival(actor.name)
      assert(held:lock())
      actor.lose()
      assert.is_nil((lock:try_lock { wait = 1.8 * actor.timeout }))
      actor.world.close()
      actor.arrive()
      assert.equal(0, kinds.of[actor.kind].waiting(actor.rival, actor.name))
      assert(held:unlock())
    end },

  { "a break_lock does not free a later hold", BUILT_IN, function(actor)
      local lock = known(actor)
      local held = actor.rivals.lock(actor.name)
      assert.is_false(lock:break_lock())
      assert(held:lock())
      actor.lose()
      insist(lock.break_lock, lock)
      assert.equal("lost", (select(2, held:unlock())))
      assert(held:lock())
      actor.arrive()
      assert.is_true(held:is_held())
      assert(held:unlock())
    end },

  { "a permits:set does not undo a later one", { "permits" }, function(actor)
      local permits = actor.client:permits(actor.name)
      assert(permits:set(1))
      actor.lose()
      insist(permits.set, permits, 5)
      assert(permits:set(2))
      actor.arrive()
      assert.equal(2, permits:available())
    end },

  { "an acquire does not take a permit for nobody", { "permits" },
    function(actor)
      local permits = actor.client:permits(actor.name)
      assert(permits:set(1))
      assert(permits:release(permits:acquire()))
      actor.lose()
      local id = assert(permits:acquire { lease = LONG, wait = PATIENCE })
      assert(permits:release(id))
      actor.arrive()
      assert.equal(1, permits:available())
    end },

  { "a count_down does not count the next latch", { "latch" }, function(actor)
      local latch, its = actor.client:latch(actor.name),
        actor.rival:latch(actor.name)
      assert(its:set(2))
      assert(latch:count_down())
      actor.lose()
      local counting = task.start(latch.count_down, latch)
      assert(its:count_down())
      counting:join(PATIENCE)
      actor.world.close()              -- ends the retries
      assert(its:set(2))
      actor.arrive()
      assert.equal(2, its:count())
    end },

  { "a delete does not delete the next latch", { "latch" }, function(actor)
      local latch, its = actor.client:latch(actor.name),
        actor.rival:latch(actor.name)
      assert(its:set(1))
      assert(latch:count())
      assert(latch:delete())
      assert(its:set(1))
      actor.lose()
      insist(latch.delete, latch)
      assert(its:set(2))
      actor.arrive()
      assert.equal(2, its:count())
    end },

  { "an acquire or a release of a semaphore counts once", { "acquire",
      "release" }, function(actor)
      local semaphore, its = actor.client:semaphore(actor.name),
        actor.rival:semaphore(actor.name)
      assert(semaphore:set(2))
      assert(semaphore:acquire(1))
      assert(semaphore:release(1))
      if actor.kind == "release" then assert(semaphore:acquire(1)) end
      actor.lose()
      if actor.kind == "acquire" then
        assert(semaphore:acquire(1, { wait = PATIENCE }))
      end
      semaphore:release(1)             -- is retried
      eventually(function() return its:available() == 2 end, PATIENCE)
      actor.arrive()
      assert.equal(2, its:available())
    end },
}

-- A barrier: all actors meet before the network's step, which runs once.
local Meeting = {}
Meeting.__index = Meeting

local function meeting(n, step)
  return setmetatable({ absent = n, step = step }, Meeting)
end

function Meeting:come()
  local event = rlock.event()
  self[#self + 1] = event
  self:count()
  assert(event:wait(4 * PATIENCE), "not all came")
end

-- Counts an actor that has arrived here, or has failed before.
function Meeting:count()
  self.absent = self.absent - 1
  if self.absent > 0 then return end
  self.step()
  for _, event in ipairs(self) do event:set() end
end

-- Opens a client; retries, because a busy machine may cause timeouts.
local function open(kind, url, options)
  return eventually(function()
    local ok, world = pcall(kinds.open, kind, { url }, options)
    return ok and world
  end, PATIENCE, "a connection")
end

-- Runs a row's scenario with one kind of lock; returns what went wrong.
local function run(scenario, network, meetings)
  local kind = kinds.of[scenario.kind] and scenario.kind or "reentrant"
  local world = open(kind, network.url, network.options)
  local rivals = open(kind, network.server.url)
  local actor = {
    kind = scenario.kind, name = scenario.name, world = world,
    client = world.clients[1], rivals = rivals, rival = rivals.clients[1],
    timeout = network.options.timeout,
  }
  local met = 0
  for i, step in ipairs { "lose", "arrive" } do
    actor[step] = function()
      met = i
      meetings[i]:come()
    end
  end
  local ok, why = pcall(scenario.fn, actor)
  for i = met + 1, 2 do meetings[i]:count() end
  world.close()
  rivals.close()
  if not ok then return ("%s: %s"):format(scenario.name, tostring(why)) end
end

-- The scenarios of all rows, one for each kind of lock.
local function all_scenarios()
  local scenarios = {}
  for _, row in ipairs(rows) do
    for _, kind in ipairs(row[2]) do
      scenarios[#scenarios + 1] = {
        kind = kind, fn = row[3], name = ("<%s, %s>"):format(kind, row[1]),
      }
    end
  end
  return scenarios
end

return function(network)
  local scenarios, names, wrong = all_scenarios(), {}, {}
  for i, scenario in ipairs(scenarios) do names[i] = scenario.name end
  local meetings = {
    meeting(#scenarios, function() network.lose(names) end),
    meeting(#scenarios, network.arrive),
  }
  local function begin(scenario)
    local why = run(scenario, network, meetings)
    if why then table.insert(wrong, why) end
  end
  local tasks = {}
  for i, scenario in ipairs(scenarios) do    -- one by one, to prevent timeouts
    tasks[i] = task.start(begin, scenario)
    eventually(function() return meetings[1].absent == #scenarios - i end,
      PATIENCE, scenario.name)
  end
  for _, each in ipairs(tasks) do each:join(4 * PATIENCE) end
  table.sort(wrong)
  return table.concat(wrong, "\n")
end
