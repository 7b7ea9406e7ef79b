--- Several independent private servers, with their failures.
---
---   local servers = require("spec.tools.servers").start(5)
---   servers[1].url                             -- each as in redis.lua
---   servers:kill(2, 4)   :launch(2, 4)   :pause(3)   :resume(3)
---   servers:ask(servers[1], "EXISTS", key)     -- does not block
---   servers:count(key)                         -- how many have the key
---   servers:stop()

local control = require "spec.tools.control"
local redis = require "spec.tools.redis"

local servers = {}

local Servers = {}
Servers.__index = Servers

--- Starts n servers.
---@param n integer
---@param options? table those of redis.start
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

--- Sends a command to one of them, without rlock.
function Servers.ask(_, server, ...) return control.ask(server, ...) end

--- How many of the running servers have a key.
function Servers:count(key)
  local count = 0
  for _, server in ipairs(self) do
    if server.pid then count = count + self:ask(server, "EXISTS", key) end
  end
  return count
end

--- Resumes the paused servers, so that clients can be closed.
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
