--- How programs end: normally, by os.exit, by an error, by a signal; and that
--- they clean up first.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local host = require "rlock.host.uv"
local redis = require "spec.tools.redis"
local slow = require "spec.tools.slow"

local server = redis.shared()
local HUP, INT, KILL, TERM = 1, 2, 9, 15

-- For programs: rlock, client, and closing(name), which waits and then prints.
local HEAD = [[
local rlock = require "rlock"
io.stdout:setvbuf("line")
local function closing(name)
  return setmetatable({}, { __close = function()
    rlock.sleep(0.01)
    print("closed " .. name)
  end })
end
]]

local function run(code)
  return ctl.run { "-", stdin = HEAD .. code, url = server.url }
end

local function start(code, ...)
  return ctl.start { "-", stdin = HEAD .. code, url = server.url, ... }
end

local function exists(name) return server:cli("EXISTS", name) == "1" end

teardown(ctl.clean)

describe("output whose reader has left", function()
  local function piped(code)
    return ctl.run { program = "bash", "-c", [[
      set -o pipefail
      "$0" -e "$1" | head -1]], ctl.binary, url = server.url, code }
  end

  it("ends the program, which releases its locks", function()
    for _, write in ipairs { "print 'x'", "io.write 'x\\n'",
      "io.write 'x\\n' io.flush()" } do
      local result = piped(([[
        local lock = require("rlock").open():lock "unread"
        assert(lock:lock())
        local closing <close> = setmetatable({}, { __close = function()
          %s
          lock:unlock()
        end })
        while true do %s end]]):format(write, write))
      assert.same({ 141, "x\n", "" },
        { result.status, result.out, result.err })
      assert.is_false(exists "unread")
    end
  end)

  it("ends a command as well", function()
    for _, command in ipairs { "help", "help ls", "version",
      "top --interval 0.1" } do
      local result = ctl.run { program = "bash", "-c", [[
        exec 3> >(true)
        wait $!
        "$0" $1 >&3]], ctl.binary, url = server.url, command }
      assert.same({ command, 141, "" },
        { command, result.status, result.err })
    end
  end)

  it("does not keep a log callback from closing the clients", function()
    local frozen = redis.start()
    finally(function()
      frozen:resume()
      frozen:stop()
    end)
    local result = piped(([[
      local rlock = require "rlock"
      local function open(url, name)
        local client = rlock.open { url = url, timeout = 1,
          log = function(...) print(...) end }
        assert(client:lock(name):lock())
      end
      for i = 1, 3 do
        open(nil, "unread" .. i)
        open("%s", "frozen" .. i)       -- told at the end: not released
      end
      os.execute "kill -STOP %d"
      while true do print "x" end]]):format(frozen.url, frozen.pid))
    assert.equal(141, result.status)
    for i = 1, 3 do assert.is_false(exists("unread" .. i)) end
  end)

  it("matters to the program only: rlock may log to it", function()
    local result = ctl.run { program = "bash", "-c", [[
      set -o pipefail
      { "$0" -e "$1" 2>&1 >&3 | true; } 3>&1]], ctl.binary, url = server.url,
      [[for i = 1, 3 do io.stderr:write "x\n" require("rlock").sleep(0.1) end
        print "done"]] }
    assert.same({ 0, "done\n" }, { result.status, result.out })
  end)

  it("leaves errors of io.write to their callers", function()
    local result = ctl.run { "-e", "io.write(nil)" }
    assert.matches("%(command line%):1: bad argument #1 to 'write' %(string "
      .. "expected, got nil%)", result.err)
  end)
end)

describe("a client that is closed", function()
  it("may be closed again where nothing can wait", function()
    local result = run [[
      local client = assert(rlock.open())
      client:close()
      coroutine.wrap(function() print(client:close()) end)()]]
    assert.same({ 0, "true\n", "" },
      { result.status, result.out, result.err })
  end)
end)

describe("standard error that nobody reads", function()
  for option, told in pairs {
    ["-v"] = "^rlock: standard error was full: (%d+) messages were dropped$",
    ["--log json"] = '"dropped":(%d+)',
  } do
    it("drops messages, and stops no program: " .. option, function()
      local result = ctl.run { program = "bash", "-c", [[
        mkfifo "$1"
        "$0" $2 - "$1" 2<>"$1"]], ctl.binary, ctl.folder() .. "/fifo", option,
        url = server.url, stdin = HEAD .. [[
          local pipe = assert(io.open(arg[1], "r+"))
          pipe:setvbuf "no"
          pipe:write(("x"):rep(65536))
          local client <close> = assert(rlock.open())
          local function take() client:lock("full"):with(function() end) end
          for _ = 1, 200 do take() end
          pipe:read(65536)
          take()
          print(pipe:read "l")]] }
      assert.equal(0, result.status)
      local count = result.out:match "^[^\n]*":match(told)
      assert.is_true(tonumber(count) >= 200, result.out)
    end)
  end
end)

describe("os.exit", function()
  it("gives the exit status", function()
    for call, status in pairs {
      ["os.exit()"] = 0, ["os.exit(true)"] = 0, ["os.exit(false)"] = 1,
      ["os.exit(nil, true)"] = 0, ["os.exit(7, true)"] = 7,
      ["os.exit(3.0)"] = 3, ["os.exit('12')"] = 12, ["os.exit(0)"] = 0,
      ["os.exit(255)"] = 255, ["os.exit(-1)"] = 255, ["os.exit(256)"] = 0,
    } do
      local result = run(call .. "\nprint 'after'")
      assert.same({ status, 0, "", "" },
        { result.status, result.signal, result.out, result.err }, call)
    end
  end)

  it("raises for an invalid status", function()
    for call, what in pairs {
      ["os.exit('x')"] = "number expected, got string",
      ["os.exit({})"] = "number expected, got table",
      ["os.exit(2.5)"] = "number has no integer representation",
    } do
      local result = run(call)
      assert.equal(1, result.status)
      assert.matches("stdin:%d+: bad argument #1 to 'exit' %(" .. what,
        result.err)
    end
  end)

  it("does not return, nor can it be caught", function()
    for _, call in ipairs {
      "pcall(os.exit, 5)",
      "pcall(pcall, os.exit, 5)",
      "pcall(function() local ok = pcall(os.exit, 5) print(ok) end)",
      "xpcall(os.exit, debug.traceback, 5)",
      "pcall(function() local a <close> = closing '' pcall(os.exit, 5) end)",
      "pcall(xpcall, function() pcall(os.exit, 5) end, debug.traceback)",
      "for _ = 1, 3 do if not pcall(os.exit, 5) then print 'caught' end end",
      "table.sort({ 1, 2 }, function() pcall(os.exit, 5) print 'sort' end)",
      "assert(rlock.open()):lock('cli:with'):with(function() os.exit(5) end)",
      "xpcall(function() os.exit(5) end, debug.traceback)",
      "coroutine.wrap(function() pcall(os.exit, 5) print 'inner' end)()",
      "coroutine.resume(coroutine.create(function() os.exit(5) end))",
      "pcall(coroutine.wrap(function() os.exit(5) end))",
      "rlock.spawn(function() pcall(os.exit, 5) print 'task' end):join()",
      "rlock.spawn(pcall, os.exit, 5):join()",
      "setmetatable({}, { __index = function() os.exit(5) end })[1]()",
    } do
      local result = run(call .. " print 'same line'\nprint 'after'")
      assert.same({ 5, 0, "", "" }, { result.status, result.signal,
        result.out:gsub("closed \n", ""), result.err }, call)
    end
    assert.is_false(exists("cli:with"))
  end)

  it("lets <close> variables wait, call and catch while it unwinds", function()
    local result = run [[
      local lock = assert(rlock.open()):lock("cli:nested")
      local function work()
        local a <close> = closing "inner"
        local hold <close> = assert(lock:hold())
        local b <close> = setmetatable({}, { __close = function()
          print(pcall(error, "caught", 0))
          print(lock:is_locked())
          for i = 1, 1000 do table.concat({ i, select(2, pcall(i)) }) end
        end })
        os.exit(6)
      end
      local c <close> = closing "outer"
      pcall(function()
        local d <close> = closing "middle"
        pcall(work)
        print "never"
      end)
      print "never"]]
    assert.equal("false\tcaught\ntrue\nclosed inner\nclosed middle\n"
      .. "closed outer\n", result.out)
    assert.same({ 6, 0, "" }, { result.status, result.signal, result.err })
  end)

  it("leaves pcall and xpcall what they were for errors", function()
    local result = run [[
      print(pcall(error, "a"))
      print(pcall(function(...) return ... end, 1, nil, 3))
      print(select("#", pcall(function() end)))
      print(xpcall(error, function(m) return m .. "!" end, "b"))
      print(xpcall(function(...) return ... end, print, 1, nil))
      print(pcall(error))
      print(pcall(function() rlock.sleep(0.001) error({}) end) == false)]]
    assert.equal("", result.err)
    assert.equal("false\ta\ntrue\t1\tnil\t3\n1\nfalse\tb!\ntrue\t1\tnil\n"
      .. "false\tnil\ntrue\n", result.out)
  end)

  it("runs <close> variables first, in all tasks, and releases locks",
      function()
    local result = run [[
      local client = assert(rlock.open())
      rlock.spawn(function()
        local a <close> = closing "other"
        rlock.sleep(60)
      end)
      rlock.spawn(function()
        assert(client:lock("cli:exit"):lock())
        local b <close> = closing "holder"
        rlock.sleep(0.01)
        os.exit(9)
      end)
      local c <close> = closing "main"
      local d <close> = assert(client:lock("cli:exit:hold"):hold())
      rlock.sleep(60)]]
    assert.equal(9, result.status)
    for _, name in ipairs { "other", "holder", "main" } do
      assert.matches("closed " .. name, result.out)
    end
    assert.is_false(exists("cli:exit"))
    assert.is_false(exists("cli:exit:hold"))
  end)
end)

describe("the end of the main program", function()
  it("releases what is still held", function()
    local result = run [[
      assert(assert(rlock.open()):lock("cli:end"):lock())
      print "mine"]]
    assert.same({ 0, "mine\n", "" }, { result.status, result.out, result.err })
    assert.is_false(exists("cli:end"))
  end)
end)

describe("a program that requires rlock again", function()
  local ANEW = [[
    assert(rlock.open():lock("anew:a"):lock())
    for name in pairs(package.loaded) do
      if name:find("%s") then package.loaded[name] = nil end
    end
    local again = require "rlock"
    local client = assert(again.open())
    again.spawn(again.sleep, 0.01):join()
    rlock.sleep(0.01)
    print(client:lock("anew:a"):is_locked())
    assert(client:lock("anew:b"):lock())
  ]]

  for _, what in ipairs { "^rlock$", "^rlock%.host", "^rlock" } do
    it("works, and releases what it held before and after (" .. what .. ")",
      function()
        local result = run(ANEW:format(what))
        assert.same({ 0, "true\n", "" },
          { result.status, result.out, result.err })
        assert.is_false(exists "anew:a")
        assert.is_false(exists "anew:b")
      end)
  end
end)

describe("an uncaught error", function()
  it("prints a traceback, and the status is 1", function()
    local result = ctl.run { "-e", "local function f() error 'no' end f()" }
    assert.same({ 1, "" }, { result.status, result.out })
    assert.matches("^rlockctl: %(command line%):1: no\nstack traceback:\n"
      .. ".*in upvalue 'f'.*in main chunk", (result.err:gsub("local 'f'",
      "upvalue 'f'")))
  end)

  it("inside lock:with has the traceback of the function that failed",
      function()
    for _, lock in ipairs { "client:lock 'cli:body'",
        "rlock.multi_lock { client:lock 'cli:body' }" } do
      local result = run(([[
        local client = assert(rlock.open())
        local lock = %s
        local function fails() return nil + 1 end
        lock:with(function(held)
          return held:with(function() local x = fails() return x end)
        end)]]):format(lock))
      assert.equal(1, result.status)
      assert.matches("^rlockctl: stdin:%d+: attempt to perform arithmetic.-"
        .. "in upvalue 'fails'.-stdin:%d+: in main chunk", result.err)
      assert.is_false(exists("cli:body"))
    end
  end)

  it("may be any value", function()
    for code, text in pairs {
      ["error { 1 }"] = "(error object is a table value)",
      ["error()"] = "(error object is a nil value)",
      ["error(setmetatable({}, { __tostring = function() return 'me' end }))"]
        = "me",
      ["error('plain', 0)"] = "plain",
      ["assert(nil, 'connect', 'detail')"] = "connect: detail",
      ["rlock.spawn(error, 'a')"] = "a",
    } do
      local result = run(code)
      assert.equal(1, result.status, code)
      assert.equal("rlockctl: " .. text, result.err:match("^[^\n]*"))
    end
  end)

  it("in the main program runs <close> variables first, in all tasks, and "
      .. "releases locks", function()
    local result = run [[
      local client = assert(rlock.open())
      assert(client:lock("cli:error"):lock())
      rlock.spawn(function()
        local a <close> = closing "other"
        rlock.sleep(60)
      end)
      local b <close> = closing "outer"
      rlock.sleep(0.01)
      do
        local c <close> = closing "inner"
        error "oh"
      end]]
    assert.equal(1, result.status)
    assert.matches("^rlockctl: stdin:%d+: oh\nstack traceback:", result.err)
    assert.matches("closed inner\nclosed outer\n", result.out)
    assert.matches("closed other\n", result.out)
    assert.is_false(exists("cli:error"))
  end)

  -- Runs code while a client holds a lock for which another of its tasks waits.
  -- The lock is free at the end.
  local function with_waiter(code)
    local result = run([[
      local client <close> = assert(rlock.open())
      assert(client:lock("cli:closed"):lock())
      rlock.spawn(function() assert(client:lock("cli:closed"):lock()) end)
      rlock.sleep(0.01)
      ]] .. code)
    assert.is_nil(result.err:find("not be released", 1, true))
    assert.is_false(exists("cli:closed"))
    return result
  end

  it("is the one that is reported, although `close` makes others fail too",
      function()
    for root, text in pairs {
      ["error 'root'"] = "stdin:%d+: root",
      ["assert(nil, 'lost', 'detail')"] = "lost: detail",
    } do
      local result = with_waiter(root)
      assert.equal(1, result.status)
      assert.matches("^rlockctl: " .. text .. "\nstack traceback:", result.err)
    end
  end)

  it("is not reported if its task is cancelled before it ends", function()
    local result = run [[
      local task = rlock.spawn(function()
        local slow <close> = setmetatable({}, { __close = function()
          rlock.sleep(60)
        end })
        error "root"
      end)
      rlock.sleep(0.01)
      task:cancel()
      rlock.sleep(0.01)
      error "other"]]
    assert.matches("^rlockctl: stdin:%d+: other\n", result.err)
  end)

  it("of a waiter does not stop the close that wakes it", function()
    for how, line in pairs {
      ["its block ends"] = "",
      ["it is called"] = "client:close() client:close()",
      ["two tasks call it"] = "rlock.spawn(client.close, client)",
    } do
      local result = with_waiter(line)
      assert.same({ how, 1, "rlockctl: closed: the client was closed" },
        { how, result.status, result.err:match "^[^\n]*" })
    end
  end)

  it("in another task does so too", function()
    local result = run [[
      local client = assert(rlock.open())
      rlock.spawn(function()
        assert(client:lock("cli:error:task"):lock())
        local a <close> = closing "failed"
        rlock.sleep(0.01)
        local x = nil + 1
      end)
      local b <close> = closing "main"
      rlock.sleep(60)]]
    assert.equal(1, result.status)
    assert.matches("^rlockctl: stdin:%d+: attempt to perform arithmetic on a "
      .. "nil value\nstack traceback:", result.err)
    assert.matches("closed failed\n", result.out)
    assert.matches("closed main\n", result.out)
    assert.is_false(exists("cli:error:task"))
  end)
end)

describe("a signal", function()
  local WAITING = [[
    local client = assert(rlock.open())
    local lock = client:lock(arg[1])
    assert(lock:lock())
    rlock.spawn(function()
      local a <close> = closing "other"
      rlock.sleep(60)
    end)
    local b <close> = closing "main"
    collectgarbage()
    collectgarbage()
    print "ready"
    rlock.sleep(60)
    print "after"]]

  for name, number in pairs { SIGINT = INT, SIGTERM = TERM } do
    it(name .. " unwinds every task, releases locks, and ends the program with "
        .. "128 + its number", function()
      local program = start(WAITING, "cli:" .. name)
      program:says("ready")
      assert.is_true(exists("cli:" .. name))
      program:kill(number)
      local result = program:wait()
      assert.same({ 128 + number, 0, "" },
        { result.status, result.signal, result.err })
      assert.matches("closed main", result.out)
      assert.matches("closed other", result.out)
      assert.is_nil(result.out:find("after"))
      assert.is_false(exists("cli:" .. name))
    end)
  end

  it("ends a program that waits for a lock, which leaves nothing behind",
      function()
    local holder = start(WAITING, "cli:wait")
    holder:says("ready")
    local waiter = start([[
      local client = assert(rlock.open())
      print "ready"
      print(client:lock("cli:wait"):lock())]])
    waiter:says("ready")
    waiter:kill(INT)
    assert.equal(130, waiter:wait().status)
    assert.is_true(exists("cli:wait"))
    holder:kill(TERM)
    assert.equal(143, holder:wait().status)
    assert.is_false(exists("cli:wait"))
  end)

  it("ends a program that opens a client on a server that does not answer",
      function()
    server:pause()
    finally(function() server:resume() end)
    local program = start [[
      print "ready"
      print(rlock.open { connect_timeout = 60, timeout = 60, name = "me" })]]
    program:says("ready")
    program:kill(TERM)
    assert.equal(143, program:wait().status)
  end)

  it("that comes twice at once is one", function()
    local program = start(WAITING, "cli:twice")
    program:says("ready")
    for _ = 1, 5 do program:kill(TERM) end
    local result = program:wait()
    assert.same({ 143, 0, "" }, { result.status, result.signal, result.err })
    assert.matches("closed main", result.out)
    assert.is_false(exists("cli:twice"))
  end)

  it("that comes twice at once while it does not wait is one, too", function()
    local result = start([[
      local client = assert(rlock.open())
      assert(client:lock(arg[1]):lock())
      local a <close> = closing "main"
      os.execute "kill -TERM $PPID; /bin/true; kill -TERM $PPID"
      rlock.sleep(60)]], "cli:computes"):wait()
    assert.same({ 143, 0, "" }, { result.status, result.signal, result.err })
    assert.matches("closed main", result.out)
    assert.is_false(exists("cli:computes"))
  end)

  it("at the end of a program does not keep it from releasing", function()
    local own = redis.start()
    finally(function() own:stop() end)
    local go = ctl.folder() .. "/go"
    local program = ctl.start { "-e", [[
      local rlock = require "rlock"
      assert(rlock.open():lock("cli:late"):lock())
      io.stdout:setvbuf "line"
      print "held"
      while not io.open(arg[1]) do rlock.sleep(0.01) end
      print "end"]], go, url = own.url }
    program:says "held"
    own:pause()
    files.write(go, "")
    program:says "end"
    host.sleep(0.1 * slow)
    program:kill(HUP)
    host.sleep(0.1 * slow)
    own:resume()
    local result = program:wait()
    assert.same({ 0, 0, "" }, { result.status, result.signal, result.err })
    assert.equal("0", own:cli("EXISTS", "cli:late"))
  end)

  it("that comes a second time ends it at once", function()
    local program = start [[
      local a <close> = setmetatable({}, { __close = function()
        print "closing"
        rlock.sleep(60)
      end })
      print "ready"
      rlock.sleep(60)]]
    program:says("ready")
    program:kill(INT)
    program:says("closing")
    eventually(function()
      program:kill(TERM)
      return program.process.status
    end, 20 * slow, "the second signal ends it")
    local result = program:wait()
    assert.same({ 143, 0 }, { result.status, result.signal })
  end)

  local LOOPS = {
    ["while true do end"] = INT,
    ["while true do pcall(compute) end"] = TERM,
    ["while true do lock:valid_for() end"] = HUP,
    ["repeat until xpcall(endless, debug.traceback) == 1"] = TERM,
    ["lock:with(endless)"] = INT,
    ["table.sort({ 1, 2, 3 }, endless)"] = TERM,
    ["coroutine.wrap(endless)()"] = TERM,
    ["while true do coroutine.resume(coroutine.create(endless)) end"] = INT,
    ["while true do pcall(coroutine.wrap(endless)) end"] = TERM,
    ["rlock.spawn(endless) rlock.spawn(endless) rlock.sleep(0)"] = HUP,
  }

  for loop, number in pairs(LOOPS) do
    it("unwinds a loop that never waits: " .. loop, function()
      local program = start([[
        local client = assert(rlock.open())
        local lock = client:lock(arg[1])
        assert(lock:lock())
        local function compute() for i = 1, 100 do string.rep("a", i) end end
        local function endless() while true do compute() end end
        local a <close> = closing "main"
        print "ready"
        ]] .. loop .. [[

        print "after"]], "cli:loop")
      finally(function() program:kill(KILL) end)
      program:says("ready")
      program:kill(number)
      assert.same({ status = 128 + number, signal = 0, err = "",
        out = "ready\nclosed main\n" }, program:wait())
      assert.is_false(exists("cli:loop"))
    end)
  end

  it("lets a loop that never waits clean up, and does not interrupt that",
      function()
    local program = start [[
      local function count() for i = 1, 1e5 do coroutine.yield(i) end end
      local a <close> = setmetatable({}, { __close = function()
        local n = 0
        for i in coroutine.wrap(count) do n = n + i % 2 end
        print("counted " .. n)
      end })
      print "ready"
      while true do pcall(string.rep, "x") end]]
    finally(function() program:kill(KILL) end)
    program:says("ready")
    program:kill(TERM)
    assert.same({ status = 143, signal = 0, err = "",
      out = "ready\ncounted 50000\n" }, program:wait())
  end)

  it("lets a task go on that computes only for a moment", function()
    local program = start [[
      local a <close> = closing "main"
      print "ready"
      os.execute "kill -TERM $PPID"
      for i = 1, 1000 do math.sin(i) end
      print "computed"
      rlock.sleep(60)
      print "after"]]
    assert.same({ status = 143, signal = 0, err = "",
      out = "ready\ncomputed\nclosed main\n" }, program:wait())
  end)

  it("does not make rlock's own code much slower, which it does not unwind",
    function()
      local program = start [[
        local sorted = require "rlock.util.sorted"
        local many = setmetatable({}, { __pairs = function()
          return ("a"):rep(6e5):gmatch "."
        end })
        local began = os.clock()
        sorted(many)
        local usual, slowed = os.clock() - began, nil
        local _ <close> = setmetatable({}, { __close = function()
          print((slowed or os.clock() - began) < 3 * usual)
        end })
        began = os.clock()
        os.execute "kill -TERM $PPID"
        sorted(many)
        slowed = os.clock() - began
        while true do end]]
      local result = program:wait()
      assert.same({ 143, "true\n" }, { result.status, result.out })
    end)

  it("that comes a second time ends it even inside a C function", function()
    local program = start [[
      print "ready"
      string.find(("a"):rep(60), ("a*"):rep(30) .. "b")]]
    program:says("ready")
    finally(function() program:kill(KILL) end)
    eventually(function()
      program:kill(INT)
      return program.process.status
    end, 20 * slow, "the second signal ends it")
    assert.equal(INT, program:wait().signal)
  end)

  it("that was ignored when it started stays so", function()
    local program = ctl.start { program = "sh", "-c",
      [[trap "" INT; exec "$0" -]], ctl.binary, stdin = HEAD .. [[
        print "ready"
        rlock.sleep(0.3)]] }
    program:says("ready")
    program:kill(INT)
    assert.equal(0, program:wait().status)
  end)

  it("of which the program takes no notice ends it after a while", function()
    local program = start [[
      local lock = assert(rlock.open()):lock("cli:stubborn")
      assert(lock:lock())
      print "ready"
      while true do pcall(rlock.sleep, 60) end]]
    program:says("ready")
    program:kill(TERM)
    assert.equal(143, program:wait().status)
    assert.is_false(exists("cli:stubborn"))
  end)
end)
