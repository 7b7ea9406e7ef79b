--- The error that unwinds a cancelled task, and the messages about misuse of
--- tasks. The model's host shares this file, which requires no other one.

local unwind = {}

-- Each is one constant, so that programs start fast.
unwind.ASTRAY = "a task called coroutine.yield, and nothing resumes it: use \z
  rlock.sleep, rlock.event, or a coroutine of its own"
unwind.OUTSIDE = "rlock waits, so it runs in a task: use rlock.spawn (or \z
  rlock.run under plain lua), not a coroutine of your own"
unwind.NOT_HERE = "rlock cannot wait here: inside table.sort, string.gsub, a \z
  metamethod of C or while a module is being required"
unwind.STUCK = "deadlock: every task waits, and nothing can wake one"

local Unwind = { __name = "rlock.unwind" }
Unwind.__tostring = function(self) return self.why end

---@param why string
function unwind.new(why) return setmetatable({ why = why }, Unwind) end

--- Is this error one that unwinds a task?
function unwind.is(message) return getmetatable(message) == Unwind end

--- Adds a traceback to an error, unless it unwinds a task.
---@param message any
---@param level? integer the first stack frame to show; default: 2
function unwind.traceback(message, level)
  local meta = getmetatable(message)
  if meta == Unwind then return message end
  if type(message) ~= "string" then
    message = meta and meta.__tostring and tostring(message)
      or ("(error object is a %s value)"):format(type(message))
  end
  return debug.traceback(message, level or 2)
end

--- A task's cancellation, if it has not been raised yet; else nil. Returns it
--- once.
---@param task table its `unwinding` is such an error
function unwind.take(task)
  if task.unwinding and not task.unwound then
    task.unwound = true
    return task.unwinding
  end
end

return unwind
