--- Tasks of a spec. An error in one, such as a failed assertion, is raised
--- where it is joined, so that it fails that spec and not the whole program.
--- Every wait has a deadline.
--
--    local task = require "spec.tools.task"
--    local waiting = task.start(function() return lock:lock() end)
--    assert.is_true(waiting:join(5))
--    assert.is_true(task.run(fn))            -- as another owner, to completion

local host = require "rlock.host.uv"

local task = {}

local Task = {}
Task.__index = Task

local SECONDS = 30

local function run(self, fn, ...)
  self.results = table.pack(pcall(fn, ...))
  self.is_over = true
  self.over:set()
  if host.is_unwind(self.results[2]) then error(self.results[2], 0) end
end

--- Starts a task with fn(...) on a host.
function task.start_on(its, fn, ...)
  local self = setmetatable({ over = its.event() }, Task)
  self.task = its.spawn(run, self, fn, ...)
  return self
end

--- Starts a task with fn(...).
function task.start(fn, ...) return task.start_on(host, fn, ...) end

--- Waits for its end; returns fn's results or raises its error.
-- @tparam[opt=30] number seconds
function Task:join(seconds)
  if not self.is_over and not self.over:wait(seconds or SECONDS) then
    error(("the task did not end within %g s"):format(seconds or SECONDS), 2)
  end
  if not self.results[1] then error(self.results[2], 0) end
  return table.unpack(self.results, 2, self.results.n)
end

--- Cancels it and waits for its end; raises if it ended in another way.
function Task:cancel(seconds)
  self.task:cancel()
  if not self.is_over and not self.over:wait(seconds or SECONDS) then
    error("the cancelled task did not end", 2)
  end
  if not host.is_unwind(self.results[2]) then
    error("the task was not unwound: " .. tostring(self.results[2]), 2)
  end
end

--- Runs fn(...) in a task of its own: another owner.
function task.run(fn, ...)
  return task.start(fn, ...):join()
end

--- Runs fn(1) to fn(n), each in a task, and waits for all.
function task.many(n, fn, seconds)
  local all = {}
  for i = 1, n do all[i] = task.start(fn, i) end
  for i = 1, n do all[i]:join(seconds) end
end

return task
