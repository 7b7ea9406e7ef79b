--- The worker timer: one timer, whose light threads run everything that must
--  outlive a request. (Timers are scarce: by default a worker runs at most
--  256.) A job is a function that runs there, for a task or for rlock itself.
--  Idle threads are pooled.
--
--  nginx frees the memory of a timer's threads only when the timer ends. So the
--  worker timer is replaced after a while, and ends after its last job.

local clock = require "rlock.host.ngx.clock"
local tasks = require "rlock.host.ngx.tasks"

local worker_timer = {}

local now, running = clock.now, coroutine.running
local exiting, spawn = ngx.worker.exiting, ngx.thread.spawn
local max, remove = math.max, table.remove

local TICK = 0.5         -- seconds between two maintenance runs
local TICK_ALONE = 0.05  -- the same in a Lua state of a single request
local GRACE = 1          -- seconds until unfinished jobs are cancelled
local JOBS = 100000      -- jobs after which the timer is replaced
local LATE = 1           -- seconds after which a timer that has not started is
                         -- given up
local TRIES = 3          -- timers to wait for, not more: the tasks that occupy
                         -- the others may be waiting for this one

--- Callbacks, run at each maintenance.
worker_timer.on_tick = {}

--- Called from time to time while no request uses rlock any more, and the
--  worker, or the Lua state, is about to end.
function worker_timer.rest() end

local present            -- the timer that takes new jobs

-- the threads ---------------------------------------------------------------

local function traced(message) return debug.traceback(message) end

local function do_job(self, thread, job)
  job.has_begun = true
  self.threads[thread] = job
  self.busy = self.busy + 1
  if job.done then
    job.ok, job.x, job.y, job.z =
      pcall(job.fn, job.a, job.b, job.c, job.d)
    job.done:set()
  else
    local ok, message = xpcall(job.fn, traced, job.a, job.b, job.c, job.d)
    if not ok then ngx.log(ngx.ERR, "rlock: ", message) end
    job.task.is_over = true
  end
  self.busy = self.busy - 1
  self.threads[thread] = nil
end

-- The next queued job.
local function next_job(self)
  local job
  repeat
    job = self.jobs[self.first]
    if not job then return nil end
    self.jobs[self.first] = nil
    self.first = self.first + 1
  until not job.is_withdrawn
  return job
end

-- The loop of a light thread.
local function work(self)
  local thread, seat = running(), { event = tasks.event() }
  local job = next_job(self)
  while job do
    do_job(self, thread, job)
    job = next_job(self)
    if not job and not self.has_given_way then
      self.seats[#self.seats + 1] = seat
      seat.event:block()
      job, seat.job = seat.job, nil
    end
  end
end

-- the timer -------------------------------------------------------------------

local function give_way(self)
  self.has_given_way = true
  if present == self then present = nil end
  for _, seat in ipairs(self.seats) do seat.event:set() end
  self.seats = {}
end

local function give_up(job)
  if job.is_cancelled then return end
  job.is_cancelled = true
  if job.pauses then job.pauses:set() end
end

-- Gives up jobs whose request has ended, or whose light thread was killed.
local function give_up_forsaken(self)
  for _, job in pairs(self.threads) do
    if job.done and (tasks.is_over(job.task) or job.done:is_forsaken()) then
      give_up(job)
    end
  end
end

-- Is the worker, or a Lua state of a single request, about to end?
local function is_ending() return exiting() or not tasks.is_shared() end

-- No request needs rlock any more: lets the jobs finish, and cancels those that
-- do not.
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

local function maintain(self)
  put_all_away(self)
  for _, callback in ipairs(worker_timer.on_tick) do callback() end
  give_up_forsaken(self)
  if not is_ending() then
    if self.taken > JOBS then give_way(self) end
  elseif self.busy == 0 and not self.jobs[self.first] then
    give_way(self)
  elseif tasks.any() then
    self.resting = nil
  else
    rest(self)
  end
end

-- Maintenance is O(jobs), so a new job does not cause it.
local function keep(_, self)
  tasks.set_worker_timer(self)
  self.change = tasks.event()
  local tick = tasks.is_shared() and TICK or TICK_ALONE
  local next_tick = now() + tick
  repeat
    while self.jobs[self.first] do spawn(work, self) end
    self.change:block(max(next_tick - now(), 0))
    if now() >= next_tick then
      maintain(self)
      next_tick = now() + tick
    end
  until self.has_given_way and self.busy == 0
  put_all_away(self)
end

local function open()
  local self = {
    jobs = {}, first = 1, last = 0, seats = {}, threads = {}, kept = {},
    busy = 0, taken = 0, asked = now(),
  }
  local ok, why = ngx.timer.at(0, keep, self)
  if not ok then return nil, "no timer: " .. why end
  present = self
  return self
end

-- The timer that takes jobs. If it did not start (a worker runs at most
-- lua_max_running_timers), another one takes over its jobs.
local function ready()
  local self = present
  if self and (self.change or now() - self.asked < LATE) then return self end
  local other, why = open()
  if not other then return nil, why end
  if self then
    other.jobs, other.first, other.last = self.jobs, self.first, self.last
    self.jobs, self.has_given_way = {}, true
  end
  return other
end

-- the jobs --------------------------------------------------------------------

local function give(job)
  local self, why = ready()
  if not self then return nil, why end
  self.taken = self.taken + 1
  local seat = remove(self.seats)
  if seat then
    seat.job = job
    seat.event:set()
  else
    self.last = self.last + 1
    self.jobs[self.last] = job
    if self.change then self.change:set() end
  end
  return true
end

--- Starts an internal job, and does not wait for it.
-- @tparam function fn
-- @param a,b,c,d its arguments
-- @treturn boolean whether it was accepted
function worker_timer.start(fn, a, b, c, d)
  local ok, why = give { fn = fn, a = a, b = b, c = c, d = d, task = {} }
  if not ok then ngx.log(ngx.ERR, "rlock: ", why) end
  return ok or false
end

-- Waits until a job is done. Withdraws it if no timer starts.
-- @return whether it is done
local function is_done(job)
  local tries = 0
  while not job.done:block(LATE) do
    tries = tries + 1
    if not job.has_begun and tries >= TRIES then
      job.is_withdrawn = true
      return false
    end
    ready()
  end
  return true
end

local NO_TIMER = "no timer: all of lua_max_running_timers are in use"

local events = {}        -- for reuse

--- Runs a function for the running task to completion, even if the task ends
--  earlier.
-- @tparam function fn
-- @param a,b,c,d its arguments
-- @return[1] what it returns, three values at most
-- @treturn[2] nil
-- @treturn[2] string "refused"
-- @treturn[2] string detail
function worker_timer.run(fn, a, b, c, d)
  local why = tasks.refusal()
  if why then return nil, "refused", why end
  local task, here = tasks.current()
  if here then return fn(a, b, c, d) end
  local done = remove(events) or tasks.event()
  local job = { fn = fn, a = a, b = b, c = c, d = d, task = task, done = done }
  local ok
  ok, why = give(job)
  if not ok then return nil, "refused", why end
  if not is_done(job) then return nil, "refused", NO_TIMER end
  events[#events + 1] = done
  local x, y, z = job.x, job.y, job.z
  if not job.ok then error(x, 0) end
  if z ~= nil then return x, y, z end
  if y ~= nil then return x, y end
  return x
end

return worker_timer
