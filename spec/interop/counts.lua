--- What holds for semaphores, permits with leases, and latches.

local assert = require "luassert"
local commands = require "spec.interop.commands"
local locks = require "spec.interop.locks"
local world = require "spec.interop.world"

local eventually, now = world.eventually, world.now
local LEASE = 60000
local WAKES = 9
local TASKS, PERMITS, ROUNDS = 3, 4, 400

local function contend(w, kind)
  locks.contend[2](w, kind, function(name)
    assert.is_true(w.ours:task():ask("set", kind, name, 1))
  end)
end

local function crowd(w, kind)
  local name, key, all, most = w:name(), w:counter(), {}, 0
  assert.is_true(w.theirs:task():ask("set", kind, name, PERMITS))
  for a in w:both_ways() do
    for _ = 1, TASKS do
      all[#all + 1] = a:task():send("crowd", kind, name, key, ROUNDS)
    end
  end
  for _, pending in ipairs(all) do
    local _, n = pending:answer(120)
    most = math.max(most, n)
  end
  assert.is_true(most > 1 and most <= PERMITS, most .. " at once")
  assert.same({ true, PERMITS }, { w.ours:task():ask("count", kind, name) })
end

local function woken(w, kind)
  for a, b in w:both_ways() do
    local times = {}
    for i = 1, WAKES do
      local name, holder = w:name(i), a:task()
      assert.is_true(holder:ask("set", kind, name, 1))
      local ok, id = holder:ask("take", kind, name, -1, LEASE)
      assert.is_true(ok)
      local waiting = b:task():send("take", kind, name, -1, LEASE)
      w:asleep(name)
      local start = now()
      assert.is_true(holder:ask("give", kind, name, id))
      assert.is_true((waiting:answer()))
      times[i] = waiting.at - start
    end
    world.prompt(times, b.program .. " woken by " .. a.program)
  end
end

local function counted(w, kind)
  for a, b in w:both_ways() do
    local name, one, other = w:name(), a:task(), b:task()
    local function count(n)
      assert.same({ true, n }, { one:ask("count", kind, name) })
      assert.same({ true, n }, { other:ask("count", kind, name) })
    end
    count(0)
    assert.is_true(one:ask("set", kind, name, 2))
    count(2)
    local _, first = one:ask("take", kind, name, -1, LEASE)
    local _, second = other:ask("take", kind, name, -1, LEASE)
    count(0)
    assert.is_false(one:ask("take", kind, name, 0, LEASE))
    assert.is_false(other:ask("take", kind, name, 50, LEASE))
    assert.is_true(other:ask("add", kind, name, 3))
    count(3)
    assert.is_true(one:ask("add", kind, name, -4))
    count(-1)
    assert.is_false(other:ask("take", kind, name, 0, LEASE))
    assert.is_true(one:ask("give", kind, name, second or first))
    count(0)
    assert.is_true(one:ask("give", kind, name, first))
    count(1)
  end
end

-- the plain semaphore -----------------------------------------------------

local function set_once(w, kind)
  for a, b in w:both_ways() do
    local name, one, other = w:name(), a:task(), b:task()
    assert.is_true(one:ask("set", kind, name, 5))
    assert.is_false(other:ask("set", kind, name, 7))
    assert.same({ true, 5 }, { other:ask("drain", kind, name) })
    assert.same({ true, 0 }, { one:ask("count", kind, name) })
    local waiting = one:send("take", kind, name, -1, LEASE)
    w:asleep(name)
    local start = now()
    assert.is_true(other:ask("add", kind, name, 1))
    world.at_once(waiting, start)
  end
end

-- Nobody owns a permit: those of a process that is killed are gone until
-- somebody adds them again. But nothing else is.
local function waiter_killed(w, kind, process, other)
  local victim, name, waiter = w:victim(process), w:name(), other:task()
  assert.is_true(other:task():ask("set", kind, name, 1))
  assert.is_true(victim:task():ask("take", kind, name, -1, -1))
  victim:task():send("take", kind, name, -1, -1)
  w:asleep(name)
  local waiting = waiter:send("take", kind, name, -1, -1)
  w:asleep(name, 2)
  victim:kill()
  local start = now()
  assert.is_true(other:task():ask("give", kind, name))
  world.at_once(waiting, start)
end

-- permits with leases -----------------------------------------------------

local function given_by_id(w, kind)
  for a, b in w:both_ways() do
    local name, one, other = w:name(), a:task(), b:task()
    assert.is_true(one:ask("set", kind, name, 2))
    local _, id = one:ask("take", kind, name, -1, LEASE)
    assert.matches("^%x+$", id)
    assert.equal(32, #id)
    assert.same({ true, 1 }, { other:ask("acquired", kind, name) })
    assert.is_true(other:ask("give", kind, name, id))
    assert.is_false(one:ask("give", kind, name, id))
    assert.is_false(other:ask("give", kind, name, id))
    assert.same({ true, 2 }, { one:ask("count", kind, name) })
    assert.same({ true, 0 }, { one:ask("acquired", kind, name) })
  end
end

local function expires(w, kind)
  for a, b in w:both_ways() do
    local name, holder, waiter = w:name(), a:task(), b:task()
    assert.is_true(holder:ask("set", kind, name, 1))
    local start = now()
    local _, id = holder:ask("take", kind, name, -1, 500)
    local waiting = waiter:send("take", kind, name, -1, LEASE)
    world.after_lease(waiting, start, 0.5)
    assert.is_false(holder:ask("give", kind, name, id))
    assert.same({ true, 0 }, { holder:ask("count", kind, name) })
  end
end

local function renewed(w, kind)
  for a, b in w:both_ways() do
    local name, one, other = w:name(), a:task(), b:task()
    assert.is_true(one:ask("set", kind, name, 1))
    local _, id = one:ask("take", kind, name, -1, 10000)
    assert.is_true(other:ask("renew", kind, name, id, LEASE))
    local _, ends = table.unpack(w:look("ZRANGE",
      ("{%s}:timeout"):format(name), 0, 0, "WITHSCORES"))
    local left = tonumber(ends) / 1000 - w:call("TIME")[1]
    assert.is_true(left > 50 and left < 62, "left " .. left)
    assert.is_false(other:ask("take", kind, name, 0, LEASE))
    assert.is_true(one:ask("give", kind, name, id))
    assert.is_false(other:ask("renew", kind, name, id, LEASE))
  end
end

local function holder_killed(w, kind, process, other)
  local victim, name, waiter = w:victim(process), w:name(), other:task()
  assert.is_true(other:task():ask("set", kind, name, 2))
  local start = now()
  for _ = 1, 2 do
    assert.is_true(victim:task():ask("take", kind, name, -1,
      world.WATCHDOG * 1000))
  end
  victim:task():send("take", kind, name, -1, LEASE)
  local waiting = waiter:send("take", kind, name, -1, LEASE)
  victim:kill()
  world.after_lease(waiting, start)
  assert.is_true(waiter:ask("take", kind, name, 5000, LEASE))
end

-- latches -----------------------------------------------------------------

local function counts_down(w, kind)
  for a, b in w:both_ways() do
    local name, one, other = w:name(), a:task(), b:task()
    assert.is_true(one:ask("await", kind, name, -1))
    assert.is_true(one:ask("set", kind, name, 2))
    assert.is_false(other:ask("set", kind, name, 3))
    assert.same({ true, 2 }, { other:ask("count", kind, name) })
    assert.is_false(other:ask("await", kind, name, 50))
    assert.is_true(other:ask("down", kind, name))
    assert.same({ true, 1 }, { one:ask("count", kind, name) })
    assert.is_true(one:ask("down", kind, name))
    assert.is_true(one:ask("down", kind, name))
    assert.same({ true, 0 }, { other:ask("count", kind, name) })
    assert.is_true(other:ask("await", kind, name, 0))
    assert.is_true(other:ask("set", kind, name, 1))
    assert.is_true(one:ask("delete", kind, name))
    assert.same({ true, 0 }, { other:ask("count", kind, name) })
    assert.is_true(other:ask("await", kind, name, 0))
  end
end

local function waiters_go_on(w, kind)
  for a, b in w:both_ways() do
    local times = {}
    for i = 1, WAKES do
      local name, all = w:name(i), {}
      assert.is_true(a:task():ask("set", kind, name, 1))
      for process in w:both_ways() do
        for _ = 1, 2 do
          all[#all + 1] = process:task():send("await", kind, name, -1)
        end
      end
      w:asleep(name, 2)
      local start = now()
      assert.is_true(b:task():ask("down", kind, name))
      for _, pending in ipairs(all) do
        assert.is_true((pending:answer()))
        times[#times + 1] = pending.at - start
      end
    end
    world.prompt(times, "waiters for " .. b.program)
  end
end

local function counted_together(w, kind)
  local name, all, n = w:name(), {}, 2000
  assert.is_true(w.ours:task():ask("set", kind, name, n + 1))
  local waiting = w.theirs:task():send("await", kind, name, -1)
  local ours = { w.ours:task(), w.ours:task() }
  local theirs = { w.theirs:task(), w.theirs:task() }
  for i = 0, n - 1 do
    local tasks = i % 2 == 0 and ours or theirs
    all[#all + 1] = tasks[i // 2 % 2 + 1]:send("down", kind, name)
  end
  for _, pending in ipairs(all) do assert.is_true((pending:answer())) end
  assert.same({ true, 1 }, { w.ours:task():ask("count", kind, name) })
  assert.is_false(waiting:is_answered())
  local start = now()
  assert.is_true(ours[1]:ask("down", kind, name))
  world.at_once(waiting, start)
  eventually(function() return w:look("EXISTS", name) == 0 end)
end

-- Redisson's own waiters sleep on.
local function deleted(w, kind)
  local name = w:name()
  assert.is_true(w.theirs:task():ask("set", kind, name, 2))
  local waiting = w.ours:task():send("await", kind, name, -1)
  w:asleep(name)
  local start = now()
  assert.is_true(w.theirs:task():ask("delete", kind, name))
  world.at_once(waiting, start)
end

-- A latch outlives who set it, and who counts.
local function setter_killed(w, kind, process, other)
  local victim, name = w:victim(process), w:name()
  assert.is_true(victim:task():ask("set", kind, name, 2))
  assert.is_true(victim:task():ask("down", kind, name))
  victim:task():send("await", kind, name, -1)
  local waiting = other:task():send("await", kind, name, -1)
  w:asleep(name, 2)
  victim:kill()
  assert.is_false(waiting:is_answered())
  local start = now()
  assert.is_true(other:task():ask("down", kind, name))
  world.at_once(waiting, start)
end

local function both_killed(ours, theirs, scenario)
  return { ours, function(w, kind) scenario(w, kind, w.ours, w.theirs) end },
    { theirs, function(w, kind) scenario(w, kind, w.theirs, w.ours) end }
end

local both = {
  { "loses no update with one permit while both contend", contend },
  { "never lets in more than there are permits", crowd },
  { "wakes the other side at once", woken },
  { "is counted alike by both sides", counted },
}

local function list(more)
  return table.move(more, 1, #more, #both + 1, table.move(both, 1, #both, 1,
    {}))
end

local w1, w2 = both_killed("goes on when ours waits and is killed",
  "goes on when theirs waits and is killed", waiter_killed)
local h1, h2 = both_killed("has the permits back when ours is killed",
  "has the permits back when theirs is killed", holder_killed)
local s1, s2 = both_killed("stays when ours, who set it, is killed",
  "stays when theirs, who set it, is killed", setter_killed)

return {
  shared = both,
  woken = both[3],
  semaphore = list {
    { "is set once, drained and added to by either side", set_once }, w1, w2,
  },
  permits = list {
    { "is given back by id, by either side", given_by_id },
    { "has its permits back when their leases are over", expires },
    { "has its permits renewed by either side", renewed }, h1, h2,
    commands.permits_shown,
  },
  latch = {
    { "is set once and counted down by either side", counts_down },
    { "lets all who wait go on, on both sides, at once", waiters_go_on },
    { "counts each time that either side counts", counted_together },
    { "lets ours go on when theirs deletes it", deleted }, s1, s2,
  },
}
