--- rlockctl ls: the locks of a server.

local json = require "rlock.cli.json"
local listing = require "rlock.cli.listing"
local text = require "rlock.cli.text"

local ls = {}

local LIMIT = 1000

ls.usage = [[
rlockctl ls [PATTERN] [--limit N] [--all] [--json]

Lists the locks that are held or have waiters, and permits: kind, holders, time
left, waiters and fencing token. PATTERN is as for KEYS: * matches any text, ?
any character, [a-c] one of these. In a cluster, it scans all primaries.

It finds keys that look like locks, by SCAN, and changes nothing. A key looks
like a lock if its owner is an id of rlock or Redisson, or if it is a hash that
expires and has one field with a count. A simple lock is found if its value is
such an id, or a token like those of redis-py, redsync and node-redlock. A
semaphore or a latch is only a number, as many other keys are: it is listed
while it has waiters, or with --all. `rlockctl status NAME` shows any of them,
and `rlockctl status NAME --policy POLICY` a lock of your own kind.

  --limit N   inspect at most N names (1000)
  --all       also whole numbers, which may be semaphores or latches
  --json      one object per line, as for `rlockctl status --json`
]]

ls.options = {
  ["--json"] = { "json" }, ["--all"] = { "all" },
  ["--limit"] = { "limit", "N" },
}

local function cells_of(row)
  return { text.bare(row.name), row.kind, text.left(row), text.waiters(row),
    row.token and tostring(row.token) or "-", text.holders(row) }
end

local HEAD = { "NAME", "KIND", "LEFT", "WAITERS", "TOKEN", "HELD BY" }

local function print_table(rows)
  local lines = { HEAD }
  for i, row in ipairs(rows) do lines[i + 1] = cells_of(row) end
  for _, line in ipairs(text.columns(lines)) do print(line) end
end

-- nil: not a number that makes sense.
local function limit_of(chosen)
  local limit = tonumber(chosen.limit or LIMIT)
  if limit and limit % 1 == 0 and limit >= 1 and limit <= 1e6 then
    return math.tointeger(limit)
  end
end

function ls.run(cli, operands, chosen)
  local limit = limit_of(chosen)
  if operands[2] then
    return cli.fault("usage", "ls: give one pattern at most, in quotes")
  elseif not limit then
    return cli.fault("usage", "ls: --limit must be a whole number above 0")
  end
  local client, code, detail = require("rlock").open()
  if not client then return cli.fault(code, detail) end
  local rows, more, why = listing.of(client,
    { pattern = operands[1], all = chosen.all, limit = limit })
  if not rows then return cli.fault(more, "ls: " .. why) end
  if chosen.json then
    for _, row in ipairs(rows) do print(json(text.record(row))) end
  elseif rows[1] then
    print_table(rows)
  end
  if more then
    cli.complain(("ls: there are more than %d; give a pattern or --limit")
      :format(limit))
  end
  return 0
end

return ls
