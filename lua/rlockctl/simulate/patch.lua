--- Functions of the library that are replaced during a run: all processes share
--- the library, so a simulation looks at it from outside.

--- Calls fn(...) while functions are replaced.
---@param list table of { module, name, function(former) -> its replacement }
---@param fn function
---@return any ... # what fn returned
return function(list, fn, ...)
  local former = {}
  for i, row in ipairs(list) do
    local module = require(row[1])
    former[i] = module[row[2]]
    module[row[2]] = row[3](former[i])
  end
  local results = table.pack(pcall(fn, ...))
  for i, row in ipairs(list) do require(row[1])[row[2]] = former[i] end
  if not results[1] then error(results[2], 0) end
  return table.unpack(results, 2, results.n)
end
