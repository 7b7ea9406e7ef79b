--- What a script finds inside Redis: its globals, and Lua 5.1's libraries.
--  Measured on Redis 6 to 8 and Valkey; what only some of them have (os, print,
--  getfenv) is left out. Knows nothing of the functions that are shipped.
--  @module rlock.script.sandbox

local unpack = table.unpack or unpack

local sandbox = {}

local function set(words)
  local result = {}
  for word in words:gmatch("%S+") do result[word] = true end
  return result
end

-- KEYS and ARGV are not here: a function has parameters for them.
local globals = set [[
  _G _VERSION assert bit cjson cmsgpack collectgarbage coroutine error gcinfo
  getmetatable ipairs load loadstring math next pairs pcall rawequal rawget
  rawset redis select setmetatable string struct table tonumber tostring type
  unpack xpcall]]

-- The libraries that a newer Lua has more functions in.
local fields = {
  coroutine = set "create resume running status wrap yield",
  math = set [[abs acos asin atan atan2 ceil cos cosh deg exp floor fmod frexp
    huge ldexp log log10 max min modf pi pow rad random randomseed sin sinh
    sqrt tan tanh]],
  string = set [[byte char dump find format gmatch gsub len lower match rep
    reverse sub upper]],
  table = set "concat foreach foreachi getn insert maxn remove sort",
}

-- Values of this interpreter -> how the same thing is written in Redis.
local written = {}
for name in pairs(globals) do
  local value = rawget(_G, name)
  if type(value) == "function" or fields[name] then written[value] = name end
end
for library, names in pairs(fields) do
  for name in pairs(names) do
    local value = rawget(_G, library)[name]
    if type(value) == "function" then
      written[value] = library .. "." .. name
    end
  end
end
written[unpack] = "unpack"

-- Libraries of some interpreter that Redis has not, or not the same.
sandbox.foreign = set [[_G package io os debug utf8 bit bit32 ffi jit]]

--- Whether Redis has the global that a function reads.
--  @tparam table use a use of rlock.script.parser
--  @treturn[1] boolean true
--  @treturn[2] nil
--  @treturn[2] string what Redis does not have, as it was written
function sandbox.has(use)
  if not globals[use.name] then return nil, use.name end
  local known = fields[use.name]
  if not known or not use.field or known[use.field] then return true end
  if use.name == "table" and use.field == "unpack" and use.after == "or" then
    return true
  end
  return nil, use.name .. "." .. use.field
end

--- How a value of this interpreter's own library is written inside Redis.
--  @tparam any value
--  @treturn string|nil "tonumber", "math.floor"
function sandbox.written(value)
  return value ~= nil and value == value and written[value] or nil
end

return sandbox
