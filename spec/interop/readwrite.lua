--- What holds for read/write locks besides.

local assert = require "luassert"
local world = require "spec.interop.world"

local eventually, now = world.eventually, world.now
local LEASE = 60000
local READS, WRITES, WAKES = 500, 500, 5

local function mixed(w)
  local name, key, writers, readers = w:name(), w:counter(), {}, {}
  for a in w:both_ways() do
    for _ = 1, 2 do
      writers[#writers + 1] =
        a:task():send("contend", "write", name, key, WRITES)
      readers[#readers + 1] =
        a:task():send("compare", "read", name, key, READS)
    end
  end
  for _, pending in ipairs(readers) do
    assert.same({ true, 0 }, { pending:answer(120) })
  end
  for _, pending in ipairs(writers) do
    assert.is_true((pending:answer(120)))
  end
  assert.same({ 4 * WRITES, 4 * WRITES }, { w:counted(key) })
end

local function shared(w)
  for a, b in w:both_ways() do
    local name, one, other = w:name(), a:task(), b:task()
    local writer = b:task()
    assert.is_true(one:ask("take", "read", name, -1, LEASE))
    assert.is_true(other:ask("take", "read", name, 0, LEASE))
    assert.is_false(writer:ask("take", "write", name, 0, LEASE))
    assert.is_true(other:ask("give", "read", name))
    assert.is_false(writer:ask("take", "write", name, 0, LEASE))
    local waiting = writer:send("take", "write", name, -1, LEASE)
    w:asleep(name)
    local start = now()
    assert.is_true(one:ask("give", "read", name))
    world.at_once(waiting, start)
    assert.is_false(one:ask("take", "read", name, 0, LEASE))
    assert.is_true(writer:ask("give", "write", name))
  end
end

local function entered_again(w)
  for a, b in w:both_ways() do
    local name, reader, writer = w:name(), a:task(), b:task()
    assert.is_true(reader:ask("take", "read", name, -1, LEASE))
    assert.is_true(reader:ask("take", "read", name, 0, LEASE))
    local _, locked, count = reader:ask("state", "read", name)
    assert.same({ 1, 2 }, { locked, count })
    assert.is_true(reader:ask("give", "read", name))
    assert.is_false(writer:ask("take", "write", name, 0, LEASE))
    assert.is_true(reader:ask("give", "read", name))
    assert.is_true(writer:ask("take", "write", name, 0, LEASE))
    assert.is_true(writer:ask("give", "write", name))
  end
end

-- By force from either side, one reader of each side loses it.
local function forced(w)
  for a, b in w:both_ways() do
    local name, one, other, writer = w:name(), a:task(), b:task(), a:task()
    assert.is_true(one:ask("take", "read", name, -1, LEASE))
    assert.is_true(other:ask("take", "read", name, -1, LEASE))
    local waiting = writer:send("take", "write", name, -1, LEASE)
    w:asleep(name)
    local start = now()
    assert.is_true(b:task():ask("force", "read", name))
    world.at_once(waiting, start)
    assert.is_false(one:ask("give", "read", name))
    assert.is_false(other:ask("give", "read", name))
    assert.is_true(writer:ask("give", "write", name))
  end
end

local function readers_woken(w)
  for a, b in w:both_ways() do
    local times = {}
    for i = 1, WAKES do
      local name, writer, all = w:name(i), a:task(), {}
      assert.is_true(writer:ask("take", "write", name, -1, LEASE))
      for j = 1, 3 do
        all[j] = b:task():send("take", "read", name, -1, LEASE)
      end
      w:asleep(name)
      local start = now()
      assert.is_true(writer:ask("give", "write", name))
      for _, pending in ipairs(all) do
        assert.is_true((pending:answer()))
        times[#times + 1] = pending.at - start
      end
    end
    world.prompt(times, b.program .. " woken by " .. a.program)
  end
end

-- The writer reads too, and goes on as a reader.
local function downgraded(w)
  for a, b in w:both_ways() do
    local name, owner, writer = w:name(), a:task(), b:task()
    assert.is_true(owner:ask("take", "write", name, -1, LEASE))
    assert.is_true(owner:ask("take", "read", name, 0, LEASE))
    assert.is_false(b:task():ask("take", "read", name, 0, LEASE))
    assert.is_true(owner:ask("give", "write", name))
    local reader = b:task()
    assert.is_true(reader:ask("take", "read", name, 0, LEASE))
    assert.is_false(writer:ask("take", "write", name, 0, LEASE))
    assert.is_true(owner:ask("give", "read", name))
    assert.is_false(writer:ask("take", "write", name, 0, LEASE))
    assert.is_true(reader:ask("give", "read", name))
    assert.is_true(writer:ask("take", "write", name, 0, LEASE))
    assert.is_true(writer:ask("give", "write", name))
    assert.is_true(w:is_gone(name))
  end
end

-- Theirs tells nobody; ours does.
local function downgrade_told(w)
  local name, owner = w:name(), w.ours:task()
  assert.is_true(owner:ask("take", "write", name, -1, LEASE))
  assert.is_true(owner:ask("take", "read", name, 0, LEASE))
  local waiting = w.theirs:task():send("take", "read", name, -1, LEASE)
  w:asleep(name)
  local start = now()
  assert.is_true(owner:ask("give", "write", name))
  world.at_once(waiting, start)
end

-- Each release finds out how long the others still read.
local function leases_kept(w)
  for a, b in w:both_ways() do
    local name, short, long, writer = w:name(), a:task(), b:task(), a:task()
    assert.is_true(long:ask("take", "read", name, -1, LEASE / 3))
    assert.is_true(short:ask("take", "read", name, -1, LEASE))
    local _, _, _, ttl = long:ask("state", "read", name)
    assert.is_true(ttl > LEASE / 2, "ttl " .. ttl)
    assert.is_true(short:ask("give", "read", name))
    _, _, _, ttl = short:ask("state", "read", name)
    assert.is_true(ttl > LEASE / 6 and ttl <= LEASE / 3, "ttl " .. ttl)
    assert.is_false(writer:ask("take", "write", name, 0, LEASE))
    assert.is_true(long:ask("give", "read", name))
    assert.is_true(writer:ask("take", "write", name, 0, LEASE))
    assert.is_true(writer:ask("give", "write", name))
  end
end

-- A reader dies while one of the other side reads on and a writer waits.
local function reader_killed(w, process, other)
  local victim, name = w:victim(process), w:name()
  local reader, writer = other:task(), other:task()
  assert.is_true(victim:task():ask("take", "read", name, -1, -1))
  assert.is_true(reader:ask("take", "read", name, -1, -1))
  local waiting = writer:send("take", "write", name, -1, -1)
  victim:kill()
  local killed = now()            -- its last renewal came before
  eventually(function() return now() > killed + world.WATCHDOG + 0.2 end, 30)
  assert.is_false(waiting:is_answered())
  local start = now()
  assert.is_true(reader:ask("give", "read", name))
  world.at_once(waiting, start)
  assert.is_true(writer:ask("give", "write", name))
end

-- Their watchdog shortens the lease of our reader, and dies.
local function leased_beside_killed(w)
  local victim, name = w:victim(w.theirs), w:name()
  local reader, writer = w.ours:task(), w.theirs:task()
  assert.is_true(reader:ask("take", "read", name, -1, LEASE))
  assert.is_true(victim:task():ask("take", "read", name, -1, -1))
  eventually(function() return w:look("PTTL", name) < LEASE / 2 end, 30)
  victim:kill()
  local killed = now()
  eventually(function() return now() > killed + world.WATCHDOG + 0.2 end, 30)
  assert.is_false(writer:ask("take", "write", name, 0, LEASE))
  assert.is_true(reader:ask("give", "read", name))
  assert.is_true(writer:ask("take", "write", name, 0, LEASE))
  assert.is_true(writer:ask("give", "write", name))
end

return {
  mixed = { "shows readers of both sides what writers have finished", mixed },
  shared = { "is shared by readers of both sides, and a writer waits", shared },
  entered_again = { "is entered again by a reader, and a writer waits",
    entered_again },
  forced = { "is taken from all readers by force from either side", forced },
  readers_woken = { "wakes all readers of the other side at once",
    readers_woken },
  downgraded = { "lets the writer go on as a reader", downgraded },
  downgrade_told = { "wakes their readers when our writer goes on as a reader",
    downgrade_told },
  leases_kept = { "lasts as long as the readers that are left", leases_kept },
  ours_killed = { "does not stay with a reader of ours that was killed",
    function(w) reader_killed(w, w.ours, w.theirs) end },
  theirs_killed = { "does not stay with a reader of theirs that was killed",
    function(w) reader_killed(w, w.theirs, w.ours) end },
  leased_beside_killed = { "stays with our reader for its lease when theirs "
    .. "was killed", leased_beside_killed },
}
