--- rlockctl ls: the locks of a server.

local host = require "rlock.host.uv"
local json = require "rlockctl.cli.json"
local listing = require "rlockctl.cli.listing"
local text = require "rlockctl.cli.text"

local ls = {}

local LIMIT = 1000
local SECONDS = 1            -- for --names
local LONGEST = 50           -- characters of a name on a terminal

ls.usage = [[
rlockctl ls [PATTERN] [--limit N] [--all] [--names] [--json]

Lists the locks that are held or have waiters, and permits: kind, holders, time
left, waiters and fencing token. PATTERN is as for KEYS: * matches any text, ?
any character, [a-c] one of these. In a cluster, it scans all primaries. If one
of them fails, it lists the locks of the others; the exit status is 202.

In Redis, it finds keys that look like locks, by SCAN, and changes nothing. A
key looks like a lock if its owner is an id of rlock or Redisson, or if it is a
hash that expires and has one field with a count. A simple lock is found if its
value is such an id, or a token like those of redis-py, redsync and
node-redlock. A semaphore, a latch or unused permits are only a number, like
many other keys: they are listed while they have waiters, and for ten minutes
after a request of rlock. Other numbers are "unknown". `rlockctl status NAME`
shows any of them, and `rlockctl status NAME --policy POLICY` a lock of your own
kind.

With zk://, it visits the nodes below the chroot, at most 100 000 of them, 32
levels and for 10 s, and says if it stopped early. It begins at the part of
PATTERN before the first wildcard.

In Redis, WAITERS are the clients that subscribe to the lock's releases, or the
tasks in the queue of a fair lock. A client stays subscribed for up to two
seconds after its last wait. On a terminal, the middle of a long name is left
out.

  --limit N   inspect at most N names (1000)
  --all       also unknown numbers, which may be semaphores, latches or permits
  --names     only the names found within a second, for completion; not those
              with control characters
  --json      one object per line, as for `rlockctl status --json`
]]

ls.options = {
  ["--json"] = { "json" }, ["--all"] = { "all" },
  ["--limit"] = { "limit", "N" }, ["--names"] = { "names" },
}

-- `most`: the most characters of a name, if there is a limit.
local function cells_of(row, most)
  local name = text.bare(row.name)
  if most then name = text.shortened(name, most) end
  return { name, row.kind, text.left(row), text.waiters(row),
    row.token and tostring(row.token) or "-", text.holders(row) }
end

local HEAD = { "NAME", "KIND", "LEFT", "WAITERS", "TOKEN", "HELD BY" }

local function print_table(rows)
  local lines, most = { HEAD }, host.is_terminal(1) and LONGEST
  for i, row in ipairs(rows) do lines[i + 1] = cells_of(row, most) end
  for _, line in ipairs(text.columns(lines)) do print(line) end
end

-- Only on a terminal: the output to a pipe is empty if there are no locks.
local function print_none(numbers, all)
  if not host.is_terminal(1) then return end
  print(numbers == 0 and "no locks" or all and "no locks, no whole numbers"
    or ("no locks; %d whole number%s may be semaphores or latches: see --all")
      :format(numbers, numbers == 1 and "" or "s"))
end

---@return any # nil if it is not a valid number
local function limit_of(chosen)
  local limit = tonumber(chosen.limit or LIMIT)
  if limit and limit % 1 == 0 and limit >= 1 and limit <= 1e6 then
    return math.tointeger(limit)
  end
end

-- For completion: names that look like locks, uninspected. They are not
-- escaped, because the shell quotes them.
local function print_names(cli, client, options)
  options.seconds = SECONDS
  local names, code, detail = listing.names(client, options)
  if not names then return cli.fault(code, "ls: " .. detail) end
  for _, name in ipairs(names) do
    if text.is_plain(name) then print(name) end
  end
  return 0
end

function ls.run(cli, operands, chosen)
  local limit = limit_of(chosen)
  if operands[2] then
    return cli.fault("usage", "ls: give one pattern at most, in quotes")
  elseif not limit then
    return cli.fault("usage", "ls: --limit must be a whole number above 0")
  end
  local client, code, why = require("rlock").open()
  if not client then return cli.fault(code, why) end
  local options = { pattern = operands[1], all = chosen.all, limit = limit }
  if chosen.names then return print_names(cli, client, options) end
  local rows, more, known = listing.of(client, options)
  if not rows then return cli.fault(more, "ls: " .. known) end
  if chosen.json then
    for _, row in ipairs(rows) do print(json(text.record(row))) end
  elseif rows[1] then
    print_table(rows)
  else
    ---@cast known -nil
    print_none(known.numbers or 0, chosen.all)
  end
  if more then
    ---@cast known -nil
    cli.complain(("ls: " .. (known.gap
      or "there are more than %d; give a pattern or --limit")):format(limit))
  end
  local failed = known and known.failed
  if failed then
    return cli.fault(failed.code, "ls: incomplete list: " .. failed.detail)
  end
  return 0
end

return ls
