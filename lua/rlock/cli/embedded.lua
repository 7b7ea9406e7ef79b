--- rlockctl local: the embedded server.

local embedded = require "rlock.embedded"
local help = require "rlock.cli.help"
local host = require "rlock.host.uv"

local verbs = {}

function verbs.start(cli)
  local options, code, detail = embedded.start(host)
  if not options then return cli.fault(code, detail) end
  print("local: runs at " .. options.path)
  return 0
end

function verbs.stop(cli)
  local was_up, code, detail = embedded.stop(host)
  if was_up == nil then return cli.fault(code, detail) end
  print(was_up and "local: stopped" or "local: was not running")
  return 0
end

function verbs.status()
  local is_up = embedded.is_up(host)
  print(("local: %s (%s)"):format(is_up and "runs" or "does not run",
    embedded.places(host).socket))
  return is_up and 0 or 1
end

return function(arguments, cli)
  local verb = verbs[arguments[1]]
  if arguments[1] == "--help" then return help({ "local" }, cli) end
  if not verb or arguments[2] then
    return cli.fault("usage", "local: start, stop or status?")
  end
  return verb(cli)
end
