--- What rlockctl reports of a program: --metrics, --log json and -v.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local read = require "spec.tools.exposition"
local redis = require "spec.tools.redis"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"

local server = redis.shared()

local CYCLE = [[
  local rlock = require "rlock"
  local client <close> = assert(rlock.open { name = "cli" })
  local lock = client:lock(arg[1])
  for _ = 1, 3 do
    assert(lock:lock())
    assert(lock:unlock())
  end
]]


local ACQUIRED = 'rlock_acquired_total{client="cli",kind="reentrant"}'

local count = 0

local function fresh()
  count = count + 1
  return "reports:" .. count
end

teardown(ctl.clean)

describe("rlockctl --metrics FILE", function()
  it("has the metrics while the program runs", function()
    local path, fifo = ctl.folder() .. "/running.prom", fresh()
    local running = ctl.start { url = server.url, "--metrics", path, "-e",
      CYCLE .. 'print "done" io.stdout:flush() rlock.sleep(1000)', fifo }
    running:says "done"
    eventually(function()
      return read(files.read(path) or "\n")[ACQUIRED] == 3
    end, 20 * slow)
    running:kill(15)
    assert.equal(143, running:wait().status)
  end)

  it("has all of them at the end, readable, and leaves nothing else",
    function()
      local path = ctl.folder() .. "/end.prom"
      assert.equal("", ctl.output { url = server.url, "--metrics=" .. path,
        "-e", CYCLE, fresh() })
      assert.equal(3, read(files.read(path))[ACQUIRED])
      local found = io.popen("ls -1 " .. path .. "*")
      assert.equal(path .. "\n", found:read("a"))
      found:close()
    end)

  it("has them when the program fails", function()
    local path = ctl.folder() .. "/failed.prom"
    local result = ctl.run { url = server.url, "--metrics", path, "-e",
      CYCLE .. 'error "on purpose"', fresh() }
    assert.equal(1, result.status)
    assert.equal(3, read(files.read(path))[ACQUIRED])
  end)

  it("is no number and no address", function()
    for _, word in ipairs { "99999", "0", "", "127.0.0.1:9100", ":9100" } do
      assert.matches("%-%-metrics: must be a port of this host, from 1 to "
        .. "65535, or a file\n$", ctl.fault(1, { url = server.url, cwd =
        ctl.folder(), "--metrics", word, "-e", "print(1)" }))
    end
  end)

  it("that cannot be written is an error before the program runs", function()
    local err = ctl.fault(1, { url = server.url, "--metrics",
      ctl.folder() .. "/no/such.prom", "-e", "print 'ran'" })
    assert.matches("%-%-metrics: .*/no/such%.prom.*No such file", err)
  end)
end)

describe("rlockctl --metrics PORT", function()
  local running, port, key

  before_each(function()
    port, key = redis.choose_port(), fresh()
    running = ctl.start { url = server.url, "--metrics", tostring(port), "-e",
      CYCLE .. [[print "done" io.stdout:flush()
      while not client:call("GET", "end:" .. arg[1]) do rlock.sleep(0.01) end]],
      key }
    running:says "done"
  end)

  after_each(function()
    running:kill(9)
    running:wait()
  end)

  -- Runs a script of bash in which fd 3 is connected to the port.
  local function talk(script)
    return (shell.run("timeout 20 bash -c " .. shell.quote((
      "exec 3<>/dev/tcp/127.0.0.1/%d; "):format(port) .. script)))
  end

  local function ask(request)
    return talk(("printf %s >&3; cat <&3"):format(
      shell.quote(request .. "\\r\\nHost: x\\r\\n\\r\\n")))
  end

  local function scrape()
    local head, text = ask("GET /metrics HTTP/1.1"):match("^(.-)\r\n\r\n(.*)$")
    assert.matches("^HTTP/1.1 200 OK\r\n", head)
    assert.matches("\r\nContent%-Type: text/plain; version=0.0.4", head)
    assert.equal(#text + 1, tonumber(head:match("\r\nContent%-Length: (%d+)")))
    return read(text .. "\n")
  end

  it("answers a scrape, again and again", function()
    for _ = 1, 3 do assert.equal(3, scrape()[ACQUIRED]) end
  end)

  it("answers nothing else", function()
    assert.matches("^HTTP/1.1 200 ", ask "GET /metrics?x=1 HTTP/1.0")
    assert.matches("^HTTP/1.1 404 ", ask "GET / HTTP/1.1")
    assert.matches("^HTTP/1.1 405 ", ask "POST /metrics HTTP/1.1")
    assert.matches("^HTTP/1.1 400 ", ask "metrics")
    assert.equal("", talk("head -c 100000 /dev/zero >&3 2>/dev/null; "
      .. "cat <&3 2>/dev/null"))
  end)

  it("answers although others are connected and send nothing, or a half",
    function()
      local reply = talk(([[
        for i in $(seq 40); do exec {fd}<>/dev/tcp/127.0.0.1/%d; done
        printf 'GET /metrics' >&$fd
        exec 4<>/dev/tcp/127.0.0.1/%d
        printf 'GET /metrics HTTP/1.1\r\n' >&4
        printf '\r\n' >&4
        cat <&4]]):format(port, port))
      assert.matches("^HTTP/1.1 200 ", reply)
      assert.equal(3, scrape()[ACQUIRED])
    end)

  it("ends with its program, which does not wait for those connected",
    function()
      assert.equal("", talk(("printf 'GET /metrics' >&3; %s; cat <&3"):format(
        shell.words(server:cli_words()) .. " SET end:" .. key
          .. " 1 >/dev/null")))
      local result = running:wait()
      assert.same({ 0, "" }, { result.status, result.err })
      assert.matches("refused", talk "true")
    end)

  it("listens on no other address", function()
    local listening = shell.run("ss -Hltn sport = :" .. port)
    assert.matches("127%.0%.0%.1:" .. port, listening)
    assert.is_nil(listening:find("0.0.0.0:" .. port, 1, true))
  end)

  it("in use is an error before the program runs", function()
    assert.matches("%-%-metrics: 127%.0%.0%.1:%d+: address already in use",
      ctl.fault(1, { url = server.url, "--metrics", tostring(port), "-e",
        "print 'ran'" }))
  end)
end)

describe("the events of a program", function()
  local holder, name

  before_each(function()
    name = fresh()
    holder = ctl.start { url = server.url, "-e", CYCLE .. [[
      assert(lock:lock())
      print "held"
      io.stdout:flush()
      local channel = "redisson_lock__channel:{" .. arg[1] .. "}"
      while client:call("PUBSUB", "NUMSUB", channel)[2] == 0 do
        rlock.sleep(0.01)
      end
      assert(lock:unlock())]], name }
    holder:says "held"
  end)

  local WANTED = [[
    local rlock = require "rlock"
    local client <close> = assert(rlock.open { name = "cli" })
    assert(client:lock(arg[1]):lock { wait = 60 })
    print(arg[1])]]

  local function run(...)
    local result = ctl.run { url = server.url, limit = 60 * slow, ... }
    assert.same({ 0, name .. "\n" }, { result.status, result.out })
    assert.equal(0, holder:wait().status)
    return result.err
  end

  it("are lines on standard error with -v", function()
    local err = run("-v", "-e", WANTED, name)
    assert.matches(('rlock: waiting for reentrant lock "%s"\n'
      .. 'rlock: acquired reentrant lock "%s" after %%d+%%.%%d+ s\n')
      :format(name, name), err)
  end)

  it("are JSON on standard error with --log json", function()
    local err = run("--log", "json", "-e", WANTED, name)
    local lines = {}
    for line in err:gmatch("([^\n]*)\n") do
      assert.matches('^{"client":"cli","event":"%l+",.*}$', line)
      assert.matches('"time":"%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%dZ"', line)
      lines[#lines + 1] = line:match('"event":"(%l+)"')
    end
    assert.equal("waiting acquired", table.concat(lines, " "))
    assert.matches('"kind":"reentrant","level":"info","lock":"' .. name, err)
    assert.matches('"wait":%d+%.%d+}\n$', err)
  end)

  it("are not written without an option", function()
    assert.equal("", run("-e", WANTED, name))
  end)
end)

describe("rlockctl --log", function()
  it("refuses another format", function()
    assert.matches("%-%-log: must be json", ctl.fault(206, {
      url = server.url, "--log", "xml", "-e", "print 'ran'" }))
  end)
end)
