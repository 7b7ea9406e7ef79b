--- rlockctl local: the private default server.

local local_server = require "rlock.host.uv.local_server"
local authority = require "rlock.util.authority"
local host = require "rlock.host.uv"

local command = {}

command.usage = [[
rlockctl local start|stop|status

The local server: a private redis-server (or valkey-server) of this user, in
memory, on a unix socket. Programs start it when they need it, and it keeps
running when they end. "stop" ends it and removes its folder; its locks are
lost. "status" has exit status 0 if it runs, else 1.
]]

local verbs = {}

function verbs.start(cli)
  local where, code, detail = local_server.start(host)
  if not where then return cli.fault(code, detail) end
  return verbs.status(cli)
end

function verbs.stop(cli)
  local was_up, code, detail = local_server.stop(host)
  if was_up == nil then return cli.fault(code, detail) end
  print(was_up and "local: stopped" or "local: was not running")
  return 0
end

function verbs.status(cli)
  local info, code, detail = local_server.command(host, "INFO", "server")
  if info == nil then return cli.fault(code, detail) end
  if not info then
    print("local: does not run")
    return 1
  end
  local function field(name)
    return info:match("\n" .. name .. ":([^\r\n]*)")
  end
  local valkey = field "valkey_version"
  print(("local: runs at %s (pid %s, %s %s, up %s s)"):format(
    "unix://" .. authority.encode(local_server.paths(host).socket),
    field "process_id",
    valkey and "valkey" or "redis", valkey or field "redis_version",
    field "uptime_in_seconds"))
  return 0
end

function command.run(cli, operands)
  local verb = verbs[operands[1]]
  if not verb or operands[2] then
    return cli.fault("usage", "local: start, stop or status?")
  end
  return verb(cli)
end

return command
