--- Runs a program with one seed after another until a run exposes a bug, then
--- reduces the injected faults to the few that the bug needs.

local plans = require "rlockctl.simulate.plan"
local programs = require "rlockctl.simulate.programs"
local shrink = require "rlockctl.simulate.shrink"

local search = {}

local PROBE = 0                         -- the seed of the run without faults

local function with(options, more)
  return setmetatable(more, { __index = options })
end

local function is_same(a, b)
  return a and b and a.what == b.what and a.text == b.text and a.time == b.time
end

-- A run for the report. Repeats it if a signal has interrupted it.
local function whole(program, seed, options)
  local status = options.stop.status
  local run = programs.run(program, seed, options)
  if options.stop.status == status then return run end
  return programs.run(program, seed, options)
end

-- Reduces the plan of a run that has failed, and records the steps of another
-- run with the reduced plan. After a signal, the plan is not reduced further.
local function explain(program, result, options)
  local found, seed, stop = result.run, result.seed, options.stop
  local again = whole(program, seed, with(options, { plan = found.plan }))
  result.is_reproducible = is_same(found.bug, again.bug) or false
  local few = result.is_reproducible and shrink.plan(found.plan, function(part)
    if stop.status then return false end
    local run = programs.run(program, seed, with(options, { plan = part }))
    return not stop.status and run.bug and run.bug.what == found.bug.what
  end) or found.plan
  result.shown = whole(program, seed, with(options,
    { plan = few, steps = true, log = true }))
  if not result.shown.bug then result.is_reproducible = false end
  result.cause = not result.is_reproducible and found.cause or nil
end

local function count(result, run)
  result.runs = result.runs + 1
  if not run.plan[1] then result.calm = result.calm + 1 end
  for code, n in pairs(run.codes) do
    result.codes[code] = (result.codes[code] or 0) + n
  end
end

--- Searches for a bug.
---@param program table of programs.run
---@param options table `processes`, `span`, `strict`; `seed`, the first one;
---  `groups`, a set of names of plan.groups; `is_over(result)`, whether to end
---  the search; `stop`, a table: the search ends once it has a `status`, and
---  keeps the `universe` of the current run there
---@return table # `runs`, their number; `calm`, the number without faults;
---  `codes`, those that ended a process; `lack`, what the simulated server
---  lacks, such as "command GEOADD", if that ended the search; `is_stopped`. If
---  a bug was found, also `seed`; `run`, which exposed it;
---  `shown`, a run with the reduced plan and with steps; `is_reproducible`; and
---  `cause`, a sentence that says why it is not, if known
function search.run(program, options)
  local result, stop = { runs = 0, calm = 0, codes = {} }, options.stop
  local function try(seed, more)
    local run = programs.run(program, seed, with(options, more))
    if stop.status then return run end  -- interrupted
    count(result, run)
    result.lack = run.lack
    if run.bug and not run.lack then
      result.seed, result.run = seed, run
      explain(program, result, with(options,
        { lease = more.lease, has_loop = more.is_probe }))
    end
    return run
  end
  local probe = try(PROBE, { is_probe = true })
  local seed = options.seed
  while not result.run and not result.lack and not stop.status
      and not options.is_over(result) do
    try(seed, { lease = probe.lease,
      plan = plans.make(seed, probe, options.groups) })
    seed = seed + 1
  end
  result.is_stopped = stop.status ~= nil
  return result
end

return search
