--- Child processes for specs that run in nginx: the counterpart of rlockctl's
--- host.process.
---
---   local process = require "spec.tools.process"
---   local counting = process.start {
---     file = "build/rlockctl", args = { "x.lua" }, stdout = path,
---   }
---   counting:kill(9)
---   local status, signal = counting:wait(5)

local shell = require "spec.tools.shell"

local process = {}

local Process = {}
Process.__index = Process

local SECONDS = 30
local PAUSE = 0.01

local unpack = table.unpack or unpack

-- The shell waits for the program and writes its pid and status to files.
local START = [[
  rm -f %s.pid %s.status
  { sh -c 'echo $$ >"$0.pid"; exec "$@"' %s %s >>%s 2>>%s </dev/null
    echo $? >%s.status; } >/dev/null 2>&1 &
  while [ ! -s %s.pid ] && [ ! -s %s.status ]; do sleep 0.01; done
  cat %s.pid]]

--- Starts a program.
---@param options table file, args, stdout (a file; "null": a temporary one; pid
---  and status go next to it), stderr (a file; default /dev/null)
function process.start(options)
  local path = options.stdout
  if path == "null" then path = os.tmpname() end
  local quoted = shell.quote(path)
  local pid, ok = shell.run(START:format(quoted, quoted, quoted,
    shell.words { options.file, unpack(options.args or {}) }, quoted,
    shell.quote(options.stderr or "/dev/null"),
    quoted, quoted, quoted, quoted))
  assert(ok, pid)
  return setmetatable({ pid = tonumber(pid), path = path }, Process)
end

local function status_in(path)
  local file = io.open(path)
  local text = file and file:read("*a") or ""
  if file then file:close() end
  return tonumber(text:match("^(%d+)\n"))
end

--- Waits for its end, at most `seconds` (30).
---@return any # exit status, and the signal that ended it or 0; nil, "timeout"
function Process:wait(seconds)
  local left = seconds or SECONDS
  local status = status_in(self.path .. ".status")
  while not status do
    if left <= 0 then return nil, "timeout" end
    ngx.sleep(PAUSE)
    left = left - PAUSE
    status = status_in(self.path .. ".status")
  end
  if status > 128 then return 0, status - 128 end
  return status, 0
end

--- Sends a signal by number.
function Process:kill(signal) return shell.kill(self.pid, signal) end

return process
