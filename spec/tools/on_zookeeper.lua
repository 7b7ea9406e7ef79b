--- How specs on a private ZooKeeper begin. They are pending without one.
---
---   local server, open = on_zookeeper("a lock on ZooKeeper",
---     { describe = describe, pending = pending, teardown = teardown })
---   if not server then return end

local fixtures = require "spec.tools.fixtures"
local zookeeper = require "spec.tools.zookeeper"

---@param title string if there is none
---@param busted table its functions, which are there only in spec files
---@param options? table of zookeeper.start; or, with `servers`, their number,
---  of zookeeper.ensemble; `watchdog` of the clients (4)
---@return table? # the server or the ensemble, until the teardown
---@return function? # open(options): opens a client, see fixtures.open
return function(title, busted, options)
  if not zookeeper.is_installed() then
    busted.describe(title, function()
      busted.pending "needs libzookeeper-java (spec/tools/deps zookeeper)"
    end)
    return nil
  end
  local count = options and options.servers
  local server = count and zookeeper.ensemble(count, options)
    or zookeeper.start(options)
  busted.teardown(function() server:stop() end)
  return server, function(more)
    return fixtures.open({ url = server.url,
      watchdog = options and options.watchdog or 4 }, more)
  end
end
