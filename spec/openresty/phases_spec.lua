--- The phases of nginx that cannot wait, and what rlock reports there.

local at_once = require "spec.tools.at_once"
local eventually = require "spec.tools.eventually"
local nginx = require "spec.tools.nginx"
local redis = require "spec.tools.redis"

local HANDSHAKES = 40

local HTTP = [[
  lua_shared_dict told 1m;
  init_by_lua_block {
    rlock = require "resty.rlock"
    function note(what, ok, code, detail)
      ngx.shared.told:set(what, ("%%s %%s %%s"):format(ok, code, detail))
    end
    local client, code, detail = rlock.open("%s")
    in_init = { client, code, detail }
  }
  init_worker_by_lua_block {
    locks = assert(rlock.open("%s"))
    note("open", unpack(in_init, 1, 3))
    note("init_worker", locks:lock("x"):try_lock())
  }
  upstream nowhere {
    server 0.0.0.1;
    balancer_by_lua_block {
      note("balancer", locks:lock("x"):try_lock())
      ngx.exit(502)
    }
  }
]]

local LOCATIONS = [[
  location = /elsewhere {
    set_by_lua_block $unused {
      note("set", locks:lock("x"):lock())
      return ""
    }
    rewrite_by_lua_block {
      local lock = locks:lock("x")
      assert(lock:lock())
      assert(lock:unlock())
    }
    access_by_lua_block {
      local lock = locks:lock("x")
      assert(lock:lock())
    }
    content_by_lua_block { ngx.print(locks:lock("x"):valid_for() > 1) }
    header_filter_by_lua_block {
      note("header_filter", locks:lock("x"):unlock())
    }
    body_filter_by_lua_block {
      note("body_filter", locks:semaphore("s"):acquire())
    }
    log_by_lua_block {
      note("log", locks:lock("x"):with(function() end))
      note("call", locks:call("PING"))
      note("multi", rlock.multi_lock { locks:lock("y") }:lock())
      note("permits", locks:permits("p"):acquire())
      note("latch", locks:latch("l"):wait())
      note("peek", locks:lock("x"):is_locked())
      note("held", locks:lock("x"):state(), "", "")
      rlock.log_phase()
    }
  }
  location = /balanced { proxy_pass http://nowhere; }
  location = /told {
    content_by_lua_block { ngx.print(ngx.shared.told:get(ngx.var.arg_of)) }
  }
]]

describe("A phase of nginx", function()
  local server, web

  setup(function()
    server = redis.start()
    web = nginx.start {
      http = HTTP:format(server.url, server.url), locations = LOCATIONS,
    }
    assert.equal("true", (select(2, web:get("/elsewhere"))))
    web:get "/balanced"
  end)

  teardown(function()
    web:stop()
    server:stop()
  end)

  local function told(of) return (select(2, web:get("/told?of=" .. of))) end

  for _, phase in ipairs {
    "init_worker", "set", "balancer", "header_filter", "body_filter", "log",
  } do
    it(phase .. " is one in which nothing can be waited for", function()
      assert.equal(("nil refused cannot wait in the %s phase"):format(phase),
        told(phase))
    end)
  end

  it("without cosockets refuses whatever has to ask the server", function()
    for _, what in ipairs { "call", "multi", "permits", "latch", "peek" } do
      assert.equal("nil refused cannot wait in the log phase", told(what))
    end
  end)

  it("without cosockets still tells what is known", function()
    assert.matches("^held", told("held"))
  end)

  it("in which an unlock is refused leaves the lock held, until log_phase",
    function()
      eventually(function() return server:cli("EXISTS", "x") == "0" end, 20)
    end)

  it("before the workers are forked opens no client", function()
    assert.matches("^nil refused open it in init_worker_by_lua or later",
      told("open"))
  end)
end)

-- luacheck: globals ngx.config.subsystem
describe("A subsystem of nginx", function()
  it("other than http is refused when rlock is loaded", function()
    local loaded = package.loaded["resty.rlock"]
    package.loaded["resty.rlock"], ngx.config.subsystem = nil, "stream"
    local ok, message = pcall(require, "resty.rlock")
    package.loaded["resty.rlock"], ngx.config.subsystem = loaded, "http"
    assert.is_false(ok)
    assert.equal("resty.rlock: for http { } only, not for stream { }", message)
  end)
end)

describe("A TLS handshake in nginx", function()
  it("is another owner than the requests that follow", function()
    local server = redis.start { tls = { name = "good" } }
    local web = nginx.start {
      http = ([[
        init_worker_by_lua_block {
          locks = assert(require("resty.rlock").open("%s"))
          function owner()
            local lock = locks:lock("x")
            assert(lock:lock())
            local owner = lock:peek().holders[1].owner
            assert(lock:unlock())
            return owner
          end
        }
        server {
          listen unix:%s/tls.sock ssl;
          ssl_certificate %s/good.crt;
          ssl_certificate_key %s/good.key;
          ssl_certificate_by_lua_block { of_handshake = owner() }
          location / { content_by_lua_block {
            ngx.say(of_handshake, " ", owner())
          } }
        }
      ]]):format(server.url, server.folder, server.certificates,
        server.certificates),
    }
    local socket = ngx.socket.tcp()
    assert(socket:connect("unix:" .. server.folder .. "/tls.sock"))
    assert(socket:sslhandshake(false, "localhost", false))
    local seen = {}
    for i = 1, 2 do
      assert(socket:send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
      local line
      repeat line = assert(socket:receive()) until line:find(" ", 1, true)
        and line:find("^%x+%-")
      seen[1], seen[i + 1] = line:match("^(%S+) (%S+)$")
      assert(socket:receive(7))                  -- the last chunk
    end
    socket:close()
    assert.not_equal(seen[1], seen[2])
    assert.not_equal(seen[1], seen[3])
    assert.not_equal(seen[2], seen[3])
    web:stop()
    server:stop()
  end)

  it("may look at a lock in its first phase, and take it in a later one",
    function()
      local server = redis.start { tls = { name = "good" } }
      local pair = server.certificates .. "/good"
      local web = nginx.start {
        http = ([[
          lua_shared_dict told 1m;
          init_worker_by_lua_block {
            locks = assert(require("resty.rlock").open("%s"))
            function note(ok, code, detail)
              ngx.shared.told:incr(("%%s %%s %%s"):format(ok, code, detail), 1,
                0)
            end
          }
          server {
            listen unix:%s/tls.sock ssl;
            ssl_certificate %s.crt;
            ssl_certificate_key %s.key;
            ssl_client_hello_by_lua_block { note(locks:lock("x"):state()) }
            ssl_certificate_by_lua_block {
              local lock = locks:lock("x")
              note(lock:lock { wait = 20 })
              note(lock:unlock())
            }
          }
        ]]):format(server.url, server.folder, pair, pair),
        locations = [[ location = /told { content_by_lua_block {
          for _, text in ipairs(ngx.shared.told:get_keys()) do
            ngx.say(text, ": ", ngx.shared.told:get(text))
          end
        } } ]],
      }
      at_once(HANDSHAKES, function()
        local socket = ngx.socket.tcp()
        assert(socket:connect("unix:" .. server.folder .. "/tls.sock"))
        assert(socket:sslhandshake(false, "localhost", false))
        return socket:close()
      end)
      local told = {}
      for text, times in select(2, web:get("/told")):gmatch("(.-): (%d+)\n") do
        told[text] = tonumber(times)
      end
      assert.same({
        ["free nil nil"] = HANDSHAKES,
        ["true nil nil"] = 2 * HANDSHAKES,
      }, told)
      web:stop()
      server:stop()
    end)

  it("in which nothing can be waited for is not ended by who tries", function()
    local server = redis.start { tls = { name = "good" } }
    local pair = server.certificates .. "/good"
    local web = nginx.start {
      http = ([[
        lua_shared_dict told 1m;
        init_worker_by_lua_block {
          locks = assert(require("resty.rlock").open("%s"))
          function try()
            ngx.shared.told:set(ngx.get_phase(),
              (select(3, locks:lock("x"):lock())))
          end
        }
        ssl_session_fetch_by_lua_block { try() }
        ssl_protocols TLSv1.2;
        ssl_session_tickets off;
        server {
          listen unix:%s/tls.sock ssl;
          ssl_certificate %s.crt;
          ssl_certificate_key %s.key;
          ssl_client_hello_by_lua_block { try() }
          location / { content_by_lua_block { ngx.exit(204) } }
        }
      ]]):format(server.url, server.folder, pair, pair),
      locations = [[ location = /told { content_by_lua_block {
        ngx.print(ngx.shared.told:get(ngx.var.arg_in))
      } } ]],
    }
    local session
    for _ = 1, 2 do
      local socket = ngx.socket.tcp()
      assert(socket:connect("unix:" .. server.folder .. "/tls.sock"))
      session = assert(socket:sslhandshake(session, "localhost", false))
      socket:close()
    end
    for _, phase in ipairs { "ssl_client_hello", "ssl_session_fetch" } do
      assert.equal("cannot wait in the " .. phase .. " phase",
        (select(2, web:get("/told?in=" .. phase))))
    end
    web:stop()
    server:stop()
  end)
end)
