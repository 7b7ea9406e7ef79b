--- Calls of what programs have given us, such as a function for on_lost. Each
--  runs in a timer of its own, because nginx ends a whole timer for what a
--  program may do in one of its threads, such as an ngx.exit: in the home, that
--  would be the end of all.

local home = require "rlock.host.ngx.home"
local tasks = require "rlock.host.ngx.tasks"

local calls = {}

local MOST = 32          -- at one time: others want timers, too
local LATE = 1           -- seconds after which a timer is asked for again

local queue, first, last = {}, 1, 0
local change = tasks.event()           -- a call has begun, or has ended
local callers = {}                     -- the tasks that run one
local is_serving = false

-- In a timer. Another may have been quicker, if this one came late.
local function call_next()
  local call = queue[first]
  if not call then return end
  queue[first] = nil
  first = first + 1
  local task = tasks.current()
  callers[task] = true
  change:set()
  call.fn(call.a, call.b)
  callers[task] = nil
  change:set()
end

local function count_callers()
  local n = 0
  for task in pairs(callers) do
    if tasks.is_over(task) then callers[task] = nil else n = n + 1 end
  end
  return n
end

-- A thread of the home.
local function serve()
  while queue[first] do
    if count_callers() < MOST then ngx.timer.at(0, call_next) end
    change:block(LATE)
  end
  is_serving = false
end

--- Calls a function, and does not wait for its end.
-- @tparam function fn
-- @param a,b its arguments
function calls.start(fn, a, b)
  last = last + 1
  queue[last] = { fn = fn, a = a, b = b }
  if not is_serving then is_serving = home.start(serve) end
end

return calls
