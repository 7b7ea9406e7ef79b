--- What Redis' Lua 5.1 silently treats differently from a newer Lua.
--- Finds what is visible in the text: a call of a library function by name or
--- as a method, and a constant beside an operator. The README lists the rest
--- under "A lock of your own kind". Pure.

local load = rawget(_G, "loadstring") or load

local differences = {}

local GRAPHIC = "%g"
local EXACT = 9007199254740992          -- 2^53: doubles count up to it

-- The number of arguments in 5.1, for functions that take more in newer Luas.
local takes = {
  load = 2, xpcall = 2, ["math.atan"] = 1, ["math.log"] = 1,
  ["string.gmatch"] = 2, ["string.rep"] = 2,
}

-- Pattern functions -> whether they find more than one match.
local patterns = {
  ["string.find"] = false, ["string.gmatch"] = true, ["string.gsub"] = true,
  ["string.match"] = false,
}

local function matches_empty(pattern)
  local ok, found = pcall(string.find, "", pattern)
  return ok and found and pattern:sub(1, 1) ~= "^"
end

local function of_pattern(pattern, repeated)
  if pattern:gsub("%%%%", ""):find(GRAPHIC, 1, true) then
    return "has the class %g in a pattern, which Redis' Lua 5.1 reads as the"
      .. " letter g; write [%w%p]"
  elseif pattern:find("\0", 1, true) then
    return "has a zero byte in a pattern, which ends there in Redis' Lua 5.1;"
      .. " write %z"
  elseif repeated and matches_empty(pattern) then
    return "has a pattern that matches the empty string, which Redis' Lua 5.1"
      .. " finds more often; write + for *"
  end
end

local function of_call(name, arguments)
  if takes[name] and #arguments > takes[name] then
    return ("calls %s with %d arguments, of which Redis' Lua 5.1 takes %d;"
      .. " drop the others")
      :format(name, #arguments, takes[name])
  end
  local token = patterns[name] ~= nil and arguments[2]
  local plain = name == "string.find" and arguments[4] ~= nil
  if not token or token.kind ~= "string" or plain then return nil end
  ---@diagnostic disable-next-line: need-check-nil
  return of_pattern(load("return " .. token.text)(), patterns[name])
end

--- The fault of a number that is an operand of %.
---@param value number
---@param is_modulus boolean it is the right operand
---@param is_left boolean it is the left one
---@return string? # the fault, in words
function differences.of_modulo(value, is_modulus, is_left)
  local size = math.abs(value)
  if is_modulus and size == math.huge then
    return "has math.huge after %, which makes NaN in Redis' Lua 5.1; compare"
      .. " instead"
  elseif is_left and size >= EXACT and size < math.huge then
    return "has a number beyond 2^53 before %, where Redis' Lua 5.1 is inexact"
  end
end

local function of_number(use, value)
  local fault = differences.of_modulo(value, use.is_modulus, use.after == "%")
  if fault then
    return fault
  elseif (use.before == ".." or use.after == "..")
      and not differences.prints_alike(value) then
    return ("writes the number %q as %s, Redis' Lua 5.1 as %.14g; use"
      .. " string.format"):format(use.field or use.name, tostring(value), value)
  end
end

--- Whether 5.1 writes a number as this interpreter does.
---@param value number
---@return boolean
function differences.prints_alike(value)
  return tostring(value) == ("%.14g"):format(value)
end

--- What is wrong with a use of a value that is shipped.
---@param use table a use of rlock.script.parser
---@param value any what it reads: a constant, or the name of a library
---  function, "string.rep"
---@return string? # the fault, in words
function differences.of(use, value)
  if value == "math.huge" then value = math.huge end
  if type(value) == "number" then return of_number(use, value) end
  return use.arguments and of_call(value, use.arguments) or nil
end

return differences
