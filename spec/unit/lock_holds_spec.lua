--- The holds of a grant (lock/holds.lua), as lists.

local holds = require "rlock.lock.holds"

local NONE, ONE, RENEWED = holds.NONE, holds.ONE, holds.RENEWED

-- A list of these holds.
local function list_of(...)
  local list = NONE
  for _, hold in ipairs { ... } do list = holds.add(list, hold) end
  return list
end

describe("a list of holds", function()
  after_each(function()                   -- these are shared
    assert.same({}, NONE)
    assert.same({ {} }, ONE)
    assert.same({}, RENEWED)
  end)

  it("is a shared constant if it is empty or has one renewed hold", function()
    assert.equal(ONE, list_of(RENEWED))
    local list, hold = list_of(RENEWED), { ends = 5 }
    list = holds.add(list, hold)
    assert.same({ RENEWED, hold }, list)
    list = holds.add(list, RENEWED)
    assert.equal(3, #list)
    assert.equal(RENEWED, list[3])
    assert.equal(hold, list_of(hold)[1])
    local removed
    removed, list = holds.remove(ONE)
    assert.equal(RENEWED, removed)
    assert.equal(NONE, list)
  end)

  it("removes the most recent hold first, those of objects last", function()
    local first, object, whole, last =
      { ends = 1 }, { object = {} }, { hold = {} }, { ends = 2 }
    local list = list_of(first, object, whole, last)
    for _, expected in ipairs { last, first, whole, object } do
      local removed, rest = holds.remove(list)
      assert.equal(expected, removed)
      list = rest
    end
    assert.same({ nil, {} }, { holds.remove(list) })
  end)

  it("removes a given hold once", function()
    local first, second = { ends = 1 }, { ends = 2 }
    local list = list_of(first, second)
    assert.equal(first, (holds.remove(list, first)))
    assert.same({ second }, list)
    assert.is_nil((holds.remove(list, first)))
    assert.same({ second }, list)
  end)

  it("needs the longest lease, and the watchdog if one is renewed", function()
    assert.same({ -3, false }, { holds.needed(NONE, 3, 30) })
    assert.same({ 30, true }, { holds.needed(ONE, 3, 30) })
    local list = list_of({ ends = 10 }, { ends = 50 }, { ends = 20 })
    assert.same({ 47, false }, { holds.needed(list, 3, 30) })
    list = holds.add(list, RENEWED)
    assert.same({ 47, true }, { holds.needed(list, 3, 30) })
    assert.same({ 30, true }, { holds.needed(list, 40, 30) })
  end)

  it("leaves a hold to its lease if a task cannot release it", function()
    assert.equal(NONE, holds.leave_to_lease(NONE, 9))
    local list, hold = holds.leave_to_lease(ONE, 9)
    assert.same({ { is_over = false, ends = 9, is_left = true } }, list)
    assert.equal(list[1], hold)
    local same, none = holds.leave_to_lease(list, 8)
    assert.equal(list, same)
    assert.is_nil(none)
    assert.equal(9, list[1].ends)
    local brief = { ends = 4 }
    list = holds.add(list, brief)
    assert.equal(brief, select(2, holds.leave_to_lease(list, 9)))
    assert.equal(4, brief.ends)
  end)

  it("leaves a renewed hold to its lease, beside others", function()
    local object = { object = {} }
    local list = list_of(RENEWED, object)
    list = holds.leave_to_lease(list, 9)
    assert.equal(9, list[1].ends)
    assert.equal(object, list[2])
    assert.is_nil(RENEWED.ends)
  end)

  it("removes other holds before one that is left to its lease", function()
    local list = holds.leave_to_lease(list_of(RENEWED, { ends = 1 }), 5)
    local left = list[2]
    assert.equal(RENEWED, (holds.remove(list)))
    assert.equal(left, (holds.remove(list)))
  end)

  it("finds a hold that an object refers to, and ends all", function()
    local mine, objects = { ends = 1 }, { {} }
    assert.is_false(holds.are_referenced(list_of(mine)))
    local given = { is_transferable = true, object = objects }
    assert.is_true(holds.are_referenced(list_of(mine, given)))
    assert.is_false(holds.are_referenced(list_of(mine, { object = objects })))
    objects[1] = nil
    assert.is_false(holds.are_referenced(list_of(mine, given)))
    holds.end_all(list_of(mine, given))
    assert.is_true(mine.is_over and given.is_over)
  end)
end)
