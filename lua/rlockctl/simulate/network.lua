--- A simulated network: servers, and the routes between clients and servers.

local link = require "rlockctl.simulate.link"
local server = require "rlockctl.simulate.server"

---@class rlockctl.simulate.network
---@field [any] any
local network = {}
network.__index = network

local DELAY = 0.0005                    -- seconds, in one direction

---@param universe table of rlockctl.model.host
function network.new(universe)
  universe.report = universe.report or function() end
  local self = setmetatable({
    universe = universe, servers = {}, count = {}, routes = {},
    shas = {}, texts = {},  -- of all scripts that any server has loaded
  }, network)
  universe.connect = function(host, options)
    local to = self.servers[options.host]
    if to then
      local connect = options.role and link.connect_to_master or link.connect
      return connect(self:route(host, to), options)
    end
    host.sleep(DELAY)
    return nil, "connect", options.host .. ": connection refused"
  end
  return self
end

--- Counts an event of this name.
function network:note(what) self.count[what] = (self.count[what] or 0) + 1 end

--- Adds a server.
---@param name string its host name
function network:server(name)
  local added = server.new(self, name)
  self.servers[name] = added
  self.servers[#self.servers + 1] = added
  return added
end

--- Makes every address lead to one server.
function network:lead_to(its)
  function self.universe.connect(host, options)
    options.host = options.host or options.path
    return link.connect(self:route(host, its), options)
  end
end

--- The route between a client and a server: `links`, its connections; `delay`;
--- `forth` and `back`, the times until which this direction delivers nothing;
--- `refuses_until`, the time until which the server refuses new connections.
---@param host table
---@param to table the server
function network:route(host, to)
  local routes = self.routes[host]
  if not routes then
    routes = {}
    self.routes[host] = routes
  end
  if not routes[to] then
    routes[to] = {
      host = host, server = to, links = {}, delay = DELAY, forth = 0, back = 0,
      refuses_until = 0, random = self.universe.stream(self.universe.seed,
        host.label .. to.name),
    }
  end
  return routes[to]
end

return network
