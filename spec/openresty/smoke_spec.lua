--- A smoke test of nginx: a location that locks and unlocks, and workers that
--- wait for each other.

local at_once = require "spec.tools.at_once"
local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"

local HTTP = [[
  init_worker_by_lua_block {
    locks = assert(require("resty.rlock").open("%s"))
  }
]]

local LOCATIONS = [[
  location = /cycle { content_by_lua_block {
    local lock = locks:lock("smoke")
    assert(lock:lock())
    local is_held = lock:is_held()
    assert(lock:unlock())
    ngx.say(is_held, " ", lock:is_held())
  } }
  location = /try { content_by_lua_block {
    ngx.say((select(2, locks:lock("smoke"):try_lock())))
  } }
  location = /count { content_by_lua_block {
    local lock = locks:lock(ngx.var.arg_name or "smoke")
    assert(lock:lock { wait = 20 })
    local n = tonumber(locks:call("GET", "count") or 0) + 1
    ngx.sleep(0)
    assert(locks:call("SET", "count", n))
    assert(lock:unlock())
    ngx.print(ngx.worker.id())
  } }
]]

describe("in nginx", function()
  local server, web

  setup(function()
    server = redis.start()
    web = nginx.start {
      workers = 2, http = HTTP:format(server.url), locations = LOCATIONS,
    }
  end)

  teardown(function()
    web:stop()
    server:stop()
  end)

  it("a request locks and unlocks", function()
    local status, body = web:get("/cycle")
    assert.equal(200, status)
    assert.equal("true false\n", body)
  end)

  it("a lock that another holds is busy", function()
    local locks = require("resty.rlock").open(server.url)
    local lock = locks:lock("smoke")
    assert.is_true(lock:lock())
    assert.equal("busy\n", (select(2, web:get("/try"))))
    assert.is_true(lock:unlock())
    assert.equal("nil\n", (select(2, web:get("/try"))))
    server:cli("DEL", "smoke")
  end)

  it("the requests of two workers exclude each other", function()
    local workers, count = {}, 0
    local function ask()
      local status, body = web:get("/count")
      assert.equal(200, status)
      workers[body], count = true, count + 1
    end
    -- On a busy machine, one worker may accept all requests for a while.
    for _ = 1, 20 do
      at_once(8, function()
        for _ = 1, 25 do ask() end
        return true
      end)
      if workers["0"] and workers["1"] then break end
    end
    assert.same({ ["0"] = true, ["1"] = true }, workers)
    assert.equal(tostring(count), server:cli("GET", "count"))
    assert.equal("0", server:cli("EXISTS", "smoke"))
  end)

  it("a waiter is woken by the release in another process", function()
    local locks = require("resty.rlock").open(server.url)
    local lock = locks:lock("wake")
    assert.is_true(lock:lock())
    local waiting = ngx.thread.spawn(function()
      return web:get("/count?name=wake")
    end)
    local channel = "redisson_lock__channel:{wake}"
    repeat
      ngx.sleep(0.005)
    until server:cli("PUBSUB", "NUMSUB", channel):match("1$")
    local before = ngx.now()
    assert.is_true(lock:unlock())
    assert.equal(200, select(2, ngx.thread.wait(waiting)))
    ngx.update_time()
    assert.is_true(ngx.now() - before < 2)         -- polling takes longer
  end)

  it("the module of rlockctl names the one for OpenResty", function()
    local ok, said = pcall(require, "rlock")
    assert.is_false(ok)
    assert.is_truthy(said:find('in OpenResty, require "resty.rlock"', 1, true))
  end)

  it("a wait is not shorter than was asked for", function()
    local host = require "resty.rlock.host"
    for i = 0, 19 do
      local seconds, before = 0.005 + i / 19000, host.now()
      assert.is_false(host.event():wait(seconds))
      assert.is_true(host.now() - before >= seconds)
    end
  end)
end)
