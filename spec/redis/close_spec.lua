--- Holds as Lua 5.4 to-be-closed variables.

local redis = require "spec.tools.redis"
local rlock = require "rlock"

describe("a hold", function()
  it("is released at the end of its block", function()
    local client <close> = assert(rlock.open(redis.shared().url))
    local lock = client:lock("close")
    do
      local hold <close> = assert(lock:hold())
      assert.is_true(lock:is_locked())
      assert.is_true(hold:valid_for() > 29)
      assert.is_true(hold:need(1))
      assert.equal("lost", select(2, hold:need(31)))
    end
    assert.is_false(lock:is_locked())
    assert.has_error(function()
      local _ <close> = assert(lock:hold())
      error("inside", 0)
    end, "inside")
    assert.is_false(lock:is_locked())
  end)
end)
