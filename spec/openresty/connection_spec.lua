--- Connections from nginx to Redis: addresses, logins, TLS, pools, and servers
--- that are away, restart or lose their data.

local eventually = require "spec.tools.eventually"
local host = require "resty.rlock.host"
local nginx = require "spec.tools.nginx"
local proxy = require "spec.tools.proxy"
local redis = require "spec.tools.redis"
local rlock = require "resty.rlock"

local SECONDS = 20

local function cycle(client, name)
  local lock = client:lock(name or "cycle")
  assert.is_true(lock:lock { wait = SECONDS })
  assert.is_true(lock:unlock())
end

describe("rlock.open in nginx", function()
  it("is the same client for the same options", function()
    local client = rlock.open { url = "redis://127.0.0.1:1", timeout = 1 }
    assert.equal(client, rlock.open { timeout = 1,
      url = "redis://127.0.0.1:1" })
    assert.not_equal(client, rlock.open { timeout = 2,
      url = "redis://127.0.0.1:1" })
    assert.is_true(client:close())
    assert.not_equal(client, rlock.open { url = "redis://127.0.0.1:1",
      timeout = 1 })
  end)

  it("raises for options that it does not have", function()
    for message, options in pairs {
      ["bad option wait of rlock.open"] = { wait = 1 },
      ["bad option tls.ca: in nginx, set"] = { tls = { ca = "x" } },
      ["bad option x of tls: must be one of cert, key, server_name, verify"] =
        { tls = { x = 1 } },
      ["bad option x of sentinel.tls: must be one of"] =
        { sentinel = { tls = { x = 1 } } },
      ["bad option sentinel.tls.ca: in nginx, set"] =
        { sentinel = { tls = { ca = "x" } } },
      ["bad tls: cert and key belong together"] = { tls = { cert = "x" } },
      ["bad tls: must be a table"] = { tls = true },
      ["bad pool_size: must be a whole number"] = { pool_size = 0.5 },
      ["bad keepalive_timeout: -1"] = { keepalive_timeout = -1 },
      ["bad timeout: -1"] = { timeout = -1 },
      ["bad url: must be a string, is a number"] = { url = 1 },
      ["bad password: must be a string, is a table"] = { password = {} },
      ["bad username: must be a string, is a boolean"] = { username = true },
      ["bad tls.server_name: must be a string"] = { tls = { server_name = 1 } },
      ["bad tls.cert: must be a string"] = { tls = { cert = {}, key = "x" } },
      ["bad tls.verify: must be a boolean"] = { tls = { verify = "no" } },
    } do
      local ok, said = pcall(rlock.open, options)
      assert.is_false(ok)
      assert.is_truthy(said:find(message, 1, true), said)
      assert.is_falsy(said:find("rlock.lua:", 1, true), said)
    end
  end)

  it("says what is wrong with an address", function()
    for message, options in pairs {
      ["bad url: local: is for rlockctl"] = "local:",
      ["bad url: must begin with redis://"] = "http://x",
      ["bad option tls: only rediss://"] = { tls = {} },
      ["No such file"] = { url = "rediss://x",
        tls = { cert = "/no/file", key = "/no/file" } },
    } do
      local client, code, detail = rlock.open(options)
      assert.is_nil(client)
      assert.equal("usage", code)
      assert.is_truthy(detail:find(message, 1, true), detail)
    end
  end)
end)

describe("A client in nginx", function()
  local server, opened

  before_each(function() opened = {} end)

  after_each(function()
    for _, client in ipairs(opened) do client:close() end
    if server then server:stop() end
    server = nil
  end)

  local function open(options)
    local client = assert(rlock.open(options))
    opened[#opened + 1] = client
    return client
  end

  it("logs in, selects a database and tells its name", function()
    server = redis.start { password = "pass word", port = true }
    local client = open {
      url = ("redis://:pass%%20word@127.0.0.1:%d/3"):format(server.port),
      name = "spec",
    }
    assert.equal("OK", client:call("SET", "key", 1))
    assert.equal("1", server:script { { "SELECT", 3 }, { "GET", "key" } }
      :match("1$"))
    assert.matches((" name=rlock,%s,[^,]+,%d,nginx,spec "):format(
      client.session.id:gsub("%-", "%%-"), ngx.worker.pid()),
      client:call("CLIENT", "LIST"))
    cycle(client)
  end)

  it("tells its name only with identity = false", function()
    server = redis.start()
    local client = open { url = server.url, identity = false, name = "a b" }
    assert.matches(" name=a%%20b ", client:call("CLIENT", "LIST"))
  end)

  it("finds a server by its number, of either kind", function()
    server = redis.start { port = true }
    for _, address in ipairs { "127.0.0.1", "[::1]" } do
      if ngx.socket.tcp():connect(address, server.port) then
        cycle(open(("redis://%s:%d"):format(address, server.port)))
      end
    end
  end)

  it("does not seal by a connection that somebody else keeps", function()
    server = redis.start()
    server:cli("ACL", "SETUSER", "weak", "on", ">secret", "+ping", "+client|id",
      "+info")
    local between = proxy.start(server)
    finally(function() between:stop() end)
    local client = open { url = between.url, timeout = 2 }
    cycle(client, "sealed")
    local socket = ngx.socket.tcp()
    assert(socket:connect("unix:" .. between.socket))
    assert(socket:send("AUTH weak secret\r\n"))
    assert.equal("+OK", socket:receive())
    assert(socket:setkeepalive())
    between:cut(1, "sealed")
    cycle(client, "sealed")
    assert.equal("kill", client.session.server.node.seals.mode)
  end)

  it("puts sealing to the test", function()
    server = redis.start()
    local between = proxy.start(server)
    finally(function() between:stop() end)
    local seals = open(between.url).session.server.node.seals
    cycle(open(between.url))
    eventually(function() return select(2, next(seals.probed)) end, SECONDS)
    assert.equal("kill", seals.mode)
    between:pretend(1000, "KILL")
    seals = open { url = between.url, timeout = 4 }.session.server.node.seals
    cycle(open { url = between.url, timeout = 4 })
    eventually(function() return seals.mode == "time" end, SECONDS)
  end)

  it("kills nothing on a server that hides its run id", function()
    server = redis.start()
    server:cli("ACL", "SETUSER", "blind", "on", ">secret", "~*", "&*", "+@all",
      "-info")
    local client = open { url = server.url, username = "blind",
      password = "secret" }
    cycle(client)
    assert.equal("time", client.session.server.node.seals.mode)
  end)

  it("keeps apart the connections of different logins and databases",
    function()
      server = redis.start {
        users = { "alice on >a ~* &* +@all", "bob on >b ~* &* +@all" },
        port = true,
      }
      local function who(login, db)
        local client = open(("redis://%s@127.0.0.1:%d/%d"):format(login,
          server.port, db))
        return client:call("ACL", "WHOAMI"), client:call("GET", "where")
      end
      server:script { { "SET", "where", "0" }, { "SELECT", "1" },
        { "SET", "where", "1" } }
      for _ = 1, 3 do
        assert.same({ "alice", "0" }, { who("alice:a", 0) })
        assert.same({ "bob", "0" }, { who("bob:b", 0) })
        assert.same({ "bob", "1" }, { who("bob:b", 1) })
      end
      local client = open(("redis://bob:x@127.0.0.1:%d"):format(
        server.port))
      local ok, code, detail = client:lock("x"):lock()
      assert.is_nil(ok)
      assert.equal("connect", code)
      assert.matches("^WRONGPASS", detail)
      assert.matches(("in reply to AUTH, from 127.0.0.1:%d"):format(
        server.port), detail, 1, true)
    end)

  it("names the server that wants a login", function()
    server = redis.start { password = "secret", port = true }
    local client = open("redis://127.0.0.1:" .. server.port)
    local ok, code, detail = client:lock("x"):lock()
    assert.same({ nil, "connect" }, { ok, code })
    assert.equal(("NOAUTH Authentication required. (in reply to CLIENT, from "
      .. "127.0.0.1:%d)"):format(server.port), detail)
  end)

  it("sends numbers as they are", function()
    server = redis.start()
    local client = open(server.url)
    for number, text in pairs {
      [1e15] = "1000000000000000", [2^53 - 1] = "9007199254740991",
      [123456789012345] = "123456789012345", [-7] = "-7", [0.5] = "0.5",
    } do
      assert.equal(text, client:call("ECHO", number))
    end
    assert.is_false(client:call("GET", "nothing"))
    local reply, code, detail = client:call("LPUSH", "list")
    assert.is_nil(reply)
    assert.equal("redis", code)
    assert.matches("^ERR wrong number of arguments", detail)
    assert.equal("usage", select(2, client:call("MULTI")))
  end)

  it("keeps one connection for what it does one after the other", function()
    server = redis.start()
    local client = open(server.url)
    for _ = 1, 100 do cycle(client) end
    assert.is_true(server:info("total_connections_received") < 20)
  end)

  it("goes on after its scripts were flushed and the server was restarted",
    function()
      server = redis.start()
      local client = open(server.url)
      cycle(client)
      server:cli("SCRIPT", "FLUSH")
      cycle(client)
      server:restart()
      cycle(client)
    end)

  it("says that the server is away, and finds it when it is back", function()
    server = redis.start()
    local client = open(server.url)
    local lock = client:lock("x")
    cycle(client)
    server:kill()
    local ok, code, detail = lock:lock { wait = 0.2 }
    assert.is_nil(ok)
    assert.equal("connect", code)
    assert.is_truthy(detail:find(server.socket, 1, true), detail)
    local waiting = ngx.thread.spawn(function()
      return lock:lock { wait = SECONDS }
    end)
    server:launch()
    assert.is_true(select(2, ngx.thread.wait(waiting)))
    assert.is_true(lock:unlock())
  end)

  it("gives up a server that does not answer, in time", function()
    server = redis.start()
    local client = open { url = server.url, timeout = 0.3 }
    cycle(client)
    server:pause()
    local ok, code = client:lock("x"):try_lock()
    assert.is_nil(ok)
    assert.is_true(code == "timeout" or code == "connect", code)
    server:resume()
    eventually(function()
      return server:cli("EXISTS", "x") == "0" and client:lock("x"):try_lock()
    end, SECONDS)
    assert.equal("1", server:cli("EXISTS", "x"))
  end)

  it("gives up answers that come in pieces when the time is over for all",
    function()
      server = redis.start()
      local between = proxy.start(server)
      local commands = {}
      for i = 1, 9 do
        commands[i] = { "ECHO", "piece " .. i }
        between:hold(0.5, "piece " .. i)
      end
      local connection = host.connect {
        path = between.socket, timeout = 1000, handshake = {},
        pool = { name = "pieces", idle = 1000, size = 1 },
      }
      local _, codes = connection:pipeline(1000, commands)
      assert.equal("timeout", codes[9])
      connection:close()
      between:stop()
    end)

  it("wakes all waiters when the subscriber had to connect again", function()
    server = redis.start()
    local between = proxy.start(server)
    local client = open(between.url)
    local lock = open(server.url):lock("x")
    assert.is_true(lock:lock())
    local waiting = ngx.thread.spawn(function()
      return client:lock("x", { owner = "another" }):lock { wait = SECONDS }
    end)
    local function listeners()
      return server:cli("PUBSUB", "NUMSUB", "redisson_lock__channel:{x}")
        :match("%d+$")
    end
    eventually(function() return listeners() == "1" end)
    between:drop_messages(1)
    assert.is_true(lock:unlock())            -- its wake is lost
    between:kill()
    assert.is_true(select(2, ngx.thread.wait(waiting)))
    eventually(function() return listeners() == "1" end)
    between:stop()
  end)

  it("closes a subscriber whose messages raise an error", function()
    server = redis.start()
    local wakeup = open(server.url).session.wakeup
    local function subscriber()
      return server:cli("CLIENT", "LIST"):match "id=(%d+) [^\n]* sub=1"
    end
    local waiter = wakeup:join("channel", function() error "on purpose" end)
    local first = eventually(subscriber, SECONDS, "a subscriber")
    collectgarbage "stop"                          -- it closes sockets, too
    finally(function() collectgarbage "restart" end)
    server:cli("PUBLISH", "channel", "0")
    eventually(function()
      local id = subscriber()
      return id and id ~= first
    end, SECONDS, "another one instead")
    wakeup:leave(waiter)
  end)
end)

describe("the error log of nginx", function()
  it("tells at info of an operation that is retried, and why", function()
    local server = redis.start { password = "secret" }
    local web = nginx.start {
      log = "info",
      http = ([[init_worker_by_lua_block {
        locks = assert(require("resty.rlock").open "%s")
      }]]):format(server.url),
      locations = [[ location = /lock { content_by_lua_block {
        local lock = locks:lock("retried")
        assert(lock:lock())
        assert(lock:unlock())
        assert(locks:call("SCRIPT", "FLUSH"))
        assert(lock:lock())
        assert(lock:unlock())
      } } ]],
    }
    assert.equal(200, (web:get("/lock")))
    local log = web:log()
    local _, times = log:gsub("is retried", "")
    assert.matches('rlock: reentrant.acquire of "retried" is retried: '
      .. "NOSCRIPT", log, 1, true)
    assert.equal(2, times)
    assert.is_nil(log:find("secret", 1, true))
    web:stop()
    server:stop()
  end)
end)

describe("rediss:// in nginx", function()
  local server, web

  after_each(function()
    web:stop()
    server:stop()
  end)

  -- What a request gets that wants a lock; "true" if it got the lock.
  local function told(url, tls)
    web = nginx.start {
      http = ([[
        lua_ssl_trusted_certificate %s/ca.crt;
        lua_ssl_verify_depth 3;
        init_worker_by_lua_block {
          locks = assert(require("resty.rlock").open { url = "%s", tls = %s })
        }
      ]]):format(server.certificates, url, tls or "{}"),
      locations = [[ location = /lock { content_by_lua_block {
        local lock = locks:lock("over tls")
        local ok, code, detail = lock:lock { wait = 3 }
        if not ok then return ngx.print(code, " ", detail) end
        lock:unlock()
        ngx.print("true")
      } } ]],
    }
    return (select(2, web:get("/lock")))
  end

  local function url(name)
    return ("rediss://%s:%d"):format(name or "127.0.0.1", server.tls_port)
  end

  it("takes a lock from a server that it trusts", function()
    server = redis.start { tls = { name = "good" } }
    assert.equal("true", told(url(), '{ server_name = "localhost" }'))
  end)

  it("shows a certificate to a server that wants one", function()
    server = redis.start { tls = { name = "good", clients = "yes" } }
    local pair = server.certificates .. "/client"
    assert.equal("true", told(url(), ('{ server_name = "localhost", '
      .. 'cert = "%s.crt", key = "%s.key" }'):format(pair, pair)))
  end)

  for name, reason in pairs {
    expired = "certificate has expired", wrong = "certificate host mismatch",
    foreign = "unable to verify",
  } do
    it("refuses a certificate that is " .. name, function()
      server = redis.start { tls = { name = name } }
      local said = told(url(), '{ server_name = "localhost" }')
      assert.matches("^connect ", said)
      -- The deadline may have cut off the last attempt.
      eventually(function()
        return said:find(reason) or select(2, web:get("/lock")):find(reason)
      end, SECONDS, reason)
    end)
  end

  it("suggests redis:// for a port without TLS", function()
    server = redis.start { port = true, tls = { name = "good" } }
    assert.matches("rediss:// was tried: if this port does not use TLS, use "
      .. "redis:", told("rediss://127.0.0.1:" .. server.port,
      "{ verify = false }"))
  end)

  it("is suggested for a port that expects it", function()
    server = redis.start { tls = { name = "good" } }
    web = nil
    local said = told("redis://127.0.0.1:" .. server.tls_port, "nil")
    assert.matches("redis:// was tried: if this port expects TLS, use rediss:",
      said)
  end)

  it("believes anybody only if told so", function()
    server = redis.start { tls = { name = "foreign" } }
    assert.equal("true", told(url(), "{ verify = false }"))
  end)
end)

describe("A server that accepts, and is silent in the TLS handshake", function()
  it("delays a request of nginx for connect_timeout", function()
    local server = redis.start { tls = { name = "good" } }
    finally(function()
      server:resume()
      server:stop()
    end)
    server:pause()
    local client = assert(rlock.open { connect_timeout = 0.5,
      url = "rediss://127.0.0.1:" .. server.tls_port })
    local began = host.now()
    local ok, code, detail = client:lock("x"):try_lock()
    assert.same({ nil, "connect" }, { ok, code })
    assert.matches("timeout", detail)
    assert.is_true(host.now() - began < 3 * SECONDS)
    client:close()
  end)
end)
