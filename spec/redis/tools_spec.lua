--- The test tools themselves: if a fault did not happen, or a server outlived
--- its test, the other specs would be worthless.

local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local fixtures = require "spec.tools.fixtures"
local host = require "rlock.host.uv"
local process = require "spec.tools.process"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"

describe("a private redis", function()
  it("comes back empty at the same place after kill and restart", function()
    local server = redis.start { password = "it's secret", port = true }
    local port = server.port
    assert.equal("OK", server:cli("SET", "a \0\n{\"", "1"))
    assert.equal("1", server:cli("GET", "a \0\n{\""))
    server:kill()
    assert.matches("Could not connect", server:cli("PING"))
    server:restart()
    assert.equal(port, server.port)
    assert.equal("0", server:cli("DBSIZE"))
    server:stop()
    assert.is_nil(io.open(server.socket))
  end)

  it("answers nothing while it is paused", function()
    local server = redis.start()
    server:pause()
    server:background("SET", "key", "value")
    server:resume()
    eventually(function() return server:cli("GET", "key") == "value" end)
    server:stop()
  end)

  it("shows the requested certificate", function()
    local server = redis.start { tls = { name = "expired" } }
    local text = shell.run(("redis-cli --tls --cacert %s/ca.crt -h localhost "
      .. "-p %d PING"):format(server.certificates, server.tls_port))
    assert.matches("certificate verify failed", text)
    server:stop()
  end)

  it("keeps the output of a program that nginx starts",
    function()
      local server = redis.start()
      local path = server.folder .. "/out"
      local its = process.start { file = "sh", args = { "-c", "exit 3" },
        stdout = path }
      eventually(function()
        return shell.run("cat '" .. path .. ".status'"):find "3"
      end)
      assert.same({ 3, 0 }, { its:wait() })
      server:stop()
      assert.is_nil(io.open(path .. ".status"))
    end)

  it("ends when its test process is killed", function()
    local path = os.tmpname()
    local code = ([[
      local server = require("spec.tools.redis").start()
      local file = io.open(%q, "w")
      file:write(server.pid, " ", server.folder, "\n")
      file:close()
      while true do os.execute("sleep 1") end]]):format(path)
    local test = assert(host.process {
      file = "lua5.4", args = { "-e", code },
    })
    local pid, folder
    eventually(function()
      pid, folder = io.open(path):read("a"):match("^(%d+) (.*)\n")
      return pid
    end, 5 * slow, "it has started its server")
    assert.is_true(select(2, shell.run("kill -0 " .. pid)))
    test:kill(9)
    eventually(function()
      return not select(2, shell.run("test -e " .. shell.quote(folder)))
    end, 5 * slow, "the folder is gone")
    local state = shell.run("cat /proc/" .. pid .. "/stat")
    assert.is_true(not state:find("redis") or state:find(") Z ") ~= nil)
    os.remove(path)
  end)
end)

describe("the suite", function()
  local SUBREAPER = shell.tool "subreaper"

  -- A spec that starts a server and a process of a session of its own, and
  -- never ends.
  local STUCK = [[
    it("is stuck", function()
      local server = require("spec.tools.redis").start()
      local shell = require "spec.tools.shell"
      local pid = shell.run "setsid sleep 1000 >/dev/null 2>&1 & echo $!"
      local file = io.open("%s.part", "w")
      file:write(server.pid, " ", pid, " ", server.folder, "\n")
      file:close()
      os.rename("%s.part", "%s")
      os.execute "sleep 1000"
    end)]]

  local function is_running(pid)
    local state = shell.run(("cat /proc/%d/stat"):format(pid))
    return state:find "%) %a " and not state:find "%) Z "
  end

  for name, number in pairs { INT = 2, TERM = 15, HUP = 1 } do
    it("ends every process and removes its files on " .. name, function()
      local server = redis.start()
      local spec, path = server.folder .. "/stuck_spec.lua",
        server.folder .. "/pids"
      files.write(spec, STUCK:format(path, path, path))
      local suite = assert(host.process {
        file = "spec/tools/suite", args = { spec },
        stdout = server.folder .. "/out",
      })
      local pids = eventually(function() return files.read(path) end,
        20 * slow, "the spec has started its processes")
      local first, second, folder = pids:match "(%d+) (%d+) (%S+)"
      assert.truthy(is_running(first) and is_running(second))
      suite:kill(number)
      local _, signal = suite:wait(2 * slow)
      assert.equal(number, signal)
      assert.is_falsy(is_running(first) or is_running(second))
      assert.is_nil(io.open(folder .. "/redis.sock"))
      assert.is_false(select(2, shell.run("test -e " .. shell.quote(folder))))
      server:stop()
    end)
  end

  it("skips long tests and files with `quick`", function()
    local server = redis.start()
    local long = server.folder .. "/long_spec.lua"
    local short = server.folder .. "/short_spec.lua"
    files.write(long, "--- A file that takes long.\n--- #long\n"
      .. 'it("is slow", function() end)')
    files.write(short, 'it("is slow #long", function() end)\n'
      .. 'it("is quick", function() end)')
    local command = "spec/tools/suite %s " .. shell.quote(long) .. " "
      .. shell.quote(short)
    local quick = shell.run(command:format "quick")
    assert.matches("short_spec.lua +1 passed", quick)
    assert.matches("total: 1 passed, 0 failed", quick)
    local all = shell.run(command:format "")
    assert.matches("total: 3 passed, 0 failed", all)
    server:stop()
  end)

  it("reports a process that a successful command leaves behind", function()
    local text = shell.run(SUBREAPER
      .. " -g 1 sh -c 'setsid sleep 1000 & true'; echo status $?")
    assert.matches("left behind: process %d+: sleep 1000", text)
    assert.matches("status 125", text)
  end)
end)

describe("the proxy", function()
  local server, proxy, client

  before_each(function()
    server = fixtures.server()
    proxy = fixtures.proxy(server)
    client = fixtures.open {
      url = proxy.url, timeout = 0.3 * slow, seal = "off",
    }
  end)

  after_each(fixtures.close)

  -- What a client receives for three pipelined commands.
  local function answers()
    local got = {}
    task.many(3, function(i)
      local reply, code = client:call("ECHO", "echo " .. i)
      got[i] = reply or code
    end)
    return got
  end

  it("drops one reply of many", function()
    proxy:drop_replies(1, "echo 2")
    -- No client can know: it takes the next reply for the lost one.
    assert.same({ "echo 1", "echo 3", "timeout" }, answers())
    assert.equal(3, proxy:count("echo"))
    assert.equal(1, proxy:count("echo 2"))
  end)

  it("drops a reply and all later ones of applied commands",
    function()
      proxy:mute(1, "INCR")
      assert.equal("timeout", (select(2, client:call("INCR", "number"))))
      assert.equal("1", server:cli("GET", "number"))
    end)

  it("cuts the connection instead of a reply", function()
    proxy:cut(1, "INCR")
    assert.equal("closed", (select(2, client:call("INCR", "number"))))
    assert.equal("1", server:cli("GET", "number"))
    eventually(function() return client:call("INCR", "number") == 2 end)
  end)

  it("drops a request", function()
    proxy:drop_requests(1, "INCR")
    assert.equal("timeout", (select(2, client:call("INCR", "number"))))
    assert.equal("", server:cli("GET", "number"))
  end)

  it("delays a reply", function()
    proxy:hold(0.2, "PING")
    local begun = rlock.now()
    assert.equal("PONG", client:call("PING"))
    assert.near(0.2, rlock.now() - begun, 0.1 * slow)
  end)

  it("delivers a request after its client has disconnected",
    function()
      assert.equal("PONG", client:call("PING"))
      proxy:late(1, "first")
      assert.equal("timeout", (select(2, client:call("SET", "x", "first"))))
      eventually(function()
        return client:call("SET", "x", "second") == "OK"
      end)
      assert.equal(1, proxy:kept())
      proxy:deliver()
      eventually(function() return proxy:kept() == 0 end)
      assert.equal("first", server:cli("GET", "x"))
    end)

  it("delivers nothing over a connection that the server has closed",
    function()
      local id = client:call("CLIENT", "ID")
      proxy:late(1, "first")
      assert.equal("timeout", (select(2, client:call("SET", "x", "first"))))
      eventually(function() return client:call("PING") end)
      assert.equal("1", server:cli("CLIENT", "KILL", "ID", tostring(id)))
      eventually(function() return proxy:kept() == 0 end)
      proxy:deliver()
      assert.equal("", server:cli("GET", "x"))
    end)

  it("delays requests and replies", function()
    proxy:delay(100, 0.1, 1)
    local begun = rlock.now()
    for _ = 1, 3 do assert.equal("PONG", client:call("PING")) end
    assert.is_true(rlock.now() - begun > 0.006)
  end)

  it("falls silent and comes back", function()
    proxy:freeze()
    assert.equal("timeout", (select(2, client:call("PING"))))
    proxy:thaw()
    eventually(function() return client:call("PING") == "PONG" end)
  end)

  it("closes connections", function()
    assert.equal("PONG", client:call("PING"))
    assert.is_true(proxy:connections() >= 1)
    proxy:kill()
    assert.equal(0, proxy:connections())
    eventually(function() return client:call("PING") == "PONG" end)
  end)

  it("drops a published message", function()
    proxy:drop_messages(1, "first")
    local subscriber = shell.quote(server.folder .. "/messages")
    shell.run(("redis-cli -s %s SUBSCRIBE news </dev/null >%s 2>&1 &"):format(
      shell.quote(proxy.socket), subscriber))
    eventually(function()
      return server:cli("PUBSUB", "NUMSUB", "news") == "news\n1"
    end)
    server:cli("PUBLISH", "news", "first")
    server:cli("PUBLISH", "news", "second")
    eventually(function()
      return shell.run("cat " .. subscriber):find("second", 1, true)
    end)
    assert.is_nil(shell.run("cat " .. subscriber):find("first", 1, true))
  end)
end)
