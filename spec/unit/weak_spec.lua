--- Modules do not leak memory: what they keep about an object ends with it.

local calls = require "rlock.redis.calls"
local deduplication = require "rlock.counters.deduplication"
local expiry = require "rlock.redis.expiry"
local identity = require "rlock.redis.server_identity"
local script = require "rlock.script"

-- Is the object that `make` returns collected once nothing else refers to it?
local function ends(make)
  local weak = setmetatable({ make() }, { __mode = "v" })
  for _ = 1, 3 do collectgarbage() end
  return weak[1] == nil
end

-- A compiled operation.
local function new_op()
  return script.compile("a policy", "acquire", function(keys)
    return redis.call("get", keys[1])  -- luacheck: ignore
  end)
end

describe("nothing remains in memory", function()
  it("of a server of a red lock", function()
    for _, what in ipairs { "connection", "node" } do
      assert.is_true(ends(function()
        local node = { host = { now = function() return 1 end },
          connection = {} }
        function node.connect() return node.connection end
        function node.pipeline()
          return { "run_id:a master_replid:b" }, {}, {}
        end
        identity.identify(node, 9)
        return what == "node" and node or node.connection
      end))
    end
  end)

  it("of an operation, and what was compiled for it", function()
    assert.is_true(ends(function()
      local op = new_op()
      expiry.shipped({ seals = { mode = "time" } }, op)
      return op
    end))
    assert.is_true(ends(function()
      local op = new_op()
      calls.op_of { op = op, n = 2 }
      return op
    end))
    assert.is_true(ends(function()
      local op = new_op()
      local lock = { record = { policy = { ops = { renew = op } },
        target = { "key" } } }
      local list = calls.of({ name = "renew", { lock = lock },
        sender = { words = function() return 1 end } }, 0, true)
      assert.equal(1, #list)
      return op
    end))
  end)

  it("of a client with counters", function()
    assert.is_true(ends(function()
      local session = { id = "id" }
      local target = { with = function() return {} end }
      deduplication.begin { session = session, record = { target = target } }
      return session
    end))
  end)
end)
