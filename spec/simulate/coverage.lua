--- Coverage of simulated runs: the lines of the client's modules, and the rows
--- of errors.lua. It makes runs several times slower. unreached.lua lists what
--- is never reached, with the reason.

local branches = require "spec.simulate.branches"
local errors = require "rlock.redis.errors"
local sorted = require "rlock.util.sorted"
local unreached = require "spec.simulate.unreached"

local coverage = {}
coverage.__index = coverage

local FILES = { "lock/lock", "lock/grant", "lock/holds", "lock/owner",
  "lock/posted", "lock/requests", "lock/turn", "lock/watchdog",
  "lock/heartbeats", "lock/wakeup", "several/joint", "several/multi",
  "several/part", "several/quorum", "several/round",
  "redis/server_identity", "redis/availability", "redis/backend",
  "redis/batch", "redis/channels" }

-- rows of errors.lua ----------------------------------------------------------

local function upvalue(fn, name)
  for i = 1, 255 do
    local found, value = debug.getupvalue(fn, i)
    if found == name then return value end
    if not found then error("no upvalue " .. name) end
  end
end

local classify, transport = errors.classify, errors.transport

-- Row -> its name: those of replies, and those of connections.
local function rows_of(fn)
  local rows = {}
  for word, row in next, upvalue(fn, "words") do rows[row] = word end
  for _, case in ipairs(upvalue(fn, "plain")) do
    rows[case[2]] = rows[case[2]] or "ERR " .. case[1]
  end
  rows[upvalue(fn, "unknown")] = "an unknown word"
  for code, row in next, transport do rows[row] = code end
  return rows
end

local function watch_rows(self)
  self.rows, self.used = rows_of(classify), {}
  function errors.classify(message)
    local row = classify(message)
    self.used[row] = true
    return row
  end
  errors.transport = setmetatable({}, { __index = function(_, code)
    local row = transport[code]
    if row then self.used[row] = true end
    return row
  end })
end

-- lines -----------------------------------------------------------------------

local function path_of(name) return "lua/rlock/" .. name .. ".lua" end

--- Begins to count, for all runs from now on.
---@return table # with `hook`, an option of world.simulate
function coverage.start()
  local self = setmetatable({ lines = {} }, coverage)
  watch_rows(self)
  for _, name in ipairs(FILES) do self.lines[name] = {} end
  local getinfo = debug.getinfo
  local function find(found, fn)
    local source = getinfo(fn, "S").source
    found[fn] = self.lines[source:match("rlock/([%w_/]+)%.lua$")] or false
    return found[fn]
  end
  local by_function = setmetatable({}, { __mode = "k", __index = find })
  local function reach(_, line)
    local lines = by_function[getinfo(2, "f").func]
    if lines then lines[line] = true end
  end
  function self.hook(co) debug.sethook(co, reach, "l") end
  self.hook(coroutine.running())        -- for what happens outside of tasks
  return self
end

local function lines_of(path)
  local lines = {}
  for line in io.lines(path) do lines[#lines + 1] = line end
  return lines
end

-- Calls fn(line) for each line that has instructions, by luac. Lines of closing
-- brackets, the `end` of a function and what runs when a module is loaded are
-- left out.
local function each_active(path, text, fn)
  local is_inside
  local pipe = assert(io.popen("luac5.4 -l -p " .. path))
  for row in pipe:lines() do
    if row:match "^main " then is_inside = false end
    if row:match "^function " then is_inside = true end
    local line, code = row:match("^\t%d+\t%[(%d+)%]\t(%u%w*)")
    local n = tonumber(line)
    if n and is_inside and code ~= "RETURN0" and code ~= "VARARGPREP"
        and not text[n]:match "^%s*end$"
        and not text[n]:match "^%s*[])}]+,?$" then
      fn(n)
    end
  end
  pipe:close()
end

---@return any # the lines that were not reached, as { branch =, text = }; how
---  many were, and how many there are
local function missing_of(path, text, of_line, reached)
  local seen, missing, n, all = {}, {}, 0, 0
  each_active(path, text, function(line)
    if seen[line] then return end
    seen[line], all = true, all + 1
    if reached[line] then
      n = n + 1
    else
      missing[#missing + 1] = { branch = of_line[line],
        text = (", line %d: %s"):format(line, text[line]:match "^%s*(.*)") }
    end
  end)
  return missing, n, all
end

-- the report ------------------------------------------------------------------

-- The branch that stands for all branches of this one's function.
local function whole(branch) return (branch:match "^(.+): " or "") .. ": *" end

-- The branches of a file that have a reason.
local function excused(name)
  local set = {}
  for _, group in ipairs(unreached[name] or {}) do
    for i = 2, #group do set[group[i]] = true end
  end
  return set
end

-- The names of all branches of a file, or of all rows of errors.lua.
local function all_of(name)
  if name == "redis/errors" then return rows_of(classify) end
  return branches.of(table.concat(lines_of(path_of(name)), "\n"))
end

--- Finds what unreached.lua names and does not exist.
---@return table # texts
function coverage.stale()
  local list = {}
  for _, name in ipairs(sorted(unreached)) do
    local exists = {}
    for _, branch in next, all_of(name) do
      exists[branch], exists[whole(branch)] = true, true
    end
    for _, branch in ipairs(sorted(excused(name))) do
      if not exists[branch] then
        list[#list + 1] = ("%s has no %s"):format(name, branch)
      end
    end
  end
  return list
end

-- Prints the missing lines without a reason; returns how many.
local function show(missing, name)
  local count, reasons = 0, excused(name)
  for _, line in ipairs(missing) do
    if not reasons[line.branch] and not reasons[whole(line.branch)] then
      count = count + 1
      print(("  not reached, without a reason: %s%s"):format(line.branch,
        line.text))
    end
  end
  return count
end

local function show_lines(self, name)
  local path = path_of(name)
  local text = lines_of(path)
  local of_line = branches.of(table.concat(text, "\n"))
  local missing, n, all = missing_of(path, text, of_line, self.lines[name])
  print(("%s: %d of %d lines"):format(name, n, all))
  return show(missing, name)
end

local function show_rows(self)
  local missing, all = {}, 0
  for row, name in next, self.rows do
    all = all + 1
    if not self.used[row] then
      missing[#missing + 1] = { branch = name, text = "" }
    end
  end
  table.sort(missing, function(a, b) return a.branch < b.branch end)
  print(("redis/errors: %d of %d rows"):format(all - #missing, all))
  return show(missing, "redis/errors")
end

--- Prints the coverage, what is neither reached nor in unreached.lua, and what
--- is there but does not exist.
---@return integer # how many of the latter two there are
function coverage:report()
  debug.sethook()
  local stale = coverage.stale()
  for _, text in ipairs(stale) do print("unreached.lua: " .. text) end
  local count = #stale
  for _, name in ipairs(FILES) do count = count + show_lines(self, name) end
  return count + show_rows(self)
end

return coverage
