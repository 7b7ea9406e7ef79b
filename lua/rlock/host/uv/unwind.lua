--- The error that unwinds a cancelled task. The model's host shares this file,
--- which requires no other one.

local unwind = {}

local Unwind = { __name = "rlock.unwind" }
Unwind.__tostring = function(self) return self.why end

---@param why string
function unwind.new(why) return setmetatable({ why = why }, Unwind) end

--- Is this error one that unwinds a task?
function unwind.is(message) return getmetatable(message) == Unwind end

--- The message handler of a task: adds a traceback to other errors.
function unwind.traceback(message)
  local meta = getmetatable(message)
  if meta == Unwind then return message end
  if type(message) ~= "string" then
    message = meta and meta.__tostring and tostring(message)
      or ("(error object is a %s value)"):format(type(message))
  end
  return debug.traceback(message, 2)
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
