--- Sentinel in nginx: a timer of the worker follows the master, requests do
--- not; what is open ends with the worker.
--- #long

local eventually = require "spec.tools.eventually"
local nginx = require "spec.tools.nginx"
local sentinel = require "spec.tools.sentinel"
local slow = require "spec.tools.slow"

local SECONDS = 30 * slow

local HTTP = [[
  init_worker_by_lua_block {
    rlock = require "resty.rlock"
    locks = assert(rlock.open { url = "%s", watchdog = %g, name = "spec" })
  }
]]

local LOCATIONS = [[
  location = /lock { content_by_lua_block {
    local lock = locks:lock(ngx.var.arg_name)
    local ok, code, detail = lock:lock { wait = 20 }
    if ok then ok, code, detail = lock:unlock() end
    if not ok then return ngx.say(code, " ", detail) end
    ngx.say("locked by ", ngx.worker.pid())
  } }
]]

describe("nginx with Sentinel", function()
  local set, web

  setup(function() set = sentinel.start { sleep = ngx.sleep } end)
  teardown(function() set:stop() end)

  before_each(function()
    set:settle()
    web = nginx.start {
      workers = 2, http = HTTP:format(set.url, 6 * slow),
      locations = LOCATIONS, shutdown_timeout = 60,
    }
  end)

  after_each(function() web:stop() end)

  local function lock()
    local status, body = web:get "/lock?name=x"
    assert.equal(200, status)
    local pid = body:match "^locked by (%d+)"
    return assert(tonumber(pid), body)
  end

  -- Lets every worker lock.
  local function all_lock()
    local seen, n = {}, 0
    eventually(function()
      local pid = lock()
      if not seen[pid] then n = n + 1 end
      seen[pid] = true
      return n == 2
    end, SECONDS, "both workers have answered")
  end

  local function count(server, pattern)
    return select(2, server:cli("CLIENT", "LIST"):gsub(pattern, ""))
  end

  -- Connections to Sentinels: those that are subscribed, and the others.
  local function listeners()
    local subscribed, others = 0, 0
    for _, each in ipairs(set.sentinels) do
      local n = count(each, "name=spec [^\n]* sub=1")
      subscribed = subscribed + n
      others = others + count(each, "name=spec ") - n
    end
    return subscribed, others
  end

  it("has one subscriber in each worker", function()
    all_lock()
    for _ = 1, 20 do lock() end
    eventually(function()
      local subscribed, others = listeners()
      return subscribed == 2 and others == 0
    end, SECONDS)
  end)

  it("follows while no request runs", function()
    all_lock()
    local old = set:master()
    set:fail_over()
    eventually(function()
      return count(old, ",spec ") == 0 and set:master() ~= old
    end, SECONDS, "the old master is left")
    all_lock()
    assert.equal(0, count(old, ",spec "))
    assert.is_true(count(set:master(), ",spec ") > 0)
  end)

  it("leaves nothing behind when it reloads", function()
    all_lock()
    local before = web:workers()
    web:signal "HUP"
    eventually(function()
      local now = web:workers()
      return #now == 2 and now[1] ~= before[1] and now[2] ~= before[2]
        and now[1] ~= before[2] and now[2] ~= before[1]
    end, SECONDS, "other workers")
    all_lock()
    eventually(function()
      local subscribed, others = listeners()
      return subscribed == 2 and others == 0
    end, SECONDS)
    assert.is_nil(web:log():find("[alert]", 1, true), web:log())
  end)

  it("leaves nothing behind when it quits", function()
    all_lock()
    web:signal "QUIT"
    eventually(function() return web:has_ended() end, SECONDS, "its end")
    local subscribed, others = listeners()
    assert.same({ 0, 0, 0 },
      { subscribed, others, count(set:master(), ",spec ") })
    assert.is_nil(web:log():find("[alert]", 1, true), web:log())
  end)
end)

describe("nginx with Sentinel, over TLS", function()
  local set, web

  setup(function()
    set = sentinel.start { sleep = ngx.sleep, replicas = 1, sentinels = 1,
      quorum = 1, tls = true }
    web = nginx.start {
      http = ([[
        lua_ssl_trusted_certificate %s/ca.crt;
        lua_ssl_verify_depth 3;
        init_worker_by_lua_block {
          rlock = require "resty.rlock"
          locks = assert(rlock.open { url = "%s", watchdog = %g,
            tls = { server_name = "localhost" } })
        }
      ]]):format(set.servers[1].certificates, set.url, 6 * slow),
      locations = LOCATIONS,
    }
  end)

  teardown(function()
    web:stop()
    set:stop()
  end)

  -- A lock is lost if the old master grants it as it is demoted.
  it("follows the master", function()
    local function is_locked()
      local status, body = web:get "/lock?name=x"
      assert.equal(200, status, web:log())
      return body:find "^locked by"
    end
    for _ = 1, 3 do
      eventually(is_locked, SECONDS, "a lock")
      set:fail_over()
    end
    eventually(is_locked, SECONDS, "a lock of the last master")
  end)
end)
