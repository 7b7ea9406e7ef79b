--- Commands to a private Redis from a task, without rlock. They do not block:
--- if the process blocked, replies to rlock would seem late. Connects on demand
--- and reconnects to a restarted server. Runs inside rlockctl.
---
---   local control = require "spec.tools.control"
---   control.ask(server, "GET", "x")       raises if there is no reply
---   control.evalshas(server)              how many scripts it has run
---   control.close([server])               closes its connection, or all

local host = require "rlock.host.uv"

local control = {}

local TIMEOUT = 10000                    -- ms

local connections = {}                   -- server -> connection

function control.ask(server, ...)
  local connection = connections[server]
  local reply, code, detail
  if connection then reply, code, detail = connection:call(TIMEOUT, ...) end
  if not connection or code == "closed" or code == "connect" then
    connection = assert(host.connect {
      path = server.socket, timeout = TIMEOUT, silent = 0,
    })
    connections[server] = connection
    reply, code, detail = connection:call(TIMEOUT, ...)
  end
  assert(code == nil, detail)
  return reply
end

function control.evalshas(server)
  return tonumber(control.ask(server, "INFO", "commandstats"):match(
    "cmdstat_evalsha:calls=(%d+)") or 0)
end

function control.close(only)
  for server, connection in pairs(connections) do
    if not only or server == only then
      connection:close()
      connections[server] = nil
    end
  end
end

return control
