--- Methods that raise a helpful error when called with a dot instead of a
--- colon, as in `lock.unlock()`.

local colon = {}

local getmetatable = getmetatable
local STRING = getmetatable("")

--- Raises the error for the method that calls this.
---@param method string such as "lock:unlock"
function colon.raise(method)
  error(("call it with a colon: %s()"):format(method), 3)
end

local function method(what, name, fn)
  return function(self, ...)
    local class = getmetatable(self)
    if class == nil or class == STRING then
      colon.raise(what .. ":" .. name)
    end
    return fn(self, ...)
  end
end

--- Makes methods of a class check that they are called on an object.
---@generic T
---@param class T
---@param what string name of such an object, for messages
---@param names string of the methods, separated by spaces
---@return T # class
function colon.methods(class, what, names)
  for name in names:gmatch("%S+") do
    class[name] = method(what, name, class[name])
  end
  return class
end

return colon
