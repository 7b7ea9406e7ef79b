--- What a user callback (on_lost) may do: whatever it is, the worker goes on,
--- and ends when told to.

local eventually = require "spec.tools.eventually"
local host = require "resty.rlock.host"
local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"
local rlock = require "resty.rlock"

local SECONDS = 30
local MANY = 100

local HTTP = [[
  lua_shared_dict told 1m;
  init_worker_by_lua_block {
    locks = assert(require("resty.rlock").open {
      url = "%s", watchdog = 3, name = "spec",
    })
    told = ngx.shared.told

    function lock_once(name)
      local lock = locks:lock(name)
      assert(lock:lock())
      assert(lock:unlock())
    end

    calls = {
      exit = function() ngx.exit(503) end,
      error = function() error("on purpose") end,
      coroutine_error = function()
        coroutine.wrap(function() error("on purpose") end)()
      end,
      coroutine = function()
        coroutine.wrap(lock_once)("other")
        told:set("done", true)
      end,
      thread = function()
        assert(ngx.thread.wait(ngx.thread.spawn(lock_once, "other")))
        told:set("done", true)
      end,
      permit = function()
        local permits = locks:permits("permits")
        assert(permits:set(1))
        assert(permits:release(assert(permits:acquire())))
        told:set("done", true)
      end,
    }
  }
]]

local LOCATIONS = [[
  location = /lose { content_by_lua_block {
    local lock, call = locks:lock("lost"), calls[ngx.var.arg_and]
    local is_told = require("ngx.semaphore").new(0)
    assert(lock:lock())
    lock:on_lost(function()
      is_told:post(1)
      call()
    end)
    assert(lock:break_lock())
    assert(is_told:wait(20))
    lock:unlock()
  } }
  location = /lose-many { content_by_lua_block {
    local n, go_on = tonumber(ngx.var.arg_n), require("ngx.semaphore").new(0)
    local waiting = 0
    for i = 1, n do
      local lock = locks:lock("lost:" .. i)
      assert(lock:lock())
      lock:on_lost(function()
        waiting = waiting + 1
        go_on:wait(20)
        waiting = waiting - 1
        told:incr("calls", 1, 0)
      end)
      assert(lock:break_lock())
    end
    while waiting < 16 do ngx.sleep(0.01) end
    local timers = ngx.timer.running_count()
    while told:get("calls") ~= n do
      go_on:post(1)
      timers = math.max(timers, ngx.timer.running_count())
      ngx.sleep(0.001)
    end
    ngx.print(timers)
  } }
  location = /cycle { content_by_lua_block {
    lock_once("lost")
    ngx.print("done")
  } }
  location = /done { content_by_lua_block {
    ngx.print(tostring(told:get("done")))
  } }
]]

describe("A function for on_lost in nginx", function()
  local server, web

  before_each(function()
    server = redis.start()
    web = nginx.start { http = HTTP:format(server.url), locations = LOCATIONS }
  end)

  after_each(function()
    web:stop()
    server:stop()
  end)

  local function worker_is_well()
    assert.equal("done", (select(2, web:get("/cycle"))))
    web:signal("QUIT")
    eventually(function() return #web:workers() == 0 end, SECONDS,
      "the end of the worker")
  end

  for _, how in ipairs { "exit", "error", "coroutine_error" } do
    it("that ends badly ends nothing else (" .. how .. ")", function()
      assert.equal(200, (web:get("/lose?and=" .. how)))
      worker_is_well()
    end)
  end

  for _, what in ipairs { "coroutine", "thread", "permit" } do
    it("may use locks and permits (" .. what .. ")", function()
      assert.equal(200, (web:get("/lose?and=" .. what)))
      eventually(function()
        return select(2, web:get("/done")) == "true"
      end, SECONDS, "what it has done")
      worker_is_well()
    end)
  end

  it("leaves timers to others, however many are lost at once", function()
    local status, timers = web:get("/lose-many?n=" .. MANY)
    assert.equal(200, status)
    assert.is_true(tonumber(timers) <= 40, timers)
    worker_is_well()
  end)
end)

describe("A log callback that ends the worker's timer", function()
  local server, web

  before_each(function()
    server = redis.start()
    web = nginx.start {
      http = ([[
        init_worker_by_lua_block {
          events = {}
          locks = assert(require("resty.rlock").open {
            url = "%s", watchdog = 3,
            log = function(level, event)
              events[event] = (events[event] or 0) + 1
              if level == "warn" then ngx.exit(503) end
            end,
          })
        }
      ]]):format(server.url),
      locations = [[
        location = /hold { content_by_lua_block {
          local name = ngx.var.arg_name
          local lock = locks:lock(name)
          assert(lock:lock())
          lock:on_lost(function() lost = name end)
          while name ~= over and lock:state() ~= "lost" do ngx.sleep(0.01) end
          ngx.print(lock:state())
        } }
        location = /over { content_by_lua_block {
          over = ngx.var.arg_name
        } }
        location = /told { content_by_lua_block {
          ngx.print(lost, " ", events.at_risk, " ", events.lost)
        } }
      ]],
    }
  end)

  after_each(function()
    web:stop()
    server:stop()
  end)

  local function hold(name)
    local request = ngx.thread.spawn(function()
      return web:get("/hold?name=" .. name)
    end)
    eventually(function() return server:cli("EXISTS", name) == "1" end, SECONDS)
    return request
  end

  it("does not keep other locks from being renewed", function()
    local kept, lost = hold "kept", hold "lost"
    server:cli("DEL", "lost")
    local _, status, state = ngx.thread.wait(lost)
    assert.same({ 200, "lost" }, { status, state })
    eventually(function()
      return select(2, web:get("/told")) == "lost nil 1"
    end, SECONDS, "on_lost")
    local ends = ngx.now() + 6                     -- two leases
    while ngx.now() < ends do
      assert.equal("1", server:cli("EXISTS", "kept"))
      ngx.sleep(0.1)
    end
    web:get "/over?name=kept"
    _, status, state = ngx.thread.wait(kept)
    assert.same({ 200, "held" }, { status, state })
  end)
end)

describe("A watchdog whose log callback ends the worker's timer", function()
  local server, client, is_bad
  local LOCKS, ROUNDS = 3, 5             -- more rounds than batches in flight

  before_each(function()
    server, is_bad = redis.start(), true
    client = assert(rlock.open { url = server.url, watchdog = 2,
      log = function(level)
        if is_bad and level == "warn" then ngx.exit(ngx.ERROR) end
      end })
  end)

  after_each(function()
    client:close()
    server:stop()
  end)

  -- Is a lock renewed from now on?
  local function is_renewed(lock)
    local ends = host.now() + 3                    -- more than a lease
    eventually(function() return host.now() > ends end, SECONDS)
    return lock:state() == "held" and server:cli("EXISTS", "kept") == "1"
  end

  it("loses no batch of renewals", function()
    for round = 1, ROUNDS do
      local told, names = 0, {}
      for i = 1, LOCKS do
        names[i] = ("lost:%d:%d"):format(round, i)
        local lock = client:lock(names[i])
        assert(lock:lock())
        lock:on_lost(function() told = told + 1 end)
      end
      server:cli("DEL", unpack(names))
      eventually(function() return told == LOCKS end, SECONDS,
        "the functions for on_lost in round " .. round)
    end
    is_bad = false
    local lock = client:lock "kept"
    assert(lock:lock())
    assert.is_true(is_renewed(lock))
  end)

  it("loses no batch that nginx refuses", function()
    local lock, daemon = client:lock "kept", host.daemon
    assert(lock:lock())
    finally(function() host.daemon = daemon end)
    for _ = 1, ROUNDS do
      function host.daemon()
        host.daemon = daemon
        return nil, "refused", "no timer"
      end
      eventually(function() return lock:state() == "at_risk" end, SECONDS)
      eventually(function() return lock:state() == "held" end, SECONDS)
    end
    is_bad = false
    assert.is_true(is_renewed(lock))
  end)
end)
