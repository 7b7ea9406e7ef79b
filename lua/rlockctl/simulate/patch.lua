--- Replaces functions of the library during a run. All processes share the
--- library, so this is how a simulation observes them.

--- Calls fn(...) while some functions are replaced; restores them afterwards.
---@param list table of { module, name, function(former) -> its replacement }
---@param fn function
---@return any ... # the results of fn
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
