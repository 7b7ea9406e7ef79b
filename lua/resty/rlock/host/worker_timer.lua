--- The worker timer: one timer, whose light threads run everything that must
--- outlive a request. (Timers are scarce: by default a worker runs at most
--- 256.) A job is a function that runs there, on behalf of a task or of rlock
--- itself. Idle threads are pooled.
---
--- nginx frees the memory of a timer's threads only when the timer ends. So the
--- worker timer is replaced after a while, and ends after its last job. It
--- takes jobs until its successor runs, because nginx may refuse a timer
--- (lua_max_pending_timers), or drop it when it is due
--- (lua_max_running_timers).
---
--- An ngx.exit in any of its threads ends a timer with all its jobs, without an
--- error that Lua could catch. So a second timer patrols. It finds dead worker
--- timers, runs the cleanup of their jobs (guard.lua), and restarts their
--- services in a new one.

local clock = require "resty.rlock.host.clock"
local tasks = require "resty.rlock.host.tasks"

local worker_timer = {}

local now, running = clock.now, coroutine.running
local exiting, spawn = ngx.worker.exiting, ngx.thread.spawn
local max, min, remove = math.max, math.min, table.remove

local TICK = 0.5         -- seconds between two maintenance runs
local TICK_ALONE = 0.05  -- the same in a Lua state of a single request
local GRACE = 1          -- seconds until unfinished jobs are cancelled
local JOBS = 100000      -- jobs after which the timer is replaced
local LATE = 1           -- seconds after which a timer that has not started is
                         -- abandoned
local PATROL = 0.5       -- seconds between two checks for dead timers
local TRIES = 3          -- timers to wait for, at most: the tasks that occupy
                         -- the timers may be waiting for this one

--- Callbacks, run at each maintenance.
worker_timer.on_tick = {}

--- Called periodically when no request uses rlock any more, and the worker, or
--- the Lua state, is about to end.
function worker_timer.rest() end

--- Called in each patrol, which has a timer even if nginx refuses all others.
function worker_timer.on_patrol() end

---@type any
local present            -- the timer that takes new jobs
local asked              -- when the timer was created that has not started yet
local jobs, first, last = {}, 1, 0       -- the queue of all timers
local timers = {}        -- the running timers, as a set
local down = {}          -- services that nginx has refused or ended
local is_patrolled       -- whether there is a timer that calls `patrol`
local is_refused         -- whether nginx refused the last timer

-- the threads ---------------------------------------------------------------

local function traced(message) return debug.traceback(message) end

local function do_job(self, thread, job)
  job.timer = self
  self.threads[thread] = job
  self.busy = self.busy + 1
  if job.ends then
    local left = job.ends - now()
    job.b = left > 0 and left or -1
  end
  if job.done then
    job.ok, job.x, job.y, job.z =
      pcall(job.fn, job.a, job.b, job.c, job.d)
    job.done:set()
  else
    local task = job.task
    task.number, task.context = self.number, self.context
    local ok, message = xpcall(job.fn, traced, job.a, job.b, job.c, job.d)
    if not ok then ngx.log(ngx.ERR, "rlock: ", message) end
    if not ok and job.is_service then down[#down + 1] = job end
    task.is_over = true
  end
  self.busy = self.busy - 1
  self.threads[thread] = nil
end

-- The next queued job.
local function next_job()
  local job
  repeat
    job = jobs[first]
    if not job then
      first, last = 1, 0
      return nil
    end
    jobs[first] = nil
    first = first + 1
  until not job.is_withdrawn
  return job
end

-- The loop of a light thread.
local function work(self)
  local thread = running()
  local spare = { event = tasks.event(), thread = thread }
  local job = next_job()
  while job do
    do_job(self, thread, job)
    job = self == present and next_job()
    if not job and self == present then
      self.idle[#self.idle + 1] = spare
      spare.event:block()
      job, spare.job = spare.job, nil
    end
  end
end

-- the timer -------------------------------------------------------------------

-- Makes a timer end after its last job.
local function retire(self)
  for _, spare in ipairs(self.idle) do spare.event:set() end
  self.idle = {}
  self.change:set()
end

local function give_up(job)
  if job.is_cancelled then return end
  job.is_cancelled = true
  if job.pauses then job.pauses:set() end
end

-- Cancels jobs whose request has ended, or whose light thread was killed.
local function give_up_orphaned(self)
  for _, job in pairs(self.threads) do
    if job.done and (tasks.is_over(job.task) or job.done:is_orphaned()) then
      give_up(job)
    end
  end
end

-- Is the worker, or a Lua state of a single request, about to end?
local function is_ending() return exiting() or not tasks.is_shared() end

-- No request needs rlock any more: lets the jobs finish, and cancels those that
-- take too long.
local function rest(self)
  if not self.resting then
    self.resting = now()
    worker_timer.start(worker_timer.rest)
  elseif now() > self.resting + GRACE then
    for _, job in pairs(self.threads) do give_up(job) end
    self.resting = nil
  end
end

local function put_all_away(self)
  local all = self.kept
  self.kept = {}
  for keeper, kept in pairs(all) do keeper:put_away(kept) end
end

---@type function, function, function
local open, patrol, revive

local function start_patrol()
  is_patrolled = is_patrolled or not exiting() and tasks.is_long_lived()
    and ngx.timer.every(PATROL, patrol)
end

local function maintain(self)
  put_all_away(self)
  start_patrol()
  revive()
  for _, callback in ipairs(worker_timer.on_tick) do callback() end
  give_up_orphaned(self)
  if not is_ending() then
    if self == present and self.taken > JOBS then open() end
  elseif self.busy == 0 and not jobs[first] then
    if self == present then present = nil end
    retire(self)
  elseif tasks.any() then
    self.resting = nil
  else
    rest(self)
  end
end

-- Takes over from the previous timer, which may have died.
local function begin(self)
  local before = present
  tasks.set_worker_timer(self)
  self.change = tasks.event()
  present, asked, is_refused, timers[self] = self, nil, nil, true
  if before then retire(before) end
  start_patrol()
end

-- Maintenance is O(jobs), so a new job does not cause it.
local function keep(_, self)
  begin(self)
  local tick = tasks.is_shared() and TICK or TICK_ALONE
  local next_tick = now() + tick
  repeat
    while self == present and jobs[first] do spawn(work, self) end
    self.change:block(max(next_tick - now(), 0))
    if now() >= next_tick then
      local ok, message = xpcall(maintain, traced, self)
      if not ok then ngx.log(ngx.ERR, "rlock: ", message) end
      next_tick = now() + tick
    end
  until self ~= present and self.busy == 0
  put_all_away(self)
  timers[self] = nil
end

local function fresh()
  return {
    idle = {}, threads = {}, kept = {}, sending = {}, busy = 0, taken = 0,
  }
end

--- Creates a timer, which takes over when it starts. If it does not (a worker
--- runs at most lua_max_running_timers), the next call creates another one.
---@return any ... # true, or nil, why
function open()
  if asked and now() - asked < LATE then return true end
  local ok, why = ngx.timer.at(0, keep, fresh())
  is_refused = not ok
  if not ok then return nil, "no timer: " .. why end
  asked = now()
  return true
end

-- dead timers -----------------------------------------------------------------

-- Runs the cleanup handlers of a dead job, as if it had raised an error.
local function clean_up(guards)
  while guards[1] do
    local guard = remove(guards)
    local ok, message = xpcall(guard.undo, traced, guard.what)
    if not ok then ngx.log(ngx.ERR, "rlock: ", message) end
  end
end

local function enqueue(job)
  last = last + 1
  jobs[last] = job
end

local function mourn_job(job)
  if job.done then
    job.has_died = true
    job.done:set()
  else
    job.task.is_over = true
  end
  local guards = job.guards
  if guards then
    enqueue { fn = clean_up, a = guards, task = {}, guards = guards }
  end
  if job.is_service then down[#down + 1] = job end
end

-- Handles dead timers: their jobs, and the sockets that only they could use. A
-- job that an idle thread was given, but had not begun, is for their successor.
local function mourn()
  for self in pairs(timers) do
    if tasks.is_over(self) then
      timers[self] = nil
      for _, job in pairs(self.threads) do
        if job.timer then mourn_job(job) else enqueue(job) end
      end
      for keeper, kept in pairs(self.kept) do keeper:forget(kept) end
      for slot, keeper in pairs(self.sending) do keeper:abandon(slot) end
    end
  end
end

-- Is there a timer that takes jobs?
local function is_alive()
  if not present then return false end
  if not tasks.is_over(present) then return true end
  mourn()
  return false
end

-- Finds dead timers, and restarts the services that are down.
function revive()
  mourn()
  local services = down
  down = {}
  for _, job in ipairs(services) do
    worker_timer.service(job.fn, job.a, job.b)
  end
  if jobs[first] and not is_alive() then open() end
end

-- nginx repeats this, and calls it once more, `premature`, when the worker
-- begins to exit. Its own timer is pending all the time, and may be the only
-- one that nginx admits. Then a run takes the place of one that was refused.
function patrol(premature)
  revive()
  while premature and next(timers) do
    ngx.sleep(TICK_ALONE)
    revive()
  end
  if is_refused and not premature and not is_alive() then
    return keep(premature, fresh())
  end
  worker_timer.on_patrol()
end

-- the jobs --------------------------------------------------------------------

local function give(job)
  local self, spare = present, nil
  if is_alive() then
    self.taken = self.taken + 1
    spare = remove(self.idle)
  else
    local ok, why = open()
    if not ok then return nil, why end
  end
  if spare then
    spare.job, self.threads[spare.thread] = job, job
    spare.event:set()
  else
    enqueue(job)
    if self then self.change:set() end
  end
  return true
end

--- Starts an internal job without waiting for it.
---@param fn function
---@param a any its arguments
---@return table? # its task: tasks.is_over is true once it has ended, or died
---  with its timer
---@return rlock.failure? code # "refused": there is no timer
---@return string? detail
function worker_timer.start(fn, a, b, c, d)
  local job = { fn = fn, a = a, b = b, c = c, d = d, task = {} }
  local ok, why = give(job)
  if ok then return job.task end
  ngx.log(ngx.ERR, "rlock: ", why)
  return nil, "refused", why
end

--- Starts an internal job that must continue until its function returns: if
--- nginx refuses or ends it, or if it raises an error, it is restarted.
---@param fn function
---@param a any its arguments
function worker_timer.service(fn, a, b)
  local job = { fn = fn, a = a, b = b, task = {}, is_service = true }
  if not give(job) then down[#down + 1] = job end
end

local NO_TIMER = "no timer: all of lua_max_running_timers are in use"
local DIED = "nginx has ended the timer of the worker"

-- Waits a while until a job is done, and not beyond its end before it begins.
local function is_done(job)
  ---@type any
  local most = LATE
  if job.ends and not job.timer then most = min(most, job.ends - now()) end
  return job.done:block(max(most, 0))
end

--- Waits until a job is done. Withdraws it if no timer starts.
---@return true?, rlock.failure? code, string? detail
local function finish(job)
  local tries = 0
  while not is_done(job) do
    tries = tries + 1
    revive()
    local is_late = tries >= TRIES or job.ends and now() >= job.ends
    if is_late and not job.timer and not job.has_died then
      job.is_withdrawn = true
      return nil, "refused", NO_TIMER
    end
  end
  if job.has_died then return nil, "closed", DIED end
  return true
end

local events = {}        -- for reuse

local function run(ends, fn, a, b, c, d)
  local why = tasks.refusal()
  if why then return nil, "refused", why end
  local task, here = tasks.current()
  if here then return fn(a, b, c, d) end
  local done = remove(events) or tasks.event()
  local job = { fn = fn, a = a, b = b, c = c, d = d, task = task, done = done,
    ends = ends }
  local ok, code
  ok, why = give(job)
  if not ok then return nil, "refused", why end
  ok, code, why = finish(job)
  if not ok then return nil, code, why end
  events[#events + 1] = done
  local x, y, z = job.x, job.y, job.z
  if not job.ok then error(x, 0) end
  if z ~= nil then return x, y, z end
  if y ~= nil then return x, y end
  return x
end

--- Runs a function for the running task to completion, even if the task ends
--- earlier.
---@param fn function
---@param a any its arguments
---@return any # what it returns, three values at most
---@return rlock.failure? code # "refused", or "closed": the timer died
---  meanwhile
---@return string? detail
function worker_timer.run(fn, a, b, c, d) return run(nil, fn, a, b, c, d) end

--- As `run`, for a function that waits. Its wait includes that for a timer.
---@param fn function
---@param a any its first argument
---@param wait number its second: seconds; negative once they have passed
---@param c any its further arguments
---@return any ... # as `run`
function worker_timer.wait(fn, a, wait, c, d)
  return run(wait > 0 and now() + wait or nil, fn, a, wait, c, d)
end

return worker_timer
