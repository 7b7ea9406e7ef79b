local node = require "rlock.redis.node"

-- A host whose tasks run at once, and whose connections are told to be lost as
-- often as `drops` says, before whoever opens them has them.
local function new(drops)
  local host = { opened = 0 }
  function host.now() return 1000 end
  function host.sleep() end
  function host.log() end
  function host.random_number() return 0.5 end
  function host.daemon(fn, ...) fn(...) end
  function host.event()
    return { set = function() end, pause = function() return true end }
  end
  function host.connect(options)
    host.opened = host.opened + 1
    local number = host.opened
    if number <= drops then options.lost("the server closed it") end
    return {
      number = number,
      make_ready = function() return true end,
      close = function(self) self.is_closed = true end,
    }
  end
  return node.new(host, { host = "there", port = 1, timeout = 1,
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
end)
