--- Locks on several servers in nginx: multi-locks and red locks, and a server
--- that was restarted without its data.

local eventually = require "spec.tools.eventually"
local host = require "resty.rlock.host"
local redis = require "spec.tools.redis"
local rlock = require "resty.rlock"

local SECONDS, WATCHDOG = 30, 5

describe("In nginx", function()
  local servers, clients

  before_each(function()
    servers, clients = {}, {}
    for i = 1, 3 do
      servers[i] = redis.start()
      clients[i] = assert(rlock.open {
        url = servers[i].url, watchdog = WATCHDOG, timeout = 1,
      })
    end
  end)

  after_each(function()
    for i = 1, 3 do
      clients[i]:close()
      servers[i]:stop()
    end
  end)

  local function count(name)
    local n = 0
    for _, server in ipairs(servers) do
      if server.pid then n = n + tonumber(server:cli("EXISTS", name)) end
    end
    return n
  end

  local function red()
    return rlock.red_lock(clients, "red", { node_timeout = 2 })
  end

  for kind, make in pairs {
    multi = function(a, b, c)
      return rlock.multi_lock { a:lock "lost", b:lock "lost", c:lock "kept" }
    end,
    red = function(...) return rlock.red_lock({ ... }, "lost") end,
  } do
    it("a log callback that ends its timer does not silence on_lost: " .. kind,
      function()
        local its = {}
        for i = 1, 3 do
          its[i] = assert(rlock.open { url = servers[i].url, watchdog = 2,
            log = function(_, event, fields)
              if event == "lost" and fields.kind:find(kind) then
                ngx.exit(ngx.ERROR)
              end
            end })
        end
        local lock, told = make(unpack(its)), false
        assert.is_true(lock:lock { wait = SECONDS })
        lock:on_lost(function() told = true end)
        for i = 1, 2 do servers[i]:cli("DEL", "lost") end
        eventually(function() return told end, SECONDS, "on_lost")
        eventually(function() return count("lost") == 0 end, 1, "no red lock")
        for i = 1, 3 do its[i]:close() end
      end)
  end

  it("a multi-lock is held on all its servers, or on none", function()
    local multi = rlock.multi_lock {
      clients[1]:lock("m"), clients[2]:lock("m"), clients[3]:fair_lock("m"),
    }
    assert.is_true(multi:lock { wait = SECONDS })
    assert.equal(3, count("m"))
    assert.is_true(multi:valid_for() > 0)
    assert.is_true(multi:unlock())
    assert.equal(0, count("m"))
    servers[2]:cli("HSET", "m", "another", "1")
    assert.equal("busy", select(2, multi:try_lock()))
    eventually(function() return count("m") == 1 end, SECONDS)
  end)

  it("a red lock is held by a majority, also with a server away", function()
    local lock = red()
    assert.is_true(lock:lock { wait = SECONDS })
    assert.is_true(count("red") >= 2)
    assert.is_true(lock:unlock())
    eventually(function() return count("red") == 0 end, SECONDS)
    servers[3]:kill()
    assert.is_true(lock:lock { wait = SECONDS })
    assert.is_true(lock:unlock())
    servers[2]:kill()
    local ok, code = lock:lock { wait = 0.5 }
    assert.is_nil(ok)
    assert.equal("quorum", code)
    servers[2]:launch()
    servers[3]:launch()
  end)

  it("a server that was restarted does not count for a lease", function()
    local lock = red()
    assert.is_true(lock:lock { wait = SECONDS })
    assert.is_true(lock:unlock())
    servers[3]:kill()
    servers[2]:restart()
    local restarted, code, detail = host.now(), nil, nil
    eventually(function()
      code, detail = select(2, lock:try_lock())
      return detail:find("restarted", 1, true)
    end, SECONDS)
    assert.equal("quorum", code)
    assert.is_truthy(detail:find(servers[2].socket .. ": restarted", 1, true))
    assert.is_true(lock:lock { wait = SECONDS })
    -- Redis reports its uptime in whole seconds.
    assert.is_true(host.now() - restarted > WATCHDOG - 1.1)
    assert.is_true(lock:unlock())
    servers[3]:launch()
  end)
end)
