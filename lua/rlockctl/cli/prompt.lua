--- rlockctl -i: a prompt for Lua. On a terminal, libedit edits the line while
--- tasks run.

local complete = require "rlockctl.cli.complete"
local host = require "rlock.host.uv"
local program = require "rlockctl.cli.program"
local shutdown = require "rlock.host.uv.shutdown"

local prompt = {}

prompt.usage = [[
rlockctl -i [--url URL]

Reads Lua from the terminal and prints the values of each expression. The module
rlock is loaded. Other tasks run while you type; an error does not end them. All
lines run in one task, so one line may lock and a later one unlock. The scope of
a local variable is its own line.

Tab completes names. The history is in ~/.rlockctl_history, which only its owner
can read; lines that seem to contain a password are not kept. Ctrl-C discards
the line or interrupts running code. Ctrl-D ends the prompt and releases all
locks.
]]

-- Frames from here on are left out of tracebacks.
local OUR_FRAMES = "\n%s*%[C%]: in function 'xpcall'"
  .. "\n%s*rlockctl/cli/prompt%.lua.*"
local FIRST, MORE = "> ", ">> "

-- the history -----------------------------------------------------------------

-- The path of the history, or nil.
local function history_file()
  local home = os.getenv "HOME"
  return home and home ~= "" and home .. "/.rlockctl_history" or nil
end

-- Lines that may contain a password are not stored in the history.
local function is_secret(line)
  local text = line:lower()
  return text:find "://[^/%s]*@" or text:find "pass"
    or text:find "auth%f[%A]"
end

-- lines from a terminal -------------------------------------------------------

---@class rlockctl.cli.prompt.Terminal
---@field input any
---@field editor any
---@field over any
---@field history any
local Terminal = {}
Terminal.__index = Terminal

local function new_terminal(edit)
  local editor = edit.open()
  if not editor then return nil end
  local self = setmetatable({ editor = editor }, Terminal)
  self.over, self.history = host.event(), history_file()
  if self.history then editor:load(self.history) end
  return self
end

function Terminal:finish(what, line)
  self.input:close()
  self.editor:stop()
  self.input, self.what, self.line = nil, what, line
  self.over:set()
end

function Terminal:complete(text)
  local rest, names = complete.names(text)
  if rest ~= "" then
    self.editor:insert(rest)
  elseif names[2] then
    self.editor:aside(table.concat(names, "  ") .. "\n")
  end
end

function Terminal:key()
  local what, text = self.editor:read()
  if what == "complete" then
    self:complete(text)
  elseif what then
    self:finish(what, text)
  end
end

--- Reads a line while tasks run.
---@param text string the prompt
---@return string? # nil at the end
---@return string # "line", "end" or "interrupted"
function Terminal:read(text)
  self.editor:start(text)
  self.input = host.on_readable(0, function() self:key() end)
  self.over:wait()
  if self.what == "end" then print() end
  if self.line and self.line:find "%S" and not is_secret(self.line) then
    self.editor:add(self.line)
    if self.history then self.editor:save(self.history) end
  end
  return self.line, self.what
end

--- Drops the line that is being edited. Returns false if there is none.
function Terminal:interrupt()
  if not self.input then return false end
  self:finish "interrupted"
  io.write "^C\n"
  return true
end

--- Prints whole lines, above the edited one.
function Terminal:write(text)
  if self.input then return self.editor:aside(text) end
  io.write(text)
  io.flush()
end

-- lines from elsewhere --------------------------------------------------------

---@class rlockctl.cli.prompt.Plain
---@field has_prompt boolean
local Plain = {}
Plain.__index = Plain

function Plain:read(text)
  if self.has_prompt then io.write(text) end
  io.flush()
  local line = io.read "l"
  return line, line and "line" or "end"
end

function Plain.interrupt() return false end

function Plain.write(_, text) io.write(text) end

local function open_lines()
  local is_terminal = host.is_terminal(0) and host.is_terminal(1)
  local has_edit, edit = pcall(require, "rlock.edit")
  return is_terminal and has_edit and new_terminal(edit)
    or setmetatable({ has_prompt = is_terminal }, Plain)
end

-- running ---------------------------------------------------------------------

local function compile(text, number)
  local name = "=line " .. number
  local chunk = load("return " .. text, name, "t")
  if chunk then
    program.sources[name] = "return " .. text
    return chunk
  end
  program.sources[name] = text
  return load(text, name, "t")
end

-- Reads lines until they form a chunk. Returns it, or nil and the event.
local function read_chunk(lines, number)
  local text, what = lines:read(FIRST)
  while text do
    local chunk, problem = compile(text, number)
    if chunk or not problem:find "<eof>$" then
      return chunk, problem or "line"
    end
    local more
    more, what = lines:read(MORE)
    text = more and text .. "\n" .. more
  end
  return nil, what
end

local function explain(message)
  if host.is_unwind(message) then return message end
  local text = debug.traceback(tostring(message), 2)
  return (text:gsub(OUR_FRAMES, ""))
end

local function complain(lines, message)
  lines:write(shutdown.explained(tostring(message)) .. "\n")
end

local function show(lines, ok, ...)
  if not ok then return complain(lines, (...)) end
  if select("#", ...) > 0 then print(...) end
end

-- A print that does not corrupt the line being edited.
local function new_print(lines)
  return function(...)
    local words = table.pack(...)
    for i = 1, words.n do words[i] = tostring(words[i]) end
    lines:write(table.concat(words, "\t") .. "\n")
  end
end

-- An error in a task that was started here does not end the program.
local function new_spawn(lines, spawn)
  local function run(fn, ...)
    local results = table.pack(xpcall(fn, explain, ...))
    if results[1] then return table.unpack(results, 2, results.n) end
    if host.is_unwind(results[2]) then error(results[2], 0) end
    complain(lines, results[2])
  end
  return function(fn, ...) return spawn(run, fn, ...) end
end

local function prepare(lines)
  local rlock = require "rlock"
  _G.rlock = rlock
  rlock.spawn = new_spawn(lines, rlock.spawn)
  print = new_print(lines)                               -- luacheck: ignore
  ---@diagnostic disable-next-line: duplicate-set-field
  function host.write_log(text) lines:write(text) end
end

-- SIGINT discards the line, or interrupts running code.
local function take_interrupts(lines)
  local main = host.current()
  shutdown.intercept(function()
    if not lines:interrupt() then main:cancel "interrupted" end
  end)
end

--- Reads and runs chunks until the input ends.
---@param cli table
---@param operands table none is allowed
---@return integer? # exit status
function prompt.run(cli, operands)
  if operands[1] then
    return cli.fault("usage", "-i: takes no program, but got " .. operands[1])
  end
  local lines, number = open_lines(), 0
  prepare(lines)
  take_interrupts(lines)
  repeat
    number = number + 1
    local chunk, what = read_chunk(lines, number)
    if chunk then
      show(lines, xpcall(chunk, explain))
      host.revive()
    elseif what ~= "end" and what ~= "interrupted" then
      complain(lines, what)
    end
  until what == "end"
  return host.exit(0)
end

return prompt
