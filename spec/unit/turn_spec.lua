--- The turn of a grant (lock/turn.lua): what a waiting task gets.

local turn = require "rlock.lock.turn"

local grant, pause

-- A fake host. Its events call the local `pause(event)` when they pause.
local host = {
  now = function() return 0 end,
  event = function()
    return { set = function(self) self.is_set = true end,
      pause = function(self) return pause(self) end }
  end,
}

local function wait() return { turn.wait(grant, 5) } end

describe("a task that waits for its turn", function()
  before_each(function()
    grant = { acting = true, lock = { record = {}, session = { host = host } } }
  end)

  it("gets it, and keeps it until it passes it on", function()
    function pause(event)
      turn.pass(grant)
      return event.is_set
    end
    assert.same({ true }, wait())
    assert.is_truthy(grant.acting)
    turn.pass(grant)
    assert.is_false(grant.acting)
  end)

  it("gives up at its deadline, or if it is cancelled", function()
    function pause() return false end
    assert.same({ nil, "timeout", turn.LATE }, wait())
    function pause() return nil, "cancelled", "unwind" end
    assert.same({ nil, "cancelled", "unwind" }, wait())
    assert.is_nil(grant.queue)
    assert.is_truthy(grant.acting)       -- of the other request
  end)

  it("passes on a turn that arrives while it gives up", function()
    local given = 0
    local following = { set = function() given = given + 1 end }
    function pause()
      turn.join(grant, following)
      turn.pass(grant)
      return false
    end
    assert.same({ nil, "timeout", "no time left" }, wait())
    assert.equal(1, given)
    function pause()
      turn.pass(grant)
      return nil, "cancelled", "unwind"
    end
    assert.same({ nil, "cancelled", "unwind" }, wait())
    assert.is_false(grant.acting)
  end)
end)
