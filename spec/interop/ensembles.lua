--- A set of servers, for world.new, that is one ZooKeeper.

local eventually = require "spec.tools.eventually"
local files = require "spec.tools.files"
local peers = require "spec.tools.zookeeper_peer"
local zookeeper = require "spec.tools.zookeeper"

---@param class_path? string a file; default: Debian's server
return function(class_path)
  -- The server, with a client of its own. Names are paths.
  local set = { forms = { "interop/%d", "i%d", "interop/a{%d}/b" } }

  function set.start()
    local server = zookeeper.start {
      class_path = class_path and assert(files.read(class_path)) }
    return setmetatable({ url = server.url, peer = peers.open(server),
      stop = function(self)
        self.peer:close()
        server:stop()
      end }, { __index = server })
  end

  function set.nodes() return {} end

  -- How many nodes hold a lock or wait for it.
  local function count(its, name)
    local names = its.peer:names("/" .. name .. "/locks")
    local more = names and its.peer:names("/" .. name .. "/leases")
    return #(names or its.peer:names("/" .. name) or {}) + #(more or {})
  end

  function set.asleep(its, name, processes)
    eventually(function() return count(its, name) > (processes or 1) end, 30,
      "waiters for " .. name)
  end

  function set.is_gone(its, name) return count(its, name) == 0 end
  return set
end
