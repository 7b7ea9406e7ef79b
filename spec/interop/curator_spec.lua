--- Apache Curator's locks and ours, in rlockctl and in nginx, on one ZooKeeper,
--- of the version that comes with Curator.

local against = require "spec.interop.against"
local assert = require "luassert"
local ensembles = require "spec.interop.ensembles"
local eventually = require "spec.tools.eventually"
local locks = require "spec.interop.locks"
local readwrite = require "spec.interop.readwrite"

local folder = (os.getenv "B" or "build") .. "/interop"

local set = ensembles(folder .. "/curator.classpath")

local LEASE, PERMITS, CROWD = 60000, 2, 100
local GRANTS, TASKS, BUSY = 10000, 2, 600    -- in all; of each; seconds

-- Both sides take permits of one semaphore, and wake each other.
local function permits_shared(w, kind)
  for a, b in w:both_ways() do
    local name, one, two, three = w:name(), a:task(), b:task(), b:task()
    assert.is_true(w.ours:task():ask("set", kind, name, PERMITS))
    assert.is_true(one:ask("take", kind, name, -1, LEASE))
    assert.is_true(two:ask("take", kind, name, 1000, LEASE))
    assert.is_false(three:ask("take", kind, name, 50, LEASE))
    local waiting = three:send("take", kind, name, -1, LEASE)
    w:asleep(name, 2)
    assert.is_false(waiting:is_answered())
    assert.is_true(one:ask("give", kind, name))
    assert.is_true((waiting:answer()))
    assert.is_true(two:ask("give", kind, name))
    assert.is_true(three:ask("give", kind, name))
  end
end

local function crowded(w, kind)
  local name, key, all = w:name(), w:counter(), {}
  assert.is_true(w.ours:task():ask("set", kind, name, PERMITS))
  for a in w:both_ways() do
    for _ = 1, 3 do
      all[#all + 1] = a:task():send("crowd", kind, name, key, CROWD)
    end
  end
  for _, pending in ipairs(all) do
    local _, most = pending:answer(120)
    assert.is_true(most <= PERMITS, most)
  end
end

local function removed(w, kind)
  for a, b in w:both_ways() do
    local name, waiter = w:name(), b:task()
    assert.is_true(a:task():ask("set", kind, name, 1))
    assert.is_false(waiter:ask("await", kind, name, 50))
    local waiting = waiter:send("await", kind, name, 20000)
    assert.is_true(a:task():ask("delete", kind, name))
    assert.is_true((waiting:answer()))
  end
end

-- Two members of each side, again and again.
local function met(w)
  local name, members = w:name(), {}
  for a in w:both_ways() do
    members[#members + 1] = { a:task(), "double4" }
    members[#members + 1] = { a:task(), "double4b" }
  end
  for first = 1, 4 do
    for _, verb in ipairs { "take", "give" } do
      local waiting = {}
      for i = 0, 3 do
        local one = members[(first + i - 1) % 4 + 1]
        for _, other in ipairs(waiting) do
          assert.is_false(other:is_answered())
        end
        waiting[i + 1] = one[1]:send(verb, one[2], name, -1, -1)
        if verb == "take" and i < 3 then w:asleep(name, i) end
      end
      for _, one in ipairs(waiting) do assert.is_true((one:answer())) end
    end
    eventually(function() return w:is_gone(name) end)
  end
end

local barriers = {
  { "double barrier", { { "is entered and left together", met } } },
  { "barrier", { { "lets both sides continue when it is removed", removed } } },
}

-- A holder of each side releases the lock when the other side requests it.
local asked = { "is given back when the other side asks for it",
  function(w, kind)
    for a, b in w:both_ways() do
      local name, task = w:name(), b:task()
      local heeding = a:task():send("heed", kind, name)
      eventually(function()
        task:ask("revoke", kind, name)
        return heeding:is_answered()
      end, 30, "heeded: " .. kind)
      assert.is_true((heeding:answer()))
      assert.is_false((task:ask("revoke", kind, name)))
      assert.is_true((task:ask("take", kind, name, 0, LEASE)))
      assert.is_true((task:ask("give", kind, name)))
    end
  end }

-- Each side names the leader of the other.
local function named(w, kind)
  local name, ours, theirs = w:name(), w.ours:task(), w.theirs:task()
  assert.is_true(ours:ask("take", kind, name, -1, LEASE))
  assert.matches("%(pid %d+%)$", table.concat({ select(2,
    theirs:ask("leader", kind, name)) }, " "))
  local waiting = theirs:send("take", kind, name, -1, LEASE)
  w:asleep(name)
  assert.is_true(ours:ask("give", kind, name))
  assert.is_true((waiting:answer()))
  assert.equal(w.theirs.name .. "/" .. theirs.name,
    (select(2, ours:ask("leader", kind, name))))
  assert.is_true(theirs:ask("give", kind, name))
end

local election = { locks.contend, locks.excluded, locks.woken,
  { "is led by a candidate whom both sides name", named } }


-- Curator, rlockctl and nginx contend for one lock.
local function three_contend(w, kind)
  local name, key, all, sum = w:name(), w:counter(), {}, 0
  local rounds = math.ceil(GRANTS / (3 * TASKS))
  for _, process in ipairs { w.theirs, w.ours, w:start("third", "nginx") } do
    for _ = 1, TASKS do
      all[#all + 1] = process:task():send("contend", kind, name, key, rounds)
    end
  end
  for _, pending in ipairs(all) do
    local _, switches, back = pending:answer(BUSY)
    assert.equal(0, back, "tokens that were not greater")
    sum = sum + switches
  end
  assert.same({ 3 * TASKS * rounds, 3 * TASKS * rounds }, { w:counted(key) })
  assert.is_true(sum > GRANTS / 10, "they did not contend: " .. sum)
end

local busted = {
  describe = describe, it = it, setup = setup, teardown = teardown,
}

against(busted, "curator", 0, {
  { "lock", { locks.contend, locks.excluded, locks.woken, locks.entered_again,
    locks.ours_killed, locks.theirs_killed, asked,
    { "is held by one of three programs in 10 000 grants", three_contend } } },
  { "mutex", { locks.contend, locks.excluded, locks.woken } },
  { "write", { locks.contend, locks.excluded, locks.woken,
    locks.entered_again, asked } },
  { "read", { asked } },
  { "read/write", { readwrite.mixed, readwrite.shared, readwrite.entered_again,
    readwrite.readers_woken, readwrite.downgraded } },
  { "leader-latch", election }, { "leader-selector", election },
  { "leader-latch", { locks.ours_killed, locks.theirs_killed } },
  { "semaphore", {
    { "has permits for both sides, which wake each other", permits_shared },
    { "is never held by more than there are permits", crowded },
  } },
  barriers[1], barriers[2],
}, set, "a ZooKeeper")

against(busted, "curator", 0, {
  { "lock", { locks.contend, locks.excluded, locks.woken, locks.ours_killed,
    asked } },
  { "mutex", { locks.excluded, locks.woken } },
  { "leader-latch", { locks.excluded, locks.woken } },
  { "read/write", { readwrite.mixed, readwrite.downgraded } },
  { "semaphore", {
    { "has permits for both sides, which wake each other", permits_shared },
  } },
  barriers[1], barriers[2],
}, setmetatable({ ours = "nginx" }, { __index = set }),
  "a ZooKeeper with nginx")
