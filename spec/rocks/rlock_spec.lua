--- The rock rlock, installed in ROCKS_TREE; its rlockctl runs this, too.

local ctl = require "spec.cli.ctl"
local host = require "rlock.host.uv"
local redis = require "spec.tools.redis"
local shell = require "spec.tools.shell"

local tree = assert(os.getenv("ROCKS_TREE"), "run spec/rocks/run")
local server = redis.shared()

-- Runs it with rlockctl and with lua5.4, which have to agree.
local function output(code)
  local out = {}
  for i, name in ipairs { ctl.binary, "lua5.4" } do
    local result = ctl.run { program = name, "-", stdin = code,
      url = server.url, cwd = "/", env = ctl.lua_paths() }
    assert.same({ 0, "" }, { result.status, result.err })
    out[i] = result.out
  end
  assert.equal(out[1], out[2])
  return out[1]
end

teardown(ctl.clean)

describe("the rock rlock", function()
  it("has every file but OpenResty's and those of rlockctl", function()
    local function files(folder)
      return (shell.run(("cd %s && find . -name '*.lua' ! -path './resty/*' "
        .. "! -path './rlockctl/*' | LC_ALL=C sort"):format(folder)))
    end
    assert.equal(files("lua"), files(tree .. "/share/lua/5.4"))
  end)

  it("is what runs here", function()
    assert.equal(tree .. "/bin/rlockctl", ctl.binary)
    assert.equal(tree .. "/share/lua/5.4/rlock.lua\n", output [[
      print(package.searchpath("rlock", package.path))]])
  end)

  it("has the same libraries in its core as in rlockctl", function()
    output [[
      local versions = require("rlock.host.uv").versions
      print(versions.uv, versions.hiredis, versions.tls)]]
  end)

  it("locks", function()
    assert.equal("true\n", output [[
      local rlock = require "rlock"
      rlock.run(function()
        local client <close> = assert(rlock.open())
        local lock = client:lock("rocks:lock")
        assert(lock:lock())
        assert(lock:is_held())
        print(lock:unlock())
      end)]])
  end)

  it("goes over TLS, or says why not", function()
    local tls = redis.start { tls = {} }
    finally(function() tls:stop() end)
    local said = output(([[
      local rlock = require "rlock"
      rlock.run(function()
        local client, _, detail = rlock.open {
          url = "rediss://localhost:%d", tls = { ca = "%s/ca.crt" },
        }
        print(client and client:call("PING") or detail)
      end)]]):format(tls.tls_port, tls.certificates))
    assert.matches(host.versions.tls and "^PONG\n$" or "needs OpenSSL", said)
  end)

  it("runs examples/hello.lua", function()
    local result = ctl.run { "examples/hello.lua" }
    assert.same({ 0, "" }, { result.status, result.err })
    ctl.run { "local", "stop" }
  end)
end)
