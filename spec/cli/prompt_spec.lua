--- rlockctl -i: on a terminal, and with its input from a pipe.

local ctl = require "spec.cli.ctl"
local redis = require "spec.tools.redis"
local shell = require "spec.tools.shell"
local terminal = require "spec.tools.terminal"

local on_terminal = terminal.only(describe, pending)

local server = redis.shared()

teardown(ctl.clean)

describe("rlockctl -i with a pipe", function()
  local function run(text, ...)
    return ctl.run { "-i", stdin = text, url = server.url, ... }
  end

  it("prints values, and goes on after errors", function()
    local result = run("1 + 1, nil\nx = 3\nx\nerror 'no'\n= 3\nx\n")
    assert.equal(0, result.status)
    assert.matches("^2\tnil\n3\nline 4:1: no\n.*\nline 5:1: unexpected symbol "
      .. "near '='\n3\n$", result.out)
    assert.equal("", result.err)
  end)

  it("reads on until a chunk is whole", function()
    assert.equal("1\n2\n", run("for i = 1, 2 do\nprint(i)\nend\n").out)
  end)

  it("locks in one line and unlocks in another", function()
    assert.equal("true\ntrue\ntrue\n", run("client = rlock.open()\n"
      .. "lock = client:lock 'cli:prompt'\nlock:lock()\nlock:is_locked()\n"
      .. "lock:unlock()\n").out)
  end)

  it("releases locks at the end of the input", function()
    assert.equal("true\n", run("rlock.open():lock('cli:end'):lock()\n").out)
    assert.equal("0", server:cli("EXISTS", "cli:end"))
  end)

  it("takes no program", function()
    local result = run("", "x.lua")
    assert.equal(206, result.status)
    assert.matches("%-i: takes no program, but got x.lua", result.err)
  end)
end)

on_terminal("rlockctl -i on a terminal", function()
  local screen

  local function open()
    local folder = ctl.folder()
    shell.run(shell.words { "rm", "-f", folder .. "/.rlockctl_history" })
    screen = terminal.open(shell.words { "env", "HOME=" .. folder,
      "RLOCK_URL=" .. server.url, ctl.binary, "-i" }, { folder = folder })
    screen:shows "^>\n"
  end

  before_each(open)
  after_each(function() screen:close() end)

  it("runs tasks while the user types", function()
    screen:type("rlock.spawn(function() for i = 1, 3 do rlock.sleep(0.1) "
      .. "print('tick ' .. i) end error 'in a task' end)\n")
    screen:type "half a li"
    screen:shows "tick 1\ntick 2\ntick 3\nline 1:1: in a task\n"
    screen:shows "\n> half a li\n"
    screen:press "C-c"
    screen:shows "half a li^C\n>\n"
  end)

  it("interrupts running code at Ctrl-C", function()
    screen:type "print 'asleep' rlock.sleep(1000)\n"
    screen:shows "\nasleep\n"
    screen:press "C-c"
    screen:shows "interrupted\n>\n"
    screen:type "40 + 2\n"
    screen:shows "\n42\n>\n"
  end)

  it("ends a loop that never waits at Ctrl-C", function()
    screen:type "print 'busy' while true do end\n"
    screen:shows "\nbusy\n"
    screen:press "C-c"
    screen:shows "interrupted\n.*\n>\n"
    screen:type "40 + 2\n"
    screen:shows "\n42\n>\n"
  end)

  it("completes names", function()
    screen:type "rlock.sle"
    screen:press "Tab"
    screen:shows "> rlock.sleep\n"
    screen:press "C-c"
    screen:shows "%^C\n>\n"
    screen:type "string.re"
    screen:press "Tab"
    screen:shows "rep  reverse\n> string.re"
  end)

  it("keeps a history for its owner only, without passwords", function()
    screen:type "1 + 2\n"
    screen:shows "\n3\n>"
    screen:type "'redis://u:secret@h'\n"
    screen:shows "\nredis://u:secret@h\n>"
    screen:type "'AUTH', 'secret'\n"
    screen:shows "\nAUTH%s+secret\n>"
    screen:press "C-d"
    screen:shows "ended 0"
    local file = ctl.folder() .. "/.rlockctl_history"
    local text = shell.run("stat -c %a " .. file .. "; cat " .. file)
    assert.matches("^600\n.*1\\040%+\\0402", text)
    assert.is_nil(text:find "secret")
  end)

  it("leaves the terminal as it was", function()
    screen:press "C-d"
    screen:shows "ended 0"
    screen:type "echoed"
    screen:shows "\nechoed"
  end)
end)
