--- Several private servers, which know nothing of each other, and what befalls
--- them.
--
--    local servers = require("spec.support.servers").start(5)
--    servers[1].url                             -- each as of redis.lua
--    servers:kill(2, 4)   :launch(2, 4)   :pause(3)   :resume(3)
--    servers:ask(servers[1], "EXISTS", key)     -- does not block
--    servers:count(key)                         -- on how many that key is
--    servers:stop()

local control = require "spec.support.control"
local redis = require "spec.support.redis"

local servers = {}

local Servers = {}
Servers.__index = Servers

--- @tparam integer n
-- @tparam[opt] table options as of redis.start
function servers.start(n, options)
  local self = setmetatable({}, Servers)
  for i = 1, n do self[i] = redis.start(options) end
  return self
end

local function each(name)
  return function(self, ...)
    for _, i in ipairs { ... } do self[i][name](self[i]) end
  end
end

for _, name in ipairs { "kill", "launch", "restart", "pause", "resume" } do
  Servers[name] = each(name)
end

--- Asks one of them, past rlock.
function Servers.ask(_, server, ...) return control.ask(server, ...) end

--- On how many of those that live a key is.
function Servers:count(key)
  local count = 0
  for _, server in ipairs(self) do
    if server.pid then count = count + self:ask(server, "EXISTS", key) end
  end
  return count
end

--- Lets those that were paused go on, so that clients can be closed.
function Servers:wake()
  for _, server in ipairs(self) do
    if server.pid then server:resume() end
  end
end

function Servers:stop()
  for _, server in ipairs(self) do
    control.close(server)
    server:stop()
  end
end

return servers
