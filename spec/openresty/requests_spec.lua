--- Requests as owners: what counts as one owner, and what happens to the locks
--- of a request that ends without releasing them.

local eventually = require "spec.tools.eventually"
local host = require "resty.rlock.host"
local nginx = require "spec.tools.nginx"
local proxy = require "spec.tools.proxy"
local redis = require "spec.tools.redis"

local SECONDS = 20                     -- deadline of what happens at once

local HTTP = [[
  lua_check_client_abort on;
  init_worker_by_lua_block {
    rlock = require "resty.rlock"
    locks = rlock.open { url = "%s", watchdog = 60 }
    brief = rlock.open { url = "%s", watchdog = 2 }
    far = rlock.open { url = "%s", watchdog = 60, timeout = 1 }

    function finish(client)
      local lock = client:lock(ngx.var.arg_name)
      local how = ngx.var.arg_how
      if how == "hold" then assert(lock:hold()) else assert(lock:lock()) end
      if how == "twice" then assert(lock:lock()) end
      if how == "many" then
        assert(client:permits(ngx.var.arg_name .. ":permits"):acquire())
        local name = ngx.var.arg_name
        assert(rlock.multi_lock {
          client:lock(name .. ":a"), client:fair_lock(name .. ":b"),
        }:lock())
      end
      if ngx.var.arg_sleep then ngx.sleep(tonumber(ngx.var.arg_sleep)) end
      if how == "error" then error("on purpose")
      elseif how == "exit" then ngx.exit(503)
      elseif how == "redirect" then ngx.redirect("/elsewhere")
      elseif how == "exec" then ngx.exec(ngx.var.uri .. "/elsewhere")
      elseif how == "abort" then ngx.sleep(60)
      elseif how == "thread" then
        ngx.thread.spawn(function() ngx.exit(503) end)
        ngx.sleep(60)
      end
      ngx.say("done")
    end
  }
]]

local LOCATIONS = [[
  location = /logged {
    content_by_lua_block { finish(locks) }
    log_by_lua_block { rlock.log_phase() }
  }
  location = /logged/elsewhere {
    content_by_lua_block { ngx.say("elsewhere") }
    log_by_lua_block { rlock.log_phase() }
  }
  location = /plain { content_by_lua_block { finish(brief) } }
  location = /plain/elsewhere { content_by_lua_block { ngx.say("else") } }

  location = /with {
    content_by_lua_block {
      local lock = locks:lock(ngx.var.arg_name)
      local function the_body() error("with " .. ngx.var.arg_name) end
      local function work()
        return lock:with(function() return lock:with(the_body) end)
      end
      if ngx.var.arg_how == "caught" then
        return ngx.say(select(2, pcall(work)))
      end
      work()
    }
  }

  location = /wait {
    content_by_lua_block {
      local kind = ngx.var.arg_kind or "lock"
      local lock = locks[kind](locks, ngx.var.arg_name)
      local ok, code, detail = lock:lock()
      if not ok then return ngx.say(code, " ", detail) end
      ngx.print("held")
      assert(lock:unlock())
    }
    log_by_lua_block { rlock.log_phase() }
  }

  location = /far {
    content_by_lua_block { assert(far:lock(ngx.var.arg_name):lock()) }
    log_by_lua_block { rlock.log_phase() }
  }
  location = /connect {
    content_by_lua_block {
      connecting, ended = true, false
      local client = rlock.open { url = "unix://" .. ngx.var.arg_socket }
      ngx.print(tostring(client:lock("connect"):is_locked()))
    }
    log_by_lua_block { ended = true }
  }
  location = /set {
    content_by_lua_block {
      ended = false
      assert(far:permits(ngx.var.arg_name):set(tonumber(ngx.var.arg_n)))
    }
    log_by_lua_block { ended = true }
  }
  location = /state {
    content_by_lua_block {
      collectgarbage()                   -- clears the stacks of old requests
      ngx.print(ended and "ended" or connecting and "connecting")
    }
  }
  location = /phases {
    access_by_lua_block {
      local lock = locks:lock("phases")
      assert(lock:lock())
      assert(lock:lock())
    }
    content_by_lua_block {
      local lock = locks:lock("phases")
      ngx.print(lock:hold_count(), " ")
      local thread = ngx.thread.spawn(function() return lock:unlock() end)
      ngx.print(select(2, ngx.thread.wait(thread)), " ")
      ngx.print(ngx.location.capture("/other").body)
      ngx.print(lock:unlock(), " ", lock:is_locked())
    }
  }
  location = /share { content_by_lua_block {
    local part = { "/part", { ctx = ngx.ctx } }
    asked = 0
    local one, other = ngx.location.capture_multi { part, part }
    ngx.print(one.body, other.body)
  } }
  location = /part { content_by_lua_block {
    local lock = locks:lock("part")
    local ok, code = lock:try_lock()
    asked = asked + 1
    while asked < 2 do ngx.sleep(0.01) end
    ngx.print(ok and tostring(lock:unlock()) or code, " ")
  } }
  location = /other { content_by_lua_block {
    ngx.print(select(2, locks:lock("phases"):try_lock()), " ")
  } }
  location = /again {
    content_by_lua_block {
      local lock = locks:lock("again")
      if ngx.var.arg_second then
        ngx.print(lock:hold_count(), " ", lock:unlock(), " ", lock:is_locked())
      else
        assert(lock:lock())
        ngx.exec("/again?second=1")
      end
    }
  }
  location = /named {
    content_by_lua_block {
      local lock = locks:lock("named", { owner = "order 17" })
      ngx.print(tostring(lock:try_lock { lease = 60 }))
    }
    log_by_lua_block { rlock.log_phase() }
  }
  location = /too-late { content_by_lua_block {
    local one = locks:lock("too late", { owner = "one" })
    local other = locks:lock("too late", { owner = "other" })
    assert(one:lock { lease = 60 })
    other:try_lock { wait = 1 }          -- now the worker listens
    assert(one:unlock())
    rlock.log_phase()
    local ok, code, detail = locks:lock("too late"):lock { wait = 20 }
    ngx.print(tostring(ok), " ", code, " ", detail)
  } }
  location = /timer { content_by_lua_block {
    local lock, done = locks:lock("timer"), require("ngx.semaphore").new(0)
    assert(lock:lock())
    local code
    ngx.timer.at(0, function()
      code = select(2, lock:try_lock())
      done:post(1)
    end)
    done:wait(10)
    ngx.print(code, " ", lock:unlock())
  } }
]]

describe("A request in nginx", function()
  local server, between, web, number = nil, nil, nil, 0

  setup(function()
    server = redis.start()
    between = proxy.start(server)
    web = nginx.start {
      http = HTTP:format(server.url, server.url, between.url),
      locations = LOCATIONS,
    }
  end)

  teardown(function()
    web:stop()
    between:stop()
    server:stop()
  end)

  local function fresh()
    number = number + 1
    return "request" .. number
  end

  local function exists(name) return server:cli("EXISTS", name) == "1" end

  local function until_gone(name)
    eventually(function() return not exists(name) end, SECONDS, name)
  end

  describe("is one owner", function()
    it("in all its phases and light threads, not in its subrequests",
      function()
        assert.equal("2 true busy true false", (select(2, web:get("/phases"))))
      end)

    it("that its subrequests are not, even if they share its ngx.ctx",
      function()
        local _, body = web:get("/share")
        assert.is_true(body == "true busy " or body == "busy true ", body)
      end)

    it("also after ngx.exec", function()
      assert.equal("1 true false", (select(2, web:get("/again"))))
    end)

    it("and another than the next request or a timer", function()
      local name = fresh()
      local first = web:send("/logged?how=abort&name=" .. name)
      eventually(function() return exists(name) end)
      local second = ngx.thread.spawn(function()
        return web:get("/wait?name=" .. name)
      end)
      eventually(function()
        return server:cli("PUBSUB", "CHANNELS", "*" .. name .. "*") ~= ""
      end)
      first:close()
      local _, _, body = ngx.thread.wait(second)
      assert.equal("held", body)
      assert.equal("busy true", (select(2, web:get("/timer"))))
    end)

    it("unless it names one", function()
      assert.equal("true", (select(2, web:get("/named"))))
      assert.equal("true", (select(2, web:get("/named"))))
      assert.equal("order 17\n2", server:cli("HGETALL", "named"))
    end)
  end)

  describe("that ends without unlocking, with log_phase, gives it back",
    function()
      for how, status in pairs {
        error = 500, exit = 503, redirect = 302, exec = 200, forget = 200,
        hold = 200, twice = 200, thread = 503,
      } do
        it("(" .. how .. ")", function()
          local name = fresh()
          assert.equal(status,
            (web:get(("/logged?how=%s&name=%s"):format(how, name))))
          until_gone(name)
        end)
      end

      it("(client abort)", function()
        local name = fresh()
        local request = web:send("/logged?how=abort&name=" .. name)
        eventually(function() return exists(name) end)
        request:close()
        until_gone(name)
      end)

      it("(permits and the parts of multi-locks)", function()
        local name = fresh()
        local admin = require("resty.rlock").open(server.url)
        assert.is_true(admin:permits(name .. ":permits"):set(3))
        web:get("/logged?how=many&name=" .. name)
        for _, suffix in ipairs { "", ":a", ":b" } do
          until_gone(name .. suffix)
        end
        eventually(function()
          return admin:permits(name .. ":permits"):available() == 3
        end, SECONDS)
      end)
    end)

  describe("that ends without unlocking, without log_phase, has it until its "
    .. "lease ends", function()
      for _, how in ipairs { "error", "exit", "redirect", "exec", "forget" } do
        it("(" .. how .. ")", function()
          local name = fresh()
          web:get(("/plain?how=%s&name=%s"):format(how, name))
          assert.is_true(exists(name))
          until_gone(name)
        end)
      end

      it("(permits, whose end does not stop the watchdog)", function()
        local name = fresh()
        local permits = require("resty.rlock").open(server.url)
          :permits(name .. ":permits")
        assert(permits:set(1))
        web:get("/plain?how=many&name=" .. name)
        until_gone(name)
        eventually(function() return permits:available() == 1 end, SECONDS)
      end)

      it("(client abort), and is kept alive until then", function()
        local name = fresh()
        local request = web:send("/plain?how=abort&name=" .. name)
        eventually(function() return exists(name) end)
        local began = host.now()
        while host.now() - began < 5 do
          assert.is_true(exists(name))
          ngx.sleep(0.05)
        end
        request:close()
        until_gone(name)
      end)
    end)

  describe("that fails inside lock:with", function()
    local function logged(what)
      local _, count = web:log():gsub(what, "%0")
      return count
    end

    it("logs once the traceback of the function that failed", function()
      local name = fresh()
      assert.equal(500, (web:get("/with?name=" .. name)))
      until_gone(name)
      eventually(function()
        return logged("runtime error: [^\n]* with " .. name) == 1
      end, SECONDS)
      assert.equal(1, logged("rlock: error while a lock is held: [^\n]* with "
        .. name .. "\nstack traceback:[^*]-in function <[^>]+>"))
      assert.equal(1, logged("error while a lock is held: [^\n]*" .. name))
    end)

    it("logs nothing if the error is caught, which is unchanged", function()
      local name = fresh()
      local _, body = web:get("/with?how=caught&name=" .. name)
      assert.matches("^content_by_lua[^\n]*: with " .. name .. "\n$", body)
      assert.is_false(exists(name))
      assert.equal(0, logged("is held: [^\n]*" .. name))
    end)
  end)

  it("that has ended is given nothing, and told so if it still asks",
    function()
      assert.equal("nil closed the task has ended",
        (select(2, web:get("/too-late"))))
      until_gone("too late")
    end)

  it("that is aborted before the server's answer comes leaves nothing",
    function()
      local name = fresh()
      web:get("/far?name=" .. fresh())             -- loads the scripts
      between:drop_replies(1, name)
      local request = web:send("/far?name=" .. name)
      eventually(function() return exists(name) end)
      request:close()
      until_gone(name)
    end)

  local function until_it_is(state)
    eventually(function() return select(2, web:get("/state")) == state end)
  end

  it("that is aborted is not executed after a later one", function()
    local name, locks = fresh(), require("resty.rlock").open(server.url)
    local path = "/set?name=" .. name .. "&n="
    local function started(n)
      local before = between:count(name)
      local request = web:send(path .. n)
      eventually(function() return between:count(name) > before end)
      return request
    end
    between:hold(1, name)              -- so that there are two connections
    local first = started(1)
    web:get(path .. 2)
    first:receive("*a")
    between:late(1, name)
    started(3):close()
    until_it_is("ended")
    web:get(path .. 4)
    between:deliver()
    eventually(function() return between:kept() == 0 end)
    assert.equal(4, locks:permits(name):available())
  end)

  it("that is aborted while it connects leaves that to the others", function()
    local other = redis.start()
    finally(function() other:stop() end)
    other:pause()
    local path = "/connect?socket=" .. other.socket
    local request = web:send(path)
    until_it_is("connecting")
    request:close()
    until_it_is("ended")
    other:resume()
    assert.equal("false", (select(2, web:get(path))))
  end)

  it("that is aborted while it waits leaves the line", function()
    local locks = require("resty.rlock").open(server.url)
    for _, kind in ipairs { "lock", "fair_lock" } do
      local name = fresh()
      local held = locks[kind](locks, name)
      assert.is_true(held:lock())
      local path = ("/wait?kind=%s&name=%s"):format(kind, name)
      local first = web:send(path)
      eventually(function()
        return server:cli("PUBSUB", "CHANNELS", "*" .. name .. "*") ~= ""
      end)
      local before = server:stat("evalsha")
      local second = ngx.thread.spawn(function() return web:get(path) end)
      eventually(function() return server:stat("evalsha") > before end)
      first:close()
      assert.is_true(held:unlock())
      local _, _, body = ngx.thread.wait(second)
      assert.equal("held", body)
      until_gone(name)
    end
  end)
end)
