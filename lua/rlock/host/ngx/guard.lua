--- Calls a function and cleans up if it raises, as `<close>` does in Lua 5.4.
--  LuaJIT has to catch and re-raise the error for that, which cuts off the
--  traceback that nginx logs. So if the error is uncaught, the guard logs the
--  function's own traceback.

local error, getinfo, pcall, xpcall = error, debug.getinfo, pcall, xpcall

local guard

local function completed(undo, what, ok, ...)
  if ok then return ... end
  undo(what)
  error((...), 0)
end

-- Does anything in this coroutine, other than a guard, catch errors?
local function is_caught()
  local level, frame = 3, getinfo(3, "f")
  while frame do
    local caller = getinfo(level + 1, "f")
    if frame.func == pcall
        or frame.func == xpcall and caller and caller.func ~= guard then
      return true
    end
    level, frame = level + 1, caller
  end
  return false
end

-- A message handler. A nested guard has already logged the error it re-raises.
local function log_traceback(message)
  local raiser = getinfo(3, "f")
  if not (raiser and raiser.func == completed) and not is_caught() then
    ngx.log(ngx.ERR, "rlock: ",
      debug.traceback("error while a lock is held: " .. tostring(message), 2))
  end
  return message
end

--- Calls fn(...). If it raises, undo(what) runs before the error propagates.
-- @tparam function undo
-- @param what its argument
-- @tparam function fn
-- @param ... its arguments
-- @return what fn returned
function guard(undo, what, fn, ...)
  return completed(undo, what, xpcall(fn, log_traceback, ...))
end

return guard
