--- Runs user callbacks, such as that of on_lost, each in its own timer. An
--- ngx.exit in one light thread ends the whole timer; in the worker timer
--- (worker_timer.lua) it would end all jobs. A callback runs there only if it
--- gets no timer for LATE seconds: each must run in the end, and the worker
--- cannot end while it waits.

local now = require("resty.rlock.host.clock").now
local worker_timer = require "resty.rlock.host.worker_timer"
local tasks = require "resty.rlock.host.tasks"

local callbacks = {}

local max = math.max

local MOST = 32          -- timers at a time: other code needs timers as well
local LATE = 1           -- seconds without a timer: see above
local SOON = 0.01        -- the same, after one has run there

local queue, first, last = {}, 1, 0
local change = tasks.event()           -- a callback has begun, or ended
local callers = {}                     -- the tasks that run a callback
local is_served                        -- whether `serve` runs
local is_refused                       -- whether nginx refused the last timer
local patience           -- LATE or SOON

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

-- Runs in a timer. If that starts late, another may have taken the callback.
local function begin()
  patience = LATE
  call_next()
end

local function count_callers()
  local n = 0
  for task in pairs(callers) do
    if tasks.is_over(task) then callers[task] = nil else n = n + 1 end
  end
  return n
end

-- Runs in the worker timer. nginx may drop a timer when it is due, without
-- notice (lua_max_running_timers).
local function serve()
  local call, latest = nil, now()
  patience = LATE
  while queue[first] do
    if count_callers() >= MOST then
      change:block(LATE)
    else
      if queue[first] ~= call then
        call, latest = queue[first], now() + patience
      end
      is_refused = not ngx.timer.at(0, begin)
      change:block(max(latest - now(), 0))
      if queue[first] == call and now() >= latest then
        patience = SOON
        worker_timer.start(call_next)
        change:block(LATE)
      end
    end
  end
  is_served = nil
end

function worker_timer.on_patrol()
  if is_refused and count_callers() < MOST then call_next() end
end

--- Runs a callback without waiting for it. If nginx refuses a timer now, the
--- callback runs later, at the latest in a patrol (worker_timer.lua).
---@param fn function
---@param a any its arguments
function callbacks.start(fn, a, b)
  last = last + 1
  queue[last] = { fn = fn, a = a, b = b }
  if is_served then return end
  is_served = true
  worker_timer.service(serve)
end

return callbacks
