--- Further tests of fair locks, in Redisson's queue. A dead waiter stays there
--- until its deadline: that of the waiter ahead, plus its own share. Until then
--- it delays all waiters behind it.

local assert = require "luassert"
local world = require "spec.interop.world"

local eventually, now = world.eventually, world.now
local LEASE = 60000
local IN_LINE = 12

local function queue_of(name)
  return ("redisson_lock_queue:{%s}"):format(name)
end

-- Waits until so many are in line.
local function in_line(w, name, n)
  eventually(function() return w:look("LLEN", queue_of(name)) == n end, 30,
    n .. " in line for " .. name)
end

local function in_order(w, kind)
  for a, b in w:both_ways() do
    local name, list, holder = w:name(), w:name(), a:task()
    local expected, all = {}, {}
    assert.is_true(holder:ask("take", kind, name, -1, LEASE))
    for i = 1, IN_LINE do
      local process = i % 3 == 0 and a or b          -- b b a b b a ...
      local task = process:task()
      all[i] = task:send("visit", kind, name, list)
      expected[i] = process.name .. ":" .. task.name
      in_line(w, name, i)
    end
    assert.is_true(w:look("PTTL", queue_of(name)) > 0, "it has no expiry")
    assert.is_true(holder:ask("give", kind, name))
    for _, pending in ipairs(all) do assert.is_true((pending:answer(60))) end
    assert.same(expected, w:call("LRANGE", list, 0, -1))
    in_line(w, name, 0)
  end
end

local function gives_up(w, kind)
  for a, b in w:both_ways() do
    local name, holder, stays = w:name(), a:task(), a:task()
    assert.is_true(holder:ask("take", kind, name, -1, LEASE))
    local leaves = b:task():send("take", kind, name, 300, LEASE)
    in_line(w, name, 1)
    local waiting = stays:send("take", kind, name, -1, LEASE)
    in_line(w, name, 2)
    assert.is_false((leaves:answer()))
    in_line(w, name, 1)
    w:asleep(name)
    local start = now()
    assert.is_true(holder:ask("give", kind, name))
    world.at_once(waiting, start)
    assert.is_true(stays:ask("give", kind, name))
    in_line(w, name, 0)
  end
end

-- The holder is killed, and with it the first in line, who would have waited
-- for a second.
local function killed(w, kind, process, other)
  local victim, name, waiter = w:victim(process), w:name(), other:task()
  local start = now()
  assert.is_true(victim:task():ask("take", kind, name, -1, -1))
  victim:task():send("take", kind, name, 1000, -1)
  in_line(w, name, 1)
  local waiting = waiter:send("take", kind, name, -1, -1)
  in_line(w, name, 2)
  victim:kill()
  world.after_lease(waiting, start, world.WATCHDOG, 1)
  assert.is_true(waiter:ask("give", kind, name))
  in_line(w, name, 0)
end

-- A process with so many waiters, without a deadline, is killed; then the lock
-- is free; the next behind them gets it within so many seconds.
local function dead_in_line(w, kind, process, other, n, seconds)
  local victim, name, list = w:victim(process), w:name(), w:name()
  local holder, waiter = other:task(), other:task()
  assert.is_true(holder:ask("take", kind, name, -1, -1))
  for i = 1, n do
    victim:task():send("visit", kind, name, list)
    in_line(w, name, i)
  end
  local waiting = waiter:send("take", kind, name, -1, -1)
  in_line(w, name, n + 1)
  eventually(function()
    return #w:call("PUBSUB", "CHANNELS", "*" .. name .. "*") > n
  end, 30, "waiters for " .. name)
  victim:kill()
  local start = now()
  assert.is_true(holder:ask("give", kind, name))
  assert.is_true((waiting:answer(seconds + 30)))
  local took = waiting.at - start
  assert.is_true(took < seconds, ("took %.3f s"):format(took))
  assert.same({}, w:call("LRANGE", list, 0, -1))
  assert.is_true(waiter:ask("give", kind, name))
  in_line(w, name, 0)
end

return {
  in_order = { "is given in order of arrival, whoever comes", in_order },
  gives_up = { "is not kept by a waiter who gives up", gives_up },
  ours_killed = {
    "goes on when our holder and our first in line are killed with kill -9",
    function(w, kind) killed(w, kind, w.ours, w.theirs) end },
  theirs_killed = {
    "goes on when their holder and their first in line are killed with kill -9",
    function(w, kind) killed(w, kind, w.theirs, w.ours) end },
  theirs_dead_in_line = {
    "skips their waiters that are killed with kill -9, three as soon as one",
    function(w, kind)
      dead_in_line(w, kind, w.theirs, w.ours, 1, 5)
      dead_in_line(w, kind, w.theirs, w.ours, 3, 5)
    end },
  ours_dead_in_line = {
    "is not kept for more than 10 s by our waiter that is killed with kill -9",
    function(w, kind)
      dead_in_line(w, kind, w.ours, w.theirs, 1, 11)
    end },
}
