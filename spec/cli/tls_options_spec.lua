--- The TLS options of rlockctl, which have the names of redis-cli.

local ctl = require "spec.cli.ctl"
local host = require "rlock.host.uv"
local redis = require "spec.tools.redis"

-- The commands that connect, and the exit status if nothing holds "x".
local COMMANDS = {
  [{ "run", "x", "-n", "--", "true" }] = 0, [{ "status", "x" }] = 3,
  [{ "doctor" }] = 1, [{ "ls" }] = 0, [{ "wait", "x" }] = 0,
  [{ "break", "x", "--force" }] = 3, [{ "top", "--once" }] = 0,
  [{ "-e", "assert(require('rlock').open())" }] = 0,
}

-- The words of a command after these options.
local function with(words, options, url)
  local all = { url = url, table.unpack(options) }
  return table.move(words, 1, #words, #all + 1, all)
end

teardown(ctl.clean)

describe("the options of TLS", function()
  it("need an address that can have TLS", function()
    local server = redis.shared()
    for _, option in ipairs { "--cacert=f", "--cert=f", "--key=f", "--sni=h",
        "--insecure" } do
      for _, url in ipairs { "redis://127.0.0.1:1", server.url, "local:" } do
        assert.matches("TLS options need rediss:// or %-%-tls",
          ctl.fault(206, { option, "status", "x", url = url }))
      end
    end
    for _, url in ipairs { server.url, "local:" } do
      assert.matches("%-%-tls: the server must be redis://",
        ctl.fault(206, { "--tls", "status", "x", url = url }))
    end
  end)

  if not host.versions.tls then
    it("ask for OpenSSL", function()
      for words in pairs(COMMANDS) do
        local result = ctl.run(with(words, { "--tls" }, "REDIS://127.0.0.1:1"))
        assert.is_true(result.status ~= 0)
        assert.matches("TLS needs OpenSSL", result.err, 1, true)
      end
    end)
    return
  end

  it("connect every command that connects", function()
    local server = redis.start { tls = { name = "good", clients = "yes" } }
    finally(function() server:stop() end)
    local function file(name) return server.certificates .. "/" .. name end
    local all = { "--tls", "--cacert", file "ca.crt",
      "--cert=" .. file "client.crt", "--key", file "client.key" }
    local url = "redis://localhost:" .. server.tls_port
    for words, status in pairs(COMMANDS) do
      local result = ctl.run(with(words, all, url))
      assert.same({ status, "" }, { result.status, result.err })
    end
    assert.equal(202, ctl.run(with({ "status", "x" },
      { "--tls", "--cacert=" .. file "ca.crt" }, url)).status)
  end)

  it("choose what is verified", function()
    local server = redis.start { tls = { name = "wrong" } }
    finally(function() server:stop() end)
    local url = "rediss://localhost:" .. server.tls_port
    local ca = "--cacert=" .. server.certificates .. "/ca.crt"
    assert.matches("[Hh]ost ?name mismatch",
      ctl.fault(202, with({ "status", "x" }, { ca }, url)))
    for _, options in ipairs { { "--insecure" },
        { ca, "--sni=example.org" } } do
      assert.equal(3, ctl.run(with({ "status", "x" }, options, url)).status)
    end
  end)
end)
