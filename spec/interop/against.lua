--- Makes the specs of one peer out of lists of scenarios.
---
---   require "spec.interop.against" (busted, "redisson4", 5, {
---     { "lock", require "spec.interop.locks" }, ... }[, set, "a cluster"])
---
--- `busted` is a table of its functions, which are there only in spec files; 5
--- servers are there for RedLocks; the locks are in a set of servers, see
--- world.new. A scenario is a title and a function of the world and the kind.

local world = require "spec.interop.world"

return function(busted, program, members, kinds, set, where)
  local w
  local title = "with " .. program .. (where and " in " .. where or "") .. ","
  busted.describe(title, function()
    busted.setup(function() w = world.new(program, members, set) end)
    busted.teardown(function() if w then w:stop() end end)
    for _, entry in ipairs(kinds) do
      local kind, list = entry[1], entry[2]
      busted.describe(kind, function()
        for _, scenario in ipairs(list) do
          busted.it(scenario[1], function() scenario[2](w, kind) end)
        end
      end)
    end
  end)
end
