--- Tasks and events of the OpenResty host.
--- A task is a request or a timer, with all its phases and light threads. nginx
--- may end it at any point, without notice. So everything that must complete
--- runs on behalf of the task in the worker timer (worker_timer.lua); only the
--- wait for it can be interrupted.

local clock = require "resty.rlock.host.clock"
local semaphore = require "ngx.semaphore"
local base = require "resty.core.base"
local ffi = require "ffi"

local tasks = {}

local C = ffi.C
local get_phase, get_request = ngx.get_phase, base.get_request
local running = coroutine.running
local huge, min = math.huge, math.min

local LONGEST = 3600     -- seconds of one wait for a semaphore
local TICK = 0.001       -- nginx truncates waits to whole milliseconds

-- phases ------------------------------------------------------------------

-- ssl_client_hello and ssl_session_fetch have cosockets as well, but only an
-- nginx with OpenResty's patches can wait there: others abort the handshake.
local waits = {
  rewrite = true, server_rewrite = true, access = true, content = true,
  timer = true, ssl_cert = true,
}

--- Why the current phase cannot wait; nil if it can.
function tasks.refusal()
  local phase = get_phase()
  if waits[phase] then return nil end
  return ("cannot wait in the %s phase"):format(phase)
end

-- tasks -------------------------------------------------------------------

local KEY = {}           -- the task's key in ngx.ctx; read by rawget, because
                         -- ngx.ctx inherits from that of the TLS handshake
local weak = { __mode = "k" }
local at = setmetatable({}, { __mode = "v" })       -- address of a request ->
                                                    -- its task, or a stale one
-- The ngx.ctx of all requests. nginx removes it when the request ends.
local contexts = debug.getregistry().ngx_lua_ctx_tables

local number_of_context          -- its index in `contexts`

local function one_argument(request)
  return C.ngx_http_lua_ffi_get_ctx_ref(request)
end

local is_handshake, number_of_handshake = ffi.new("int[1]"), ffi.new("int[1]")

-- All phases of a TLS handshake share the ngx.ctx of the first that has one.
local function three_arguments(request)
  local number = C.ngx_http_lua_ffi_get_ctx_ref(request, is_handshake,
    number_of_handshake)
  return number >= 0 and number or number_of_handshake[0]
end

-- The function has two more parameters since ngx_lua 0.10.21.
function number_of_context(request)
  local ok, number = pcall(three_arguments, request)
  number_of_context = ok and three_arguments or one_argument
  return ok and number or one_argument(request)
end

local function address_of(request)
  return tonumber(ffi.cast("uintptr_t", request))
end

--- Has this task ended?
function tasks.is_over(task)
  if type(task) ~= "table" then return false end
  ---@cast contexts -nil
  return task.is_over or contexts[task.number] ~= task.context
end

--- Is there a request that uses rlock, and has not ended?
function tasks.any()
  for _, task in pairs(at) do
    if not tasks.is_over(task) then return true end
  end
  return false
end

-- With lua_code_cache off, every request has a Lua state of its own. A state is
-- certainly shared if this file is loaded in init_worker, if a second request
-- uses it, or if it is older than OLD seconds. It is probably shared as long as
-- no other Lua state of this process uses rlock, which an environment variable
-- records.
local OLD = 60
local loaded_at, seen_one = clock.now(), false
local is_certain, is_announced = get_phase() == "init_worker", false
local NAME, ME = "RLOCK_LUA", tostring(loaded_at)

ffi.cdef [[
int rlock_setenv(const char *name, const char *value, int) __asm__("setenv");
const char *rlock_getenv(const char *name) __asm__("getenv");
]]

local function is_only()
  local known = C.rlock_getenv(NAME)
  if not is_announced then
    is_announced = true
    C.rlock_setenv(NAME, known == nil and ME or "several", 1)
    return known == nil
  end
  return known ~= nil and ffi.string(known) == ME
end

if is_certain then is_only() end

--- Do other requests probably use this Lua state as well?
function tasks.is_shared() return is_certain or is_only() end

--- Is it certain that this Lua state outlives the request that uses it?
function tasks.is_long_lived() return is_certain end

local function look_around()
  local is_request = get_phase() ~= "timer" and not ngx.is_subrequest
  is_certain = is_request and seen_one or clock.now() - loaded_at > OLD
  seen_one = seen_one or is_request
end

-- The task of the request at an address. A handshake's task is not over while
-- its connection lasts, but a later request may have its address by then.
local function task_at(address)
  local task = at[address]
  if task and not task.is_handshake and not tasks.is_over(task) then
    return task
  end
end

-- The task of a request whose ngx.ctx has none: the request is new, or ngx.exec
-- has cleared its ngx.ctx.
local function task_of(context)
  local request = get_request()
  local address = address_of(request)
  local task = task_at(address)
  if not task then
    task = { request = request, context = context,
      number = number_of_context(request),
      grants = setmetatable({}, weak) }       -- the watchdog refers to them
    at[address] = task
    if get_phase():sub(1, 4) == "ssl_" then task.is_handshake = true end
    if not is_certain then look_around() end
  end
  context[KEY] = task
  return task
end

local strays = setmetatable({}, weak)

-- The task of a light thread that was started in the worker timer by a user
-- callback (callbacks.lua).
local function stray_of(timer, thread)
  local task = strays[thread]
  if not task then
    task = { number = timer.number, context = timer.context }
    strays[thread] = task
  end
  return task
end

--- The current task. Notes whether several of its light threads use rlock.
---@return table # task
---@return table? # the worker timer, if this is one of its threads
function tasks.current()
  local context = ngx.ctx
  local task, thread = rawget(context, KEY), running()
  if task and task.threads then
    local job = task.threads[thread]
    return job and job.task or stray_of(task, thread), task
  end
  -- A subrequest may have another's ngx.ctx.
  if not task or task.request ~= get_request() then task = task_of(context) end
  if task.thread ~= thread then
    task.has_threads, task.thread = task.thread ~= nil, thread
  end
  return task
end

--- The worker timer, if the current light thread belongs to it.
function tasks.worker_timer()
  local task = rawget(ngx.ctx, KEY)
  return task and task.threads and task
end

--- Makes the running timer the worker timer.
---@param timer table with `threads`: light thread -> its job, which has `task`;
---  gets the fields that is_over(timer) needs
function tasks.set_worker_timer(timer)
  timer.context = ngx.ctx
  timer.context[KEY] = timer
  timer.number = number_of_context(get_request())
end

--- Marks the task of this request as ended.
---@return table? # the task; nil if there is none, or in a subrequest
function tasks.finish()
  local task = task_at(address_of(get_request()))
  if task then task.is_over = true end
  return task
end

-- events ------------------------------------------------------------------

---@class resty.rlock.host.tasks.Event
local Event = {}
Event.__index = Event

--- A new event. One light thread at a time waits for it; `set` wakes it.
function tasks.event()
  return setmetatable({}, Event)
end

--- Wakes the waiter; without one, the next wait returns at once. Idempotent.
function Event:set()
  if not self.is_waiting then
    self.is_set = true
    return
  end
  self.is_waiting = nil
  self.semaphore:post(1)
end

--- As `pause`, but regardless of the phase and of whether the task has ended.
function Event:block(seconds)
  if self.is_set then
    self.is_set = nil
    return true
  end
  local sema = self.semaphore
  if not sema then
    sema = assert(semaphore.new(0))
    self.semaphore = sema
  end
  self.is_waiting = true
  local ok, why
  seconds = seconds and seconds + TICK or huge
  if seconds < LONGEST then ngx.update_time() end
  repeat
    ok, why = sema:wait(min(seconds, LONGEST))
    seconds = seconds - LONGEST
  until ok or why ~= "timeout" or seconds <= 0 or not self.is_waiting
  if ok then return true end
  if not self.is_waiting then          -- it was set just as the wait timed out
    return sema:wait(0)
  end
  self.is_waiting = nil
  if why ~= "timeout" then error(why) end
  return false
end

--- Has its waiter been killed? nginx removes a killed light thread from the
--- queue of the semaphore without notice.
function Event:is_orphaned()
  return self.is_waiting ~= nil and self.semaphore:count() == 0
end

--- Has this task ended, or its light thread that waits for the running job? If
--- so, the job's result is no longer needed.
function tasks.has_gone(task)
  if tasks.is_over(task) then return true end
  local timer = tasks.worker_timer()
  local job = timer and timer.threads[running()]
  return job ~= nil and job.done ~= nil and job.done:is_orphaned()
end

-- Is this job cancelled, and has it not been notified yet?
local function is_cancelled(job)
  if not job.is_cancelled or job.is_notified then return false end
  job.is_notified = true
  return true
end

local CANCELLED = "the request has ended"

--- Waits for `set`.
---@param seconds? number at most; nil or math.huge: without limit
---@return boolean? # true if it was set, false on timeout
---@return rlock.failure? code # "refused", or "cancelled": the request has
---  ended
---@return string? detail
function Event:pause(seconds)
  local why = tasks.refusal()
  if why then return nil, "refused", why end
  local timer = tasks.worker_timer()
  local job = timer and timer.threads[running()]
  if job and is_cancelled(job) then return nil, "cancelled", CANCELLED end
  if seconds and seconds <= 0 and not self.is_set then return false end
  if not job then return self:block(seconds) end
  job.pauses = self
  local is_set = self:block(seconds)
  job.pauses = nil
  if is_cancelled(job) then return nil, "cancelled", CANCELLED end
  return is_set
end

--- As `pause`, but raises a cancellation or a refusal. The wait of an internal
--- job ends early instead, as if it timed out.
---@param seconds? number
---@return boolean # true if it was set, false on timeout
function Event:wait(seconds)
  local is_set, code, why = self:pause(seconds)
  if is_set ~= nil then return is_set end
  local timer = tasks.worker_timer()
  if code == "cancelled" and not timer.threads[running()].done then
    return false
  end
  error(why, 0)
end

return tasks
