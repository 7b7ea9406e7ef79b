--- Questions to a private Redis from a task, past rlock and without blocking
--- the other tasks. Connects when it must, also to a server that was started
--- again. Inside rlockctl.
--
--    local control = require "spec.support.control"
--    control.ask(server, "GET", "x")       raises what is no answer
--    control.close()                       the connections to all servers

local host = require "rlock.host.uv"

local control = {}

local TIMEOUT = 10000                    -- ms

local connections = {}                   -- server -> one

function control.ask(server, ...)
  local connection = connections[server]
  local reply, code, detail
  if connection then reply, code, detail = connection:call(TIMEOUT, ...) end
  if not connection or code == "closed" then
    connection = assert(host.connect {
      path = server.socket, timeout = TIMEOUT, silent = 0,
    })
    connections[server] = connection
    reply, code, detail = connection:call(TIMEOUT, ...)
  end
  assert(code == nil, detail)
  return reply
end

function control.close()
  for server, connection in pairs(connections) do
    connection:close()
    connections[server] = nil
  end
end

return control
