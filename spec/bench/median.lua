--- The median of a list, which it sorts.

return function(values)
  table.sort(values)
  return values[math.ceil(#values / 2)]
end
