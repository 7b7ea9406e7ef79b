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

describe("the deadline of a request", function()
  local node, reply, asked

  before_each(function()
    node, reply, asked = new(), { "1700", "5999" }, 0
    node.connection = {}
    function node.call(_, deadline, words, n)
      assert.same({ { "TIME" }, 1 }, { words, n })
      assert.equal(1009, deadline)
      asked = asked + 1
      if reply == nil then return nil, "timeout", "late" end
      return reply
    end
  end)

  -- 1009 s, by the clock of the node.
  local function word() return expiry.word(node, 1009) end

  it("is a time of the server's clock, minus the clock drift", function()
    assert.equal("1708996", (word()))           -- 1700005 + 0.999 * 9000
    assert.equal(1, asked)
  end)

  it("reads the clock every ten seconds and on each connection", function()
    word()
    node.time = 1009.9
    assert.equal("1708996", (word()))
    assert.equal(1, asked)
    node.time = 1010
    assert.equal("1699006", (word()))
    assert.equal(2, asked)
    node.connection = {}
    word()
    assert.equal(3, asked)
    expiry.invalidate(node)
    word()
    assert.equal(4, asked)
  end)

  it("is not known without a clock", function()
    for _, bad in ipairs { {}, "x", { "1" }, { "x", "1" }, { "1", "x" },
        { "-1", "0" }, { "1099511627776", "0" }, { "1", "1048576" },
        { "nan", "0" } } do
      reply = bad
      assert.same({ nil, "redis", "ERR no time in reply to TIME" }, { word() })
    end
    reply = nil
    assert.same({ nil, "timeout", "late" }, { word() })
    reply = { "0", "1048575" }
    assert.equal("10039", (word()))
  end)
end)

describe("requests with an unknown outcome", function()
  it("are forgotten at most every ten seconds once they have expired",
    function()
      local node = new()
      expiry.mark_in_doubt(node, SET, { "a" }, "1", 1002)
      node.time = 1010
      expiry.mark_in_doubt(node, SET, { "b" }, "1", 1011)
      assert.equal(1002, node.in_doubt["a\n"])
      node.time = 1010.1
      expiry.mark_in_doubt(node, SET, { "c" }, "1", 1012)
      assert.same({ ["b\n"] = 1011, ["c\n"] = 1012 }, node.in_doubt)
    end)

  it("delay requests of the same owner, or of the whole key", function()
    for op, owner in pairs { acquire = "me", release = "me", renew = "me",
        leave = "me", call = "me", set = "", break_ = "" } do
      local node = new()
      expiry.mark_in_doubt(node, { op = op }, KEYS, "me", 1002)
      assert.same({ ["permits\n" .. owner] = 1002 }, node.in_doubt)
    end
    for op in ("refresh count peek"):gmatch "%l+" do
      local node = new()
      expiry.mark_in_doubt(node, { op = op }, KEYS, "me", 1002)
      assert.is_nil(node.in_doubt)
    end
    local node = new()
    expiry.mark_in_doubt(node, { op = "acquire" }, KEYS, "me", 1002)
    assert.is_true(expiry.await_expiry(node, { op = "acquire" }, KEYS, "you",
      1010))
    assert.is_true(expiry.await_expiry(node, { op = "refresh" }, KEYS, "me",
      1010))
    assert.equal(1000, node.time)
  end)
end)
