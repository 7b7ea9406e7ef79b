--- rlockctl help: general help, or the usage of one command.

local help = {}

help.general = [[
rlockctl runs Lua programs that hold distributed locks in Redis or ZooKeeper.

  rlockctl [options] script.lua [ARG...]   run a program; - reads it from
                                           standard input
  rlockctl [options] -e 'CODE' [ARG...]    run a chunk
  rlockctl [options] -i                    a prompt for Lua
  rlockctl run NAME [options] -- CMD       run a command while holding a lock
  rlockctl status NAME [--json]            show its kind, holders and waiters
  rlockctl ls [PATTERN] [--json]           list locks
  rlockctl top [PATTERN] [--once]          watch them in a live table
  rlockctl deadlocks [URL...] [--json]     show tasks that wait for each other
  rlockctl revoke NAME [--reason TEXT]     ask the holders to release a lock
  rlockctl break NAME [--force]            free a lock by force
  rlockctl wait NAME [-w DURATION]         wait until a lock is free
  rlockctl doctor [URL...]                 audit the servers for locks
  rlockctl script POLICY [OP]              print what Redis runs
  rlockctl check POLICY [options]          model-check a kind of lock
  rlockctl simulate PROGRAM.lua [ARG...]   test a program against faults
  rlockctl try POLICY [NAME]               run its operations one by one
  rlockctl local start|stop|status         control the local server
  rlockctl help [COMMAND]                  explain a command
  rlockctl version                         show the versions of its parts

Options:
  --url URL        the server: redis://[user[:password]@]host[:port][/db],
                   rediss://... (TLS), unix:///path[?db=n], or local: (a private
                   server, started on demand); redis+sentinel://host,host2/NAME,
                   redis+cluster://host,host2; ZooKeeper:
                   zk://[user:password@]host[:port],host2.../chroot, or zks://
                   (TLS); default: $RLOCK_URL, else local:
  --tls            TLS, as with rediss://
  --cacert FILE    the certificates to trust; default: the system's
  --cert FILE, --key FILE   the client certificate and its key, if the server
                   requests one
  --sni HOST       the name in the server's certificate; default: the URL's host
  --insecure       do not verify the server's certificate
  --lua-path PATH  a folder or "x/?.lua;y/?.lua", searched before the modules
                   built into rlockctl
  -e CODE          a chunk to run
  -i               a prompt, see rlockctl help prompt
  --log json       write each event of the program's locks to standard error, as
                   a line of JSON; drops events while the pipe is full
  --metrics PORT   serve its metrics at http://127.0.0.1:PORT/metrics, for
                   Prometheus; --metrics FILE writes them to a file
  -v               more messages on standard error
  -q               errors only
  -h, --help       explain the command
  -V, --version    show the versions
  --               no more options

The Sentinels' own login is in $RLOCK_SENTINEL_USERNAME, if it has a user, and
$RLOCK_SENTINEL_PASSWORD.

Exit status: that of the program or command. From rlockctl itself:
  0         done; status: it is held; break: it is broken; wait: it is free;
            revoke: a holder is asked
  1         error; break: not broken; revoke: no holder can be asked; check: a
            fault; simulate: a bug; local status: no server; doctor: warnings;
            deadlocks: there is one
  2         doctor: faults
  3         status, revoke and break: it is free; check and simulate:
            incomplete
  4         status: no lock may have written the key or node
  126, 127  run: the command cannot be executed, is not found
  128+N     ended by signal N: 130 by SIGINT, 143 by SIGTERM; 141, as by
            SIGPIPE, if the reader of its output has closed the pipe
  200       run: not free, with -n
  201       run and wait: not free in time
  202       the server is unreachable, or too few of several servers respond
  203       run: the lock was lost, and the command stopped
  204       run: the command succeeded, but the lock was lost before its end
  205       run: interrupted while waiting
  206       usage
  207       run: the command was stopped by --hold-at-most
  208       the server refuses the login, or a permission is missing
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
  local module = name == "prompt" and name or cli.commands[name]
  if not module then
    local similar = require "rlockctl.cli.similar"(name, cli.commands)
    return cli.fault("usage", ("help: there is no command %s%s"):format(name,
      similar and (" (did you mean %s?)"):format(similar) or ""))
  end
  io.write(require("rlockctl.cli." .. module).usage)
  return 0
end

return help
