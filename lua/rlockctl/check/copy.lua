--- A shallow copy of a table: states share what a step does not change.

---@param list table
---@return table
return function(list)
  local result = {}
  for key, value in pairs(list) do result[key] = value end
  return result
end
