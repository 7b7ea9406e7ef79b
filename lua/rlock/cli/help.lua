--- rlockctl help: what can be done, or how one command is used.

local general = [[
rlockctl runs Lua programs that hold distributed locks in Redis.

  rlockctl [options] script.lua [ARG...]     run a program; - reads it from
                                             standard input
  rlockctl [options] -e 'CODE' [ARG...]      run a chunk
  rlockctl [options] status NAME [--json]    who holds a lock, and how long
  rlockctl script POLICY [OP]                what Redis will run
  rlockctl local start|stop|status           the embedded server
  rlockctl help [COMMAND], rlockctl version

Options:
  --url URL        redis://[user[:password]@]host[:port][/db], rediss://... (TLS),
                   unix:///path[?db=n], or local: (a private server, started on
                   demand); default: $RLOCK_URL, else local:
  --lua-path P     searched before package.path
  -v, -q           say more, say nothing

Exit status: a program's own. rlockctl's: 1 error, 130 and 143 interrupted, 202
server unreachable, 206 usage.
]]

local details = {
  status = [[
rlockctl [--url URL] status NAME [--json]

Shows whether the lock NAME is held, by whom, how often, and for how long.
]],
  script = [[
rlockctl script POLICY [OP]

Prints what Redis runs for a policy: a name such as "reentrant", or a module of
your own on package.path. OP is one of its operations; without it, all of them.
]],
  ["local"] = [[
rlockctl local start|stop|status

The embedded server: a private redis-server of this user, in memory, on a unix
socket. "stop" ends it, and every lock it has is gone.
]],
  help = "rlockctl help [COMMAND]\n",
  version = "rlockctl version\n",
}

return function(arguments, cli)
  local name = arguments[1]
  local text = name and details[name] or general
  if name and not details[name] then
    return cli.fault("usage", "help: there is no command " .. name)
  end
  io.write(text)
  return 0
end
