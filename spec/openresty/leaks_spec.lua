--- Requests leave nothing behind, however they end: one in ten because its
--- client disconnects, others by an error or by ngx.exit without an unlock,
--- most of them normally.
---
--- RLOCK_ROUNDS=20000, as in make soak: 100 000 requests. Otherwise 20 000.
--- #long

local at_once = require "spec.tools.at_once"
local eventually = require "spec.tools.eventually"
local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"

local REQUESTS = 5 * tonumber(os.getenv("RLOCK_ROUNDS") or 4000)
local LEASE = 2 * slow
local THREADS = 48              -- clients
local SECONDS = 30 * slow
local ROOM = 1500               -- allowed growth of the worker's Lua, in kB
local IDLE = 30                 -- idle connections that a worker keeps

local HTTP = [[
  lua_check_client_abort on;
  init_worker_by_lua_block {
    rlock = require "resty.rlock"
    locks = assert(rlock.open { url = "%s", watchdog = %g, name = "spec" })
    math.randomseed(ngx.worker.pid())

    function work()
      local name, way = ngx.var.arg_name, math.random(20)
      local lock, fair = locks:lock(name), locks:fair_lock("fair:" .. name)
      local pool = locks:permits("pool")
      assert(lock:lock { wait = 60 })
      local id = assert(pool:acquire { wait = 60 })
      assert(fair:lock { wait = 60 })
      if way == 1 then ngx.exit(204) end
      if way == 2 then error("on purpose") end
      ngx.sleep(0.001)
      assert(fair:unlock())
      assert(pool:release(id))
      assert(lock:unlock())
      ngx.print("done")
    end

    -- What the worker still has.
    function state()
      local session, waiters = locks.session, 0
      for _, channel in pairs(session.wakeup.channels) do
        if channel.first then waiters = waiters + 1 end
      end
      collectgarbage()
      collectgarbage()
      ngx.say(session.pending, " ", #session.watchdog:all(), " ", waiters, " ",
        ngx.timer.running_count(), " ", ngx.timer.pending_count(), " ",
        collectgarbage("count"))
    end
  }
]]

local LOCATIONS = [[
  location = /told {
    content_by_lua_block { work() }
    log_by_lua_block { rlock.log_phase() }
  }
  location = /untold { content_by_lua_block { work() } }
  location = /permit { content_by_lua_block {
    assert(locks:permits("pool"):acquire())
  } }
  location = /hold { content_by_lua_block {
    local lock = locks:lock("held")
    assert(lock:lock())
    ngx.sleep(tonumber(ngx.var.arg_seconds))
    assert(lock:unlock())
  } }
  location = /state { content_by_lua_block { state() } }
]]

describe("Requests that end in every way", function()
  local server, web, permits

  setup(function()
    server = redis.start()
    web = nginx.start {
      http = HTTP:format(server.url, LEASE), locations = LOCATIONS,
    }
    permits = require("resty.rlock").open(server.url):permits("pool")
    assert(permits:set(REQUESTS))
  end)

  teardown(function()
    web:stop()
    server:stop()
  end)

  -- Makes n requests for the locks of `names` names; every tenth client
  -- disconnects after a while. Returns status -> number of responses.
  local function make_requests(path, names, n)
    local made, statuses = 0, {}
    at_once(THREADS, function()
      while made < n do
        made = made + 1
        local way = path .. "?name=" .. made % names
        if made % 10 == 0 then
          local socket = web:send(way)
          ngx.sleep(math.random(0, 30) / 1000)
          socket:close()
        else
          local status = web:get(way) or "none"
          statuses[status] = (statuses[status] or 0) + 1
        end
      end
      return true
    end)
    return statuses
  end

  -- Waits until the worker has nothing left; returns the kB of its Lua.
  local function memory_at_rest()
    local rest, kilobytes
    local ok = pcall(eventually, function()
      local _, body = web:get("/state")
      rest, kilobytes = body:match("^(.*) (%S+)\n$")
      return rest == "0 0 0 1 1"
    end, SECONDS)
    assert(ok, "the worker still has: " .. rest)
    return tonumber(kilobytes)
  end

  -- All permits are available, and the server has no other keys but the proof
  -- that they are permits, which expires.
  local function nothing_is_held()
    local keys
    local ok = pcall(eventually, function()
      if permits:available() < REQUESTS then return false end
      keys = server:cli("KEYS", "*")
        :gsub("rlock_request:{pool}:permits", ""):gsub("{pool}:timeout", "")
        :gsub("pool", ""):gsub("%s+", " ")
      return keys == "" or keys == " "
    end, LEASE + SECONDS)
    assert(ok, "the server still has: " .. tostring(keys))
  end

  local function check(path, names)
    make_requests(path, names, REQUESTS * 0.2)     -- loads and compiles all
    local before = memory_at_rest()
    local statuses = make_requests(path, names, REQUESTS * 0.3)
    nothing_is_held()
    local after = memory_at_rest()
    assert.is_true(statuses[200] > REQUESTS * 0.2)
    assert.is_true(statuses[204] > 0 and statuses[500] > 0)
    assert.is_nil(statuses.none)
    assert.is_true(after - before < ROOM, after - before .. " kB more")
    assert.is_true(server:info("connected_clients") < 2 * IDLE)
  end

  it("with a permit leave it to its lease, and other holds alone", function()
    assert.equal(200, (web:get("/permit")))
    assert.equal(200, (web:get("/hold?seconds=" .. 2.5 * LEASE)))
    memory_at_rest()
  end)

  it("leave nothing, with log_phase", function() check("/told", 12) end)

  it("leave nothing when their leases are over", function()
    check("/untold", REQUESTS)
  end)
end)
