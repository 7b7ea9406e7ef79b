--- Which node's slot map a client trusts after a redirection, without a server.

local cluster = require "rlock.redis.cluster"
local fake_host = require "spec.tools.fake_host"
local slot = require "rlock.redis.slot"

local ALL = slot.count - 1

local says, asked                       -- node -> its reply to CLUSTER SLOTS

local host = fake_host(function(options)
  return {
    make_ready = function() return true end, close = function() end,
    send = function()
      asked[#asked + 1] = options.host
      return says[options.host]
    end,
  }
end)

describe("a cluster's client", function()
  it("asks the node that a redirection names before those that may not know "
    .. "it yet", function()
      local function has_all(name) return { { 0, ALL, { name, 1 } } } end
      says, asked = { a = has_all "a", b = has_all "b" }, {}
      local moves = 0
      local self = cluster.new(host, { timeout = 1, connect_timeout = 1,
        seeds = { { host = "a", port = 1 } } })
      self.on_moved = function() moves = moves + 1 end
      assert.equal("a:1", self:find({ "key" }, 1010).where)
      self:redirect(("MOVED %d b:1"):format(slot.of "key"), self:of { "key" })
      assert.same({ "a", "b" }, asked)
      assert.equal("b:1", self:of { "key" }.where)
      self:suspect()
      assert.same({ "a", "b", "b" }, asked)
      assert.equal(2, moves)            -- of the slot, and of all others
    end)
end)
