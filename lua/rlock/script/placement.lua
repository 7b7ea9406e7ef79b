--- Decides where a script declares its helpers. A run of the script creates all
--- functions that are declared before its body, and each costs some hundred
--- instructions if another function captures it. So what the operation needs
--- only through one helper is declared at the beginning of that helper, and is
--- created when that is called.
---
--- Works on units of rlock.script.compiler: `fn` (of a function: its `needs`,
--- the units that it uses, and its `node` and `uses`), `is_fixed`.

local placement = {}

-- Can these helpers be declared at the beginning of another? Not where a
-- parameter hides a name. If that calls itself, it would not pay.
local function can_enclose(unit, units)
  local fn, names = unit.fn, {}
  for _, inner in ipairs(units) do
    names[inner.key] = true
    for _, use in ipairs(inner.fn.uses) do names[use.name] = true end
  end
  for _, name in ipairs(fn.node.params) do
    if names[name] then return false end
  end
  for _, needed in ipairs(fn.needs) do
    if needed == unit then return false end
  end
  return not fn.node.vararg
end

--- Sets `home` of each unit: the helper within which it is declared, or false.
--- `inner` of a helper is the list of these units, if any.
---@param root table the function of the operation
---@param order table all units, each after those that it needs
function placement.decide(root, order)
  local is_direct = {}
  for _, unit in ipairs(root.needs) do
    is_direct[unit], unit.home = true, false
  end
  for i = #order, 1, -1 do
    local unit = order[i]
    local home = is_direct[unit] and unit or unit.home
    for _, needed in ipairs(unit.fn and unit.fn.needs or {}) do
      if needed ~= unit then            -- with another home, it is the script
        local is_first = needed.home == nil or needed.home == home
        needed.home = is_first and not needed.is_fixed and home
      end
    end
  end
  for _, unit in ipairs(order) do
    local home = unit.home
    if home then
      home.inner = home.inner or {}
      table.insert(home.inner, unit)
    end
  end
  for _, unit in ipairs(order) do
    if unit.inner and not can_enclose(unit, unit.inner) then
      for _, inner in ipairs(unit.inner) do inner.home = false end
      unit.inner = nil
    end
  end
end

return placement
