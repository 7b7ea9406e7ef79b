--- Methods that say what is wrong when they are called with a dot, as in
--  `lock.unlock()`.

local colon = {}

local getmetatable = getmetatable
local STRING = getmetatable("")

local function method(what, name, fn)
  return function(self, ...)
    local class = getmetatable(self)
    if class == nil or class == STRING then
      error(("call it with a colon: %s:%s()"):format(what, name), 2)
    end
    return fn(self, ...)
  end
end

--- Makes methods of a class check that they are called with an object.
-- @tparam table class
-- @tparam string what  how people call an object of the class
-- @tparam string names of the methods, with spaces between
-- @treturn table class
function colon.methods(class, what, names)
  for name in names:gmatch("%S+") do
    class[name] = method(what, name, class[name])
  end
  return class
end

return colon
