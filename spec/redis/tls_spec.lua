--- rediss:// against a real Redis with a TLS port: which certificates rlock
--- trusts. Built without OpenSSL there is no TLS, and the error says so.

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local host = require "rlock.host.uv"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local sentinel = require "spec.tools.sentinel"
local slot = require "rlock.redis.slot"
local slow = require "spec.tools.slow"

describe("redis://", function()
  it("to a port that expects TLS suggests rediss://", function()
    local server = redis.start { tls = { name = "good" } }
    finally(function() server:stop() end)
    local client, code, detail = rlock.open {
      url = "redis://127.0.0.1:" .. server.tls_port, connect_timeout = 5,
    }
    assert.same({ nil, "connect" }, { client, code })
    assert.matches("redis:// was tried: if this port expects TLS, use rediss:",
      detail)
  end)
end)

if not host.versions.tls then
  describe("rediss:// without OpenSSL", function()
    it("reports at once what it needs", function()
      local client, code, detail = rlock.open("rediss://localhost:6390")
      assert.is_nil(client)
      assert.equal("connect", code)
      assert.matches("TLS needs OpenSSL", detail, 1, true)
    end)
  end)
  return
end

describe("rediss://", function()
  local server

  local function file(name) return server.certificates .. "/" .. name end

  local function start(certificate, options)
    options = options or {}
    server = redis.start {
      password = options.password,
      tls = { name = certificate, clients = options.clients },
    }
  end

  local function open(name, tls, login)
    return rlock.open {
      url = ("rediss://%s%s:%d"):format(login or "", name, server.tls_port),
      tls = tls or { ca = file "ca.crt" }, connect_timeout = 5,
    }
  end

  local function refuses(reason, name, tls)
    local client, code, detail = open(name or "localhost", tls)
    assert.is_nil(client)
    assert.equal("connect", code)
    assert.matches(reason, detail)
  end

  after_each(function()
    if server then server:stop() end
    server = nil
  end)

  it("to a port without TLS suggests redis://", function()
    server = redis.start { port = true }
    server.certificates = nil
    local client, code, detail = rlock.open {
      url = "rediss://127.0.0.1:" .. server.port, connect_timeout = 1,
    }
    assert.same({ nil, "connect" }, { client, code })
    assert.matches("rediss:// was tried: if this port does not use TLS, use "
      .. "redis:", detail)
  end)

  -- What a program says with this SSL_CERT_FILE.
  local function said(path)
    local pipe = io.popen(("SSL_CERT_FILE=%s '%s' ls --url "
      .. "rediss://127.0.0.1:1 2>&1"):format(path, os.getenv "RLOCKCTL"))
    local text = pipe:read "a"
    pipe:close()
    return text
  end

  it("names a missing file of SSL_CERT_FILE", function()
    assert.matches("SSL_CERT_FILE: /no/such.crt: No such file",
      said "/no/such.crt", 1, true)
  end)

  it("takes an empty SSL_CERT_FILE for none", function()
    local text = said ""
    assert.not_matches("SSL_CERT_FILE", text)
    assert.matches("refused", text)
  end)

  it("locks, waits and wakes over TLS, by name and by address", function()
    start "good"
    for _, name in ipairs { "localhost", "127.0.0.1" } do
      local client = assert(open(name))
      local lock = client:lock("over tls")
      assert.is_true(lock:lock())
      local waiting = rlock.spawn(function()
        assert(lock:lock { wait = 10 })
        assert(lock:unlock())
        return true
      end)
      rlock.sleep(0)
      assert.is_true(lock:unlock())
      assert.is_true(waiting:join())
      assert.equal(("x"):rep(1000000), client:call("ECHO", ("x"):rep(1000000)))
      client:close()
    end
  end)

  it("logs in over TLS", function()
    start("good", { password = "secret" })
    assert(open("localhost", nil, ":secret@")):close()
    local client, _, detail = open("localhost", nil, ":wrong@")
    assert.is_nil(client)
    assert.matches("WRONGPASS", detail)
    assert.not_matches("wrong@", detail, 1, true)
  end)

  it("refuses a certificate that has expired", function()
    start "expired"
    refuses "expired"
  end)

  it("refuses a certificate of another authority", function()
    start "foreign"
    refuses "certificate"
  end)

  it("refuses a certificate for another host", function()
    start "wrong"
    refuses "[Hh]ost ?name mismatch"
  end)

  it("refuses an unknown authority", function()
    start "good"
    refuses("certificate", "localhost", {})
  end)

  it("accepts any certificate with insecure", function()
    start "wrong"
    assert(open("localhost", { verify = false })):close()
  end)

  it("shows its own certificate to a server that asks", function()
    start("good", { clients = "yes" })
    local tls = { ca = file "ca.crt", cert = file "client.crt",
      key = file "client.key" }
    assert(open("localhost", tls)):close()
    assert.is_nil((open("localhost")))
  end)

  it("says which file it cannot read", function()
    start "good"
    refuses("no%-such%.crt", "localhost", { ca = file "no-such.crt" })
  end)

  it("reports a server without TLS", function()
    server = redis.start { port = true }
    server.tls_port = server.port
    refuses("TLS", "localhost", {})
  end)
end)

describe("rediss+cluster://", function()
  after_each(fixtures.close)

  it("goes to each node over TLS, also after a slot has moved", function()
    local cluster = fixtures.cluster { tls = true }
    local client = fixtures.open(cluster.url,
      { tls = { ca = cluster.certificates .. "/ca.crt" } })
    for _, node in ipairs(cluster.nodes) do
      local name
      repeat
        name = fixtures.name "tls"
      until cluster:owner(name) == node
      local lock = client:lock(name)
      assert.is_true(lock:lock())
      assert.equal(node.tls_port, lock.record.target:route("").options.port)
      assert.equal("1", node:cli("EXISTS", name))
      local target = cluster.nodes[node == cluster.nodes[1] and 2 or 1]
      cluster:move(slot.of(name), target)
      assert.is_true(lock:unlock())
      assert.equal(target.tls_port, lock.record.target:route("").options.port)
    end
  end)
end)

describe("rediss+sentinel://", function()
  local set

  local function start(tls)
    set = sentinel.start { sleep = rlock.sleep, replicas = 1, sentinels = 1,
      quorum = 1, tls = tls }
    return { ca = set.servers[1].certificates .. "/ca.crt" }
  end

  local function open(url, options)
    return fixtures.open({ url = url, watchdog = 6 * slow }, options)
  end

  local function holds(client)
    local lock = client:lock(fixtures.name "tls")
    assert.is_true(lock:lock { wait = 10 * slow })
    return lock
  end

  after_each(function()
    fixtures.close()
    set:stop()
  end)

  it("follows a failover over TLS, also if Sentinels use none", function()
    local tls = start(true)
    local plain = ("rediss+sentinel://127.0.0.1:%d/mymaster"):format(
      set.sentinels[1].port)
    local clients = { open(set.url, { tls = tls }),
      open(plain, { tls = tls, sentinel = { tls = false } }) }
    local locks = { holds(clients[1]), holds(clients[2]) }
    eventually(function()
      return set.servers[1]:has_reached(set.servers[2])
    end, 20 * slow, "the replica has the locks")
    set:fail_over()
    for i, client in ipairs(clients) do
      eventually(function()
        return client.session.server.node.sentinel.address.port
            == set.servers[2].tls_port and locks[i]:state() == "held"
      end, 20 * slow, "it has followed")
      assert.is_true(locks[i]:unlock())
    end
  end)

  it("may be of the Sentinels only", function()
    local tls = start "sentinels"
    local lock = holds(open(set.url, { sentinel = { tls = tls } }))
    assert.equal("1", set.servers[1]:cli("EXISTS", lock.record.name))
    assert.is_true(lock:unlock())
    local _, code, detail = rlock.open(set.url)
    assert.equal("connect", code)
    assert.matches("no Sentinel answers", detail)
  end)
end)
