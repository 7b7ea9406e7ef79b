--- The keys of a table, sorted.
-- @tparam table map
-- @treturn table a list
return function(map)
  local keys = {}
  for key in pairs(map) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end
