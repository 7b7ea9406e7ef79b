--- What holds for every lock that both sides know. A scenario is a title and a
--- function of the world and the kind of lock.

local assert = require "luassert"
local world = require "spec.interop.world"

local eventually, now = world.eventually, world.now
local LEASE = 60000          -- no waiter that sleeps it out ends in time
local TASKS, ROUNDS = 3, 350
local WAKES = 9
local BUSY = 120             -- seconds that contention may take

-- Tells `n` tasks of a process to contend; the pending answers go to `all`.
local function contend(all, n, process, kind, name, key, rounds)
  for _ = 1, n do
    all[#all + 1] = process:task():send("contend", kind, name, key, rounds)
  end
end

--- Tasks of both sides contend for a lock.
---@param rounds integer of each task
---@return integer # how often it went from one side to the other
local function together(w, kind, name, rounds)
  local key, all, mixed, backwards = w:counter(), {}, 0, 0
  contend(all, TASKS, w.theirs, kind, name, key, rounds)
  eventually(function() return w:counted(key) > 0 end, BUSY, "a first round")
  contend(all, TASKS, w.ours, kind, name, key, rounds)
  for _, pending in ipairs(all) do
    local _, switches, back = pending:answer(BUSY)
    mixed, backwards = mixed + switches, backwards + back
  end
  assert.same({ 2 * TASKS * rounds, 2 * TASKS * rounds }, { w:counted(key) })
  assert.equal(0, backwards, "tokens that were not greater")
  return mixed
end

---@param prepare? function called with the name before all
local function both_contend(w, kind, prepare)
  local name = w:name()
  if prepare then prepare(name) end
  local mixed = together(w, kind, name, ROUNDS)
  assert.is_true(mixed > 2, "they did not contend: " .. mixed)
end

local function excluded(w, kind)
  for a, b in w:both_ways() do
    local name, holder, other = w:name(), a:task(), b:task()
    assert.is_true(holder:ask("take", kind, name, -1, LEASE))
    assert.is_false(other:ask("take", kind, name, 0, LEASE))
    assert.is_false(other:ask("take", kind, name, 50, LEASE))
    assert.is_false(other:ask("give", kind, name))
    local _, locked, count = other:ask("state", kind, name)
    assert.same({ 1, 0 }, { locked, count })
    assert.is_true(holder:ask("give", kind, name))
    assert.is_true(other:ask("take", kind, name, 0, LEASE))
    assert.is_false(holder:ask("give", kind, name))
    assert.is_true(other:ask("give", kind, name))
    eventually(function()       -- Curator deletes its node in the background
      return select(2, holder:ask("state", kind, name)) == 0
    end)
  end
end

local function woken(w, kind)
  for a, b in w:both_ways() do
    local times = {}
    for i = 1, WAKES do
      local name, holder, waiter = w:name(i), a:task(), b:task()
      assert.is_true(holder:ask("take", kind, name, -1, LEASE))
      local waiting = waiter:send("take", kind, name, -1, LEASE)
      w:asleep(name)
      assert.is_false(waiting:is_answered())
      local start = now()
      assert.is_true(holder:ask("give", kind, name))
      assert.is_true((waiting:answer()))
      times[i] = waiting.at - start
      assert.is_true(waiter:ask("give", kind, name))
    end
    world.prompt(times, b.program .. " woken by " .. a.program)
  end
end

local function entered_again(w, kind)
  for a, b in w:both_ways() do
    local name, holder, other = w:name(), a:task(), b:task()
    assert.is_true(holder:ask("take", kind, name, -1, LEASE))
    assert.is_true(holder:ask("take", kind, name, 0, LEASE))
    local _, locked, count = holder:ask("state", kind, name)
    assert.same({ 1, 2 }, { locked, count })
    _, locked, count = other:ask("state", kind, name)
    assert.same({ 1, 0 }, { locked, count })
    assert.is_true(holder:ask("give", kind, name))
    assert.is_false(other:ask("take", kind, name, 0, LEASE))
    assert.is_true(holder:ask("give", kind, name))
    assert.is_true(other:ask("take", kind, name, 0, LEASE))
    assert.is_true(other:ask("give", kind, name))
  end
end

local function leases_seen(w, kind)
  for a, b in w:both_ways() do
    local name, holder, other = w:name(), a:task(), b:task()
    assert.is_true(holder:ask("take", kind, name, -1, LEASE))
    local _, _, _, ttl = other:ask("state", kind, name)
    assert.is_true(ttl > LEASE / 2 and ttl <= LEASE, "ttl " .. ttl)
    assert.is_true(holder:ask("give", kind, name))

    assert.is_true(holder:ask("take", kind, name, -1, -1))
    local least = world.WATCHDOG * 1000
    eventually(function()              -- the watchdog renews it
      _, _, _, ttl = other:ask("state", kind, name)
      assert.is_true(ttl > 0, "it was not renewed")
      local has_risen = ttl > least + 100
      least = math.min(least, ttl)
      return has_risen
    end, 20, "a renewal by " .. a.program)
    assert.is_true(holder:ask("give", kind, name))
  end
end

local function expires(w, kind)
  for a, b in w:both_ways() do
    local name, holder, waiter = w:name(), a:task(), b:task()
    local start = now()
    assert.is_true(holder:ask("take", kind, name, -1, 500))
    local waiting = waiter:send("take", kind, name, -1, LEASE)
    world.after_lease(waiting, start, 0.5)
    assert.is_false(holder:ask("give", kind, name))
    local _, locked, count = waiter:ask("state", kind, name)
    assert.same({ 1, 1 }, { locked, count })
    assert.is_true(waiter:ask("give", kind, name))
  end
end

local function forced(w, kind)
  for a, b in w:both_ways() do
    for waiter, breaker in w:both_ways() do
      local name, holder, next_one = w:name(), a:task(), waiter:task()
      assert.is_true(holder:ask("take", kind, name, -1, LEASE))
      local waiting = next_one:send("take", kind, name, -1, LEASE)
      w:asleep(name)
      local start = now()
      assert.is_true(breaker:task():ask("force", kind, name))
      world.at_once(waiting, start)
      assert.is_false(holder:ask("give", kind, name))
      assert.is_true(next_one:ask("give", kind, name))
      assert.is_false(b:task():ask("force", kind, name))
    end
  end
end

-- Sets a process that will be killed against `other`: both contend for a lock,
-- and it holds another, for which `other` waits.
local function killed(w, kind, process, other)
  local victim = w:victim(process)
  local name, key, all = w:name(), w:counter(), {}
  local held, waiter = w:name(), other:task()
  contend({}, 2, victim, kind, name, key, 1000000)
  eventually(function() return w:counted(key) >= 50 end, BUSY, "50 rounds")
  contend(all, 2, other, kind, name, key, 300)
  eventually(function()
    return w:call("GET", key .. ":last") == other.name
  end, BUSY, "a round of the other side")
  local start = now()
  assert.is_true(victim:task():ask("take", kind, held, -1, -1))
  local waiting = waiter:send("take", kind, held, -1, -1)
  victim:kill()
  world.after_lease(waiting, start)
  assert.is_true(waiter:ask("give", kind, held))
  for _, pending in ipairs(all) do
    assert.is_true((pending:answer(BUSY)))
  end
  local counted, sum = w:counted(key)        -- it died between the two, maybe
  assert.is_true(counted >= 650 and math.abs(counted - sum) <= 1,
    ("counted %d of %d"):format(counted, sum))
end

return {
  together = together,
  contend = { "loses no update while both contend", both_contend },
  excluded = { "keeps the other side out", excluded },
  woken = { "wakes the other side at once", woken },
  leases_seen = { "shows the other side its leases and their renewal",
    leases_seen },
  expires = { "is free for the other side when its lease is over", expires },
  entered_again = {
    "is entered again, and the other side waits for the last exit",
    entered_again },
  forced = { "is freed by force from either side", forced },
  ours_killed = { "goes on within a lease when ours is killed with kill -9",
    function(w, kind) killed(w, kind, w.ours, w.theirs) end },
  theirs_killed = { "goes on within a lease when theirs is killed with kill -9",
    function(w, kind) killed(w, kind, w.theirs, w.ours) end },
}
