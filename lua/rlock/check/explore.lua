--- Explores all states that a model (locks.lua) can reach within its bounds,
--  breadth first, so that the first fault has a shortest trace.

local explore = {}

-- The steps of a state, in the order in which `turned` ones follow: a step that
-- had a reply without a defined order is done in the other order as well.
local MOST_STEPS = 4096                 -- more than a state has

local function turned(step)
  local other = { is_turned = true }
  for key, value in pairs(step) do other[key] = value end
  return other
end

-- searching -------------------------------------------------------------------

-- Does one step from a node; returns the state, if it is new, and a fault.
local function try(search, node, step)
  local model, result = search.model, search.result
  local state = node.state:fork()
  local done, fault = model:take(state, step)
  result.steps = result.steps + 1
  fault = fault or model:judge_step(node.state, step, done)
  local text = not fault and state:text()
  local is_new = text and not search.seen[text]
  if is_new then
    search.seen[text] = true
    result.states = result.states + 1
    fault = model:judge(state)
  end
  return is_new and state or nil, fault, done and done.is_ordered
end

-- A step is kept as a number: its node, and its place among the choices there.
local function remember(search, node, place)
  search.origins[search.result.states] = node.id * MOST_STEPS + place
end

-- The steps that lead to a node.
local function trace_of(search, id, last)
  local places, model = {}, search.model
  while id > 1 do
    local origin = search.origins[id]
    table.insert(places, 1, origin % MOST_STEPS)
    id = origin // MOST_STEPS
  end
  local state, trace = model:start(), {}
  for i, place in ipairs(places) do
    local step = model:choices(state)[place // 2]
    trace[i] = place % 2 == 1 and turned(step) or step
    model:take(state, trace[i])
  end
  table.insert(trace, last)
  return trace
end

-- Does a step, and adds the new state to the next frontier; true at a fault.
local function visit(search, node, step, place)
  local state, fault, is_ordered = try(search, node, step)
  if fault then
    local result = search.result
    result.fault, result.trace = fault, trace_of(search, node.id, step)
    return true
  end
  if state then
    remember(search, node, place)
    search.next[#search.next + 1] = { id = search.result.states, state = state }
  end
  if is_ordered and not step.is_turned then
    return visit(search, node, turned(step), place + 1)
  end
end

-- Does all steps from a node; true to stop.
local function expand(search, node)
  for i, step in ipairs(search.model:choices(node.state)) do
    if visit(search, node, step, 2 * i) then return true end
  end
  search.expanded = search.expanded + 1
  return search.expanded % 200 == 0 and search.progress
    and search.progress(search.result)
end

--- Explores.
-- @tparam table model
-- @tparam[opt] function progress called with the result so far, now and then;
--   returns true to stop
-- @treturn table states, steps, depth, is_complete; with a fault: fault
--   (words), trace (a list of steps)
function explore.run(model, progress)
  local start = model:start()
  local search = {
    model = model, progress = progress, seen = { [start:text()] = true },
    origins = {}, next = { { id = 1, state = start } }, expanded = 0,
    result = { states = 1, steps = 0, depth = 0 },
  }
  local result = search.result
  while search.next[1] do
    local frontier = search.next
    search.next = {}
    for i, node in ipairs(frontier) do
      frontier[i] = false               -- frees its memory
      if expand(search, node) then return result end
    end
    result.depth = result.depth + 1
  end
  result.is_complete = true
  return result
end

-- following -------------------------------------------------------------------

--- Does the steps of a trace.
-- @tparam table model
-- @tparam table list steps
-- @treturn table as `run`
function explore.follow(model, list)
  local state = model:start()
  local result = { states = 1, steps = 0, depth = #list, trace = list }
  for i, step in ipairs(list) do
    local before = state:fork()
    local done, fault = model:take(state, step)
    result.steps, result.states = i, i + 1
    result.fault = fault or model:judge_step(before, step, done)
      or model:judge(state)
    if result.fault then
      result.trace = table.move(list, 1, i, 1, {})
      return result
    end
  end
  result.is_complete = true
  return result
end

return explore
