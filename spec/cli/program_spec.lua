--- Programs: where they come from, what they can require, how they start.

local ctl = require "spec.cli.ctl"
local redis = require "spec.tools.redis"
local shell = require "spec.tools.shell"

local SHOW = [[
local before = {}
for i = -1, -99, -1 do before[#before + 1] = arg[i] end
print(arg[0], #before > 0 and before[#before], table.concat(before, " "))
print(select("#", ...), #arg, table.concat({ ... }, "|"))
]]

local output, fault = ctl.output, ctl.fault

teardown(ctl.clean)

describe("a program", function()
  it("is a file, with its name and arguments in arg and ...", function()
    local path = ctl.file("show.lua", SHOW)
    assert.equal(("%s\t%s\t%s\n%s\n"):format(path, ctl.binary, ctl.binary,
      "3\t3\ta|--b|-e"), output { path, "a", "--b", "-e" })
    assert.equal(("%s\t%s\t%s\n%s\n"):format(path, ctl.binary,
      "redis://x --url -q " .. ctl.binary, "0\t0\t"),
      output { "-q", "--url", "redis://x", path })
  end)

  it("may begin with #!, a byte order mark, or both", function()
    for i, head in ipairs { "#!/usr/bin/env rlockctl\n", "\xEF\xBB\xBF",
        "\xEF\xBB\xBF# x\n" } do
      local text = head .. "print(debug.getinfo(1).currentline)"
      local line = i == 2 and "1\n" or "2\n"
      assert.equal(line, output { ctl.file("head.lua", text) })
      assert.equal(line, output { "-", stdin = text })
    end
  end)

  it("is a chunk given with -e, and what follows are its arguments", function()
    assert.equal(("-e\t%s\t-e %s\n2\t2\ta|--url\n"):format(ctl.binary,
      ctl.binary), output { "-e", SHOW, "a", "--url" })
    assert.equal("1\t--\n", output { "-eprint(#arg, ...)", "--" })
    assert.equal("(command line)\n",
      output { "-e", "print(debug.getinfo(1).short_src)" })
    assert.equal("", output { "-e", "" })
  end)

  it("is what comes on standard input", function()
    assert.equal(("-\t%s\t%s\n1\t1\tx\n"):format(ctl.binary, ctl.binary),
      output { "-", "x", stdin = SHOW })
    assert.equal("stdin:2: in main chunk\n", output { "-", stdin = [[

print(debug.traceback():match("stdin:%d: in main chunk"))]] })
  end)

  it("may have a name like an option or a command", function()
    ctl.file("-v", "print(arg[0], arg[-1])")
    ctl.file("status", "print 'a file'")
    assert.equal("-v\t--\n", output { "--", "-v", cwd = ctl.folder() })
    assert.equal("a file\n", output { "./status", cwd = ctl.folder() })
  end)

  it("runs in a task, so that it can wait, and ends with the last task",
      function()
    assert.equal("main\nother\n", output { "-e", [[
      local rlock = require "rlock"
      rlock.spawn(function() rlock.sleep(0.02) print "other" end)
      rlock.sleep(0.001)
      print "main"
      return 7]] })
  end)

  it("may be started without standard input, output and error", function()
    local result = ctl.run { program = "sh", "-c",
      [["$0" -e "$1" <&- >&- 2>&-; echo $?]], ctl.binary, [[
        local client = assert(require "rlock".open())
        assert(client:lock("cli:streams"):lock())
        assert(not io.stdout:write("to nobody"):flush())
        client:close()]], url = redis.shared().url }
    assert.equal("0\n", result.out)
  end)

  it("that assert ended is told of with the detail of the code", function()
    local function first_line(code)
      return ctl.run { "-e", code, url = "unix:///nowhere" }
        .err:match("^[^\n]*")
    end
    assert.equal("rlockctl: connect: /nowhere: no such file or directory",
      first_line 'assert(require("rlock").open())')
    for code, said in pairs {
      ['assert(false)'] = "assertion failed!",
      ['assert(nil, "x")'] = "x",
      ['assert(nil, "x", 2)'] = "x",
      ['assert(nil, "x", "y")'] = "x: y",
      ['pcall(assert, nil, "x", "y") error "is x"'] = "(command line):1: is x",
      ['assert()'] =
        "(command line):1: bad argument #1 to 'assert' (value expected)",
      ['assert(nil, {}, "y")'] = "(error object is a table value)",
    } do
      assert.equal("rlockctl: " .. said, first_line(code), code)
    end
    assert.equal("false\tx\n", output { "-e",
      'print(pcall(function() assert(nil, "x", "y") end))' })
    assert.equal("false\tx\n1\t2\t3\n", output { "-e",
      'print(pcall(assert, nil, "x", "y")) print(assert(1, 2, 3))' })
  end)

  it("sees assert in tracebacks as lua shows it", function()
    local code = "local function f() assert(nil, 'x', 'y') end f()"
    local trace = "\n\t%[C%]: in function 'assert'\n"
      .. "\t%(command line%):1: in local 'f'\n"
    assert.matches("^rlockctl: x: y\nstack traceback:" .. trace,
      ctl.run({ "-e", code }).err)
    assert.matches("^x\nstack traceback:" .. trace, output { "-e",
      ("print(select(2, xpcall(function() %s end, debug.traceback)))"):format(
        code) })
  end)

  it("warns as lua does, once it has been told to", function()
    local code = [[warn "a" warn "@on" warn("b", "c") warn "@off" warn "d"]]
    assert.equal("Lua warning: bc\n", ctl.run({ "-e", code }).err)
  end)

  it("that cannot be read is told of on one line", function()
    assert.matches("cannot open nowhere.lua: No such file",
      fault(1, { "nowhere.lua" }))
    assert.matches("cannot open statsu: .*nor is there such a command "
      .. "%(did you mean status%? see rlockctl help%)", fault(1, { "statsu" }))
    assert.matches("nor is there such a command %(see rlockctl help%)",
      fault(1, { "fly" }))
    assert.matches("cannot read /: Is a directory", fault(1, { "/" }))
    assert.matches("(command line):1: unexpected symbol near '='",
      fault(1, { "-e", "=" }), 1, true)
    assert.matches("broken.lua:2: 'end' expected",
      fault(1, { ctl.file("broken.lua", "do\n") }))
    assert.matches("stdin:1: ", fault(1, { "-", stdin = "x x\n" }))
  end)
end)

describe("the command line", function()
  it("without anything shows the help, on standard error", function()
    local result = ctl.run {}
    assert.same({ 206, "" }, { result.status, result.out })
    assert.matches("^rlockctl runs Lua programs", result.err)
  end)

  it("refuses what it does not know", function()
    assert.matches("unknown option %-%-wait %(see rlockctl help%)",
      fault(206, { "--wait", "3" }))
    assert.matches("unknown option %-x ", fault(206, { "-x" }))
    assert.matches("option %-%-url needs a value", fault(206, { "--url" }))
    assert.matches("option %-e needs a value", fault(206, { "-e" }))
    assert.matches("option %-%-help takes no value", fault(206, { "--help=1" }))
    assert.matches("option %-v takes no value", fault(206, { "-vx" }))
    assert.equal("1\n", ctl.run { "-qve", "print(1)" }.out)
    assert.matches("status: unknown option %-x %(see rlockctl help status%)",
      fault(206, { "status", "-x", "name" }))
    for word, meant in pairs {
      ["--policey"] = "--policy", ["--jsno"] = "--json", ["--srver"] =
      "--server", ["--lua"] = "--lua-path", ["--urk"] = "--url",
    } do
      assert.matches("unknown option " .. word
        .. " (did you mean " .. meant
        .. "? see rlockctl help status)", fault(206, { "status", word, "x" }),
        1, true)
    end
    assert.matches("unknown option %-%-flood %(see rlockctl help status%)",
      fault(206, { "status", "--flood", "x" }))
    assert.matches("option %-%-ur %(did you mean %-%-url%? see rlockctl help%)",
      fault(206, { "--ur", "x" }))
    assert.matches("%-%-url: bad url: must begin with redis://",
      fault(206, { "--url", "http://x", "-e", "" }))
  end)

  it("sets where clients go: --url before RLOCK_URL", function()
    local server = redis.shared()
    local code = [[print((assert(require "rlock".open()):call("PING")))]]
    assert.equal("PONG\n", output { "-e", code, url = server.url })
    assert.equal("PONG\n", output { "--url", server.url, "-e", code,
      url = "unix:///nowhere" })
    assert.equal("PONG\n", output { "--url=" .. server.url, "-e", code })
  end)

  it("-q silences warnings, -v says more", function()
    local code = [[
      local rlock = require "rlock"
      local client = assert(rlock.open { watchdog = 0.06 })
      local lock = client:lock("cli:quiet")
      assert(lock:lock())
      client:call("DEL", "cli:quiet")
      client:call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
      while lock:state() ~= "lost" do rlock.sleep(0.005) end]]
    local server = redis.shared()
    local usual = ctl.run { "-e", code, url = server.url }
    assert.matches("rlock: lost reentrant lock \"cli:quiet\"", usual.err)
    assert.is_nil(usual.err:find("lost the connection", 1, true))
    assert.equal("", output { "-q", "-e", code, url = server.url })
    local more = ctl.run { "-v", "-e", code, url = server.url }
    assert.matches("rlock: lost the connection to ", more.err)
  end)

  it("-v tells of every operation that is retried, and why", function()
    local code = [[
      local rlock = require "rlock"
      local client = assert(rlock.open())
      local lock = client:lock("cli:retried")
      assert(lock:lock())
      assert(lock:unlock())
      client:call("SCRIPT", "FLUSH")
      assert(lock:lock())
      assert(lock:unlock())]]
    local server = redis.start { password = "secret" }
    local more = ctl.run { "-v", "-e", code, url = server.url }
    local _, times = more.err:gsub("is retried", "")
    assert.equal(2, times)
    assert.matches('rlock: reentrant.acquire of "cli:retried" is retried: '
      .. "NOSCRIPT", more.err, 1, true)
    assert.is_nil(more.err:find("secret", 1, true))
    assert.equal("", ctl.run { "-e", code, url = server.url }.err)
    server:stop()
  end)
end)

describe("modules", function()
  local PRINT = "print((require 'rlock.naming'))"

  it("are inside the binary, which can be copied elsewhere alone", function()
    local copy = ctl.folder() .. "/alone/bin/rlockctl"
    assert.is_true(os.execute(("mkdir -p '%s' && cp '%s' '%s'"):format(
      copy:match("^(.*)/"), ctl.binary, copy)))
    local server = redis.shared()
    assert.equal("true\n", output { program = copy, cwd = "/", url = server.url,
      env = { LUA_PATH = "/nowhere/?.lua" }, "-e", [[
      local lock = assert(require "rlock".open()):lock("cli:alone")
      assert(lock:lock())
      print((lock:unlock()))]] })
    assert.matches("^%-%- rlock reentrant.acquire\n", output { program = copy,
      cwd = "/", "script", "reentrant" })
  end)

  it("on --lua-path come first: templates, or a folder", function()
    ctl.file("mine/rlock/naming.lua", "return 'mine'")
    ctl.file("too/mod/init.lua", "return 'too'")
    ctl.file("mine/mod.lua", "return 'first'")
    local mine, too = ctl.folder() .. "/mine", ctl.folder() .. "/too"
    assert.equal("mine\n", output { "--lua-path", mine, "-e", PRINT })
    assert.equal("mine\n", output { "--lua-path=" .. mine .. "/?.lua",
      "-e", PRINT })
    assert.equal("mine\n", output { "-e", PRINT,
      env = { LUA_PATH = mine .. "/?.lua;;" } })
    local both = { "--lua-path", mine, "--lua-path", too,
      "-e", "print((require 'mod'))" }
    assert.equal("first\n", output(both))
    both[2], both[4] = too, mine
    assert.equal("too\n", output(both))
  end)

  it("in the current folder do not take the place of those inside", function()
    local cwd = ctl.folder() .. "/own"
    ctl.file("own/rlock/naming.lua", "return 'own'")
    ctl.file("own/rlock.lua", [[
      package.path = "./?.lua;" .. package.path
      print(require("rlock").main, require("rlock.naming"))]])
    assert.matches("^function: .*table: ", output { "rlock.lua", cwd = cwd })
    os.remove(cwd .. "/rlock.lua")
    for path, first in pairs {
      [";;"] = "table", ["./?.lua;;"] = "string", [";;./?.lua"] = "string",
    } do
      assert.equal(first .. "\n", output { cwd = cwd, env = { LUA_PATH = path },
        "-e", "print(type(require 'rlock.naming'))" })
    end
  end)

  it("of another version than the core are refused, on one line", function()
    local path = ctl.folder() .. "/other/?.lua;"
    local says = "rlock.core is of rlock %S+, but its Lua modules are of "
      .. "rlock 0.0.1\n"
    local text = shell.run("cat lua/rlock/host/uv.lua")
    ctl.file("other/rlock/host/uv.lua",
      (text:gsub('(version = )"[^"]+"', '%1"0.0.1"', 1)))
    for _, words in ipairs { { "-e", "" }, { "status", "x" } } do
      words.env = { LUA_PATH = path .. ";" }
      assert.matches("^rlockctl: " .. says, fault(1, words))
    end
    if ctl.is_sanitized() then return end
    local paths = ctl.lua_paths()
    paths.LUA_PATH = path .. paths.LUA_PATH
    assert.matches("^lua5.4: " .. says, ctl.run({ program = "lua5.4", "-e",
      "require 'rlock'", env = paths }).err)
  end)

  local UNLIKE = [[
    local kinds, script = require "rlock.lock.kinds", require "rlock.script"
    local count = 0
    local function compare(policy, prepared)
      for op, fn in pairs(policy.server) do
        local ready, ours = prepared[policy.name][op], script.compile(
          policy.name, op, fn)
        count = count + 1
        for _, field in ipairs { "name", "op", "where", "text" } do
          if ready[field] ~= ours[field] then print(ours.name, field) end
        end
      end
    end
    local function compare_all(name)
      local policy = require("rlock.policy." .. name)
      local prepared = require("rlock.prepared." .. name)
      compare(policy.read or policy, prepared)
      if policy.write then compare(policy.write, prepared) end
    end
    for _, kind in ipairs(kinds) do
      compare_all(kind.name)
      if not (kind.driver or kind.fenced) then
        compare_all("fenced_" .. kind.name)
      end
    end
    print(count > 80)]]

  it("are inside with the server scripts that the compiler makes", function()
    assert.equal("true\n", output { "-e", UNLIKE })
  end)

  local LOCK = [[
    local lock = assert(require "rlock".open()):lock("cli:prepared")
    assert(lock:lock() and lock:unlock())
    print(package.loaded["rlock.script"] ~= nil)]]

  it("are inside with their server scripts, unless one is replaced", function()
    local url = redis.shared().url
    assert.equal("false\n", output { url = url, "-e", LOCK })
    ctl.file("copy/rlock/naming.lua", (shell.run "cat lua/rlock/naming.lua"))
    assert.equal("true\n", output { url = url,
      "--lua-path", ctl.folder() .. "/copy", "-e", LOCK })
  end)

  it("translate the lines of errors of prepared scripts", function()
    local server = redis.shared()
    server:cli("SET", "cli:wrong", "x")
    assert.matches("rlock/policy/reentrant.lua:%d+", output { url = server.url,
      "-e", [[
        local lock = assert(require "rlock".open()):lock("cli:wrong")
        print(lock:lock())]] })
  end)

  it("are loaded when they are needed", function()
    local loaded = output { "-e", [[
      for name in pairs(package.loaded) do print(name) end]] }
    local needed = "rlockctl.cli rlockctl.cli.option_parser "
      .. "rlockctl.cli.program rlock.core rlock.host.uv "
      .. "rlock.host.uv.connection rlock.host.uv.entry_point "
      .. "rlock.host.uv.guard rlock.host.uv.process "
      .. "rlock.host.uv.shutdown rlock.host.uv.tasks rlock.host.uv.unwind "
      .. "rlock.several.factories rlock.util.heap "
    for name in loaded:gmatch("rlock%l*%.[%w_.]+") do
      assert.is_truthy(needed:find(name .. " ", 1, true), name)
    end
  end)
end)
