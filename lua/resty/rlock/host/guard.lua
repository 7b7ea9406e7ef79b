--- Calls a function and cleans up if it raises, as `<close>` does in Lua 5.4.
--- LuaJIT must catch and re-raise the error for that, which truncates the
--- traceback that nginx logs. So if the error is uncaught, this file logs the
--- function's own traceback.
---
--- nginx may end the worker timer without an error. So each job has a list of
--- cleanup handlers, its guards, which worker_timer.lua then calls.

local tasks = require "resty.rlock.host.tasks"

local error, getinfo, pcall, xpcall = error, debug.getinfo, pcall, xpcall
local remove, running = table.remove, coroutine.running

local guard = {}

--- Adds a cleanup handler to the running job of the worker timer, if any.
---@return table? # the guard
---@return table? # the job's guards
local function enter(undo, what)
  local timer = tasks.worker_timer()
  local job = timer and timer.threads[running()]
  if not job then return nil end
  local guards, its = job.guards or {}, { undo = undo, what = what }
  job.guards, guards[#guards + 1] = guards, its
  return its, guards
end

-- Removes a handler, which is usually the last one.
local function leave(its, guards)
  if not its then return end
  local i = #guards
  while i > 0 and guards[i] ~= its do i = i - 1 end
  if i > 0 then remove(guards, i) end
end

--- Calls undo(what) if nginx ends the timer in which the calling job runs.
---@param undo function
---@param what any its argument
---@return function # cancels that
function guard.on_death(undo, what)
  local its, guards = enter(undo, what)
  return function() leave(its, guards) end
end

local function completed(undo, what, its, guards, ok, ...)
  leave(its, guards)
  if ok then return ... end
  undo(what)
  error((...), 0)
end

-- Does anything in this coroutine, other than guard.call, catch errors?
local function is_caught()
  local level, frame = 3, getinfo(3, "f")
  while frame do
    local caller = getinfo(level + 1, "f")
    if frame.func == pcall
        or frame.func == xpcall and caller and caller.func ~= guard.call then
      return true
    end
    level, frame = level + 1, caller
  end
  return false
end

-- A message handler. A nested guard.call has already logged the error that it
-- re-raises.
local function log_traceback(message)
  local raiser = getinfo(3, "f")
  if not (raiser and raiser.func == completed) and not is_caught() then
    ngx.log(ngx.ERR, "rlock: ",
      debug.traceback("error while a lock is held: " .. tostring(message), 2))
  end
  return message
end

--- Calls fn(...). If it raises, or nginx ends the timer in which it runs,
--- undo(what) runs, in the first case before the error propagates.
---@param undo function
---@param what any its argument
---@param fn function
---@param ... any its arguments
---@return any # what fn returned
function guard.call(undo, what, fn, ...)
  local its, guards = enter(undo, what)
  return completed(undo, what, its, guards, xpcall(fn, log_traceback, ...))
end

return guard
