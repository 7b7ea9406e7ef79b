--- `require "rlock.simulate"` where a program runs plainly: `rlockctl simulate`
--  has a module of its own instead. So one file is a program and its test.

local simulate = {}

local tables, finals = {}, {}

--- A table that all processes of a simulation share; here it is the program's.
-- @tparam string name
-- @treturn table
function simulate.shared(name)
  tables[name] = tables[name] or {}
  return tables[name]
end

-- Checks the invariants when the program ends.
local at_end = setmetatable({}, { __gc = function()
  for _, fn in ipairs(finals) do fn() end
end })

--- An invariant: fn raises if it does not hold. A simulation calls it after each
--  step; here it is called at the end of the program.
-- @tparam function fn must not wait
function simulate.always(fn) finals[#finals + 1] = at_end and fn end

--- As `always`, at the end of a run only.
simulate.finally = simulate.always

return simulate
