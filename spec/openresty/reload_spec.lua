--- Workers told to end while requests are served, by a reload and by a quit: no
--- request fails, no worker stays, nothing is held beyond its lease.
--- #long

local eventually = require "spec.tools.eventually"
local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"

local LEASE = 4 * slow
local SECONDS = 30 * slow
local THREADS = 24              -- requests in flight
local NAMES = 5                 -- of the locks

local HTTP = [[
  init_worker_by_lua_block {
    rlock = require "resty.rlock"
    locks = assert(rlock.open { url = "%s", watchdog = %g, name = "spec" })
  }
]]

-- Takes two locks with a wait, and one that is not released. Redis counts the
-- requests that begin and those that finish.
local LOCATIONS = [[
  location = /work { content_by_lua_block {
    assert(locks:call("INCR", "begun"))
    local name = ngx.var.arg_name
    local lock, fair = locks:lock(name), locks:fair_lock("fair:" .. name)
    assert(lock:lock { wait = 60 })
    assert(fair:lock { wait = 60 })
    ngx.sleep(0.002)
    assert(fair:unlock())
    assert(lock:unlock())
    assert(locks:lock("forgotten:" .. ngx.var.connection):lock())
    assert(locks:call("INCR", "done"))
  } }
]]

describe("Under load, nginx", function()
  local server, web, is_over, answers

  before_each(function()
    server = redis.start()
    web = nginx.start {
      workers = 2, http = HTTP:format(server.url, LEASE),
      locations = LOCATIONS, shutdown_timeout = 60,
    }
    is_over, answers = false, {}
  end)

  after_each(function()
    web:stop()
    server:stop()
  end)

  -- Sends requests until it is over or nginx is gone; counts the answers.
  local function request(i)
    repeat
      local ok, status = pcall(web.get, web, "/work?name=" .. i % NAMES)
      local answer = ok and status or "none"
      answers[answer] = (answers[answer] or 0) + 1
    until is_over or answer == "none"
  end

  local function start_requests()
    local threads = {}
    for i = 1, THREADS do threads[i] = ngx.thread.spawn(request, i) end
    eventually(function()
      return (answers[200] or 0) > 2 * THREADS
    end, SECONDS, "answers")
    return threads
  end

  local function finish(threads)
    is_over = true
    for i = 1, THREADS do assert(ngx.thread.wait(threads[i])) end
  end

  local function is_among(list, pid)
    for _, other in ipairs(list) do
      if other == pid then return true end
    end
  end

  local function nothing_is_left()
    assert.equal(server:cli("GET", "begun"), server:cli("GET", "done"))
    server:cli("DEL", "begun", "done")
    eventually(function()
      return server:cli("DBSIZE") == "0"
    end, LEASE + 5 * slow, "the end of the leases")
  end

  it("reloads: every request is answered, the old workers leave", function()
    local threads = start_requests()
    for _ = 1, 3 do
      local before, seen = web:workers(), answers[200]
      web:signal("HUP")
      eventually(function()
        local now = web:workers()
        return #now == 2 and not is_among(now, before[1])
          and not is_among(now, before[2])
      end, SECONDS, "other workers")
      eventually(function()
        return answers[200] > seen + THREADS
      end, SECONDS, "answers of the new ones")
    end
    finish(threads)
    assert.same({ [200] = answers[200] }, answers)
    nothing_is_left()
    assert.is_nil(web:log():find("[alert]", 1, true), web:log())
  end)

  it("quits: who is served is answered, then the workers leave", function()
    local threads = start_requests()
    web:signal("QUIT")
    eventually(function()
      return web:has_ended()
    end, SECONDS, "the end of nginx")
    finish(threads)
    answers.none = nil             -- nginx had ended
    assert.same({ [200] = answers[200] }, answers)
    nothing_is_left()
    assert.is_nil(server:cli("CLIENT", "LIST"):find(",spec ", 1, true))
  end)
end)
