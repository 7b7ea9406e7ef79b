--- Runs cleanup if a function raises an error. (Not the guard process of a
--- command, src/guard.h.)

---@class rlock.host.uv.guard.Guard
---@field undo function
---@field what any
---@field is_over boolean
local Guard = {}
Guard.__index = Guard
function Guard:__close() if not self.is_over then self.undo(self.what) end end

local function completed(self, ...)
  self.is_over = true
  return ...
end

--- Calls fn(...). If it raises, undo(what) runs before the error propagates.
--- Nothing here catches the error, so it keeps its own traceback.
---@param undo function
---@param what any its argument
---@param fn function
---@param ... any its arguments
---@return any # what fn returned
local function guard(undo, what, fn, ...)
  local self <close> = setmetatable({ undo = undo, what = what }, Guard)
  return completed(self, fn(...))
end

return guard
