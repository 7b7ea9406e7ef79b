--- The command line of rlockctl run.

local seconds_of = require "rlockctl.cli.seconds"

local arguments = {}

local TTL, LEAST_TTL, MOST = 30, 0.1, 86400

arguments.usage = [[
rlockctl run NAME[,NAME...] [options] -- CMD [ARG...]
rlockctl run NAME[,NAME...] [options] -c STRING

Acquires the lock NAME, waiting for it if necessary, runs the command, and
releases the lock when the command and all processes that it started have ended.
Several locks are acquired together: all or none.

  -n, --no-wait          do not wait: status 200 if the lock is not free, 202 if
                         the server does not reply within 2 s
  -w, --wait DUR         the longest wait for the lock and the server, including
                         the connection: status 201, or 202 if the server has
                         not replied (it has at least 1 s); default: no limit
  -E, --conflict-exit-code N   the status instead of 200 and 201; with 0, a busy
                         lock prints nothing
  -s, --shared           lock as a reader: excludes only writers
  -x, --exclusive        lock as a writer of the same lock
  --leader               lead the election NAME: if the lock is lost, stop the
                         command, and campaign again instead of exiting
  --fair                 first come, first served
  --fenced               with a fencing token, which only increases, in
                         RLOCK_TOKEN; not with -s, --limit or several names
  --policy POLICY        a kind of your own, as for `rlockctl status`; with -s
                         or -x, the module of a pair
  --option K=V           an option of that kind, such as limit=2, or of an
                         election: layout=latch; may be repeated
  --limit N [--permits K]   a semaphore of N permits; take K of them (1)
  --ttl DUR              the lease, renewed every third of it (30s)
  --hold-at-most DUR     stop the command if it takes longer: after DUR, SIGTERM
                         or the signal of --on-lost; SIGKILL --kill-after
                         later; status 207. With --on-lost=kill, SIGKILL after
                         DUR
  --on-lost HOW          if the lock is lost: term (default), kill, ignore, or
                         signal:NAME
  --on-revoke SIGNAL     send the command this signal, a name or a number, when
                         `rlockctl revoke`, or another client, asks for the
                         lock; default: nothing, and the request is refused
  --kill-after DUR       the time from these signals to SIGKILL (5s, or a third
                         of --ttl if that is less); at most half of --ttl
  -c, --command STRING   run STRING with sh -c
  --no-stdin             the command's standard input is empty
  --foreground           leave the command in the process group of rlockctl; the
                         terminal sends INT, QUIT and WINCH to both, so rlockctl
                         does not forward them
  --status-fd N          write JSON lines to this descriptor: waiting, acquired,
                         renewed, at_risk, lost, asked, child_exit, released
  -v                     print how long it waited
  -q                     print only errors: nothing if the lock is busy

DUR is a duration, such as 500ms, 30s, 2m or 1h; a bare number is seconds.

If the lock cannot be renewed, the command gets SIGTERM when the lease has
--kill-after left, and SIGKILL before the lease ends: before another client can
acquire the lock. If the server reports that the lock is lost, it gets SIGTERM
at once. A small guard process does this even if rlockctl itself is stopped or
killed. It also covers processes that have left the command's process group,
such as daemons. If the guard is killed, its parent, the warden, kills all these
processes before the lock is released. If both are killed, rlockctl does not
release the lock, which ends with its lease.

With --leader, one of the machines that run this is elected leader and runs the
command; the others wait, first come, first served. If the leader ends or is
stopped by a signal, the next one starts its command at once; if it dies, when
its lease (--ttl) expires. If the lock is lost, rlockctl stops the command and
waits for its turn again, even while no server answers. If the command ends by
itself, rlockctl exits with its status. On ZooKeeper, layout=latch and
layout=selector elect one leader together with programs that use Curator's
LeaderLatch and LeaderSelector.

HUP, INT, QUIT, TERM, USR1, USR2 and WINCH are forwarded to the command's
process group; a second INT or TERM becomes KILL. On a terminal, the command
runs in the foreground. Stopping it (Ctrl-Z) also stops rlockctl, which then
does not renew the lock.

The command's environment has RLOCK_NAME, RLOCK_OWNER, RLOCK_TTL_MS, RLOCK_HELD
(names separated by colons) and RLOCK_TOKEN. If a nested `rlockctl run` names a
lock that the outer one holds, it only checks the hold, and does not release it.

Exit status: the command's own; 128 + N if signal N ended it; 126 it cannot be
executed, 127 it is not found. From rlockctl:
  200  not free, with -n                 201  not free in time, with -w
  202  the server is unreachable         203  lost: the command was stopped
  204  it succeeded, but the lock was lost before its end
  205  interrupted while waiting         206  usage
  207  stopped by --hold-at-most         208  the server refuses the login or
    1  another error of the server            a permission
]]

arguments.options = {
  ["-n"] = { "no_wait" }, ["--no-wait"] = { "no_wait" },
  ["-w"] = { "wait", "DUR" }, ["--wait"] = { "wait", "DUR" },
  ["-E"] = { "conflict", "N" }, ["--conflict-exit-code"] = { "conflict", "N" },
  ["-s"] = { "shared" }, ["--shared"] = { "shared" },
  ["-x"] = { "exclusive" }, ["--exclusive"] = { "exclusive" },
  ["--policy"] = { "policy", "POLICY" },
  ["--option"] = { "option", "K=V", all = true },
  ["--leader"] = { "leader" },
  ["--fair"] = { "fair" }, ["--fenced"] = { "fenced" },
  ["--permits"] = { "permits", "K" }, ["--limit"] = { "limit", "N" },
  ["--ttl"] = { "ttl", "DUR" }, ["--hold-at-most"] = { "hold_at_most", "DUR" },
  ["--on-lost"] = { "on_lost", "HOW" },
  ["--on-revoke"] = { "on_revoke", "SIGNAL" },
  ["--kill-after"] = { "kill_after", "DUR" },
  ["-c"] = { "command", "STRING" }, ["--command"] = { "command", "STRING" },
  ["--no-stdin"] = { "no_stdin" }, ["--foreground"] = { "foreground" },
  ["--status-fd"] = { "status_fd", "N" },
}

-- Raises the problem with an option, as a text.
local function refuse(...) error(string.format(...), 0) end

local function number(chosen, name, option, least, most)
  local value = math.tointeger(tonumber(chosen[name]))
  if chosen[name] and not (value and value >= least and value <= most) then
    refuse("%s must be a whole number from %d to %d", option, least, most)
  end
  chosen[name] = value
end

local function duration(chosen, name, option, least)
  local seconds = chosen[name] and seconds_of(chosen[name])
  if chosen[name] and not (seconds and seconds >= least) then
    refuse("%s must be a duration such as 500ms, 30s, 2m or 1h%s", option,
      seconds and (", at least %gs"):format(least) or "")
  end
  chosen[name] = seconds
end

local conflicts = {
  { "shared", "exclusive" }, { "no_wait", "wait" }, { "fenced", "shared" },
  { "limit", "shared" }, { "limit", "exclusive" }, { "limit", "fair" },
  { "limit", "fenced" },
  { "policy", "fair" }, { "policy", "limit" },
  { "on_revoke", "limit" },
  { "leader", "no_wait" }, { "leader", "wait" }, { "leader", "shared" },
  { "leader", "exclusive" }, { "leader", "fair" }, { "leader", "fenced" },
  { "leader", "policy" }, { "leader", "limit" },
}

local function check_conflicts(chosen)
  for _, pair in ipairs(conflicts) do
    if chosen[pair[1]] and chosen[pair[2]] then
      refuse("%s and %s exclude each other",
        "--" .. pair[1]:gsub("_", "-"), "--" .. pair[2]:gsub("_", "-"))
    end
  end
  if chosen.permits and not chosen.limit then
    refuse "--permits needs --limit"
  elseif chosen.option and not (chosen.policy or chosen.leader) then
    refuse "--option needs --policy or --leader"
  elseif chosen.leader and chosen.conflict then
    refuse "--leader waits for its turn, so -E does not apply"
  elseif chosen.leader and chosen.on_lost == "ignore" then
    refuse "--leader and --on-lost=ignore exclude each other"
  end
end

-- The options of a user's kind, as a table.
local function check_lock_options(chosen)
  if not chosen.option then return end
  local options = {}
  for _, text in ipairs(chosen.option) do
    local key, value = require "rlockctl.cli.lock_option"(text)
    if not key then refuse "--option must be K=V" end
    options[key] = value
  end
  chosen.option = options
end

local function check_times(chosen)
  duration(chosen, "wait", "--wait", 0)
  duration(chosen, "ttl", "--ttl", LEAST_TTL)
  duration(chosen, "hold_at_most", "--hold-at-most", 0.001)
  duration(chosen, "kill_after", "--kill-after", 0)
  chosen.wait = chosen.no_wait and 0 or chosen.wait or math.huge
  chosen.ttl = chosen.ttl or TTL
  if chosen.ttl > MOST then refuse "--ttl is too long" end
  if (chosen.kill_after or 0) > chosen.ttl / 2 then
    refuse "--kill-after must be at most half of --ttl"
  end
end

local function check(chosen)
  check_conflicts(chosen)
  check_lock_options(chosen)
  check_times(chosen)
  if chosen.on_revoke then
    local signal, problem =
      require("rlockctl.cli.run_requests").signal(chosen.on_revoke)
    if not signal then refuse("%s", problem) end
    chosen.on_revoke = signal
  end
  number(chosen, "conflict", "--conflict-exit-code", 0, 255)
  number(chosen, "limit", "--limit", 1, 1000000)
  number(chosen, "permits", "--permits", 1, chosen.limit or 1)
  number(chosen, "status_fd", "--status-fd", 0, 1000000)
  chosen.permits = chosen.permits or 1
  local exec = require "rlock.host.uv.exec"
  if chosen.on_lost and not exec.is_reaction(chosen.on_lost) then
    refuse "--on-lost must be term, kill, ignore or signal:NAME"
  end
  if chosen.status_fd
      and not require("rlock.host.uv").keep(chosen.status_fd) then
    refuse("--status-fd %d is not open", chosen.status_fd)
  end
end

local function split(text)
  local names = {}
  for name in (text .. ","):gmatch("([^,]*),") do
    if name == "" then refuse "a name is empty" end
    names[#names + 1] = name
  end
  return names
end

--- The problem of a command without "--" before it.
---@param operands table
---@return string?
function arguments.advice(operands)
  if operands.before or not operands[2] then return nil end
  return ("put -- before the command: run %s -- %s"):format(operands[1],
    table.concat(operands, " ", 2))
end

-- The names, and the words of the command.
local function words_of(operands, chosen)
  local before = operands.before or #operands
  if not chosen.command and operands[2] and not operands.before then
    refuse("%s", arguments.advice(operands))
  end
  if before ~= 1 then
    refuse "one NAME (or NAME,NAME...) comes before -- CMD"
  end
  local names = split(operands[1])
  for _, option in ipairs { "limit", "fenced", "leader" } do
    if names[2] and chosen[option] then
      refuse("--%s takes one name", option)
    end
  end
  if chosen.command then
    if operands[2] then refuse "-c STRING replaces -- CMD" end
    return names, { "sh", "-c", chosen.command }
  elseif not operands[2] then
    refuse "which command? It comes after --"
  elseif operands[2] == "" then
    refuse "the command is empty"
  end
  return names, table.move(operands, 2, #operands, 1, {})
end

--- Checks the options, and reads the operands.
---@param operands table
---@param chosen table its numbers and durations are converted
---@return table? # the names of the locks
---@return any # the words of the command; the
---  problem
function arguments.read(operands, chosen)
  local ok, names, words = pcall(function()
    check(chosen)
    return words_of(operands, chosen)
  end)
  if ok then return names, words end
  return nil, names
end

return arguments
