--- rlockctl help: general help, or the usage of one command.

local help = {}

help.general = [[
rlockctl runs Lua programs that hold distributed locks in Redis.

  rlockctl [options] script.lua [ARG...]   run a program; - reads it from
                                           standard input
  rlockctl [options] -e 'CODE' [ARG...]    run a chunk
  rlockctl [options] -i                    a prompt for Lua
  rlockctl run NAME [options] -- CMD       run a command while holding a lock
  rlockctl status NAME [--json]            show its kind, holders and waiters
  rlockctl ls [PATTERN] [--json]           list locks
  rlockctl break NAME [--force]            free a lock by force
  rlockctl wait NAME [-w DURATION]         wait until a lock is free
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
                   started on demand); redis+sentinel://host,host2/NAME,
                   redis+cluster://host,host2; default: $RLOCK_URL, else local:
  --lua-path PATH  a folder or "x/?.lua;y/?.lua", searched before the modules
                   built into rlockctl
  -v, -q           more messages on standard error, or errors only
  --               no more options

The Sentinels' own login is in $RLOCK_SENTINEL_USERNAME, if it has a user, and
$RLOCK_SENTINEL_PASSWORD.

Exit status: that of the program. From rlockctl itself:
  0         done; status: it is held; break: it is broken; wait: it is free
  1         error; break: not broken; check: a fault; local status: no server;
            status --server: a permission is missing
  3         status and break: it is free; check: incomplete
  130, 143  ended by SIGINT, SIGTERM
  201       wait: not free in time
  202       the server is unreachable
  206       usage
run: that of its command, and 126, 127, 200 to 207: see rlockctl help run
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
