--- TLS and logins of ZooKeeper.

local codec = require "rlock.zookeeper.codec"
local ctl = require "spec.cli.ctl"
local fixtures = require "spec.tools.fixtures"
local on_zookeeper = require "spec.tools.on_zookeeper"
local peers = require "spec.tools.zookeeper_peer"
local rlock = require "rlock"
local slow = require "spec.tools.slow"

local server = on_zookeeper("zks://",
  { describe = describe, pending = pending, teardown = teardown },
  { tls = true })
if not server then return end

local STOP, CONT = 19, 18

teardown(ctl.clean)

after_each(fixtures.close)

-- Why a client cannot be opened.
local function refusal(options)
  options.connect_timeout = 2 * slow
  local client, code, detail = rlock.open(options)
  assert.is_nil(client)
  assert.is_nil(detail:find("\n"))
  return code, detail
end

describe("zks://", function()
  it("goes over TLS", function()
    local client = fixtures.open { url = server.tls_url,
      tls = { ca = server.ca } }
    local lock = client:lock "tls"
    assert.is_true(lock:lock())
    assert.is_true(lock:is_held())
    assert.is_true(lock:unlock())
  end)

  it("is used by rlockctl, also for what is no frame", function()
    assert.matches("\nlocalhost:%d+: zookeeper 3[%d.]+, standalone\n",
      ctl.output { "--cacert", server.ca, "doctor", url = server.tls_url })
  end)

  it("checks the server's certificate", function()
    local code, detail = refusal { url = server.tls_url }
    assert.equal("connect", code)
    assert.matches("TLS: unable to get local issuer certificate", detail)
  end)

  it("to a port without TLS suggests zk://, also if that is silent", function()
    local url = "zks://127.0.0.1:" .. server.port
    local hint = "; zks:// was tried: if this port does not use TLS, use zk://"
    local code, detail = refusal { url = url }
    assert.equal("connect", code)
    assert.matches("TLS: [^;]*" .. hint .. "$", detail)
    server:signal(STOP)
    code, detail = refusal { url = url }
    server:signal(CONT)
    assert.equal("connect", code)
    assert.matches("no connection within %d+ ms" .. hint .. "$", detail)
  end)
end)

describe("zk://", function()
  local hint = "; zk:// was tried: if this port expects TLS, use zks://"

  it("to a port that expects TLS suggests zks://", function()
    local code, detail = refusal { url = (server.tls_url:gsub("zks", "zk")) }
    assert.equal("connect", code)
    assert.matches(hint .. "$", detail)
  end)

  it("suggests nothing if there was a session, or no server", function()
    local client = fixtures.open { url = server.url, timeout = slow }
    server:kill()
    local ok, code, detail = client:lock "tls":lock { wait = slow }
    assert.same({ nil, "connect" }, { ok, code })
    assert.is_nil(detail:find(hint, 1, true))
    code, detail = refusal { url = server.url }
    assert.equal("connect", code)
    assert.is_nil(detail:find(hint, 1, true))
    server:restart()
  end)
end)

describe("a login", function()
  it("is sent, and may be what a node asks for", function()
    local client = fixtures.open((server.url:gsub("//", "//me:secret@")))
    local link = client.session.server.connection
    local deadline = rlock.now() + 10
    assert.equal(0, (link:post(codec.ops.create2, codec.create("/mine", "",
      codec.flags.persistent, codec.CREATOR)):wait(deadline)))
    assert.is_true(client:lock "mine/a":lock())
    local other = fixtures.open(server.url)
    local ok, code, detail = other:lock "mine/b":try_lock()
    assert.same({ nil, "zookeeper" }, { ok, code })
    assert.equal("NOAUTH for /mine/b: this login has no permission for the "
      .. "node", detail)
    assert.is_nil(tostring(client):find "secret")
  end)

  it("needs both words", function()
    for _, options in ipairs { { url = "zk://me@h" }, { url = "zk://:x@h" },
        { url = "zk://h", password = "x" } } do
      assert.equal("usage", (refusal(options)))
    end
  end)
end)

describe("a chroot", function()
  it("is put before all names, and must exist", function()
    local peer = peers.open(server)
    assert(peer:make "/app")
    local client = fixtures.open(server.url .. "/app")
    assert.is_true(client:lock "x/y":lock())
    assert.equal(1, #peer:names "/app/x/y")
    local code, detail = refusal { url = server.url .. "/none" }
    assert.equal("refused", code)
    assert.matches("there is no node /none; make it", detail)
    peer:close()
  end)
end)
