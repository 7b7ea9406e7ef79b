--- How lost connections are sealed: which server gets the request, and what
--- happens where it refuses or an intermediary replies for it. rows/late.lua
--- shows why sealing is necessary.

-- luacheck: read globals redis

local eventually = require "spec.tools.eventually"
local fixtures = require "spec.tools.fixtures"
local rlock = require "rlock"
local slow = require "spec.tools.slow"

local PATIENCE = 15 * slow

describe("a lost connection", function()
  local server, proxy, client

  local function open(options)
    client = fixtures.open({ url = proxy.url, timeout = 0.5 * slow }, options)
    return client
  end

  before_each(function()
    server = fixtures.server()
    proxy = fixtures.proxy(server)
  end)

  after_each(fixtures.close)

  local function mode() return client.session.server.node.seals.mode end

  -- Without those of nobody, which ask whether it is permitted.
  local function kills()
    return proxy:count("KILL") - proxy:count("9223372036854775807")
  end

  -- A command whose reply is lost with its connection.
  local function lose_one()
    assert(client:lock("warm"):lock())
    proxy:cut(1, "warm")
    assert(client:lock("warm"):unlock())
  end

  it("is killed before its request is retried", function()
    open()
    lose_one()
    assert.is_true(kills() >= 1)
    assert.equal("kill", mode())
  end)

  it("is not killed on a server that was restarted: the id is a stranger's",
    function()
      open()
      assert(client:lock("x"):lock())
      server:restart()
      eventually(function() return client:call("PING") end, PATIENCE)
      local ok = client:lock("y"):lock { wait = PATIENCE }
      assert.is_true(ok)
      assert.equal(0, kills())
      assert.equal("kill", mode())
    end)

  for what, rights in pairs {
    ["CLIENT KILL"] = "-client|kill", ["CLIENT ID"] = "-client",
    INFO = "-info",
  } do
    it("makes requests expire where the server refuses " .. what, function()
      server:cli("ACL", "SETUSER", "weak", "on", ">secret", "~*", "&*", "+@all",
        rights)
      open { username = "weak", password = "secret" }
      assert.equal("time", mode())               -- before anything is sent
      lose_one()
      assert.is_true(client:lock("y"):lock())
      assert.is_true(proxy:count("TIME") >= 1)
      assert.equal(0, kills())
    end)
  end

  it("makes requests expire where something else answers CLIENT KILL",
    function()
      proxy:pretend(1000, "KILL")
      open()
      eventually(function() return mode() == "time" end, PATIENCE)
      assert.is_true((client:lock("y"):lock()))
      assert.is_true((client:lock("y"):unlock()))
    end)

  it("is used to test sealing once, and the server complies", function()
    open()
    eventually(function() return kills() > 0 end, PATIENCE)
    eventually(function()
      return select(2, next(client.session.server.node.seals.probed))
    end, PATIENCE)
    assert.equal("kill", mode())
    assert.equal(1, kills())
  end)
end)

describe("a request with a deadline", function()
  local server, client

  before_each(function()
    server = fixtures.server()
    client = fixtures.open { url = server.url, seal = "time" }
  end)

  after_each(fixtures.close)

  it("has no effect after the deadline", function()
    local script = require "rlock.script"
    local op = client:lock("x").record.policy.ops.acquire
    local text = script.with_deadline(op).text
    local now = client:call("TIME")
    local ms = now[1] * 1000
    local function run(deadline)
      return client:call("EVAL", text, 2, "x", "c", "me", "1000", "1",
        ("%.0f"):format(deadline))
    end
    local reply, code, detail = run(ms - 1000)
    assert.same({ nil, "redis" }, { reply, code })
    assert.matches("^EXPIRED", detail)
    assert.equal("0", server:cli("EXISTS", "x"))
    assert.equal("held", run(ms + 60000))
  end)

  it("keeps the places of errors in the policy's file", function()
    local bad = client:policy({
      name = "bad", keys = function(name) return { name } end,
      server = {
        acquire = function(keys)
          redis.call("set", keys[1], "x")
          return redis.call("hget", keys[1], "x")          -- luacheck: ignore
        end,
        release = function() return { "freed" } end,
      },
    }, "x")
    local line = debug.getinfo(bad.record.policy.server.acquire, "S")
      .linedefined + 2
    local _, _, detail = bad:try_lock { lease = 1 }
    assert.truthy(detail:find("seal_spec.lua:" .. line, 1, true), detail)
  end)

  it("is renewed although the server's time was late at first", function()
    local proxy = fixtures.proxy(server)
    local other = fixtures.open {
      url = proxy.url, seal = "time", watchdog = 3 * slow, timeout = 0.5 * slow,
    }
    local lock = other:lock("kept")
    assert(lock:lock())
    proxy:mute(1, "TIME")
    proxy:kill()
    local ends = rlock.now() + 3 * slow
    eventually(function() return rlock.now() > ends end, 6 * slow)
    assert.equal("held", lock:state())
  end)

  it("is renewed, and given back when the client is closed", function()
    local other = fixtures.open {
      url = server.url, seal = "time", watchdog = 0.6 * slow,
    }
    local lock = other:lock("kept")
    assert(lock:lock())
    local ends = rlock.now() + 2 * slow
    eventually(function() return rlock.now() > ends end, 4 * slow)
    assert.equal("held", lock:state())
    other:close()
    assert.equal("0", server:cli("EXISTS", "kept"))
  end)
end)
