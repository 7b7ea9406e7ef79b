--- Lets members of a double barrier enter, in tasks that last until `over`.

local assert = require "luassert"
local host = require "rlock.host.uv"
local task = require "spec.tools.task"

---@param over table an event of the host
---@param patience number seconds until all must be in
---@param ... any the members
return function(over, patience, ...)
  local left, all_in = select("#", ...), host.event()
  for _, one in ipairs { ... } do
    task.start(function()
      assert.is_true(one:enter { wait = patience })
      left = left - 1
      if left == 0 then all_in:set() end
      over:wait()
    end)
  end
  assert.is_true(all_in:wait(patience))
end
