--- client:compute in nginx: many requests to two workers, and requests that end
--- while they compute.

local at_once = require "spec.tools.at_once"
local eventually = require "spec.tools.eventually"
local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"

local SECONDS = 20

local HTTP = [[
  lua_check_client_abort on;
  init_worker_by_lua_block {
    local rlock = require "resty.rlock"
    locks = assert(rlock.open { url = "%s", watchdog = 60 })

    function make(name, how)
      locks:call("INCR", name .. ":made")
      if how ~= "" then
        while locks:call("EXISTS", name .. ":go") == 0 do ngx.sleep(0.01) end
      end
      if how == "exit" then ngx.exit(503)
      elseif how == "redirect" then ngx.redirect("/elsewhere")
      elseif how == "abort" then ngx.sleep(60)
      end
      return "the page of " .. name
    end
  }
]]

local LOCATIONS = [[
  location = /page {
    content_by_lua_block {
      local name, how = ngx.var.arg_name, ngx.var.arg_how or ""
      locks:call("INCR", name .. ":asked")
      ngx.print(tostring(locks:compute(name, { ttl = 600, wait = 60 },
        function() return make(name, how) end)))
    }
    log_by_lua_block { require("resty.rlock").log_phase() }
  }
  location = /threads {
    content_by_lua_block {
      local name, threads = ngx.var.arg_name, {}
      for i = 1, 3 do
        threads[i] = ngx.thread.spawn(function()
          return (locks:compute(name, { ttl = 600 }, function()
            ngx.sleep(0.05)
            return make(name, "")
          end))
        end)
      end
      for i = 1, 3 do
        ngx.say(select(2, ngx.thread.wait(threads[i])))
      end
    }
  }
  location = /later {
    content_by_lua_block {
      local name, is_held, is_over = ngx.var.arg_name, false, false
      local function compute(fn)
        return ngx.thread.spawn(function()
          return (locks:compute(name, { ttl = 600 }, fn))
        end)
      end
      local first = compute(function()
        is_held = true
        while not is_over do ngx.sleep(0.01) end
        return make(name, "")
      end)
      while not is_held do ngx.sleep(0.01) end
      local second = compute(error)
      is_over = true
      ngx.say(select(2, ngx.thread.wait(first)))
      ngx.say(select(2, ngx.thread.wait(second)))
    }
  }
]]

describe("client:compute in nginx", function()
  local server, web, count = nil, nil, 0
  local name

  setup(function()
    server = redis.start()
    web = nginx.start { workers = 2, http = HTTP:format(server.url),
      locations = LOCATIONS }
  end)

  teardown(function()
    web:stop()
    server:stop()
  end)

  before_each(function()
    count = count + 1
    name = "page" .. count
  end)

  local function made() return server:cli("GET", name .. ":made") end

  it("computes once for 100 requests to two workers", function()
    local go = ngx.thread.spawn(function()
      eventually(function() return made() == "1" end, SECONDS)
      server:cli("SET", name .. ":go", "1")
    end)
    at_once(100, function()
      local status, body = web:get("/page?how=waits&name=" .. name)
      assert.same({ 200, "the page of " .. name }, { status, body })
      return true
    end)
    ngx.thread.wait(go)
    assert.equal("1", made())
  end)

  it("computes once for the light threads of a request", function()
    local _, body = web:get("/threads?name=" .. name)
    assert.equal(("the page of %s\n"):format(name):rep(3), body)
    assert.equal("1", made())
  end)

  it("computes once for a light thread that starts later", function()
    local _, body = web:get("/later?name=" .. name)
    assert.equal(("the page of %s\n"):format(name):rep(2), body)
    assert.equal("1", made())
  end)

  for _, how in ipairs { "exit", "redirect", "abort" } do
    it("computes in another request if the first one ends: " .. how, function()
      local first = web:send(("/page?how=%s&name=%s"):format(how, name))
      eventually(function() return made() == "1" end, SECONDS)
      local others = ngx.thread.spawn(function()
        return at_once(10, function()
          local status, body = web:get("/page?name=" .. name)
          return status == 200 and body
        end)
      end)
      eventually(function()
        return server:cli("GET", name .. ":asked") == "11"
      end, SECONDS)
      if how == "abort" then first:close() end
      server:cli("SET", name .. ":go", "1")
      local _, bodies = ngx.thread.wait(others)
      for i = 1, 10 do assert.equal("the page of " .. name, bodies[i]) end
      assert.equal("2", made())
    end)
  end
end)
