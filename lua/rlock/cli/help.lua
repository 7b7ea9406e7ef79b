--- rlockctl help: general help, or the usage of one command.

local help = {}

help.general = [[
rlockctl runs Lua programs that hold distributed locks in Redis.

  rlockctl [options] script.lua [ARG...]   run a program; - reads it from
                                           standard input
  rlockctl [options] -e 'CODE' [ARG...]    run a chunk
  rlockctl [options] -i                    a prompt for Lua
  rlockctl status NAME [--json]            show its kind, holders and waiters
  rlockctl status --server [--json]        show the server and permissions
  rlockctl script POLICY [OP]              print what Redis runs
  rlockctl check POLICY [options]          look for faults in a kind of lock
  rlockctl try POLICY [NAME]               run its operations one by one
  rlockctl local start|stop|status         control the local server
  rlockctl help [COMMAND]
  rlockctl version

Options:
  --url URL        redis://[user[:password]@]host[:port][/db], rediss://...
                   (TLS), unix:///path[?db=n], or local: (a private server,
                   started on demand); default: $RLOCK_URL, else local:
  --lua-path PATH  a folder or "x/?.lua;y/?.lua", searched before the modules
                   built into rlockctl
  -v, -q           more messages on standard error, or errors only
  --               no more options

Exit status: the program's own. From rlockctl itself: 1 error, 130 and 143 ended
by SIGINT and SIGTERM, 202 server unreachable, 206 usage.
]]

help.usage = [[
rlockctl help [COMMAND]
]]

function help.run(cli, operands)
  local name = operands[1]
  if not name then
    io.write(help.general)
    return 0
  end
  local is_there, command = pcall(require, "rlock.cli." .. name)
  if not is_there or type(command) ~= "table" or not command.usage then
    return cli.fault("usage", "help: there is no command " .. name)
  end
  io.write(command.usage)
  return 0
end

return help
