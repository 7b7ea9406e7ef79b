--- Who counts as alive in a line (policy/liveness.lua).

local liveness = require "rlock.policy.liveness"

local T = 1700000000000
local LONG_AGO = T - 3600000

-- How long one counts as alive whose last sign is so old, in a line that was
-- heard `heard` ms ago and started at `start`.
local function left(age, heard, start, now)
  now = now or T
  local before, last = liveness.starts(now - heard, start, now)
  return liveness.left(now - age, before, last, now)
end

describe("a waiter", function()
  it("is dead when it was silent for 1.2 s, and others were heard", function()
    assert.equal(1200, left(0, 100, LONG_AGO))
    assert.equal(1, left(1199, 100, LONG_AGO))
    assert.equal(0, left(1200, 100, LONG_AGO))
    assert.is_true(left(60000, 650, LONG_AGO) <= 0)
  end)

  it("has as long again when nobody was heard", function()
    assert.equal(1200, left(1300, 651, LONG_AGO))
    assert.equal(1200, left(600000, 600000, LONG_AGO))
  end)

  it("has that once: it is dead if it missed the start before", function()
    assert.is_true(left(3600001, 651, LONG_AGO) <= 0)
  end)

  it("has what is left since the last start", function()
    assert.equal(200, left(5000, 100, T - 1000))
    assert.equal(200, left(5000, 900, T - 1000))
    assert.is_true(left(5000, 100, T - 1200) <= 0)
  end)

  it("is outlived by one that asks seldom", function()
    local start, died, asked = 0, T, 0
    for now = T, T + 10000, 900 do
      local before, last = liveness.starts(now - 900, start, now)
      if liveness.left(died, before, last, now) <= 0 then break end
      start, asked = last, asked + 1
    end
    assert.is_true(asked <= 4, asked)
  end)

  it("gives its queue a new start from 650 ms on, in either direction",
    function()
      local starts = liveness.starts
      assert.same({ 7, 7 }, { starts(T - 650, 7, T) })
      assert.same({ 7, T }, { starts(T - 651, 7, T) })
      assert.same({ 7, 7 }, { starts(T + 650, 7, T) })
      assert.same({ T, T }, { starts(T + 651, 7, T) })
      assert.same({ T + 650, T + 650 }, { starts(T, T + 650, T) })
      assert.same({ T, T }, { starts(T, T + 651, T) })
    end)

  it("keeps its queue alive alone, and itself, by retries in time", function()
    local poll = liveness.POLL * 1000
    assert.same({ 7, 7 }, { liveness.starts(T - poll, 7, T) })
    assert.is_true(left(2 * poll, poll, LONG_AGO) > 0)     -- misses one
  end)

  it("is evicted in time, by the next retry of another one", function()
    local poll, most = liveness.POLL * 1000, liveness.DEAD * 1000
    local silent = left(0, 100, LONG_AGO)
    assert.is_true(silent + poll <= most and most < silent + 2 * poll)
  end)

  it("has a new start when the clock was set back", function()
    assert.equal(1200, left(-3600000, -3600000, LONG_AGO))
    assert.equal(1200, left(-3600000, -3600000, T + 3600000))
    assert.is_true(left(-3600000, 100, T - 1300) <= 0)
    assert.equal(1500, left(-300, -300, LONG_AGO))
  end)

  it("whose signs are lost has time to give one", function()
    assert.equal(1200, left(T, T, 0))
    assert.is_true(left(T, 100, T - 1200) <= 0)
  end)
end)
