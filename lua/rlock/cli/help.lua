--- rlockctl help: general help, or the usage of one command.

local help = {}

help.general = [[
rlockctl runs Lua programs that hold distributed locks in Redis.

  rlockctl [options] script.lua [ARG...]   run a program; - reads it from
                                           standard input
  rlockctl [options] -e 'CODE' [ARG...]    run a chunk
  rlockctl status NAME [--json]            its kind, who holds it, who waits
  rlockctl status --server [--json]        what rlock may do on the server
  rlockctl script POLICY [OP]              what Redis will run
  rlockctl local start|stop|status         the embedded server
  rlockctl help [COMMAND]
  rlockctl version

Options:
  --url URL        redis://[user[:password]@]host[:port][/db], rediss://...
                   (TLS), unix:///path[?db=n], or local: (a private server,
                   started on demand); default: $RLOCK_URL, else local:
  --lua-path PATH  a folder or "x/?.lua;y/?.lua", searched before the modules
                   that are inside rlockctl
  -v, -q           more messages on standard error, or none but errors
  --               no more options

Exit status: a program's own. From rlockctl itself: 1 error, 130 and 143 ended
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
