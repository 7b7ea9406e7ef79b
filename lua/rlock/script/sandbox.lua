--- The globals and libraries of a script inside Redis.
--- Lists what every Redis has since 6.0, without os, print, getfenv and others
--- that only some versions have.

local set = require("rlock.script.lexer").set

---@diagnostic disable-next-line: access-invisible
local unpack = table.unpack or unpack

local sandbox = {}

--- name -> true. Without KEYS and ARGV: a function has parameters for them.
sandbox.globals = set [[
  _G _VERSION assert bit cjson cmsgpack collectgarbage coroutine error gcinfo
  getmetatable ipairs load loadstring math next pairs pcall rawequal rawget
  rawset redis select setmetatable string struct table tonumber tostring type
  unpack xpcall]]

--- Library -> name -> true, for libraries that have more in a newer Lua.
sandbox.fields = {
  coroutine = set "create resume running status wrap yield",
  math = set [[abs acos asin atan atan2 ceil cos cosh deg exp floor fmod frexp
    huge ldexp log log10 max min modf pi pow rad random randomseed sin sinh
    sqrt tan tanh]],
  string = set [[byte char dump find format gmatch gsub len lower match rep
    reverse sub upper]],
  table = set "concat foreach foreachi getn insert maxn remove sort",
}

-- What Redis lacks -> what to do instead.
local instead = {
  unpack = "it is unpack there",
  os = 'redis.call("time") returns the time',
  print = "redis.log(redis.LOG_NOTICE, text) writes to its log",
  ["require"] = "require it outside of the function",
  rlock = "there is no rlock inside Redis",
}

local globals, fields = sandbox.globals, sandbox.fields

-- Globals that every interpreter has as well, so a policy may capture them.
local common = set [[
  assert collectgarbage coroutine error getmetatable ipairs load math next
  pairs pcall rawequal rawget rawset select setmetatable string table tonumber
  tostring type xpcall]]

-- Values of this interpreter -> their names in Redis.
local written = setmetatable({ [unpack] = "unpack" }, { __mode = "k" })
for name in pairs(common) do
  written[_G[name]] = name
  for field in pairs(fields[name] or {}) do
    local value = _G[name][field]
    if type(value) == "function" then written[value] = name .. "." .. field end
  end
end

-- The inverse: name -> value.
local own = {}
for value, text in pairs(written) do own[text] = value end

--- name -> true: libraries of some interpreter that Redis lacks, or has in
--- another form.
sandbox.foreign = set [[_G package io os debug utf8 bit bit32 ffi jit]]

--- Whether Redis has the global that a function reads.
---@param use table a use of rlock.script.parser
---@return boolean? # true
---@return string? code # what Redis lacks, as written in the source
function sandbox.has(use)
  if not globals[use.name] then return nil, use.name end
  local known = fields[use.name]
  if not known or not use.field or known[use.field] then return true end
  if use.name == "table" and use.field == "unpack" and use.after == "or" then
    return true
  end
  return nil, use.name .. "." .. use.field
end

--- Whether a policy replaced a global that in Redis is Lua's own.
---@param use table a use of rlock.script.parser
---@param values table the globals of the function
---@return boolean
function sandbox.replaced(use, values)
  if not common[use.name] then return false end
  local value = values[use.name]
  if value ~= own[use.name] and written[value] ~= use.name then return true end
  local field = own[use.name .. "." .. (use.field or "")]
  return field ~= nil and value[use.field] ~= field
end

--- Lets a value be one of Lua's own: a simulated process has some of its own.
---@param value table | function
---@param name string
function sandbox.stand_in(value, name) written[value] = name end

--- What to do instead of using something that Redis lacks.
---@param missing any a name
---@return string
function sandbox.advice(missing)
  return instead[missing:match("[^.]*$")] or "is it the name of a local?"
end

--- The name inside Redis of a value of this interpreter's own library.
---@return string? # "tonumber", "math.floor"
function sandbox.written(value)
  return value ~= nil and value == value and written[value] or nil
end

return sandbox
