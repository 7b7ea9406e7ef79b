--- The local server, `local:`: it starts on demand, one for all processes of
--- this user and for no other user, and obstacles are reported clearly.

local alive = require "spec.tools.alive"
local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local host = require "rlock.host.uv"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"

local PRINT_ID = [[
local client = assert(require "rlock".open())
print(client:call("INFO", "server"):match("run_id:(%x+)"))]]

local number = 0
local runtime, env       -- of the current test

-- Runs rlockctl with these words, in the runtime folder of this test.
local function start(...) return ctl.start { env = env, ... } end
local function run(...) return start(...):wait() end

local function output(...) return ctl.output { env = env, ... } end

-- Asserts a one-line error and this status.
local function fault(result, text)
  assert.same({ 202, 0, "" }, { result.status, result.signal, result.out })
  assert.matches("^rlockctl: local: [^\n]+\n$", result.err)
  assert.matches(text, result.err)
end

local function pid()
  return output("local", "status"):match("%(pid (%d+),")
end

-- The number of servers with a socket in this folder.
local function servers(folder)
  return tonumber((shell.run(("grep -sl '%s/[r]edis.sock' "
    .. "/proc/[0-9]*/cmdline | wc -l"):format(folder))))
end

-- Runs a shell command that must succeed; returns its output.
local function sh(text, ...)
  local answer, ok = shell.run(text:format(...))
  assert.is_true(ok, answer)
  return answer
end

before_each(function()
  number = number + 1
  runtime = ctl.folder() .. "/r" .. number
  sh("mkdir -m 700 '%s'", runtime)
  env = { XDG_RUNTIME_DIR = runtime }
end)

after_each(function() run("local", "stop") end)

teardown(ctl.clean)

describe("local:", function()
  it("is started by the first program that needs it, and stays up", function()
    assert.equal("local: does not run\n", run("local", "status").out)
    local id = output("-e", PRINT_ID)
    assert.matches("^%x+\n$", id)
    assert.equal(id, output("-e", PRINT_ID))
    assert.equal(id, output("-e", PRINT_ID, "x"))
    assert.equal(1, servers(runtime .. "/rlock"))
  end)

  it("is shown by local status, and ended by local stop", function()
    local status = "^local: runs at unix://" .. runtime:gsub("%W", "%%%0")
      .. "/rlock/redis.sock %(pid %d+, %l+ [%d.]+, up %d+ s%)\n$"
    assert.equal(1, run("local", "status").status)
    assert.matches(status, output("local", "start"))
    assert.matches(status, output("local", "start"))
    assert.matches(status, output("local", "status"))
    assert.equal("local: stopped\n", output("local", "stop"))
    assert.equal(1, run("local", "status").status)
    assert.equal("local: was not running\n", output("local", "stop"))
    assert.equal(0, servers(runtime .. "/rlock"))
    assert.matches(status, output("local", "start"))
  end)

  it("leaves no files when it is stopped", function()
    output("local", "start")
    sh("[ -e '%s/rlock/redis.log' ]", runtime)
    assert.equal("local: stopped\n", output("local", "stop"))
    assert.equal("", sh("ls -A '%s'", runtime))
    output("local", "start")
    output("-e", [[assert(require "rlock".open():call "SAVE")]])
    output("local", "stop")
    assert.equal("", sh("ls -A '%s'", runtime))
    output("local", "start")
    local server = pid()
    sh("kill -9 %d", server)
    eventually(function() return not alive(tonumber(server)) end)
    output("local", "stop")
    assert.equal("", sh("ls -A '%s'", runtime))
  end)

  it("starts while others stop it", function()
    local all = {}
    for _ = 1, 4 do
      for _, verb in ipairs { "start", "stop", "start" } do
        all[#all + 1] = start("local", verb)
      end
    end
    for _, each in ipairs(all) do
      local err = each:wait().err       -- `start` may ask a server that ends
      assert.not_matches("no such file", err, 1, true)
      assert.not_matches("is locked by", err, 1, true)
    end
    assert.is_true(servers(runtime) <= 1)
    run("local", "stop")
    assert.equal("", sh("ls -A '%s'", runtime))
  end)

  it("refuses other verbs", function()
    for _, words in ipairs { {}, { "restart" }, { "start", "now" } } do
      local result = run("local", table.unpack(words))
      assert.equal(206, result.status)
      assert.equal("rlockctl: local: start, stop or status?\n", result.err)
    end
  end)

  it("excludes processes from each other", function()
    local holder = start("-e", [[
      local rlock = require "rlock"
      assert(assert(rlock.open()):lock("x"):lock())
      io.stdout:write("mine\n"):flush()
      rlock.sleep(60)]])
    holder:says("mine")
    local result = output("-e", [[
      local lock = assert(require "rlock".open "local:"):lock("x")
      print((select(2, lock:try_lock())))]])
    assert.equal("busy\n", result)
    holder:kill(15)
    assert.equal(143, holder:wait().status)
    assert.equal('"x" is free\n', run("status", "x").out)
  end)

  it("is open to its user only: no TCP, a private folder", function()
    output("local", "start")
    assert.equal("700 700", sh("stat -c %%a '%s' '%s' | paste -sd ' '",
      runtime .. "/rlock", runtime .. "/rlock/redis.sock"))
    assert.equal("", sh("ls -l /proc/%s/fd | sed -n 's/.*socket:.\\([0-9]*\\).*"
      .. "/\\1/p' | while read i; do grep -h \" $i \" /proc/net/tcp "
      .. "/proc/net/tcp6; done; true", pid()))
    local config = output("-e", [[
      local client = assert(require "rlock".open())
      for _, name in ipairs { "port", "save", "appendonly" } do
        print(client:call("CONFIG", "GET", name)[2])
      end]])
    assert.equal("0\n\nno\n", config)
  end)

  it("is one server, however many start at once", function()
    for round, many in ipairs { 2, 20 } do
      local all, ids = {}, {}
      for i = 1, many do all[i] = start("-e", PRINT_ID) end
      for _, each in ipairs(all) do
        local result = each:wait()
        assert.same({ 0, "" }, { result.status, result.err })
        ids[result.out] = true
      end
      assert.is_string(next(ids))
      assert.is_nil(next(ids, (next(ids))), "more than one server")
      assert.equal(1, servers(runtime .. "/rlock"))
      assert.equal("local: stopped\n", output("local", "stop"), round)
    end
  end)

  it("is one server for many tasks that start it at once", function()
    assert.equal("1\n", output("-e", [[
      local rlock = require "rlock"
      local ids, tasks, n = {}, {}, 0
      for i = 1, 20 do
        tasks[i] = rlock.spawn(function()
          local client = assert(rlock.open())
          ids[client:call("INFO", "server"):match("run_id:(%x+)")] = true
        end)
      end
      for i = 1, 20 do tasks[i]:join() end
      for _ in pairs(ids) do n = n + 1 end
      print(n)]]))
  end)

  it("comes back after a kill -9, in spite of the socket left behind",
      function()
    local id = output("-e", PRINT_ID)
    sh("kill -9 %s", pid())
    eventually(function() return servers(runtime .. "/rlock") == 0 end)
    sh("test -S '%s/rlock/redis.sock'", runtime)
    local again = output("-e", PRINT_ID)
    assert.matches("^%x+\n$", again)
    assert.not_equal(id, again)
  end)

  it("ignores the lock file of a dead process", function()
    sh("mkdir -m 700 '%s/rlock' && touch '%s/rlock/start.lock'", runtime,
      runtime)
    assert.matches("^%x+\n$", output("-e", PRINT_ID))
  end)

  it("is not replaced while it is too busy to answer", function()
    local id, server = output("-e", PRINT_ID), pid()
    sh("kill -STOP %s", server)
    local asking = start("-e", PRINT_ID)
    local status = run("local", "status")
    assert.equal(1, servers(runtime .. "/rlock"))
    sh("kill -CONT %s", server)
    fault(status, "redis.sock: ")
    asking:wait()
    assert.equal(id, output("-e", PRINT_ID))
  end)

  it("delays a command no longer than another silent server", function()
    output("local", "start")
    local server, ended = pid(), {}
    sh("kill -STOP %s", server)
    local urls = { ["local:"] = "local:",
      unix = "unix://" .. runtime .. "/rlock/redis.sock" }
    for which, url in pairs(urls) do
      local asking = start("--url", url, "wait", "x", "-w1")
      host.daemon(function()
        ended[which] = asking:wait().status == 202 and host.now()
      end)
    end
    eventually(function()
      return ended.unix ~= nil and ended["local:"] ~= nil
    end, 20 * slow)
    sh("kill -CONT %s", server)
    -- It took 5 s longer.
    assert.is_true(ended["local:"] < ended.unix + 2 * slow)
  end)

  it("is a valkey-server where there is no redis-server", function()
    local bin = ctl.folder() .. "/bin" .. number
    local real = sh("command -v redis-server || command -v valkey-server")
    ctl.file("bin" .. number .. "/valkey-server",
      ("#!/bin/sh\nexec '%s' \"$@\"\n"):format(real))
    sh("chmod +x '%s/valkey-server'", bin)
    local result = ctl.run { "local", "start",
      env = { XDG_RUNTIME_DIR = runtime, PATH = bin } }
    assert.same({ 0, "" }, { result.status, result.err })
  end)

  it("inherits no descriptor of its starter", function()
    sh([[exec 7>'%s/seven'
      XDG_RUNTIME_DIR='%s' '%s' local start >/dev/null]], runtime, runtime,
      ctl.binary)
    assert.is_nil(sh("ls -l /proc/%s/fd", pid()):find("/seven", 1, true))
  end)

  it("is one server even if its starter is killed", function()
    -- A killed process may leak.
    env.ASAN_OPTIONS = (os.getenv("ASAN_OPTIONS") or "") .. ":detect_leaks=0"
    for round = 1, 10 do
      local all = {}
      for i = 1, 6 do all[i] = start("local", "start") end
      eventually(function() return servers(runtime .. "/rlock") > 0 end)
      for i = 1, 4 do all[i]:kill(9) end
      for i = 1, 6 do all[i]:wait() end
      output("local", "start")
      assert.equal(1, servers(runtime .. "/rlock"), round)
      sh("kill -9 %s", pid())
    end
  end)

  it("outlives its starter's terminal", function()
    output("local", "start")
    local session = sh("ps -o sid= -p %s", pid())
    assert.equal(pid(), session:match("%d+"))
  end)
end)

describe("local: reports:", function()
  it("no redis-server on PATH", function()
    local result = ctl.run { "local", "start", program = ctl.binary,
      env = { XDG_RUNTIME_DIR = runtime, PATH = "/nowhere" } }
    fault(result, "there is no redis%-server on PATH: install it")
  end)

  it("a folder that others can open", function()
    sh("mkdir -m 755 '%s/rlock'", runtime)
    fault(run("local", "start"), "open to other users %(mode 755%)")
    fault(run("-e", "") and run("status", "x"), "mode 700")
    sh("chmod 700 '%s/rlock'", runtime)
  end)

  it("a symbolic link", function()
    sh("mkdir -m 700 '%s/real' && ln -s real '%s/rlock'", runtime, runtime)
    fault(run("local", "start"), "rlock: not a directory")
  end)

  it("a file", function()
    sh("touch '%s/rlock'", runtime)
    fault(run("local", "start"), "rlock: not a directory")
  end)

  it("a folder of another user", function()
    if host.uid() ~= 0 then return pending("only root can make one") end
    sh("mkdir -m 700 '%s/rlock' && chown 65534 '%s/rlock'", runtime, runtime)
    fault(run("local", "start"), "belongs to another user %(65534%)")
    fault(run("local", "status"), "belongs to another user %(65534%)")
    sh("rmdir '%s/rlock'", runtime)
  end)

  it("a folder that cannot be made", function()
    local missing = runtime .. "/gone/deeper"
    fault(ctl.run { "local", "start", env = { XDG_RUNTIME_DIR = missing } },
      "no such file or directory")
  end)

  it("a path that is too long for a socket", function()
    local long = runtime .. "/" .. ("x"):rep(100)
    fault(ctl.run { "local", "start", env = { XDG_RUNTIME_DIR = long } },
      "too long for a socket; set XDG_RUNTIME_DIR or TMPDIR")
  end)

  it("a server that ends at once", function()
    local bin = ctl.folder() .. "/bin" .. number
    ctl.file("bin" .. number .. "/redis-server", "#!/bin/sh\n"
      .. "echo '7:M 01 Jan 2026 00:00:00.000 # no thanks' >&2\nexit 1\n")
    sh("chmod +x '%s/redis-server'", bin)
    fault(ctl.run { "local", "start", env = { XDG_RUNTIME_DIR = runtime,
      PATH = bin .. ":" .. os.getenv("PATH") } },
      "redis%-server exited at once: no thanks %(.*/rlock/redis.log%)")
  end)

  it("a socket's place that is taken by a folder", function()
    sh("mkdir -m 700 '%s/rlock' && mkdir '%s/rlock/redis.sock'", runtime,
      runtime)
    fault(run("local", "start"), "redis.sock: not a socket\n$")
  end)

  it("a FIFO in the place of anything", function()
    sh("mkfifo '%s/rlock'", runtime)
    for _, verb in ipairs { "status", "start", "stop" } do
      fault(run("local", verb), "rlock: not a directory")
    end
    sh("cd '%s' && rm rlock && mkdir -m 700 rlock && mkfifo rlock/redis.sock",
      runtime)
    for _, verb in ipairs { "status", "start", "stop" } do
      fault(run("local", verb), "redis.sock: not a socket")
    end
    sh("cd '%s/rlock' && rm redis.sock && mkfifo start.lock", runtime)
    fault(run("local", "start"), "start.lock: not a regular file")
    assert.equal("local: does not run\n", run("local", "status").out)
    sh("cd '%s/rlock' && rm start.lock && mkfifo redis.log", runtime)
    assert.matches("^local: runs ", output("local", "start"))
  end)

  it("a symbolic link to what is in order elsewhere", function()
    local other = { XDG_RUNTIME_DIR = runtime .. "/other" }
    sh("mkdir -m 700 '%s/other' '%s/rlock'", runtime, runtime)
    assert.equal(0, ctl.run { "local", "start", env = other }.status)
    sh("cd '%s/rlock' && ln -s ../other/rlock/redis.sock .", runtime)
    fault(run("local", "status"), "redis.sock: not a socket")
    fault(run("local", "start"), "redis.sock: not a socket")
    sh("cd '%s/rlock' && rm redis.sock && ln -s ../own start.lock", runtime)
    fault(run("local", "start"), "start.lock: too many symbolic links")
    assert.equal(0, ctl.run { "local", "stop", env = other }.status)
  end)

  it("files of another user", function()
    if host.uid() ~= 0 then return pending("only root can make them") end
    sh("cd '%s' && mkdir -m 700 rlock && touch rlock/start.lock && "
      .. "chown 65534 rlock/start.lock", runtime)
    fault(run("local", "start"), "start.lock: belongs to another user")
  end)
end)

describe("the folder of local:", function()
  local function place_with(settings)
    local result = ctl.run { "local", "start", env = settings,
      cwd = ctl.folder() }
    assert.same({ 0, "" }, { result.status, result.err })
    assert.equal(0, ctl.run { "local", "stop", env = settings,
      cwd = ctl.folder() }.status)
    return result.out:match("unix://(%S+)/redis.sock")
  end

  it("is in XDG_RUNTIME_DIR, else in TMPDIR, named after the uid", function()
    local own = "/rlock-" .. host.uid()
    assert.equal(runtime .. "/rlock",
      place_with { XDG_RUNTIME_DIR = runtime .. "//", TMPDIR = "/nowhere" })
    for _, unset in ipairs { false, "", "relative/path" } do
      assert.equal(runtime .. own,
        place_with { XDG_RUNTIME_DIR = unset, TMPDIR = runtime })
    end
  end)

  it("may have any name", function()
    local odd = runtime .. "/a b%20'ä"
    sh("mkdir -m 700 '%s'", (odd:gsub("'", "'\\''")))
    env = { XDG_RUNTIME_DIR = odd }
    local url = output("local", "start"):match("unix://%S+")
    assert.equal("PONG\n", ctl.run { "--url", url, "-e",
      "print((assert(require 'rlock'.open()):call('PING')))" }.out)
  end)
end)
