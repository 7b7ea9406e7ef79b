--- Explores all states that a model (locks.lua) can reach within its bounds,
--- breadth first, so that the first fault has a shortest trace.

local explore = {}

-- A step whose reply has no defined order is also taken `turned`, with the
-- reply reversed. Steps are numbered in pairs, the plain one first.
local MOST_STEPS = 4096                 -- above the number of steps of a state

local function turned(step)
  local other = { is_turned = true }
  for key, value in pairs(step) do other[key] = value end
  return other
end

-- searching -------------------------------------------------------------------

-- Takes one step from a node; returns the state, if it is new, and a fault. A
-- fault's operation goes to the result.
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
    fault, result.op = model:judge(state)
  end
  return is_new and state or nil, fault, done and done.is_ordered
end

-- A step is stored as a number: its node, and its index among the transitions.
local function remember(search, node, index)
  search.origins[search.result.states] = node.id * MOST_STEPS + index
end

-- The steps that lead to a node.
local function trace_of(search, id, last)
  local indexes, model = {}, search.model
  while id > 1 do
    local origin = search.origins[id]
    table.insert(indexes, 1, origin % MOST_STEPS)
    id = origin // MOST_STEPS
  end
  local state, trace = model:start(), {}
  for i, index in ipairs(indexes) do
    local step = model:transitions(state)[index // 2]
    trace[i] = index % 2 == 1 and turned(step) or step
    model:take(state, trace[i])
  end
  table.insert(trace, last)
  return trace
end

-- Takes a step, and adds the new state to the next frontier; true at a fault.
local function visit(search, node, step, index)
  local state, fault, is_ordered = try(search, node, step)
  if fault then
    local result = search.result
    result.fault, result.trace = fault, trace_of(search, node.id, step)
    return true
  end
  if state then
    remember(search, node, index)
    search.next[#search.next + 1] = { id = search.result.states, state = state }
  end
  if is_ordered and not step.is_turned then
    return visit(search, node, turned(step), index + 1)
  end
end

-- Takes all steps from a node; true to stop.
local function expand(search, node)
  for i, step in ipairs(search.model:transitions(node.state)) do
    if visit(search, node, step, 2 * i) then return true end
  end
  search.expanded = search.expanded + 1
  return search.expanded % 200 == 0 and search.progress
    and search.progress(search.result)
end

--- Explores.
---@param model table
---@param progress? function called periodically with the result so far; returns
---  true to stop
---@return table # states, steps, depth, is_complete; with a fault: fault
---  (words), trace (a list of steps), op (the faulty operation, if it is not
---  that of the last step)
function explore.run(model, progress)
  local start = model:start()
  local search = {
    model = model, progress = progress, seen = { [start:text()] = true },
    origins = {}, next = { { id = 1, state = start } }, expanded = 0,
    result = { states = 1, steps = 0, depth = 0 },
  }
  local result = search.result
  while search.next[1] do
    ---@type any[]
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

-- Takes a step; returns the fault, which goes to the result with its operation.
local function follow(model, state, step, result)
  local before = state:fork()
  local done, fault = model:take(state, step)
  if not (done and done.is_ordered) then step.is_turned = nil end
  result.steps = result.steps + 1
  result.fault = fault or model:judge_step(before, step, done)
  if not result.fault then result.fault, result.op = model:judge(state) end
  return result.fault
end

--- Takes the steps of a trace.
---@param model table
---@param list table steps
---@return table # as `run`
function explore.follow(model, list)
  local state = model:start()
  local result = { states = 1, steps = 0, depth = #list, trace = list }
  for i, step in ipairs(list) do
    result.states = i + 1
    if follow(model, state, step, result) then
      result.trace = table.move(list, 1, i, 1, {})
      return result
    end
  end
  result.is_complete = true
  return result
end

-- walking ---------------------------------------------------------------------

local LONGEST = 60                      -- steps of a walk

-- A function that returns numbers from 1 to n (xorshift).
local function generator(seed)
  local x = seed * 2654435761 + 88172645463325252
  return function(n)
    x = x ~ (x << 13)
    x = x ~ (x >> 7)
    x = x ~ (x << 17)
    return (x >> 1) % n + 1
  end
end

-- Is the step possible?
local function is_possible(model, state, step)
  for _, choice in ipairs(model:transitions(state)) do
    local is_same = true
    for key, value in pairs(choice) do
      is_same = is_same and step[key] == value
    end
    if is_same then return true end
  end
  return false
end

-- Walks at random until a fault or the end; returns the steps.
local function walk(model, result, random)
  local state, list = model:start(), {}
  for i = 1, LONGEST do
    local transitions = model:transitions(state)
    if not transitions[1] then break end
    list[i] = transitions[random(#transitions)]
    if random(2) == 1 then list[i] = turned(list[i]) end
    if follow(model, state, list[i], result) then break end
  end
  return list
end

-- The steps up to the first fault, if they are possible and there is one.
local function faulty(model, list)
  local state, result = model:start(), { steps = 0 }
  for i, step in ipairs(list) do
    if not is_possible(model, state, step) then return nil end
    if follow(model, state, step, result) then
      return table.move(list, 1, i, 1, {}), result
    end
  end
end

-- Removes steps while the fault remains.
local function shrink(model, list, result)
  local i = #list
  while i >= 1 do
    local shorter = table.move(list, 1, #list, 1, {})
    table.remove(shorter, i)
    local found, its_result = faulty(model, shorter)
    if found then
      ---@cast its_result -nil
      list, result.fault, result.op = found, its_result.fault, its_result.op
    end
    i = math.min(i - 1, #list)
  end
  return list
end

--- Walks at random until there is a fault. Its trace is short, but perhaps not
--- the shortest.
---@param model table
---@param result table of a `run` that was stopped; modified
---@param seed integer equal seeds give equal walks
---@param progress function as in `run`, called after each walk
---@return table # result, with `walks` and `seed`
function explore.walk(model, result, seed, progress)
  local random = generator(seed)
  result.walks, result.seed = 0, seed
  repeat
    local list = walk(model, result, random)
    result.walks = result.walks + 1
    if result.fault then
      result.trace = shrink(model, list, result)
      return result
    end
  until progress(result)
  return result
end

return explore
