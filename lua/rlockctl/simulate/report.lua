--- The report of a search, as text: a table of events, with a column for each
--- process and one for the servers; the bug that was found; and a summary.

local sorted = require "rlock.util.sorted"

local report = {}

local TIME = 11                         -- width of the first column
local WIDTH, NARROWEST = 80, 24         -- of a row; of another column, at least
local SERVERS = "servers"

-- events ----------------------------------------------------------------------

-- The line number of a place; with the file name, unless that is the program's.
local function place_of(line, name)
  local file, number = (line or ""):match "^(.*):(%d+)$"
  if not file then return "" end
  return (file == name and number or line) .. " "
end

-- `number` orders events of the same time.
local function add(list, entry, number, time, text)
  list[#list + 1] = { time = time, text = text, number = number,
    column = entry.process and entry.process:match "^%d+" or SERVERS }
  return list[#list]
end

-- A step that takes time gives two events: when it begins, and when it ends.
local function events_of(shown, name, has_log)
  local list = {}
  for i, step in ipairs(shown.steps) do
    local text = place_of(step.line, name) .. step.what
    local first = add(list, step, i, step.time, text)
    if step.result then
      first.last = add(list, step, i + 0.1, step.ended,
        text .. " = " .. step.result)
    elseif step.is_call then
      first.text = text .. " ..."
    end
  end
  for i, entry in ipairs(has_log and shown.log or {}) do
    add(list, entry, entry.after + 0.5 + i * 1e-9, entry.time,
      "> " .. entry.text)
  end
  table.sort(list, function(a, b)
    if a.time ~= b.time then return a.time < b.time end
    return a.number < b.number
  end)
  return list
end

-- Drops the beginning of a step if its end is the next event.
local function joined(list)
  local rest = {}
  for i, event in ipairs(list) do
    if not event.last then
      rest[#rest + 1] = event
    elseif list[i + 1] ~= event.last then
      event.text = event.text .. " ..."
      rest[#rest + 1] = event
    end
  end
  return rest
end

-- rows ------------------------------------------------------------------------

-- Wraps the text of a cell.
local function wrapped(text, width)
  local lines, line = {}, ""
  for word in text:gmatch "%S+" do
    if line ~= "" and #line + 1 + #word > width then
      lines[#lines + 1], line = line, "   "
    end
    line = line == "" and word or line .. " " .. word
  end
  lines[#lines + 1] = line
  return lines
end

local function columns_of(list)
  local found = {}
  for _, event in ipairs(list) do found[event.column] = true end
  return sorted(found)                  -- the servers come last
end

local function header(columns, width)
  local words = { ("%-" .. TIME .. "s"):format "seconds" }
  for i, column in ipairs(columns) do
    words[i + 1] = ("%-" .. width .. "s"):format(column == SERVERS and column
      or "process " .. column)
  end
  return (table.concat(words):gsub("%s+$", ""))
end

--- The rows of a recorded run.
---@param shown table of search.run
---@param path string of the program
---@param has_log boolean whether to show what the program has printed
---@return table # lines
function report.rows(shown, path, has_log)
  local list = joined(events_of(shown, path:match "[^/]*$", has_log))
  local columns, places = columns_of(list), {}
  local width = math.max(NARROWEST, (WIDTH - TIME) // #columns)
  for i, column in ipairs(columns) do
    places[column] = (" "):rep(width * (i - 1))
  end
  local lines = { header(columns, width) }
  for _, event in ipairs(list) do
    for i, text in ipairs(wrapped(event.text, width - 2)) do
      lines[#lines + 1] = ("%-" .. TIME .. "s%s%s"):format(i == 1
        and ("%.6f"):format(event.time) or "", places[event.column], text)
    end
  end
  return lines
end

-- the end ---------------------------------------------------------------------

-- The step that leads to the bug. In a deadlock, that is the last wait that
-- began. If a process has not released something, it is the last step of that
-- process. Else it is the last step before the bug, or before an invariant of
-- `finally` was violated.
local function step_of(shown, bug)
  local since, found = bug.since or bug.time, nil
  for _, step in ipairs(shown.steps) do
    local at = step.ended or step.is_call and math.huge or step.time
    if bug.what == "deadlock" then
      if at == math.huge then found = step end
    elseif step.line and at <= since and (not found or at >= found.at)
        and (bug.what ~= "unlock" or step.process == bug.process) then
      found = { at = at, line = step.line, what = step.what,
        process = step.process, result = step.result }
    end
  end
  return found
end

-- Describes the bug: what is wrong, where, and since which step.
local function sentence(shown, bug)
  local step, line = step_of(shown, bug), bug.line
  local since = step and ("; since process %s, %s: %s%s"):format(step.process,
    step.line, step.what, step.result and " = " .. step.result or "")
  return ("%s%s, at %.6f s%s"):format(line and line .. ": " or "", bug.text,
    bug.since or bug.time, since or "")
end

local function runs(n) return n == 1 and "1 run" or n .. " runs" end

-- The numbers of runs. The first one, of seed 0, has no faults.
local function extent(result)
  local calm, rest = result.calm, result.runs - result.calm
  if rest == 0 then return runs(calm) .. " without faults" end
  return ("%s with faults and %d without"):format(runs(rest), calm)
end

local function summary(result)
  local parts = {}
  for i, code in ipairs(sorted(result.codes)) do
    parts[i] = ("%s %d"):format(code, result.codes[code])
  end
  return ("%s%s: %s%s"):format(extent(result), parts[1]
    and ", processes ended by uncaught codes: " .. table.concat(parts, ", ")
    or "", result.is_stopped and "interrupted, " or "",
    result.run and "a bug" or "no bug found")
end

--- Prints a result.
---@param result table of search.run
---@param path string of the program
---@param command? string that repeats it
---@param has_log boolean whether to print what the program has printed
function report.print(result, path, command, has_log)
  local shown = result.shown
  if shown then
    local bug = shown.bug or result.run.bug
    print(table.concat(report.rows(shown, path, has_log), "\n"))
    print("\n" .. sentence(shown, bug))
    if bug.what == "rlock" then
      print "Please report it, with the program and `rlockctl --version`."
    end
    if not result.is_reproducible then
      print("Not reproducible: the same seed ran differently the second time"
        .. (result.cause and ". " .. result.cause or ""))
    end
    print(command)
  end
  print(summary(result))
end

return report
