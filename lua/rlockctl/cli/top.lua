--- rlockctl top: watches the locks of a server.

local lock_table = require "rlockctl.top.lock_table"
local host = require "rlock.host.uv"
local sampler = require "rlockctl.top.sampler"
local seconds_of = require "rlockctl.cli.seconds"

local top = {}

local LIMIT = 10000

top.usage = [[
rlockctl top [PATTERN] [--once] [--interval DURATION] [--sort KEY] [--all]
             [--limit N]

A live table of the locks that are held or waited for. PATTERN and --all are as
for `rlockctl ls`. ? shows the keys: they sort, filter, show the details of one
lock, and break a lock after a confirmation. It changes nothing else.

  HELD      how long its oldest holder has held it; > if it was held already
            when first sampled
  LEFT      the time until it expires, unless it is renewed
  WAITERS   the number of waiting clients, or of waiting tasks for a fair lock
  GRANTS/S  grants per second, averaged over about the last 5 s
  LONGEST   the longest wait of a waiter of a fair lock; for other kinds, the
            longest time with waiters and without a grant
  HOLD50, HOLD99   the median and the 99th percentile of the holds seen so far
  WAIT50, WAIT99   the same of the waits. Instead of LEFT, GRANTS/S and LONGEST,
            if sorted by holds or contention; both from 140 columns on

Servers keep no history, so all but LEFT and WAITERS are derived from samples
taken since top started. Samples miss what happens between them: a lock that is
released and soon acquired again by the same owner counts as held all the time,
unless it has a fencing token. So there may be more grants and longer waits than
shown. A free lock is shown for 10 s.

Each turn samples the locks on the screen, and for a fifth of the time other
locks in rotation. It finds new locks after 2 s, or later on a server with very
many keys.

  --once               print one table, after two samples
  --interval DURATION  the time between two samples (1s)
  --sort KEY           name, held, left, waiters, grants, longest, holds (by
                       HOLD99) or contention (by WAIT99, then HOLD99); default:
                       name
  --limit N            watch at most N names (10000)

Without a terminal, or on one unknown to terminfo, it prints a table after
each interval.

Exit status: 0 after q or --once.
]]

top.options = {
  ["--once"] = { "once" }, ["--all"] = { "all" },
  ["--interval"] = { "interval", "DURATION" }, ["--sort"] = { "sort", "KEY" },
  ["--limit"] = { "limit", "N" },
}

-- plain lines -----------------------------------------------------------------

---@return true?, rlock.failure? code, string? detail
local function print_table(watched, view)
  local rows = lock_table.rows(watched, view)
  local lines = lock_table.lines(rows, view.sort)
  local ok, problem = io.write(table.concat(lines, "\n"), "\n")
  if ok then ok, problem = io.flush() end
  if not ok then return nil, "refused", "cannot write: " .. problem end
  return true
end

-- Prints what a turn has sampled; then fails if locks are missing.
local function print_turn(watched, view, missing, why)
  local ok, code, detail = print_table(watched, view)
  if not ok then return nil, code, detail end
  return not missing or nil, missing, why
end

-- Samples twice, because the derived columns need two samples.
local function print_once(watched, view, seconds)
  local ok, code, detail = watched:turn({}, math.huge)
  if not ok then return nil, code, detail end
  host.sleep(seconds)
  ok, code, detail = watched:turn({}, math.huge)
  if not ok then return nil, code, detail end
  return print_turn(watched, view, code, detail)
end

local function print_forever(watched, view, seconds)
  while true do
    local ok, code, detail = watched:turn({}, math.huge)
    if ok then ok, code, detail = print_turn(watched, view, code, detail) end
    if not ok then return nil, code, detail end
    host.sleep(seconds)
    io.write "\n"
  end
end

-- running ---------------------------------------------------------------------

local function open_screen()
  local has_screen, screen = pcall(require, "rlock.screen")
  return has_screen and screen.open() or nil
end

local function run(watched, view, seconds, is_once)
  if is_once then return print_once(watched, view, seconds) end
  local ok, code, detail = watched:scan()
  if not ok then return nil, code, detail end
  local screen <close> = open_screen()
  if not screen then return print_forever(watched, view, seconds) end
  return require("rlockctl.top.live").run(watched, screen, view, seconds)
end

-- The problem with the command line; nil if it is valid.
local function problem_of(operands, chosen, seconds, limit)
  if operands[2] then return "give one pattern at most, in quotes" end
  if not seconds or seconds < 0.1 or seconds > 3600 then
    return "--interval must be a duration from 0.1s to 1h"
  end
  if not limit or limit % 1 ~= 0 or limit < 1 or limit > 1e6 then
    return "--limit must be a whole number above 0"
  end
  for _, name in pairs(lock_table.keys) do
    if chosen.sort == name then return nil end
  end
  return chosen.sort and "--sort must be name, held, left, waiters, grants, "
    .. "longest, holds or contention" or nil
end

function top.run(cli, operands, chosen)
  local seconds = seconds_of(chosen.interval or "1s")
  local limit = tonumber(chosen.limit or LIMIT)
  local problem = problem_of(operands, chosen, seconds, limit)
  if problem then return cli.fault("usage", "top: " .. problem) end
  local client, code, detail = require("rlock").open()
  if not client then return cli.fault(code, detail) end
  local watched = sampler.new(client,
    { pattern = operands[1], all = chosen.all, limit = math.tointeger(limit) })
  local ok
  ok, code, detail = run(watched, { sort = chosen.sort or "name", filter = "" },
    seconds, chosen.once)
  if not ok then return cli.fault(code, "top: " .. detail) end
  return 0
end

return top
