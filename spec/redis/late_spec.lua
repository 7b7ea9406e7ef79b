--- Requests that were given up reach the server later, when the lock has been
--- used again: a proxy keeps them back and delivers them when it is told to.

local proxies = require "spec.support.proxy"
local redis = require "spec.support.redis"
local rlock = require "rlock"
local task = require "spec.support.task"
local eventually = require "spec.support.wait" (rlock)

local slow = tonumber(os.getenv("RLOCK_SLOW") or 1)
local TIMEOUT = 0.3 * slow
local PATIENCE = 10 * slow

describe("a request that is executed late", function()
  local server, proxy, client, rival, name
  local number = 0

  before_each(function()
    server = redis.start()
    proxy = proxies.start(server)
    client = assert(rlock.open { url = proxy.url, timeout = TIMEOUT })
    rival = assert(rlock.open { url = server.url })
    number = number + 1
    name = "late:" .. number
  end)

  after_each(function()
    client:close()
    rival:close()
    proxy:stop()
    server:stop()
  end)

  local function deliver()
    assert.is_true(proxy:count(name) > 1)
    proxy:deliver()
    eventually(function() return proxy:kept() == 0 end, PATIENCE,
      "the server has closed the old connection")
  end

  it("as release, leaves a later hold of the same owner alone", function()
    local lock = client:lock(name, { owner = "me" })
    assert.is_true((lock:lock()))
    proxy:late(1, name)
    assert.is_true((lock:unlock()))
    assert.is_true((lock:lock()))
    deliver()
    local ok, code = task.run(function()
      return rival:lock(name):try_lock()
    end)
    assert.is_true(lock:valid_for() > 0)
    assert.same({ nil, "busy" }, { ok, code })
    assert.is_true((lock:unlock()))
  end)
end)
