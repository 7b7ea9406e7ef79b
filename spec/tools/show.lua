--- A value as text, the same in every Lua. Shipped with the functions of
--- spec/tools/functions.lua, so limited to Lua 5.1.

local show = {}

local function number(value)
  if value ~= value then return "nan" end
  return ("%.14g"):format(value == 0 and 0 or value)
end

local function escape(char)
  return ("\\%d"):format(char:byte())
end

--- Includes a list's field `n` if present.
function show.text(value)
  local kind = type(value)
  if kind == "number" then return number(value) end
  if kind == "string" then
    return "'" .. value:gsub("[^%w ]", escape) .. "'"
  elseif kind ~= "table" then
    return kind == "function" and kind or tostring(value)
  end
  local parts = {}
  for i = 1, #value do parts[i] = show.text(value[i]) end
  if value.n then parts[#parts + 1] = "n=" .. show.text(value.n) end
  return "{" .. table.concat(parts, " ") .. "}"
end

return show
