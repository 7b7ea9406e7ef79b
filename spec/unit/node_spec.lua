local backend = require "rlock.redis.backend"
local client = require "rlock.client"
local fake_host = require "spec.tools.fake_host"
local node = require "rlock.redis.node"

-- A host that reports the first `drops` connections as lost before it returns
-- them to the caller.
local function host_of(drops)
  local opened = 0
  return fake_host(function(options)
    opened = opened + 1
    local number = opened
    if number <= drops then options.lost("the server closed it") end
    return {
      number = number,
      make_ready = function() return true end,
      close = function(self) self.is_closed = true end,
    }
  end)
end

local function new(drops)
  return node.new(host_of(drops), { host = "there", port = 1, timeout = 1,
    connect_timeout = 1 })
end

describe("a connection that is lost before its opener has it", function()
  it("is not used", function()
    local self = new(1)
    local connection, code, detail = self:connect(1010)
    assert.same({ nil, "connect", "the server closed it" },
      { connection, code, detail })
    assert.is_nil(self.connection)
    assert.equal(2, self:connect(1010).number)
  end)

  it("does not prevent opening a client: the server may restart",
    function()
      local self = backend.open(host_of(2),
        assert(client.complete({}, "redis://there")), {})
      assert.is_true(self:connect(10))
      assert.equal(3, self.node.connection.number)
    end)
end)

describe("a node whose connection is left", function()
  -- What requests return for which there is no other connection in time.
  local function problem_after(why, code)
    local self = new(0)
    self:leave(self:connect(1010), why, code)
    return self.problem
  end

  it("reports an error of the server as one, so it is known what to retry",
    function()
      assert.same({ code = "redis", detail = "READONLY a replica" },
        problem_after("READONLY a replica", "redis"))
    end)

  it("keeps the next connection, which works", function()
    local self = new(0)
    local first = self:connect(1010)
    self:leave(first, "READONLY a replica", "redis")
    self.not_before = 0
    local second = self:connect(1010)
    self:leave(first, "READONLY a replica", "redis")
    assert.equal(second, self.connection)
    assert.is_nil(second.is_closed)
  end)

  it("reports any other reason as a lack of a connection", function()
    assert.same({ code = "connect", detail = "the master has moved" },
      problem_after "the master has moved")
  end)
end)

describe("a node whose master has moved", function()
  it("connects to the new one without a pause", function()
    local self = new(0)
    for _ = 1, 3 do
      assert(self:connect(1010))
      self:move "the master has moved"
    end
    assert(self:connect(1010))
    assert.equal(1000, self.host.now())
  end)

  it("closes a connection to the old one that was not ready yet", function()
    local opened
    local self = node.new(fake_host(function()
      opened = {
        make_ready = function() return nil, "redis", "LOADING it loads" end,
        close = function(its) its.is_closed = true end,
      }
      return opened
    end), { host = "there", port = 1, timeout = 1, connect_timeout = 1 })
    assert.is_nil((self:connect(1010)))
    assert.is_nil(opened.is_closed)
    self:move "the master has moved"
    assert.is_true(opened.is_closed)
  end)
end)

describe("the master that Sentinels name", function()
  it("is asked for its role by HELLO, too: INFO may be forbidden", function()
    local seen
    local self = node.new(fake_host(function(options)
      seen = options
      return nil, "connect", "refused"
    end), { sentinels = {}, master = "m", timeout = 1, connect_timeout = 1 })
    function self.sentinel.locate() return { host = "a", port = 1 } end
    self:open(print)
    assert.same({ { "HELLO", "2", is_optional = true }, "master" },
      { seen.handshake[#seen.handshake], seen.role })
  end)
end)

describe("a command to the node that imports its slot", function()
  -- What the command returns if the server answers so to it and to ASKING.
  local function asked(...)
    local self, answers = new(0), { ... }
    self.connection = { pipeline = function(_, _, commands)
      assert.same({ { "ASKING" }, { "GET", "a" } }, commands)
      return answers[1], answers[2], answers[3]
    end }
    local reply, code, detail = self:ask(1010, { "GET", "a" })
    return { reply, code, detail }
  end

  it("has its own reply, not that to ASKING", function()
    assert.same({ "value" }, asked({ "OK", "value" }, {}, {}))
    assert.same({ nil, "redis", "TRYAGAIN" },
      asked({ "OK" }, { [2] = "redis" }, { [2] = "TRYAGAIN" }))
  end)
end)
