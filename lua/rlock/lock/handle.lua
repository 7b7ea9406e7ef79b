--- The public interface of one lock (lock.lua) and of several locks held as one
--- (several/joint.lua). Their classes inherit it by handle:class() and have:
---   session  for its host
---   show()   a description, for messages
---   called   its name in the detail of "not_held"; default: show()
---   take(wait, lease[, hold])  takes one more hold for the calling task:
---            true[, token] | nil, code, detail; raises a cancellation. The
---            table `hold` becomes the hold: it gets a `grant`, and `is_over`
---            when it is released
---   mine()   the calling task's grant, or nil; it has the methods valid_for,
---            now_is, when_lost, effect and release (grant.lua)
---   write(grant, path, value, version)  as `set`

local check = require "rlock.util.options"
local colon = require "rlock.util.colon"
local duration = require "rlock.util.duration"

---@class rlock.handle: rlock.asked, rlock.asks
---@field session rlock.session internal
---@field show fun(self): string
---@field called? string
---@field take fun(self, wait: number, lease?: number, hold?: table): any...
---@field mine fun(self): rlock.grant?
---@field write function
local handle = { prefix = "lock" }      -- of its methods, for messages

local huge, type = math.huge, type

--- Creates a class that inherits from this one.
---@return table
function handle:class()
  ---@type any
  local class = {}
  for name, value in pairs(self) do class[name] = value end
  class.__index = class
  return class
end

function handle:__tostring() return self:show() end

-- options -----------------------------------------------------------------

local of_lock = check.of_lock

-- The wait and the lease among the options of the method that calls this.
local function limits(options)
  options = of_lock(options, 3)
  return options.wait, options.lease
end

local function check_function(fn, method, level)
  if type(fn) ~= "function" then
    error(("bad argument fn of %s: must be a function"):format(method),
      level + 1)
  end
end

-- taking and releasing ----------------------------------------------------

local function take(self, wait, lease, hold)
  local host = self.session.host
  if host.ends_tasks then
    return host.whole_wait(self.take, self, wait, lease, hold)
  end
  return self:take(wait, lease, hold)
end

--- Waits for the lock and takes it.
--- Without a `wait` it waits forever, even while a server is unreachable,
--- unless an error is permanent.
---@param options? rlock.lock_options
---@return true? held
---@return integer | rlock.code | nil # the fencing token, if the lock has one.
---  Or "timeout", "refused", "connect", "closed", "lost", "deadlock" (tasks of
---  this client, this one among them, would wait for each other: the detail has
---  the cycle), "quorum" (no majority of a red lock's servers is in reach)
---@return string? detail
---@return_overload true, integer?
---@return_overload nil, rlock.code, string
function handle:lock(options)
  if type(self) ~= "table" or not self.session then colon.raise("lock:lock") end
  local wait, lease
  if options ~= nil then                -- `limits` inline: saves a call
    options = of_lock(options, 2)
    wait, lease = options.wait, options.lease
  end
  return take(self, wait or huge, lease)
end

--- Takes the lock if it is free. As `lock`, but `wait` defaults to 0.
---@param options? rlock.lock_options
---@return true? held
---@return integer | rlock.code | nil # the fencing token, or "busy", …
---@return string? detail
---@return_overload true, integer?
---@return_overload nil, rlock.code, string
function handle:try_lock(options)
  if type(self) ~= "table" or not self.session then
    colon.raise("lock:try_lock")
  end
  local wait, lease
  if options ~= nil then                -- `limits` inline: saves a call
    options = of_lock(options, 2)
    wait, lease = options.wait, options.lease
  end
  return take(self, wait or 0, lease)
end

local RELEASED = "this hold was released before"

local function not_held(self)
  return nil, "not_held", self.prefix == "hold" and RELEASED
    or "this task does not hold " .. (self.called or self:show())
end

-- In nginx this runs later than the call. So it looks the grant up here: one
-- that has ended since the call may be reused for another lock.
local function released(self, hold)
  if hold and hold.is_over then
    return nil, "not_held", RELEASED
  end
  local granted = hold and hold.grant or self:mine()
  if not granted then return not_held(self) end
  local ok, code, detail = granted:release(hold)
  if ok then return true end
  if code == "cancelled" then error(detail, 0) end
  return nil, code, detail
end

local function release(self, hold)
  local host = self.session.host
  if host.ends_tasks then return host.whole(released, self, hold) end
  return released(self, hold)
end

--- Releases the calling task's most recent hold. Those of `hold()` come last:
--- each has an object to release it.
---@return true?
---@return rlock.code? code "not_held" (never held), "lost" (held, then
---  expired or broken), "quorum" (no majority of a red lock's servers confirmed
---  it), or why a request failed. After the last two, do not retry: the hold
---  ends in the background, at the latest with its lease, and the next unlock
---  releases an outer hold
---@return string? detail
function handle:unlock()
  if type(self) ~= "table" or not self.session then
    colon.raise("lock:unlock")
  end
  local host = self.session.host
  if host.ends_tasks then return host.whole(released, self) end
  return released(self)
end

-- Releases the hold of `with`; or, if fn has done that, the most recent one.
local function finish(hold)
  if hold.is_over then return hold.handle:unlock() end
  return release(hold.handle, hold)
end

local function done(hold, ...)
  local is_released, code, detail = finish(hold)
  if not is_released then return nil, code, detail end
  return ...
end

--- Holds the lock while a function runs; releases it even if fn raises.
---@generic T
---@param options? rlock.lock_options
---@param fn fun(lock: rlock.lock, ...): T...
---@param ... any further arguments of fn
---@return T... # what fn returned; or nil, code, detail: the lock was not taken
---  and fn did not run, or the lock was "lost" before fn returned, or as for
---  `unlock`
---@overload fun(self, fn: function, ...: any): any...
function handle:with(options, fn, ...)
  if type(options) == "function" then
    return self:with(nil, options, fn, ...)
  end
  check_function(fn, "lock:with", 2)
  local wait, lease = limits(options)
  local hold = { handle = self }
  local ok, code, detail = take(self, wait or huge, lease, hold)
  if not ok then return nil, code, detail end
  return done(hold, self.session.host.guard(finish, hold, fn, self, ...))
end

-- local state -------------------------------------------------------------

--- Seconds for which this task's most recent hold is certainly valid.
---@return number
function handle:valid_for()
  local granted = self:mine()
  return granted and granted:valid_for() or 0
end

--- "held"; "at_risk" (still valid, but a renewal failed or no majority of a red
--- lock's servers is in reach); "lost"; "free".
---@return "held" | "at_risk" | "lost" | "free"
function handle:state()
  local granted = self:mine()
  return granted and granted:now_is() or "free"
end

--- Is the lock certainly ours for at least this long?
---@param seconds number
---@return true?
---@return rlock.code? code "lost": already lost or valid for less; "not_held"
---@return string? detail
function handle:need(seconds)
  seconds = duration.check(seconds, "seconds", 0, nil, 2)
  if self:state() == "free" then
    return nil, "not_held", "this task does not hold it"
  end
  local left = self:valid_for()
  if left >= seconds then return true end
  return nil, "lost", ("valid for %.3f s only, %g s are needed"):format(
    left, seconds)
end

--- Sets the value of a node of ZooKeeper, only if the hold is still held: the
--- server checks the hold and sets the value in one transaction. So a late
--- holder changes nothing.
---@param path string below the chroot
---@param value string
---@param version? integer that the node must have; default: any
---@return true?
---@return integer | rlock.code | nil # the new version of the node. Or
---  "not_held"; "lost"; "zookeeper": no such node, another version, no
---  permission; "timeout": it may have been set; "usage": this is Redis. It is
---  not retried
---@return string? detail
---@return_overload true, integer
---@return_overload nil, rlock.code, string
function handle:set(path, value, version)
  version = check.node(path, value, version)
  local granted = self:mine()
  if not granted or granted:now_is() == "free" then return not_held(self) end
  return self:write(granted, path, value, version)
end

--- Calls fn if this task's hold is lost: expired, broken, not renewed in time.
---@param fn fun(lock: rlock.lock, reason: string) called once, as a task
---@return true?
---@return rlock.code? code "not_held"
---@return string? detail
function handle:on_lost(fn)
  check_function(fn, "lock:on_lost", 2)
  local granted = self:mine()
  if granted and granted:when_lost(fn, self) then return true end
  return not_held(self)
end

-- Methods of release_requests.lua, which is loaded on first use.
local function of_requests(name)
  return function(...)
    return require("rlock.lock.release_requests")[name](...)
  end
end

handle.on_release_request = of_requests "on_release_request"
handle.request_release = of_requests "request_release"

--- Marks the calling task's hold as lost without releasing it, because the work
--- that it protects may continue. Only the end of the lease frees it. Internal.
---@param reason string
function handle:abandon(reason)
  local granted = self:mine()
  if granted then granted:abandon(reason) end
end

-- effects -----------------------------------------------------------------

-- Runs commands under a grant.
local function run(granted, commands)
  local state = granted:now_is()
  if state == "lost" then
    return nil, "lost", "the hold was lost before; nothing was sent"
  elseif state == "free" then           -- its owner is only requesting it
    return nil, "not_held", "this task does not hold the lock"
  end
  local replies, code, detail = granted:effect(commands)
  if code == "cancelled" then error(detail, 0) end
  return replies, code, detail
end

-- The commands that fn collects.
local function collect(fn)
  return require("rlock.lock.effect").collect(fn)          -- on first use
end

--- Runs a Redis command only if this task's hold is still held on the server:
--- the server checks that and runs the command as one step. So a holder that
--- was paused beyond its lease changes nothing. It is not retried.
---@param ... string | number the command and its arguments
---@return any # the reply; false for a Redis nil
---@return rlock.code? code "lost" or "not_held": nothing was changed;
---  "redis": the command failed; "timeout": it may have been executed;
---  "replicas": too few replicas have confirmed it, if it was; "connect",
---  "closed", "usage": it was not sent
---@return string? detail
function handle:call(...)
  local words = check.words(self.prefix .. ":call", 2, ...)
  local granted = self:mine()
  if not granted then return not_held(self) end
  local replies, code, detail = run(granted, { words })
  if not replies then return nil, code, detail end
  return replies[1]
end

--- Like `call`, for several commands as one step. If one fails, those after
--- it are not executed.
---@param fn fun(t: rlock.transaction) adds the commands, by `t:call(…)`
---@return any[]? replies the reply of each command
---@return rlock.code? code as for `call`
---@return string? detail
function handle:transaction(fn)
  check_function(fn, self.prefix .. ":transaction", 2)
  local commands = collect(fn)          -- may wait, so the hold may end
  local granted = self:mine()
  if not granted then return not_held(self) end
  return run(granted, commands)
end

-- transferable holds ------------------------------------------------------

-- The public object of a hold. The grant refers to it weakly: once the task has
-- ended and the object is garbage, the hold is abandoned. Most of its methods
-- are those of the lock, for this hold's grant.
---@class rlock.hold: rlock.asked
---@field lock rlock.handle
---@field hold table internal
---@field valid_for fun(self): number
---@field state fun(self): "held" | "at_risk" | "lost" | "free"
---@field need fun(self, seconds: number): true?, rlock.code?, string?
---@field call fun(self, ...: string | number): any, rlock.code?, string?
---@field transaction fun(self, fn: fun(t: rlock.transaction)): any[]?,
---   rlock.code?, string?
---@field set fun(self, path: string, value: string, version?: integer): true?,
---   integer | rlock.code | nil, string?
---@field abandon fun(self, reason: string) internal
local Hold = { prefix = "hold" }
Hold.__index = Hold

for _, name in ipairs { "valid_for", "state", "need", "set", "abandon", "call",
    "transaction", "on_release_request" } do
  Hold[name] = handle[name]
end

function Hold:mine() return not self.hold.is_over and self.hold.grant or nil end

function Hold:write(...) return self.lock:write(...) end

local WEAK = { __mode = "v" }

--- Takes the lock and returns an object for this hold. Any task may use it; a
--- `<close>` variable releases it at the end of its block.
---@param options? rlock.lock_options
---@return rlock.hold?
---@return rlock.code? code as for `lock`
---@return string? detail
function handle:hold(options)
  local wait, lease = limits(options)
  local hold = {
    is_transferable = not self.session.host.ends_tasks,
    object = setmetatable({}, WEAK),
  }
  local ok, code, detail = take(self, wait or huge, lease, hold)
  if not ok then return nil, code, detail end
  local object = setmetatable({ lock = self, hold = hold }, Hold)
  hold.object[1] = object
  return object
end

--- As the lock's methods, for this hold.
---@return true?
---@return rlock.code? code "lost"; "not_held": it was released before
---@return string? detail
function Hold:unlock() return release(self.lock, self.hold) end

function Hold:__close() self:unlock() end

---@return integer?
function Hold:token()
  return not self.hold.is_over and self.hold.grant.token or nil
end

---@param fn fun(hold: rlock.hold, reason: string)
---@return true?, rlock.code? code, string? detail
function Hold:on_lost(fn)
  check_function(fn, "hold:on_lost", 2)
  local granted, object = self:mine(), self.hold.object
  if not granted then return not_held(self) end
  granted:when_lost(function(its_lock, reason)
    return fn(object[1] or its_lock, reason)
  end, self.lock)
  return true
end

function Hold:__tostring() return "hold of " .. tostring(self.lock) end

colon.methods(Hold, "hold",
  "unlock valid_for token state on_lost need call transaction set")
-- `lock`, `try_lock`, `unlock` and those of release_requests.lua check it
-- themselves, which saves a call.
return colon.methods(handle, "lock",
  "with hold valid_for state need on_lost call transaction set")
