--- Records the steps of a run, for its report: the calls of rlock by each
--- process, with their lines in the program, and the injected faults. A step
--- is a table { time, process, line, what, is_call, result, ended }. `process`
--- is a label: "2.1" is the first life of process 2. A fault of a server has
--- none. A call (`is_call`) has `result` and `ended` once it has returned.

local patch = require "rlockctl.simulate.patch"

local steps = {}

local DEPTH = 40                        -- stack frames to search

-- The innermost line of the program on the call stack.
local function line_of(run)
  for level = 3, DEPTH do
    local info = debug.getinfo(level, "Sl")
    if not info then return nil end
    local path = info.source:match "^@(.*)"
    if path and run.program.chunks[path] then
      return ("%s:%d"):format(path:match "[^/]*$", info.currentline)
    end
  end
end

local SHOWN = 3                         -- items of a list, at most

local function show(value, code)
  if value == nil then return tostring(code) end
  if type(value) ~= "table" then return tostring(value) end
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

local function words_of(first, ...)
  local words = { first, ... }
  for i, word in ipairs(words) do words[i] = tostring(word) end
  return table.concat(words, " ")
end

-- Module, function, describe.
local RECORDED = {
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

for _, row in ipairs(RECORDED) do
  local describe = row[3]
  row[3] = function(former) return steps.recorded(former, describe) end
end

--- Calls fn(...) and records its steps.
function steps.during(fn, ...) return patch(RECORDED, fn, ...) end

return steps
