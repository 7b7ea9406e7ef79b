--- rlockctl top: watches the locks of a server.

local board = require "rlock.cli.board"
local host = require "rlock.host.uv"
local survey = require "rlock.cli.survey"
local time = require "rlock.cli.time"

local top = {}

local LIMIT = 10000

top.usage = [[
rlockctl top [PATTERN] [--once] [--interval DURATION] [--sort KEY] [--all]
             [--limit N]

A live table of the locks that are held or waited for. PATTERN and --all are as
for `rlockctl ls`. ? shows the keys: they sort, filter, show one lock's line,
and break a lock after asking. It changes nothing else.

  HELD      since when it is held by its oldest holder; > if the begin was not
            seen
  LEFT      until it expires, unless it is renewed
  WAITERS   how many clients wait, or for a fair lock how many tasks
  GRANTS/S  how often it is granted, about the average of the last 5 s
  LONGEST   the longest wait: of a waiter of a fair lock; for other kinds, of a
            time with waiters and without a grant

Redis keeps no history, so all but LEFT and WAITERS are derived from what has
changed between two looks, since top runs. What happens between two looks is not
seen: a lock that is released and soon taken again by the same owner counts as
held all the time, unless it has a fencing token. So grants are at least as
many, and waits at least as long. A free lock is shown for 10 s.

Each turn looks at the locks on the screen, and for a fifth of the time at
others in turn. New locks are found after 2 s or, on a server with very many
keys, later.

  --once               print one table, after two looks
  --interval DURATION  between two looks (1s)
  --sort KEY           name, held, left, waiters, grants or longest (name)
  --limit N            watch at most N names (10000)

Without a terminal, or one that terminfo does not know, it prints a table after
each interval.

Exit status: 0 after q or --once.
]]

top.options = {
  ["--once"] = { "once" }, ["--all"] = { "all" },
  ["--interval"] = { "interval", "DURATION" }, ["--sort"] = { "sort", "KEY" },
  ["--limit"] = { "limit", "N" },
}

-- plain lines -----------------------------------------------------------------

-- @return true, or nil, code, detail
local function print_table(watched, view)
  local rows = board.rows(watched, view)
  local lines = board.lines(rows)
  local ok, problem = io.write(table.concat(lines, "\n"), "\n")
  if ok then ok, problem = io.flush() end
  if not ok then return nil, "refused", "cannot write: " .. problem end
  return true
end

-- Looks twice, as what is derived needs that.
local function print_once(watched, view, seconds)
  for look = 1, 2 do
    if look == 2 then host.sleep(seconds) end
    local ok, code, detail = watched:turn({}, math.huge)
    if not ok then return nil, code, detail end
  end
  return print_table(watched, view)
end

local function print_for_ever(watched, view, seconds)
  while true do
    local ok, code, detail = watched:turn({}, math.huge)
    if ok then ok, code, detail = print_table(watched, view) end
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
  if not screen then return print_for_ever(watched, view, seconds) end
  return require("rlock.cli.live").run(watched, screen, view, seconds)
end

-- What is wrong with the command line; nil if nothing is.
local function problem_of(operands, chosen, seconds, limit)
  if operands[2] then return "give one pattern at most, in quotes" end
  if not seconds or seconds < 0.1 or seconds > 3600 then
    return "--interval must be a duration from 0.1s to 1h"
  end
  if not limit or limit % 1 ~= 0 or limit < 1 or limit > 1e6 then
    return "--limit must be a whole number above 0"
  end
  for _, name in pairs(board.keys) do
    if chosen.sort == name then return nil end
  end
  return chosen.sort and "--sort: no column is called that" or nil
end

function top.run(cli, operands, chosen)
  local seconds = time.seconds(chosen.interval or "1s")
  local limit = tonumber(chosen.limit or LIMIT)
  local problem = problem_of(operands, chosen, seconds, limit)
  if problem then return cli.fault("usage", "top: " .. problem) end
  local client, code, detail = require("rlock").open()
  if not client then return cli.fault(code, detail) end
  local watched = survey.new(client,
    { pattern = operands[1], all = chosen.all, limit = math.tointeger(limit) })
  local ok
  ok, code, detail = run(watched, { sort = chosen.sort or "name", filter = "" },
    seconds, chosen.once)
  if not ok then return cli.fault(code, "top: " .. detail) end
  return 0
end

return top
