--- What holds for several locks that are held as one. Their names are given
--- with commas between; each side may have them in an order of its own.

local assert = require "luassert"
local world = require "spec.interop.world"

local now = world.now
local LEASE = 60000
local TASKS, ROUNDS = 3, 350

-- Three names that begin alike, two orders of them, and how they begin.
local function names(w)
  local base = w:name()
  local a, b, c = base .. ":a", base .. ":b", base .. ":c"
  return { a, b, c }, ("%s,%s,%s"):format(a, b, c),
    ("%s,%s,%s"):format(c, a, b), base
end

local function exist(w, ...) return w:call("EXISTS", ...) end

local function contend(w, kind)
  local _, one, other = names(w)
  local key, all, mixed = w:counter(), {}, 0
  for _ = 1, TASKS do
    all[#all + 1] = w.theirs:task():send("contend", kind, other, key, ROUNDS)
  end
  world.eventually(function() return w:counted(key) > 0 end, 120, "a round")
  for _ = 1, TASKS do
    all[#all + 1] = w.ours:task():send("contend", kind, one, key, ROUNDS)
  end
  for _, pending in ipairs(all) do
    local _, switches = pending:answer(120)
    mixed = mixed + switches
  end
  assert.same({ 2 * TASKS * ROUNDS, 2 * TASKS * ROUNDS }, { w:counted(key) })
  assert.is_true(mixed > 2, "they did not contend: " .. mixed)
end

local function all_or_nothing(w, kind)
  for a, b in w:both_ways() do
    local each, one, other = names(w)
    local holder, rival = a:task(), b:task()
    assert.is_true(holder:ask("take", kind, one, -1, LEASE))
    assert.equal(3, exist(w, table.unpack(each)))
    assert.is_false(rival:ask("take", "lock", each[2], 0, LEASE))
    assert.is_false(rival:ask("take", kind, other, 0, LEASE))
    assert.is_true(holder:ask("give", kind, one))
    assert.equal(0, exist(w, table.unpack(each)))

    assert.is_true(rival:ask("take", "lock", each[2], 0, LEASE))
    assert.is_false(holder:ask("take", kind, one, 0, LEASE))
    assert.is_false(holder:ask("take", kind, one, 100, LEASE))
    world.eventually(function() return exist(w, table.unpack(each)) == 1 end)
    assert.is_true(rival:ask("give", "lock", each[2]))
    assert.is_true(holder:ask("take", kind, one, 0, LEASE))
    assert.is_true(holder:ask("give", kind, one))
  end
end

-- A waiter gets in when the last of them is free, whoever had them.
local function woken(w, kind)
  for a, b in w:both_ways() do
    local _, one, other, base = names(w)
    local holder, second = a:task(), a:task()
    assert.is_true(holder:ask("take", kind, one, -1, LEASE))
    local waiting = b:task():send("take", kind, other, -1, LEASE)
    w:asleep(base)
    local start = now()
    assert.is_true(holder:ask("give", kind, one))
    world.at_once(waiting, start)

    local each
    each, one, other, base = names(w)
    assert.is_true(holder:ask("take", "lock", each[1], -1, LEASE))
    assert.is_true(second:ask("take", "lock", each[3], -1, LEASE))
    waiting = b:task():send("take", kind, other, -1, LEASE)
    w:asleep(base)
    assert.is_true(second:ask("give", "lock", each[3]))
    assert.is_false(b:task():ask("take", kind, one, 50, LEASE))
    assert.is_false(waiting:is_answered())
    start = now()
    assert.is_true(holder:ask("give", "lock", each[1]))
    world.at_once(waiting, start)
  end
end

local function expires(w, kind)
  for a, b in w:both_ways() do
    local each, one, other = names(w)
    local holder, waiter = a:task(), b:task()
    local start = now()
    assert.is_true(holder:ask("take", kind, one, -1, 500))
    local waiting = waiter:send("take", kind, other, -1, LEASE)
    world.after_lease(waiting, start, 0.5)
    assert.is_false(holder:ask("give", kind, one))
    assert.equal(3, exist(w, table.unpack(each)))
    assert.is_true(waiter:ask("give", kind, other))
    assert.equal(0, exist(w, table.unpack(each)))
  end
end

-- The watchdog renews all of its leases.
local function watched(w, kind)
  for a, b in w:both_ways() do
    local each, one, other = names(w)
    local holder = a:task()
    assert.is_true(holder:ask("take", kind, one, -1, -1))
    for _, name in ipairs(each) do
      local least = world.WATCHDOG * 1000
      world.eventually(function()
        local _, locked, count, ttl = b:task():ask("state", "lock", name)
        assert.same({ 1, 0 }, { locked, count })
        local has_risen = ttl > least + 100
        least = math.min(least, ttl)
        return has_risen
      end, 20, "a renewal of " .. name)
    end
    assert.is_false(b:task():ask("take", kind, other, 0, LEASE))
    assert.is_true(holder:ask("give", kind, one))
  end
end

local function entered_again(w, kind)
  for a, b in w:both_ways() do
    local _, one, other = names(w)
    local holder, rival = a:task(), b:task()
    assert.is_true(holder:ask("take", kind, one, -1, LEASE))
    assert.is_true(holder:ask("take", kind, one, 0, LEASE))
    assert.is_true(holder:ask("give", kind, one))
    assert.is_false(rival:ask("take", kind, other, 0, LEASE))
    assert.is_true(holder:ask("give", kind, one))
    assert.is_true(rival:ask("take", kind, other, 0, LEASE))
    assert.is_true(rival:ask("give", kind, other))
  end
end

local function killed(w, kind, process, other)
  local victim, waiter = w:victim(process), other:task()
  local _, one, another = names(w)
  local start = now()
  assert.is_true(victim:task():ask("take", kind, one, -1, -1))
  local waiting = waiter:send("take", kind, another, -1, -1)
  victim:kill()
  world.after_lease(waiting, start)
  assert.is_true(waiter:ask("give", kind, another))
end

return {
  { "loses no update while both contend", contend },
  { "is had as a whole or not at all", all_or_nothing },
  { "wakes the other side at once", woken },
  { "is entered again, and the other side waits for the last exit",
    entered_again },
  { "shows the other side how its leases are renewed", watched },
  { "is free for the other side when its leases are over", expires },
  { "goes on within a lease when ours is killed with kill -9",
    function(w, kind) killed(w, kind, w.ours, w.theirs) end },
  { "goes on within a lease when theirs is killed with kill -9",
    function(w, kind) killed(w, kind, w.theirs, w.ours) end },
}
