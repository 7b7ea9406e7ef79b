--- Records the steps of a run, for its report: the calls of rlock by each
--- process, with their lines in the program, and the injected faults. A step
--- is a table { time, process, line, what, is_call, result, ended }. `process`
--- is a label: "2.1" is the first life of process 2. A fault of a server has
--- none. A call (`is_call`) has `result` and `ended` once it has returned.

local patch = require "rlockctl.simulate.patch"

local steps = {}

local DEPTH = 40                        -- stack frames to search
local EVENTS = 1000000                  -- after which the line hook stops

-- The name of the program's file that a function is from, or nil.
local function file_of(run, info)
  local path = info.source:match "^@(.*)"
  return path and run.program.chunks[path] and path:match "[^/]*$"
end

--- A hook for the coroutines of a run. It records the line of the program that
--- each one executes, because a tail call removes it from the call stack. It is
--- slow, so it stops after a number of events.
---@return function # the `follow` of process.end_loops
function steps.line_hook(run)
  local left = EVENTS
  run.lines = setmetatable({}, { __mode = "k" })
  return function(co, event, line)
    left = left - 1
    local file = file_of(run, debug.getinfo(3, "S"))
    if left < 0 then
      run.lines[co] = nil
    elseif file then
      run.lines[co] = event == "line" and ("%s:%d"):format(file, line) or nil
    end
    return left >= 0
  end
end

-- The innermost line of the program on the call stack, or that of a tail call.
local function line_of(run)
  local line, is_tail
  for level = 2, DEPTH do
    local info = debug.getinfo(level, "Slt")
    if not info then break end
    local file = file_of(run, info)
    line = file and ("%s:%d"):format(file, info.currentline)
    if file then break end
    is_tail = is_tail or info.istailcall
  end
  return is_tail and run.lines[coroutine.running()] or line
end

local SHOWN, LONGEST = 3, 60            -- items of a list, and bytes, at most

-- A word for the report; only the beginning of an id or of a long text.
local function brief(value)
  local text = tostring(value)
  if #text == 32 and not text:find "%X" then return text:sub(1, 8) .. "..." end
  return #text <= LONGEST and text or text:sub(1, LONGEST) .. "..."
end

local function show(value, code)
  if value == nil then return tostring(code) end
  if type(value) ~= "table" then return brief(value) end
  local items = {}
  for i = 1, math.min(#value, SHOWN) do items[i] = show(value[i]) end
  if #value > SHOWN then items[SHOWN + 1] = "..." end
  return "{" .. table.concat(items, ", ") .. "}"
end

--- Adds a step.
---@return table # the step
function steps.add(run, process, what, line)
  local step = { time = run.universe.now, what = what, line = line,
    process = process and process.host.label }
  run.steps[#run.steps + 1] = step
  return step
end

local function ended(run, step, value, ...)
  step.ended, step.result = run.universe.now, show(value, (...))
  return value, ...
end

--- Wraps fn, so that its calls are recorded. describe(...) returns the process
--- and the text of the step.
function steps.recorded(fn, describe)
  return function(...)
    local process, what = describe(...)
    if not process then return fn(...) end
    local run = process.run
    local step = steps.add(run, process, what, line_of(run))
    step.is_call = true
    local _ <close> = setmetatable({}, { __close = function(_, raised)
      if raised then step.ended, step.result = run.universe.now, "an error" end
    end })
    return ended(run, step, fn(...))
  end
end

local function words_of(...)
  local words = { ... }
  for i, word in ipairs(words) do words[i] = brief(word) end
  return table.concat(words, " ")
end

local function of_several(verb)
  return function(lock)
    return lock.host.process, ("%s %s"):format(verb, lock:show())
  end
end

-- Module, function, describe.
local RECORDED = {
  { "rlock.several.multi", "take", of_several "lock" },
  { "rlock.several.multi", "release_parts", of_several "unlock" },
  { "rlock.several.quorum", "take", of_several "lock" },
  { "rlock.several.quorum", "release_parts", of_several "unlock" },
  { "rlock.lock.lock", "take", function(lock)
    return lock.session.host.process, "lock " .. lock.record.name
  end },
  { "rlock.lock.grant", "release", function(grant)
    local lock = grant.lock
    return lock.session.host.process, "unlock " .. lock.record.name
  end },
  { "rlock.lock.grant", "effect", function(grant, commands)
    local lock, list = grant.lock, {}
    for i, words in ipairs(commands) do
      list[i] = words_of(table.unpack(words))
    end
    return lock.session.host.process, ("if it holds %s: %s")
      :format(lock.record.name, table.concat(list, "; "))
  end },
  { "rlock.client", "call", function(client, ...)
    return client.session.host.process, words_of(...)
  end },
}

-- Describes a call of a counter: the method, the name, and the first argument
-- unless it is a table.
local function of_counter(method)
  return function(counter, argument)
    local record = type(counter) == "table" and counter.record
    if not record then return nil end     -- called with a dot: an error
    local is_shown = argument ~= nil and type(argument) ~= "table"
    return counter.session.host.process, is_shown
      and words_of(method, record.name, argument)
      or words_of(method, record.name)
  end
end

for module, methods in next, {
  ["counters.semaphore"] = "acquire try_acquire release add set drain "
    .. "available",
  ["counters.permits"] = "acquire try_acquire release renew set available "
    .. "acquired",
  ["counters.latch"] = "set count_down count wait delete",
  ["recipes.barrier"] = "set wait remove",
  ["recipes.double_barrier"] = "enter leave",
  ["zookeeper.semaphore"] = "release add set drain",
} do
  for method in methods:gmatch "%S+" do
    RECORDED[#RECORDED + 1] = { "rlock." .. module, method,
      of_counter(method) }
  end
end

for _, module in ipairs { "rlock.recipes.compute", "rlock.zookeeper.compute" }
do
  RECORDED[#RECORDED + 1] = { module, "new", function(client, name)
    return client.session.host.process, words_of("compute", name)
  end }
end

for _, row in ipairs(RECORDED) do
  local describe = row[3]
  row[3] = function(former) return steps.recorded(former, describe) end
end

--- Calls fn(...) and records its steps.
function steps.during(fn, ...) return patch(RECORDED, fn, ...) end

return steps
