--- Coverage of simulated runs: the lines of the client's modules, and the rows
--  of errors.lua. It makes runs several times slower. unreached.lua lists what
--  is never reached, with the reason.

local errors = require "rlock.redis.errors"
local unreached = require "spec.simulate.unreached"

local coverage = {}
coverage.__index = coverage

local FILES = { "lock", "grant", "watchdog", "wakeup", "several/joint",
  "several/multi", "several/quorum", "several/round",
  "several/server_identity" }

-- rows of errors.lua ----------------------------------------------------------

local function upvalue(fn, name)
  for i = 1, 255 do
    local found, value = debug.getupvalue(fn, i)
    if found == name then return value end
    if not found then error("no upvalue " .. name) end
  end
end

-- Row -> its name: those of replies, and those of connections.
local function rows_of(classify)
  local rows = {}
  for word, row in next, upvalue(classify, "words") do rows[row] = word end
  for _, case in ipairs(upvalue(classify, "plain")) do
    rows[case[2]] = rows[case[2]] or "ERR " .. case[1]
  end
  rows[upvalue(classify, "unknown")] = "an unknown word"
  for code, row in next, errors.transport do rows[row] = code end
  return rows
end

local function watch_rows(self)
  local classify, transport = errors.classify, errors.transport
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
-- @treturn table with `hook`, an option of world.simulate
function coverage.start()
  local self = setmetatable({ lines = {} }, coverage)
  watch_rows(self)
  for _, name in ipairs(FILES) do self.lines[name] = {} end
  local by_source = setmetatable({}, { __index = function(list, source)
    list[source] = self.lines[source:match("rlock/([%w_/]+)%.lua$")] or false
    return list[source]
  end })
  local getinfo = debug.getinfo
  local function reach(_, line)
    local lines = by_source[getinfo(2, "S").source]
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

-- Calls fn(line, function) for each line that has instructions, by luac. The
-- `end` of a function, and what runs when a module is loaded, are left out.
local function each_active(path, text, fn)
  local name
  local pipe <close> = assert(io.popen("luac5.4 -l -p " .. path))
  for row in pipe:lines() do
    local first = row:match("^function <[^:]*:(%d+)")
    if row:match("^main ") then name = nil end
    if first then name = text[tonumber(first)]:match("([%w_]+)%(") end
    local line, code = row:match("^\t%d+\t%[(%d+)%]\t(%u%w*)")
    if line and name and code ~= "RETURN0" and code ~= "VARARGPREP"
        and text[tonumber(line)]:match("^%s*(.-)%s*$") ~= "end" then
      fn(tonumber(line), name)
    end
  end
end

-- @return "function: text" of each line that was not reached; how many were,
--   and how many there are
local function missing_of(path, reached)
  local text, seen, missing, n, all = lines_of(path), {}, {}, 0, 0
  each_active(path, text, function(line, name)
    if seen[line] then return end
    seen[line], all = true, all + 1
    if reached[line] then
      n = n + 1
    else
      missing[#missing + 1] = ("%s: %s"):format(name, text[line]
        :match("^%s*(.-)%s*$"))
    end
  end)
  return missing, n, all
end

-- the report ------------------------------------------------------------------

-- The lines of a file that have a reason.
local function excused(name)
  local set = {}
  for _, group in ipairs(unreached[name] or {}) do
    for i = 2, #group do set[group[i]] = true end
  end
  return set
end

-- Prints those without a reason; returns how many.
local function show(missing, name)
  local count, reasons = 0, excused(name)
  for _, what in ipairs(missing) do
    if not reasons[what] and not reasons[what:match("^[^:]*") .. ": *"]
    then
      count = count + 1
      print("  not reached, without a reason: " .. what)
    end
  end
  return count
end

local function missing_rows(self)
  local missing, all = {}, 0
  for row, name in next, self.rows do
    all = all + 1
    if not self.used[row] then missing[#missing + 1] = name end
  end
  table.sort(missing)
  return missing, all - #missing, all
end

--- Prints the coverage, and what is neither reached nor in unreached.lua.
-- @treturn integer how many of the latter there are
function coverage:report()
  debug.sethook()
  local count = 0
  for _, name in ipairs(FILES) do
    local missing, n, all = missing_of(path_of(name), self.lines[name])
    print(("%s: %d of %d lines"):format(name, n, all))
    count = count + show(missing, name)
  end
  local missing, n, all = missing_rows(self)
  print(("redis/errors: %d of %d rows"):format(n, all))
  return count + show(missing, "redis/errors")
end

return coverage
