--- Apache Curator's locks and ours, in rlockctl and in nginx, on one ZooKeeper,
--- of the version that comes with Curator.

local against = require "spec.interop.against"
local assert = require "luassert"
local ensembles = require "spec.interop.ensembles"
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
    locks.ours_killed, locks.theirs_killed,
    { "is held by one of three programs in 10 000 grants", three_contend } } },
  { "mutex", { locks.contend, locks.excluded, locks.woken } },
  { "write", { locks.contend, locks.excluded, locks.woken,
    locks.entered_again } },
  { "read/write", { readwrite.mixed, readwrite.shared, readwrite.entered_again,
    readwrite.readers_woken, readwrite.downgraded } },
  { "semaphore", {
    { "has permits for both sides, which wake each other", permits_shared },
    { "is never held by more than there are permits", crowded },
  } },
}, set, "a ZooKeeper")

against(busted, "curator", 0, {
  { "lock", { locks.contend, locks.excluded, locks.woken, locks.ours_killed } },
  { "mutex", { locks.excluded, locks.woken } },
  { "read/write", { readwrite.mixed, readwrite.downgraded } },
  { "semaphore", {
    { "has permits for both sides, which wake each other", permits_shared },
  } },
}, setmetatable({ ours = "nginx" }, { __index = set }),
  "a ZooKeeper with nginx")
