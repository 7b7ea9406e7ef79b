--- Child processes of a spec: rlockctl with a script or a command. They run
--- while the spec waits in its task.
---
---   local program = require "spec.tools.program"
---   local holder = program.start(server, "examples/keep_alive.lua", "1")
---   eventually(function() return holder:output():find("mine") end)
---   holder:kill(9)
---   local status, signal = holder:wait(5)

local files = require "spec.tools.files"
local host = require "rlock.host.uv"
local rlockctl = require "spec.tools.rlockctl"

local program = {}

local Program = {}
Program.__index = Program

local SECONDS = 30

local count = 0

--- Starts any program, with RLOCK_URL set to the URL of `server`, an object of
--- redis.lua. Its output goes to a file in the server's folder.
function program.exec(server, ...)
  count = count + 1
  local path = ("%s/program-%d"):format(server.folder, count)
  -- Through env, which execs the program, to keep the rest of the environment.
  local process = assert(host.process {
    file = "env", args = { "RLOCK_URL=" .. server.url, ... },
    stdout = path, stderr = path,
  })
  return setmetatable({ process = process, pid = process.pid, path = path },
    Program)
end

--- Starts rlockctl with these arguments, likewise.
function program.start(server, ...)
  return program.exec(server, rlockctl, ...)
end

--- Runs it to completion; returns its output, its status and its signal.
function program.run(server, ...)
  local self = program.start(server, ...)
  local status, signal = self:wait()
  return self:output(), status, signal
end

--- Its output so far, standard output and standard error.
function Program:output()
  return assert(files.read(self.path))
end

--- Waits for its end; raises if that takes more than `seconds` (30).
---@return any # exit status, and the signal that ended it or 0
function Program:wait(seconds)
  local status, signal = self.process:wait(seconds or SECONDS)
  if not status then
    self:kill(9)
    error("the program did not end; it printed:\n" .. self:output(), 2)
  end
  return status, signal
end

function Program:kill(signal)
  return self.process:kill(signal)
end

return program
