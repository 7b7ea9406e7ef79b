--- What holds for locks of the form SET name token NX PX, on one server
--- ("simple") or on a majority of five ("red_simple"). Nobody is woken there:
--- waiters poll.

local assert = require "luassert"
local locks = require "spec.interop.locks"
local world = require "spec.interop.world"

local eventually, now = world.eventually, world.now
local LEASE = 60000

-- How many servers have the lock, of how many.
local function servers_with(w, kind, name)
  local n, all = 0, w:stores(kind)
  for _, store in ipairs(all) do n = n + world.call(store, "EXISTS", name) end
  return n, #all
end

local function is_free(w, kind, name)
  eventually(function() return servers_with(w, kind, name) == 0 end, 30,
    name .. " to be free everywhere")
end

local function is_held(w, kind, name)
  local n, all = servers_with(w, kind, name)
  assert.is_true(n > all / 2, ("%d of %d have it"):format(n, all))
end

-- What is left of the lease, in seconds, on most servers at least.
local function left(w, kind, name)
  local all = {}
  for i, store in ipairs(w:stores(kind)) do
    all[i] = world.call(store, "PTTL", name) / 1000
  end
  table.sort(all)
  return all[(#all + 1) // 2]
end

local function excluded(w, kind)
  for a, b in w:both_ways() do
    local name, holder, other = w:name(), a:task(), b:task()
    assert.is_true(holder:ask("take", kind, name, -1, LEASE))
    is_held(w, kind, name)
    assert.is_false(other:ask("take", kind, name, 0, LEASE))
    assert.is_false(other:ask("take", kind, name, 100, LEASE))
    assert.is_false(other:ask("give", kind, name))
    is_held(w, kind, name)
    assert.is_true(holder:ask("give", kind, name))
    assert.is_true(other:ask("take", kind, name, 5000, LEASE))
    assert.is_false(holder:ask("give", kind, name))
    is_held(w, kind, name)
    assert.is_true(other:ask("give", kind, name))
    is_free(w, kind, name)
  end
end

local function waits(w, kind)
  for a, b in w:both_ways() do
    local name, holder = w:name(), a:task()
    assert.is_true(holder:ask("take", kind, name, -1, LEASE))
    local waiting = b:task():send("take", kind, name, -1, LEASE)
    assert.is_false(b:task():ask("take", kind, name, 100, LEASE))
    assert.is_false(waiting:is_answered())
    local start = now()
    assert.is_true(holder:ask("give", kind, name))
    world.at_once(waiting, start)
  end
end

local function expires(w, kind)
  for a, b in w:both_ways() do
    local name, holder, waiter = w:name(), a:task(), b:task()
    local start = now()
    assert.is_true(holder:ask("take", kind, name, -1, 500))
    local waiting = waiter:send("take", kind, name, -1, LEASE)
    world.after_lease(waiting, start, 0.5)
    if a == w.theirs and kind ~= "red" then
      assert.is_false(holder:ask("renew", kind, name, "-", 2 * LEASE))
    end
    assert.is_false(holder:ask("give", kind, name))
    is_held(w, kind, name)
    local seconds = left(w, kind, name)
    assert.is_true(seconds > 50 and seconds <= 60, "left " .. seconds)
    assert.is_true(waiter:ask("give", kind, name))
    is_free(w, kind, name)
  end
end

local function renewed_by_theirs(w, kind)
  local name, holder, other = w:name(), w.theirs:task(), w.ours:task()
  assert.is_true(holder:ask("take", kind, name, -1, 10000))
  assert.is_true(holder:ask("renew", kind, name, "-", LEASE))
  local seconds = left(w, kind, name)
  assert.is_true(seconds > 50 and seconds <= 60, "left " .. seconds)
  assert.is_false(other:ask("take", kind, name, 0, LEASE))
  assert.is_true(holder:ask("give", kind, name))
  is_free(w, kind, name)
end

local function watched(w, kind, a, b)
  local name, holder, other = w:name(), a:task(), b:task()
  assert.is_true(holder:ask("take", kind, name, -1, -1))
  local least = world.WATCHDOG
  eventually(function()
    local seconds = left(w, kind, name)
    local has_risen = seconds > least + 0.1
    least = math.min(least, seconds)
    return has_risen
  end, 20, "a renewal")
  assert.is_false(other:ask("take", kind, name, 0, LEASE))
  assert.is_true(holder:ask("give", kind, name))
  is_free(w, kind, name)
end

local expiring = {
  locks.contend,
  { "keeps the other side out", excluded },
  { "is had by a waiter of the other side soon after", waits },
  { "is free for the other side when its lease is over", expires },
  { "stays when our watchdog renews its lease",
    function(w, kind) watched(w, kind, w.ours, w.theirs) end },
  locks.ours_killed, locks.theirs_killed,
}

local function with(scenario)
  local list = table.move(expiring, 1, #expiring, 1, {})
  list[#list + 1] = scenario
  return list
end

return {
  extended = with {
    "stays when theirs extends its lease", renewed_by_theirs },
  watched = with { "stays when their watchdog renews its lease",
    function(w, kind) watched(w, kind, w.theirs, w.ours) end },
}
