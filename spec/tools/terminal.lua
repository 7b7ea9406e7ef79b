--- A terminal, by tmux: a program runs in it, a test types and reads the
--- screen.
---
---   local screen = terminal.open("rlockctl -i", { columns = 80, lines = 24 })
---   screen:type "1 + 1\n"
---   screen:shows "\n2\n"
---   screen:close()
---
---   local on_terminal = terminal.only(describe, pending)
---   on_terminal("a prompt", function() ... end)     is skipped without one

local eventually = require "spec.tools.eventually"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"

local terminal = {}

local Screen = {}
Screen.__index = Screen

local SECONDS = 10 * slow

local count = 0

local function tmux(self, ...)
  return shell.run(shell.words { "tmux", "-S", self.socket, ... })
end

-- Why no terminal can be opened here, or nil.
local function obstacle()
  if not select(2, shell.run "command -v tmux script") then
    return "tmux or script is missing"
  end
  if not select(2, shell.run "script -qec true /dev/null </dev/null") then
    return "there are no pseudo-terminals"
  end
end

--- Makes a `describe` or `it` for what needs a terminal. Where none can be
--- opened, it is one skipped test, whose name has the reason.
---@param declare function describe or it of busted
---@param pending function of busted
---@return function
function terminal.only(declare, pending)
  local why = obstacle()
  return function(name, fn)
    if not why then return declare(name, fn) end
    pending(name .. " (skipped: " .. why .. ")")
  end
end

--- Opens a terminal that runs a shell command, and stays when it ends.
---@param command string
---@param options table folder, for tmux's socket; columns, lines
function terminal.open(command, options)
  count = count + 1
  local socket = options.folder .. "/tmux" .. count
  local self = setmetatable({ socket = socket }, Screen)
  local output, ok = tmux(self, "-f", "/dev/null", "new-session", "-d",
    "-x", options.columns or 80, "-y", options.lines or 24,
    "sh", "-c", command .. "; echo \"ended $?\"; exec cat")
  assert(ok, output)
  return self
end

--- Types text, byte by byte.
function Screen:type(text)
  assert(select(2, tmux(self, "send-keys", "-l", "--", text)))
end

--- Presses a key by tmux's name, such as C-c or Tab.
function Screen:press(key)
  assert(select(2, tmux(self, "send-keys", key)))
end

--- Changes the terminal's size.
function Screen:resize(columns, lines)
  assert(select(2, tmux(self, "resize-window", "-x", columns, "-y", lines)))
end

--- From now on, what the program sends to the terminal goes to this file, too.
function Screen:record(path)
  assert(select(2, tmux(self, "pipe-pane", "-O",
    "exec cat >" .. shell.quote(path))))
end

--- The lines on the screen, without blanks at their ends.
function Screen:text()
  return (tmux(self, "capture-pane", "-p"):gsub("%s*$", "\n"))
end

--- Waits until the screen's text has this pattern; returns what it captures.
function Screen:shows(pattern)
  local text
  local ok, found = pcall(eventually, function()
    text = self:text()
    return text:match(pattern)
  end, SECONDS)
  if not ok then error("no " .. pattern .. " on the screen:\n" .. text, 2) end
  return found
end

function Screen:close() tmux(self, "kill-server") end

return terminal
