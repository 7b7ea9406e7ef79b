--- The table of `rlockctl top`: its rows, their order, and their cells.
--- Independent of any terminal.

local sampler = require "rlockctl.top.sampler"
local text = require "rlockctl.cli.text"
local statistics = require "rlockctl.top.statistics"

local lock_table = {}

-- cells -----------------------------------------------------------------------

--- A duration in at most six columns: 0.4s, 12s, 3m05s, 2h13m, 5d03h, 120d.
---@param seconds number
---@return string
function lock_table.duration(seconds)
  if seconds < 9.95 then return ("%.1fs"):format(seconds) end
  local s = math.floor(seconds + 0.5)
  if s < 60 then return ("%ds"):format(s) end
  if s < 3600 then return ("%dm%02ds"):format(s // 60, s % 60) end
  if s < 86400 then return ("%dh%02dm"):format(s // 3600, s // 60 % 60) end
  local days = s // 86400
  if days < 100 then return ("%dd%02dh"):format(days, s // 3600 % 24) end
  return ("%dd"):format(math.min(days, 99999))
end

local function held(entry)
  local seconds, is_exact = statistics.held(entry)
  if not seconds then return "-" end
  return (is_exact and "" or ">") .. lock_table.duration(seconds)
end

local function left(entry)
  local ttl = entry.state and entry.state.ttl
  return ttl and lock_table.duration(ttl) or "-"
end

-- The grants of a counter without holders are unknown.
local function has_grants(entry)
  return entry.grants > 0 or next(entry.holders) ~= nil
end

local function rate(entry)
  return has_grants(entry) and ("%.1f"):format(entry.rate) or "-"
end

local function waiters(entry)
  return entry.state and text.waiters(entry.state) or "-"
end

local function longest(entry)
  return entry.longest and lock_table.duration(entry.longest) or "-"
end

-- A cell with a quantile.
local function quantile(which, q)
  return function(entry)
    local seconds = statistics.quantile(entry, which, q)
    return seconds and lock_table.duration(seconds) or "-"
  end
end

local function holders(entry)
  return entry.state and text.holders(entry.state) or "nobody"
end

local function kind(entry) return entry.state and entry.state.kind or "-" end

-- The columns. Those without a width share the rest. A table that is narrower
-- than `from` leaves a column out. A table that is not WIDE has those of
-- `quantiles` instead of those of `samples`, or the reverse.
local COLUMNS = {
  { "NAME", function(entry) return entry.title end, part = 0.45 },
  { "KIND", kind, width = 14, from = 100 },
  { "HELD", held, width = 7, right = true },
  { "LEFT", left, width = 6, right = true, of = "samples" },
  { "WAITERS", waiters, width = 7, right = true },
  { "GRANTS/S", rate, width = 8, right = true, of = "samples" },
  { "LONGEST", longest, width = 7, right = true, of = "samples" },
  { "HOLD50", quantile("holds", 0.5), width = 6, right = true,
    of = "quantiles" },
  { "HOLD99", quantile("holds", 0.99), width = 6, right = true,
    of = "quantiles" },
  { "WAIT50", quantile("waits", 0.5), width = 6, right = true,
    of = "quantiles" },
  { "WAIT99", quantile("waits", 0.99), width = 6, right = true,
    of = "quantiles" },
  { "HELD BY", holders, part = 0.55 },
}
local WIDE, PLAIN = 140, 100
local BY_QUANTILES = { holds = true, contention = true }

--- The columns that fit.
---@param width integer
---@param sort string a value of lock_table.keys
---@return table # a list of { title, cell function, width =, right = }
function lock_table.columns(width, sort)
  local chosen, rest = {}, width
  local other = BY_QUANTILES[sort] and "samples" or "quantiles"
  for _, column in ipairs(COLUMNS) do
    if width >= (column.from or 0) and (width >= WIDE or column.of ~= other)
    then
      chosen[#chosen + 1] = column
      rest = rest - (column.width or 0) - 1
    end
  end
  for i, column in ipairs(chosen) do
    chosen[i] = { column[1], column[2], right = column.right,
      width = column.width or math.max(4, math.floor(rest * column.part)) }
  end
  return chosen
end

--- The lines of the whole table as plain text.
---@param rows table as returned by `rows`
---@param sort string as for `columns`
---@return table
function lock_table.lines(rows, sort)
  local lines = { {} }
  for i, column in ipairs(lock_table.columns(PLAIN, sort)) do
    lines[1][i] = column[1]
    for k, entry in ipairs(rows) do
      lines[k + 1] = lines[k + 1] or {}
      lines[k + 1][i] = column[2](entry)
    end
  end
  return text.columns(lines)
end

-- rows ------------------------------------------------------------------------

-- By the waits; if they are equal, by the holds.
local function contention(entry)
  return (statistics.quantile(entry, "waits", 0.99) or 0) * 1e6
    + (statistics.quantile(entry, "holds", 0.99) or 0)
end

-- The values to sort by, in descending order.
local VALUES = {
  waiters = function(entry) return entry.state and entry.state.waiters end,
  held = function(entry) return (statistics.held(entry)) end,
  left = function(entry) return entry.state and entry.state.ttl end,
  grants = function(entry) return has_grants(entry) and entry.rate or nil end,
  longest = function(entry) return entry.longest end,
  holds = function(entry) return statistics.quantile(entry, "holds", 0.99) end,
  contention = contention,
}

--- The sort keys: key -> the column's name.
lock_table.keys = { n = "name", w = "waiters", t = "held", l = "left",
  g = "grants", o = "longest", h = "holds", c = "contention" }

local function is_found(entry, filter)
  return filter == "" or entry.title:find(filter, 1, true) ~= nil
    or holders(entry):find(filter, 1, true) ~= nil
end

local function sort(rows, by, is_reverse)
  local value, values = VALUES[by], {}
  for _, entry in ipairs(rows) do
    values[entry] = value and (value(entry) or -1) or 0
  end
  table.sort(rows, function(a, b)
    if is_reverse then a, b = b, a end
    if values[a] ~= values[b] then return values[a] > values[b] end
    if a.name ~= b.name then return a.name < b.name end
    return a.number < b.number
  end)
end

--- The rows of the table.
---@param watched table a sampler
---@param view table `sort`, a value of lock_table.keys; `is_reverse`; `filter`,
---  a text in the names or the holders
---@return table # entries, sorted
---@return table # counts without the filter: `locks`, `held`, `waiters`, and
---  the `names` that have been sampled
function lock_table.rows(watched, view)
  local rows, now = {}, watched.now()
  local sums = { locks = 0, held = 0, waiters = 0, names = 0 }
  for _, entries in pairs(watched.entries) do
    sums.names = sums.names + 1
    for _, entry in ipairs(entries) do
      local state = entry.state
      if sampler.is_shown(entry, now) then
        sums.locks = sums.locks + 1
        sums.held = sums.held + (state and state.state == "held" and 1 or 0)
        sums.waiters = sums.waiters + (state and state.waiters or 0)
        if is_found(entry, view.filter) then rows[#rows + 1] = entry end
      end
    end
  end
  sort(rows, view.sort, view.is_reverse)
  return rows, sums
end

return lock_table
