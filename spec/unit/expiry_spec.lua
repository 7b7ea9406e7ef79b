local expiry = require "rlock.redis.expiry"

local SET, KEYS = { op = "set" }, { "permits" }

-- A node whose clock goes on only while somebody waits; `meanwhile` is called
-- then.
local function new(time)
  local node = { time = time or 1000 }
  local function pause(_, seconds)
    node.time = node.time + seconds
    if node.meanwhile then node.meanwhile() end
    return false
  end
  node.host = {
    now = function() return node.time end,
    event = function() return { pause = pause } end,
  }
  return node
end

describe("a request that may still be executed", function()
  it("is waited for until it has expired", function()
    local node = new()
    expiry.mark_in_doubt(node, SET, KEYS, "1", 1002)
    assert.is_true(expiry.await_expiry(node, SET, KEYS, "2", 1010))
    assert.equal(1002, node.time)
  end)

  it("is waited for although another expires earlier", function()
    local node = new()
    expiry.mark_in_doubt(node, SET, KEYS, "1", 1003)
    expiry.mark_in_doubt(node, SET, KEYS, "2", 1001)
    assert.is_true(expiry.await_expiry(node, SET, KEYS, "3", 1010))
    assert.equal(1003, node.time)
  end)

  it("is waited for if it is lost while somebody waits for another", function()
    local node = new()
    expiry.mark_in_doubt(node, SET, KEYS, "1", 1001)
    function node.meanwhile()
      node.meanwhile = nil
      expiry.mark_in_doubt(node, SET, KEYS, "2", 1004)
    end
    assert.is_true(expiry.await_expiry(node, SET, KEYS, "3", 1010))
    assert.equal(1004, node.time)
  end)

  it("is not waited for beyond the caller's time", function()
    local node = new()
    expiry.mark_in_doubt(node, SET, KEYS, "1", 1004)
    assert.equal("timeout",
      select(2, expiry.await_expiry(node, SET, KEYS, "2", 1003)))
    assert.equal(1003, node.time)
  end)

  it("is noted on a machine that has just started", function()
    local node = new(2)
    expiry.mark_in_doubt(node, SET, KEYS, "1", 4)
    assert.is_true(expiry.await_expiry(node, SET, KEYS, "2", 10))
    assert.equal(4, node.time)
  end)
end)
