--- Workers: what each has only one of, how they end, and lua_code_cache off,
--- where each request has its own Lua state.

local at_once = require "spec.tools.at_once"
local eventually = require "spec.tools.eventually"
local host = require "resty.rlock.host"
local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"

local SECONDS = 20

local HTTP = [[
  init_worker_by_lua_block {
    rlock = require "resty.rlock"
    locks = assert(rlock.open { url = "%s", name = "spec", watchdog = 60 })
    brief = assert(rlock.open { url = "%s", name = "spec", watchdog = 3 })
    leader = locks:election "jobs"
  }
]]

local LOCATIONS = [[
  location = /cycle { content_by_lua_block {
    local lock = locks:lock(ngx.var.arg_name or "cycle")
    assert(lock:lock { wait = 30 })
    ngx.sleep(tonumber(ngx.var.arg_sleep or 0))
    assert(lock:unlock())
    ngx.print(ngx.worker.pid())
  } }
  location = /take { content_by_lua_block {
    for i = 1, tonumber(ngx.var.arg_n) do
      local name = ngx.var.arg_name .. i
      assert(locks:lock(name, { owner = "o" .. i }):lock())
    end
    ngx.print("taken")
  } }
  location = /lead { content_by_lua_block {
    local other = locks:election "jobs"
    ngx.print(tostring(leader:campaign()))
    ngx.timer.at(0, function()
      repeat
        local leads = other:campaign { wait = 1 }
      until leads or ngx.worker.exiting()
    end)
  } }
  location = /leads { content_by_lua_block {
    local who = leader:leader()
    ngx.print(who, " ", #leader:candidates())
  } }
  location = /many { content_by_lua_block {
    local held = {}
    for i = 1, 5000 do
      held[i] = brief:lock("many:" .. i)
      assert(held[i]:lock())
    end
    ngx.sleep(9)
    for i = 1, 5000 do assert(held[i]:unlock()) end
  } }
  location = /timers { content_by_lua_block {
    ngx.print(ngx.timer.running_count(), " ", ngx.timer.pending_count())
  } }
]]

local function get_all(web, n, path)
  return at_once(n, function()
    local status, body = web:get(path)
    assert.equal(200, status)
    return body
  end)
end

-- The number of Redis' clients whose line matches this pattern.
local function clients(server, pattern)
  local count = 0
  for line in server:cli("CLIENT", "LIST"):gmatch("[^\n]+") do
    if line:find(",spec ", 1, true) and line:find(pattern) then
      count = count + 1
    end
  end
  return count
end

describe("The workers of nginx", function()
  local server, web

  before_each(function() server = redis.start() end)

  after_each(function()
    web:stop()
    server:stop()
  end)

  local function start(workers, connections)
    web = nginx.start {
      workers = workers, connections = connections,
      http = HTTP:format(server.url, server.url), locations = LOCATIONS,
    }
  end

  it("have one timer and subscriber each, however many wait", function()
    start(1)
    local lock = require("resty.rlock").open(server.url):lock("a")
    assert.is_true(lock:lock())
    local names = { "a", "a", "b", "c" }
    local threads = {}
    for i = 1, 40 do
      threads[i] = ngx.thread.spawn(function()
        return web:get("/cycle?sleep=0.01&name=" .. names[i % 4 + 1])
      end)
    end
    eventually(function()
      return server:cli("PUBSUB", "NUMSUB", "redisson_lock__channel:{a}")
        :match("1$")
    end, SECONDS)
    assert.equal("1 1", (select(2, web:get("/timers"))))
    assert.is_true(lock:unlock())
    for i = 1, 40 do
      assert.equal(200, select(2, ngx.thread.wait(threads[i])))
    end
    assert.equal("1 1", (select(2, web:get("/timers"))))
    assert.is_true(clients(server, " sub=[1-9]") <= 1)
  end)

  it("keep 5000 locks alive with that timer and a few connections #long",
    function()
    start(1, 64)
    local request = ngx.thread.spawn(function() return web:get("/many") end)
    eventually(function() return server:cli("DBSIZE") == "5000" end, SECONDS)
    local before = host.now()
    while host.now() - before < 6 do         -- two leases
      assert.equal("5000", server:cli("DBSIZE"))
      ngx.sleep(0.2)
    end
    assert.equal("1 1", (select(2, web:get("/timers"))))
    assert.is_true(server:info("connected_clients") < 16)
    assert.equal(200, select(2, ngx.thread.wait(request)))
    assert.equal("0", server:cli("DBSIZE"))
  end)

  it("leave at once when they have nothing to do, and give back what is held",
    function()
      start(2)
      get_all(web, 20, "/cycle")
      get_all(web, 1, "/take?n=300&name=named:")
      assert.equal("300", server:cli("DBSIZE"))
      local before = host.now()
      web:signal("QUIT")
      eventually(function()
        return web:has_ended()
      end, SECONDS, "the end of nginx")
      assert.is_true(host.now() - before < 8)
      assert.equal("0", server:cli("DBSIZE"))
      assert.equal(0, clients(server, ""))
    end)

  it("lead beyond the end of a request, and resign when they end", function()
    start(1)
    web:get("/lead")
    eventually(function()
      return (select(2, web:get("/leads"))):find "^%S+: nginx spec .* 1$"
    end, SECONDS, "a leader and a candidate")
    local before = host.now()
    web:signal("QUIT")
    eventually(function()
      return web:has_ended()
    end, SECONDS, "the end of nginx")
    assert.is_true(host.now() - before < 8)
    assert.equal("0", server:cli("DBSIZE"))
  end)

  it("let requests that are under way come to their end", function()
    start(1)
    local pid = web:workers()[1]
    local slow = ngx.thread.spawn(function()
      return web:get("/cycle?name=slow&sleep=3")
    end)
    eventually(function() return server:cli("EXISTS", "slow") == "1" end)
    local waiting = ngx.thread.spawn(function()
      return web:get("/cycle?name=slow&sleep=0")
    end)
    eventually(function()
      return server:cli("PUBSUB", "CHANNELS", "*slow*") ~= ""
    end)
    web:signal("HUP")
    for _, thread in ipairs { slow, waiting } do
      local _, status, body = ngx.thread.wait(thread)
      assert.equal(200, status)
      assert.equal(tostring(pid), body)
    end
    eventually(function() return web:workers()[1] ~= pid end, SECONDS)
    eventually(function() return #web:workers() == 1 end, SECONDS)
    assert.equal(200, (web:get("/cycle?name=slow")))
  end)
end)

describe("With lua_code_cache off", function()
  it("requests lock, wait by polling, and leave nothing behind", function()
    local server = redis.start()
    local web = nginx.start {
      server = "lua_code_cache off;",
      locations = ([[
        location = /cycle { content_by_lua_block {
          local rlock = require "resty.rlock"
          local locks = assert(rlock.open { url = "%s", name = "spec" })
          local lock = locks:lock("cycle")
          assert(lock:lock { wait = 30 })
          assert(lock:unlock())
          ngx.print("done")
        } }
        location = /forget { content_by_lua_block {
          local rlock = require "resty.rlock"
          local locks = assert(rlock.open { url = "%s", name = "spec" })
          assert(locks:lock("forgotten"):lock())
          ngx.print("done")
        } }
        location = /timers { content_by_lua_block {
          ngx.print(ngx.timer.running_count())
        } }
      ]]):format(server.url, server.url),
    }
    local locks = require("resty.rlock").open(server.url)
    for _ = 1, 40 do assert.equal("done", (select(2, web:get("/cycle")))) end
    get_all(web, 10, "/cycle")
    local lock = locks:lock("cycle")
    assert.is_true(lock:lock())
    local before = server:stat("evalsha")
    local waiting = ngx.thread.spawn(function() return web:get("/cycle") end)
    eventually(function() return server:stat("evalsha") > before end, SECONDS)
    assert.is_true(lock:unlock())
    assert.equal("done", select(3, ngx.thread.wait(waiting)))
    assert.equal("done", (select(2, web:get("/forget"))))
    eventually(function()
      return server:cli("EXISTS", "forgotten") == "0"
    end, SECONDS)
    eventually(function()
      return (select(2, web:get("/timers"))) == "0"
    end, SECONDS)
    local log = web:log()
    assert.is_nil(log:find("[error]", 1, true))
    assert.is_nil(log:find("timers are not enough", 1, true))
    web:stop()
    server:stop()
  end)
end)

describe("A worker that first loads rlock in a request", function()
  it("keeps what that request has taken for an owner with a name", function()
    local server = redis.start()
    local web = nginx.start { locations = ([[
      location = /take { content_by_lua_block {
        local locks = require("resty.rlock").open("%s")
        ngx.print(tostring(locks:lock("x", { owner = "me" }):lock()))
      } }
      location = /give-back { content_by_lua_block {
        local locks = require("resty.rlock").open("%s")
        ngx.print(tostring(locks:lock("x", { owner = "me" }):unlock()))
      } }
    ]]):format(server.url, server.url) }
    assert.equal("true", (select(2, web:get("/take"))))
    local before = host.now()
    while host.now() - before < 2 do
      assert.equal("1", server:cli("EXISTS", "x"))
      ngx.sleep(0.02)
    end
    assert.equal("true", (select(2, web:get("/give-back"))))
    assert.equal("0", server:cli("EXISTS", "x"))
    web:stop()
    server:stop()
  end)
end)

describe("With all running timers of a worker in use", function()
  local server, web

  before_each(function()
    server = redis.start()
    web = nginx.start {
      http = "lua_max_running_timers 4;" .. HTTP:format(server.url, server.url),
      locations = LOCATIONS .. [[
        location = /occupy { content_by_lua_block {
          leave = require("ngx.semaphore").new(0)
          for i = 1, 4 do ngx.timer.at(0, function() leave:wait(60) end) end
          while ngx.timer.running_count() < 4 do ngx.sleep(0.01) end
        } }
        location = /leave { content_by_lua_block { leave:post(4) } }
        location = /try { content_by_lua_block {
          local ok, code, detail = locks:lock("cycle"):lock { wait = 1 }
          ngx.print(tostring(ok), " ", code, " ", detail)
        } }
        location = /all-lock { content_by_lua_block {
          local ended = require("ngx.semaphore").new(0)
          for i = 1, 4 do
            ngx.timer.at(0, function()
              locks:lock("timer"):with(function() end)
              ended:post(1)
            end)
          end
          for i = 1, 4 do assert(ended:wait(20)) end
        } }
      ]],
    }
  end)

  after_each(function()
    web:stop()
    server:stop()
  end)

  it("a request is told so, and served when there is one again", function()
    assert.equal(200, (web:get("/occupy")))
    assert.equal("nil refused no timer: all of lua_max_running_timers are in "
      .. "use", (select(2, web:get("/try"))))
    assert.equal(200, (web:get("/leave")))
    assert.equal(200, (web:get("/cycle")))
    assert.equal("0", server:cli("DBSIZE"))
  end)

  it("by those who want a lock, these do not wait forever", function()
    assert.equal(200, (web:get("/all-lock")))
    assert.equal(200, (web:get("/cycle")))
    web:signal("QUIT")
    eventually(function() return #web:workers() == 0 end, SECONDS)
  end)
end)
