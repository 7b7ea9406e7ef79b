--- Child processes, signals, and other events that come from outside.

local core = require "rlock.core"
local tasks = require "rlock.host.uv.tasks"

local process = {}

local free_id = tasks.free_id

---@class rlock.host.uv.process.Process
---@field over any
---@field status integer
---@field pid integer
---@field signal integer
---@field child any
local Process = {}
Process.__index = Process

--- Starts a program.
---@param options table file, args, env, cwd, detached, stdin, stdout, stderr
---@return any # the process (`pid`, `wait`, `kill`)
---@return any code, string? detail
function process.start(options)
  local self = setmetatable({ over = tasks.event() }, Process)
  local child, id, detail
  child, id, detail = tasks.open(function(status, signal)
    free_id(id)
    self.status, self.signal = status, signal
    self.over:set()
  end, core.spawn, options)
  if not child then return nil, id, detail end
  self.child, self.pid = child, child:pid()
  return self
end

--- Waits for the program to exit.
---@param seconds? number at most
---@return any ... # exit status and signal, or nil, "timeout"
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

---@class rlock.host.uv.process.Handle
local Handle = {}
Handle.__index = Handle

-- Calls fn for each event of a primitive of the core.
local function watch(open, what, fn)
  local self = setmetatable({}, Handle)
  local raw, id, detail = tasks.open(function(value)
    fn(self, value)                      -- also prevents collection
  end, open, what)
  if not raw then return nil, id, detail end
  self.raw, self.id = raw, id
  return self
end

--- Calls `fn` at each signal, until the returned handle is closed. The handle
--- does not keep the program running.
---@param name string "INT", "TERM", "HUP", ...
---@param fn function
function process.on_signal(name, fn) return watch(core.signal, name, fn) end

--- Calls `fn` while a descriptor is readable, until the returned handle is
--- closed.
---@param fd integer a terminal or a pipe
---@param fn function
function process.on_readable(fd, fn) return watch(core.input, fd, fn) end

--- Answers HTTP requests at a port of 127.0.0.1, until the returned handle is
--- closed.
---@param port integer
---@param answer function the first line of a request -> the response; it cannot
---  wait
---@return table? # the handle
---@return rlock.failure? code # "refused"
---@return string? detail
function process.on_request(port, answer)
  return watch(core.serve, port, function(self, line)
    self.raw:answer(answer(line))
  end)
end

--- Stops the calls. Closing the last handle of a signal restores its default
--- action.
function Handle:close()
  if self.id then free_id(self.id) end
  self.id = nil
  self.raw:close()
end

return process
