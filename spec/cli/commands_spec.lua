--- The commands: what they print, and with which status they end. And that no
--- password is ever printed.

local ctl = require "spec.cli.ctl"
local redis = require "spec.support.redis"
local rlock = require "rlock"

local server = redis.shared()

local function run(...) return ctl.run { url = server.url, ... } end

-- It ended well and said nothing on standard error; returns what it printed.
local function output(...)
  local result = run(...)
  assert.same({ 0, 0, "" }, { result.status, result.signal, result.err })
  return result.out
end

-- It told of a fault on one line and ended with this status.
local function fault(status, options)
  options.url = options.url or server.url
  local result = ctl.run(options)
  assert.same({ status, 0, "" }, { result.status, result.signal, result.out })
  assert.matches("^rlockctl: [^\n]+\n$", result.err)
  return result.err
end

teardown(ctl.clean)

describe("rlockctl status", function()
  local client

  setup(function() client = assert(rlock.open(server.url)) end)
  teardown(function() client:close() end)

  it("shows a free lock", function()
    assert.equal('"cli:none" is free\n', output("status", "cli:none"))
    assert.equal('{"holders":[],"kind":"reentrant","name":"cli:none",'
      .. '"state":"free"}\n', output("status", "--json", "cli:none"))
  end)

  it("shows who holds a lock, how often, and for how long", function()
    local lock = client:lock("cli:held", { owner = "me" })
    assert(lock:lock { lease = 60 })
    assert.matches('^"cli:held" is held\n  held by me, 1 time\n'
      .. "  for [56]%d%.%d s more, unless it is renewed\n$",
      output("status", "cli:held"))
    assert(lock:lock { lease = 60 })
    assert.matches("held by me, 2 times\n", output("status", "cli:held"))
    assert.matches('^{"holders":%[{"count":2,"owner":"me"}%],'
      .. '"kind":"reentrant","name":"cli:held","state":"held",'
      .. '"ttl_ms":5%d%d%d%d}\n$', output("status", "cli:held", "--json"))
    assert(lock:unlock())
    assert(lock:unlock())
  end)

  it("shows a lock that does not expire", function()
    server:cli("HSET", "cli:for ever", "somebody", "1")
    assert.equal('"cli:for ever" is held\n  held by somebody, 1 time\n'
      .. "  without an expiry\n", output("status", "cli:for ever"))
    server:cli("DEL", "cli:for ever")
  end)

  it("lets no name touch the terminal, and keeps JSON valid", function()
    local name = "cli:\27[31m\n\t\"\\\255"
    server:cli("HSET", name, "\27]0;x\7\255", "1")
    local text = output("status", name)
    assert.is_nil(text:find("[%z\1-\9\11-\31]"))
    assert.equal(3, select(2, text:gsub("\n", "")))
    local line = output("status", name, "--json")
    assert.is_truthy(utf8.len(line))
    assert.is_truthy(line:find('"name":"cli:\\u001b[31m\\u000a\\u0009\\u0022'
      .. '\\u005c\u{FFFD}"', 1, true))
    server:cli("DEL", name)
  end)

  it("takes the name literally after --", function()
    assert.equal('"--json" is free\n', output("status", "--", "--json"))
  end)

  it("takes --url, before or after its name", function()
    local there, nowhere = server.url, "unix:///nowhere"
    for _, words in ipairs {
      { "--url", there, "status", "x" }, { "status", "--url", there, "x" },
      { "status", "x", "--url=" .. there },
      { "--url", nowhere, "status", "x", "--url", there },
    } do
      words.url = nowhere
      assert.equal('"x" is free\n', ctl.run(words).out)
    end
  end)

  it("ends with 1 for a key that is no lock", function()
    server:cli("SET", "cli:string", "x")
    assert.matches("WRONGTYPE", fault(1, { "status", "cli:string" }))
    server:cli("DEL", "cli:string")
  end)

  it("ends with 202 if the server cannot be reached", function()
    assert.matches("/nowhere: no such file or directory",
      fault(202, { "status", "x", url = "unix:///nowhere" }))
    assert.matches("127.0.0.1:1: connection refused",
      fault(202, { "status", "x", url = "redis://127.0.0.1:1" }))
    assert.matches("nohost.invalid:6379: ",
      fault(202, { "status", "x", url = "redis://nohost.invalid" }))
  end)

  it("ends with 206 without a name, or with two", function()
    assert.matches("status: one name of a lock", fault(206, { "status" }))
    assert.matches("status: one name of a lock", fault(206, { "status", "" }))
    assert.matches("status: one name of a lock",
      fault(206, { "status", "a", "b" }))
  end)
end)

describe("rlockctl script", function()
  local OWN = [[
    local LIMIT = 3
    return {
      name = "own", keys = function(name) return { name } end,
      server = {
        acquire = function(keys) return { "held", LIMIT } end,
        release = function(keys) return { "freed" } end,
      },
    }]]

  it("prints what Redis runs for an operation", function()
    local text = output("script", "reentrant", "renew")
    assert.matches('redis.call%("pexpire", lock, lease%)', text)
    assert.matches("^%x+$", server:cli("SCRIPT", "LOAD", text))
  end)

  it("prints all operations of a policy", function()
    local text, names = output("script", "reentrant"), {}
    for name in text:gmatch("%f[^\n%z]%-%- reentrant%.([%w_]+)\n") do
      names[#names + 1] = name
    end
    assert.same({ "acquire", "break_", "peek", "release", "renew" }, names)
  end)

  it("prints a policy of one's own", function()
    ctl.file("own/my/own.lua", OWN)
    local own = ctl.folder() .. "/own"
    assert.matches("local LIMIT = 3\n.*return { \"held\", LIMIT }",
      output("--lua-path", own, "script", "my.own", "acquire"))
  end)

  it("tells what is wrong with a policy on one line", function()
    ctl.file("own/bad.lua", OWN:gsub("local LIMIT = 3", "local LIMIT = io"))
    local own = ctl.folder() .. "/own"
    assert.matches('script: policy "nowhere": there is no such module',
      fault(206, { "script", "nowhere" }))
    assert.matches('script: policy "own": .*bad.lua:5: .*upvalue "LIMIT"',
      fault(206, { "--lua-path", own, "script", "bad" }))
    assert.matches("no operation fly, only acquire, break_, peek, release",
      fault(206, { "script", "reentrant", "fly" }))
    fault(206, { "script" })
    fault(206, { "script", "reentrant", "renew", "x" })
  end)

  it("needs no server, and says when it cannot write", function()
    local result = ctl.run { "script", "reentrant", url = "unix:///nowhere" }
    assert.equal(0, result.status)
    result = ctl.run { program = "sh", "-c",
      '"$0" script reentrant >/dev/full', ctl.binary }
    assert.equal(1, result.status)
    assert.matches("^rlockctl: cannot write: No space left", result.err)
  end)
end)

describe("rlockctl help and version", function()
  it("show all commands, or one", function()
    for _, words in ipairs { { "help" }, { "--help" }, { "-h" } } do
      assert.matches("^rlockctl runs Lua programs", output(table.unpack(words)))
    end
    for _, name in ipairs { "status", "script", "local", "help", "version" } do
      local text = output("help", name)
      assert.matches("^rlockctl " .. name, text)
      assert.equal(text, output(name, "--help"))
      assert.equal(text, output("--help", name))
    end
    assert.matches("help: there is no command fly", fault(206,
      { "help", "fly" }))
    fault(206, { "help", "json" })
  end)

  it("fit a terminal", function()
    for line in output("help"):gmatch("[^\n]*") do
      assert.is_true(#line <= 80, line)
    end
  end)

  it("show what the binary is made of", function()
    local text = output("version")
    assert.matches("^rlock %d+%.%d+%.%d+ %(Lua 5%.4, libuv [%d.]+, hiredis "
      .. "[%d.]+, TLS %l+%)\n$", text)
    assert.equal(text, output("--version"))
    assert.equal(text, output("-V"))
  end)
end)

describe("a password", function()
  local SECRET = "s3cr3t%2Fpw"

  -- What came of it, as long as the secret is not shown.
  local function hidden(options)
    local result = ctl.run(options)
    local text = result.out .. result.err
    assert.is_nil(text:lower():find("s3cr3t", 1, true), text)
    return result
  end

  it("is not shown, whatever is wrong", function()
    local guarded = redis.start { password = "other" }
    finally(function() guarded:stop() end)
    local urls = {
      ["redis://:" .. SECRET .. "@127.0.0.1:1"] = 202,
      ["redis://me:" .. SECRET .. "@127.0.0.1:1/0"] = 202,
      ["redis://:" .. SECRET .. "@127.0.0.1:99999"] = 206,
      ["redis://:" .. SECRET .. "@"] = 206,
      ["redis://" .. SECRET .. "@127.0.0.1:x"] = 206,
      ["redis://:s3cr3t/pw@127.0.0.1"] = 206,
      ["http://:" .. SECRET .. "@127.0.0.1"] = 206,
      [":" .. SECRET .. "@127.0.0.1"] = 206,
      ["unix://:" .. SECRET .. "@" .. guarded.socket] = 202,
      ["unix://:" .. SECRET .. "@/nowhere"] = 202,
    }
    for url, status in pairs(urls) do
      for _, options in ipairs {
        { "status", "x", url = url }, { "--url", url, "status", "x" },
        { "status", "x", "--url=" .. url }, { "-v", "--url=" .. url, "status",
          "x" },
      } do
        assert.equal(status, hidden(options).status, url)
      end
      if url:find("://", 1, true) then hidden { url } end
      hidden { "--urll=" .. url, "status", "x" }
      hidden { "-u" .. url, "status", "x" }
      hidden { "status", "x", "--json=" .. url }
      hidden { "local", url }
    end
  end)

  it("is not shown when the server sends it back", function()
    local odd = redis.start { args = { "--rename-command", "AUTH", "" } }
    finally(function() odd:stop() end)
    local result = hidden { "status", "x",
      url = "unix://:" .. SECRET .. "@" .. odd.socket }
    assert.equal(1, result.status)
  end)

  it("that is right opens the server", function()
    local guarded = redis.start { password = "s3cr3t/pw@:" }
    finally(function() guarded:stop() end)
    assert.equal('"x" is free\n', hidden { "status", "x",
      url = guarded.url }.out)
  end)
end)
