--- Finds the holds of a lock that overlap, of which at least one writes.
---
---   local texts = overlaps { { name = "a", mode = "writes", from = 1, to = 2,
---     host = "nginx", kind = "mutex" }, ... }

local function show(hold)
  return ("%s %s from %.6f to %.6f"):format(hold.host, hold.kind, hold.from,
    hold.to)
end

-- The one that ends later; either may be nil.
local function later(a, b)
  return (not a or b.to > a.to) and b or a
end

---@param holds table[] are sorted
---@return string[]
return function(holds)
  local overlaps, last, last_writer = {}, {}, {}
  table.sort(holds, function(a, b) return a.from < b.from end)
  for _, hold in ipairs(holds) do
    local name, writes = hold.name, hold.mode == "writes"
    local other = writes and last[name] or last_writer[name]
    if other and other.to > hold.from then
      overlaps[#overlaps + 1] = ("%s: %s; %s"):format(name, show(other),
        show(hold))
    end
    last[name] = later(last[name], hold)
    if writes then last_writer[name] = later(last_writer[name], hold) end
  end
  return overlaps
end
