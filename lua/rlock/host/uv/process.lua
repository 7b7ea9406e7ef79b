--- Child processes and signals.

local core = require "rlock.core"
local tasks = require "rlock.host.uv.tasks"

local process = {}

local callback, free_id = tasks.callback, tasks.free_id

local Process = {}
Process.__index = Process

--- Starts a program.
-- @tparam table options file, args, env, cwd, detached, stdin, stdout, stderr
-- @return the process (`pid`, `wait`, `kill`), or nil, code, detail
function process.start(options)
  local self = setmetatable({ over = tasks.event() }, Process)
  local id
  id = callback(function(status, signal)
    free_id(id)
    self.status, self.signal = status, signal
    self.over:set()
  end)
  local child, code, detail = core.spawn(id, options)
  if not child then
    free_id(id)
    return nil, code, detail
  end
  self.child, self.pid = child, child:pid()
  return self
end

--- Waits for the program to exit.
-- @tparam[opt] number seconds at most
-- @return exit status and signal, or nil, "timeout"
function Process:wait(seconds)
  if not self.status and not self.over:wait(seconds) then
    return nil, "timeout", "process " .. self.pid .. " still runs"
  end
  return self.status, self.signal
end

--- Sends a signal by number.
function Process:kill(signal) return self.child:kill(signal) end

--- Stops watching the program, which runs on.
function Process:forget() self.child:close() end

local Handle = {}
Handle.__index = Handle

-- Calls fn for each event of a primitive of the core.
local function watch(open, what, fn)
  local self = setmetatable({}, Handle)
  self.id = callback(function() fn(self) end)    -- also prevents collection
  local code, detail
  self.raw, code, detail = open(self.id, what)
  if self.raw then return self end
  free_id(self.id)
  return nil, code, detail
end

--- Calls `fn` at each signal, until the returned handle is closed. The handle
--  does not keep the program running.
-- @tparam string name "INT", "TERM", "HUP", ...
-- @tparam function fn
function process.on_signal(name, fn) return watch(core.signal, name, fn) end

--- Calls `fn` while a descriptor is readable, until the returned handle is
--  closed.
-- @tparam integer fd  a terminal or a pipe
-- @tparam function fn
function process.on_readable(fd, fn) return watch(core.input, fd, fn) end

--- Stops the calls. Closing the last handle of a signal restores its default
--  action.
function Handle:close()
  if self.id then free_id(self.id) end
  self.id = nil
  self.raw:close()
end

return process
