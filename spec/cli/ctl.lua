--- rlockctl as a process, seen from outside: both output streams, exit status,
--- signals.
---
---   local ctl = require "spec.cli.ctl"
---   local result = ctl.run { "-e", "print(1)", url = server.url }
---   -- result.status, .signal, .out, .err
---   local holder = ctl.start { "script.lua", url = server.url }
---   holder:says("ready") holder:kill(15) result = holder:wait()
---   teardown(ctl.clean)
---
--- Options besides the words: url (RLOCK_URL), env (name -> value, or false to
--- unset), stdin (a text), cwd, program (instead of rlockctl), limit (seconds).
--- `local:` uses the spec's own folder, ctl.folder(), unless env overrides it.

local assert = require "luassert"
local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local host = require "rlock.host.uv"
local shell = require "spec.tools.shell"
local slow = require "spec.tools.slow"

local ctl = {}

local Running = {}
Running.__index = Running

local SECONDS = 20

ctl.binary = require "spec.tools.rlockctl"

--- Is a sanitizer built in? It is slow and must be loaded first.
function ctl.is_sanitized()
  return select(2, shell.run("grep -q __asan_init "
    .. shell.quote(ctl.binary)))
end

-- When this process has gone, kills those that name the folder; removes it.
local MAKE_FOLDER = [[
  d=$(mktemp -d "${TMPDIR:-/tmp}/rlock-XXXXXX")
  echo "$d"
  setsid sh -c '
    while kill -0 $1 && [ -d "$2" ]; do sleep 1; done
    kill -9 $(grep -slF "$2/" /proc/[0-9]*/cmdline | cut -d/ -f3 | grep -vx $$)
    rm -rf "$2"' sh $PPID "$d" </dev/null >/dev/null 2>&1 &]]

local folder, count = nil, 0

--- The folder of this spec file.
function ctl.folder()
  if not folder then
    folder = shell.run(MAKE_FOLDER)
    assert(folder:find("^/%S+$"), folder)
  end
  return folder
end

--- Writes a file in that folder; returns its path.
function ctl.file(name, text)
  local path = ctl.folder() .. "/" .. name
  shell.run("mkdir -p " .. shell.quote(path:match("^(.*)/")))
  files.write(path, text)
  return path
end

-- The arguments of `env`, which execs the program.
local function environment(options)
  local env = { RLOCK_URL = options.url or false,
    XDG_RUNTIME_DIR = ctl.folder(), LUA_PATH = false }
  for name, value in pairs(options.env or {}) do env[name] = value end
  local words = {}
  for name, value in pairs(env) do
    if not value then table.move({ "-u", name }, 1, 2, #words + 1, words) end
  end
  for name, value in pairs(env) do
    if value then words[#words + 1] = name .. "=" .. value end
  end
  return words
end

--- Starts rlockctl with these words.
function ctl.start(options)
  count = count + 1
  local path = ("%s/%d"):format(ctl.folder(), count)
  local words = environment(options)
  words[#words + 1] = options.program or ctl.binary
  table.move(options, 1, #options, #words + 1, words)
  local process = assert(host.process {
    file = "env", args = words, cwd = options.cwd,
    stdin = options.stdin and ctl.file(count .. ".in", options.stdin) or "null",
    stdout = path .. ".out", stderr = path .. ".err",
  })
  return setmetatable({ process = process, pid = process.pid, path = path,
    limit = options.limit or SECONDS * slow }, Running)
end

--- The parent of a process.
function ctl.parent_of(pid)
  return tonumber(files.read(("/proc/%d/stat"):format(pid))
    :match("^.*%) %a (%d+)"))
end

--- Kills processes, of which some may have ended.
function ctl.kill(...)
  for _, pid in ipairs { ... } do
    os.execute(("kill -9 %d 2>/dev/null"):format(pid))
  end
end

function Running:out() return files.read(self.path .. ".out") end
function Running:err() return files.read(self.path .. ".err") end
function Running:kill(signal) return self.process:kill(signal) end

--- Waits until this text appears on standard output.
function Running:says(text)
  return eventually(function()
    return self:out():find(text, 1, true)
      or self.process.status and error("it ended:\n" .. self:err(), 0)
  end, self.limit, ("it says %q"):format(text))
end

--- Waits for its end; raises after the limit.
---@return any # table status, signal (0: none), out, err
function Running:wait()
  local status, signal = self.process:wait(self.limit)
  if not status then
    self:kill(9)
    error(("it did not end in %g s; it printed:\n%s%s"):format(self.limit,
      self:out(), self:err()), 2)
  end
  return { status = status, signal = signal, out = self:out(),
    err = self:err() }
end

--- Runs it to completion.
function ctl.run(options) return ctl.start(options):wait() end

--- Runs it; asserts success, or the status `ends`, without standard error, and
--- returns the output.
function ctl.output(options)
  local result = ctl.run(options)
  assert.same({ options.ends or 0, 0, "" },
    { result.status, result.signal, result.err })
  return result.out
end

--- Runs it; asserts this status and a one-line error, and returns the error.
function ctl.fault(status, options)
  local result = ctl.run(options)
  assert.same({ status, 0, "" }, { result.status, result.signal, result.out })
  assert.matches("^rlockctl: [^\n]+\n$", result.err)
  return result.err
end

--- Where plain Lua finds rlock and its core: in this tree or in ROCKS_TREE.
function ctl.lua_paths()
  local tree = os.getenv("ROCKS_TREE")
  if tree then
    return { LUA_PATH = tree .. "/share/lua/5.4/?.lua",
      LUA_CPATH = tree .. "/lib/lua/5.4/?.so" }
  end
  return { LUA_PATH = shell.run("pwd") .. "/lua/?.lua",
    LUA_CPATH = ctl.binary:match("^(.*)/") .. "/?.so" }
end

--- Removes the folder.
function ctl.clean()
  if folder then shell.run("rm -rf " .. shell.quote(folder)) end
  folder = nil
end

return ctl
