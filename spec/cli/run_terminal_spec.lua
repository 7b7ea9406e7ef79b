--- rlockctl run on a terminal: the keys that send signals, job control of an
--- interactive shell, and commands that need the terminal. In tmux. A command
--- that is to be stopped must not start others at that time: a shell that waits
--- for its vfork() does not stop.

local ctl = require "spec.cli.ctl"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local redis = require "spec.tools.redis"
local rlock = require "rlock"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"
local task = require "spec.tools.task"
local terminals = require "spec.tools.terminal"

local on_terminal = terminals.only(describe, pending)

local server = redis.shared()
local NAME = "run:tty"
local SECONDS = 10 * slow

local folder, count = nil, 0

-- Each terminal has a server of its own: the last one may still be ending.
local function tmux(...)
  return shell.run(("tmux -S %s/tmux%d "):format(folder, count)
    .. shell.words { ... })
end

local Terminal = {}
Terminal.__index = Terminal

-- An interactive bash, whose prompt is "$ ".
local function open()
  count = count + 1
  local self = setmetatable({ name = "t" .. count }, Terminal)
  local rc = ctl.file("rc", ("PS1='$ ' PATH=%s:$PATH; unset HISTFILE\n"
    .. "export RLOCK_URL=%s\n"):format(
    shell.quote(ctl.binary:match("^(.*)/")), shell.quote(server.url)))
  local output, ok = tmux("new-session", "-d", "-s", self.name, "-x", "100",
    "-y", "30", "bash --noprofile --rcfile " .. rc .. " -i")
  assert(ok, output)
  self:shows("^%$")
  return self
end

function Terminal:screen()
  return (tmux("capture-pane", "-p", "-J", "-t", self.name))
end

-- Waits until the screen matches.
function Terminal:shows(pattern)
  local text
  local ok = pcall(eventually, function()
    text = self:screen()
    return text:find(pattern)
  end, SECONDS)
  assert.is_true(ok, ("no %q on the screen:\n%s"):format(pattern, text))
  return text
end

function Terminal:type(text)
  tmux("send-keys", "-t", self.name, "-l", text)
  tmux("send-keys", "-t", self.name, "Enter")
end

-- Starts rlockctl run NAME with these words of a shell.
function Terminal:run(words) self:type("rlockctl run " .. NAME .. words) end

function Terminal:press(key) tmux("send-keys", "-t", self.name, key) end

function Terminal:close() tmux("kill-session", "-t", self.name) end

-- Runs fn with a terminal.
local function in_terminal(fn)
  return function()
    local terminal = open()
    finally(function() terminal:close() end)
    fn(terminal)
    eventually(function() return server:cli("EXISTS", NAME) == "0" end, SECONDS)
  end
end

setup(function() folder = ctl.folder() end)

teardown(function()
  tmux("kill-server")
  ctl.clean()
end)

on_terminal("on a terminal, rlockctl run", function()
  it("leaves the keys to the command: Ctrl-C", in_terminal(function(terminal)
    terminal:run(" -c 'echo i''n; exec sleep 60'")
    terminal:shows("\nin\n")
    terminal:press("C-c")
    terminal:shows("%^C\n?%$")
    terminal:type("echo status $?")
    terminal:shows("\nstatus 130\n")
  end))

  it("lets the command handle Ctrl-C", in_terminal(function(terminal)
    terminal:run(" -c 'trap \"echo heard; exit 7\" INT; "
      .. "echo i''n; while :; do sleep 0.01; done'")
    terminal:shows("\nin\n")
    terminal:press("C-c")
    terminal:shows("%^C\n?heard\n%$")
    terminal:type("echo status $?")
    terminal:shows("\nstatus 7\n")
  end))

  it("is interrupted while it waits by Ctrl-C", in_terminal(function(terminal)
    task.run(function()
      local client <close> = assert(rlock.open(server.url))
      local hold <close> = assert(client:lock(NAME):hold())
      terminal:run(" -- true")
      eventually(function()
        return server:cli("PUBSUB", "CHANNELS", "*" .. NAME .. "*") ~= ""
      end)
      terminal:press("C-c")
      terminal:shows("interrupted while waiting")
      terminal:type("echo status $?")
      terminal:shows("\nstatus 205\n")
      assert.is_true(hold:need(1))
    end)
  end))

  it("stops and goes on while it waits", in_terminal(function(terminal)
    task.run(function()
      local client <close> = assert(rlock.open(server.url))
      local hold = assert(client:lock(NAME):hold())
      terminal:run(" -- echo r''an")
      eventually(function()
        return server:cli("PUBSUB", "CHANNELS", "*" .. NAME .. "*") ~= ""
      end)
      terminal:press("C-z")
      terminal:shows("Stopped")
      terminal:type("fg")
      assert.is_true(hold:unlock())
      terminal:shows("\nran\n")
    end)
  end))

  it("stops with the command at Ctrl-Z, and goes on with fg",
    in_terminal(function(terminal)
      terminal:run(" -c 'echo i''n; read x; echo got $x'")
      terminal:shows("\nin\n")
      terminal:press("C-z")
      terminal:shows("Stopped")
      terminal:type("jobs; echo st''ill")
      terminal:shows("%[1%]%+%s+Stopped.*\nstill")
      assert.equal("1", server:cli("EXISTS", NAME))
      terminal:type("fg")
      terminal:shows("fg\nrlockctl")
      terminal:type("text")
      terminal:shows("\ngot text\n%$")
    end))

  it("goes on in the background with bg", in_terminal(function(terminal)
    local path = ctl.folder() .. "/go"
    shell.run("mkfifo " .. path)
    terminal:run(" -c 'echo i''n; read g <" .. path
      .. "; echo do''ne; read x; echo got $x'")
    terminal:shows("\nin\n")
    terminal:press("C-z")
    terminal:shows("Stopped")
    terminal:type("bg")
    terminal:shows("%[1%]%+ rlockctl")
    files.write(path, "go\n")
    terminal:shows("done\n")
    terminal:type("jobs")                 -- it reads, so it stops again
    terminal:shows("Stopped.*rlockctl")
    terminal:type("fg")
    terminal:shows("fg\nrlockctl")
    terminal:type("text")
    terminal:shows("\ngot text\n%$")
  end))

  it("is killed in time while it is stopped", in_terminal(function(terminal)
    terminal:run(" --ttl 1s -- sh -c 'echo i''n; sleep 60'")
    terminal:shows("\nin\n")
    terminal:press("C-z")
    terminal:shows("Stopped")
    eventually(function()
      return server:cli("EXISTS", NAME) == "0"
    end, SECONDS)
    terminal:type("fg")
    terminal:shows('lost "run:tty" [^\n]*: the command was stopped\n')
    terminal:type("echo status $?")
    terminal:shows("\nstatus 203\n")
  end))

  it("runs an editor", in_terminal(function(terminal)
    local path = ctl.folder() .. "/edited"
    terminal:run(" -- lua5.4 -e '\n"
      .. "os.execute(\"stty raw -echo\") io.write(\"edi\", \"ting \")\n"
      .. "io.flush() local key = io.read(1)\n"
      .. "os.execute(\"stty sane\") io.open(\"" .. path
      .. "\", \"w\"):write(key)'")
    terminal:shows("editing")
    terminal:press("C-c")
    eventually(function() return files.read(path) == "\3" end, SECONDS)
    terminal:type("echo status $?")
    terminal:shows("status 0\n")
  end))

  it("lets a command in a pipeline ask for a password",
    in_terminal(function(terminal)
      terminal:type("echo data | rlockctl run " .. NAME .. " -c 'read data; "
        .. "stty -echo </dev/tty; echo pass''word: >&2; read p </dev/tty; "
        .. "stty echo </dev/tty; echo $data and $p' | cat")
      terminal:shows("\npassword:\n")
      terminal:type("sesame")
      terminal:shows("\ndata and sesame\n%$")
    end))

  it("keeps the rest of a pipeline in the foreground",
    in_terminal(function(terminal)
      terminal:run(" -- echo data | "
        .. "(cat; read x </dev/tty; echo got $x)")
      terminal:shows("\ndata\n")
      terminal:type("text")
      terminal:shows("\ngot text\n%$")
    end))

  it("with --foreground shares the keys", in_terminal(function(terminal)
    terminal:run(" --foreground -c 'trap \"echo heard\" INT;"
      .. " echo i''n; while :; do read x; done'")
    terminal:shows("\nin\n")
    terminal:press("C-c")
    terminal:shows("heard\n")
    terminal:press("C-z")
    terminal:shows("Stopped")
    terminal:type("fg")
    terminal:shows("fg\nrlockctl")
    terminal:press("C-\\")
    terminal:shows("%^\\.*%$ ")
    terminal:type("echo status $?")
    terminal:shows("\nstatus 131\n")
  end))
end)
