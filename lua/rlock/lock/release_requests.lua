--- Release requests: a client asks the holders of a lock to release it. They
--- are cooperative: a callback of the holder decides. The functions here are
--- methods of handle.lua.
---
--- The back end delivers a request, see target.requests in the contract. It is
--- a text, "<id> <reason>". Duplicates with the same id may arrive: from a
--- retry, from both kinds of channels, from several locks of a multi-lock.

local colon = require "rlock.util.colon"
local naming = require "rlock.naming"

local release_requests = {}

local LONGEST = 256      -- bytes of a reason
local REMEMBERED = 32    -- requests
local DUE = "due"        -- the `task` of a callback that has not begun yet

-- asking ----------------------------------------------------------------------

-- Creates a request.
local function new(session, reason, level)
  reason = reason == nil and "" or reason
  if type(reason) ~= "string" or #reason > LONGEST then
    error(("bad reason of request_release: must be a text of at most %d bytes")
      :format(LONGEST), level + 1)
  end
  session.asked = (session.asked or 0) + 1
  return ("%s:%d %s"):format(session.id, session.asked, reason)
end

--- Sends a request to the holders of one lock.
---@return any # true and the number of holders asked
---@return rlock.failure? code, string? detail
local function send(lock, request)
  local session, target = lock.session, lock.record.target
  local n, code, detail = target.requests().ask(target,
    session.host.now() + session.timeout, request)
  if n == nil then return nil, code, detail end
  if n > 0 then return true, n end
  local is_held = code
  if not is_held then return nil, "not_held", "nobody holds " .. lock:show() end
  return nil, "refused", "no holder of " .. lock:show()
    .. " has a callback for release requests"
end

-- Combines the results for several locks.
local function combine(results)
  ---@type integer, any
  local asked, failure = 0, nil
  for _, result in ipairs(results) do
    if result[1] then
      asked = asked + result[2]
    elseif not failure or failure[2] == "not_held" then
      failure = result
    end
  end
  if asked > 0 then return true, asked end
  return nil, failure[2], failure[3]
end

-- Sends a request to the holders of all locks of a multi-lock or red lock.
local function send_all(joint, request)
  local parts = {}
  for i, member in ipairs(joint.members) do parts[i] = { lock = member } end
  local ok, code, unwind = joint.together(joint.host, parts, function(part)
    part[1], part[2], part[3] = send(part.lock, request)
  end)
  if not ok then return nil, code, unwind end
  return combine(parts)
end

--- Asks the holders of the lock to release it, including those of the other
--- side of a read/write lock. Their callbacks decide: see `on_release_request`.
---@param self rlock.handle | rlock.joint
---@param reason? string for the callbacks, at most 256 bytes; Curator's holders
---  do not get it; default: ""
---@return true?
---@return integer | rlock.code # the number of clients (Redis) or holders
---  (ZooKeeper) that were asked, summed over all members; at least 1. Or
---  "not_held": nobody holds it; "refused": no holder has a callback; or why a
---  request failed
---@return string? detail
function release_requests.request_release(self, reason)
  local request = new(self.session, reason, 2)
  ---@type any, any, any
  local ok, code, detail = (self.members and send_all or send)(self, request)
  if ok then return true, code end
  if code == "cancelled" then error(detail, 0) end
  return nil, code, detail
end

-- being asked -----------------------------------------------------------------

-- Has the hold of a callback ended?
local function is_over(callback)
  local hold, listener = callback.hold, callback.listener
  return listener.is_over or hold and hold.is_over
    or listener.granted:now_is() == "lost"
end

-- Counts and reports a request.
local function note(lock, reason)
  local series = lock.series or lock.record.series
  series.asked = series.asked + 1
  if not lock.session.is_heard then return end
  local text = ("asked to release %s: %s"):format(lock:show(), reason)
  if lock.members then
    return lock:report("info", "asked", text, { reason = reason })
  end
  lock.session:report_of(lock, "info", "asked", text, { reason = reason })
end

-- Runs a callback, in a task of its own.
local function call(callback, reason)
  callback.task = callback.listener.host.current()
  note(callback.lock, reason)
  if not is_over(callback) then callback.fn(callback.lock, reason) end
end

-- A callback that is still running already knows of the request.
local function is_running(callback)
  local task = callback.task
  return task == DUE or task and not callback.listener.host.is_over(task)
end

-- Is it a duplicate of a recent request? Remembers its id.
local function is_duplicate(listener, id)
  for _, other in ipairs(listener.ids) do
    if other == id then return true end
  end
  listener.last = listener.last % REMEMBERED + 1
  listener.ids[listener.last] = id
  return false
end

-- Handles a request. It is untrusted: any program may send one.
local function heard(listener, request)
  local id, reason = request:match "^(%S+) ?(.*)$"
  if id and is_duplicate(listener, id) then return end
  reason = naming.printable((reason or ""):sub(1, LONGEST))
  for _, callback in ipairs(listener) do
    if not is_running(callback) and not is_over(callback) then
      callback.task = DUE
      listener.host.spawn(call, callback, reason)
    end
  end
end

-- The methods that end a grant, and those that end the holds of a multi-lock or
-- red lock.
local ENDS, JOINT_ENDS = { "clear", "end_it" }, { "release" }

local function stop(listener)
  if listener.is_over then return end
  listener.is_over = true
  local granted = listener.granted
  granted.listener = nil
  for _, name in ipairs(listener.ends) do granted[name] = nil end
  for _, stop_one in ipairs(listener.stops) do stop_one() end
end

local function ended(listener, ...)
  local granted = listener.granted
  if granted.is_over or granted.state == "free" or granted.state == "lost" then
    stop(listener)
  end
  return ...
end

-- Stops the listener when a method has ended the hold. Replaces the method for
-- this hold only, so that holds without a callback pay nothing.
local function stop_after(listener, name)
  local granted = listener.granted
  local method = granted[name]
  granted[name] = function(...) return ended(listener, method(...)) end
end

-- The grants whose servers deliver the requests.
local function parts_of(granted)
  if not granted.inner_holds then return { granted } end
  local parts = {}
  for i, inner in ipairs(granted.inner_holds) do parts[i] = inner.grant end
  return parts
end

local function new_listener(granted, host)
  local listener = { granted = granted, host = host, stops = {},
    ends = granted.inner_holds and JOINT_ENDS or ENDS, is_over = false,
    ids = {}, last = 0 }
  for _, name in ipairs(listener.ends) do stop_after(listener, name) end
  for i, part in ipairs(parts_of(granted)) do
    local target = part.lock.record.target
    listener.stops[i] = target.requests().listen(target, part.owner_name,
      function(request) heard(listener, request) end)
  end
  granted:when_lost(function() stop(listener) end)
  granted.listener = listener
  return listener
end

local NOT_HELD = "this task does not hold the lock"

--- Calls fn(lock, reason) for each request, until the hold is over.
---@param lock rlock.handle
---@param granted? table a grant
---@param fn function
---@param hold? table when it has ended, fn is no longer called
---@return any ... # as on_release_request
local function listen(lock, granted, fn, hold)
  local state = granted and granted:now_is() or "free"
  if state == "free" then return nil, "not_held", NOT_HELD end
  if state == "lost" then return nil, "lost", "the hold was lost before" end
  ---@cast granted -nil
  local listener = granted.listener
    or new_listener(granted, lock.session.host)
  for i = #listener, 1, -1 do            -- of nested holds that have ended
    if is_over(listener[i]) then table.remove(listener, i) end
  end
  listener[#listener + 1] = { listener = listener, fn = fn, lock = lock,
    hold = hold, task = false }
  return true
end

--- Registers a callback for release requests. fn is called while this task's
--- hold lasts, and decides whether to unlock. Requests that arrive while fn
--- runs are ignored.
---@param self any a lock, multi-lock or red lock, or an object of lock:hold
---@param fn fun(lock: any, reason: string) called as a task; the reason is a
---  text of at most 256 bytes on one line, "" if none was given
---@return true? # requests arrive from the next round trip on
---@return rlock.code? code "not_held" or "lost"
---@return string? detail
function release_requests.on_release_request(self, fn)
  if type(fn) ~= "function" then
    error("bad argument fn of on_release_request: must be a function", 2)
  end
  ---@type any
  local hold = rawget(self, "hold")
  if not hold then return listen(self, self:mine(), fn) end
  if hold.is_over then
    return nil, "not_held", "this hold was released before"
  end
  local object = hold.object             -- weak, see handle.lua
  return listen(self.lock, hold.grant, function(lock, reason)
    return fn(object[1] or lock, reason)
  end, hold)
end

return colon.methods(release_requests, "lock",
  "on_release_request request_release")
