--- The keys of a table, sorted.
---@param map table
---@return table # a list
return function(map)
  local keys = {}
  for key in pairs(map) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end
