--- How rlockctl and rlock.run end a program early. A signal, os.exit, or a
--- write to a pipe without a reader unwinds its tasks first, so they clean up.
--- The message of a failed assert includes the detail.

local host = require "rlock.host.uv"

local shutdown = {}

local SIGNALS = { HUP = 129, INT = 130, TERM = 143 }
local AGAIN = 0.2           -- seconds within which signals count as one

local plain_exit = os.exit
local pcall, xpcall = pcall, xpcall     -- programs may replace the globals

local signalled_at
local interceptor           -- is called at SIGINT, instead
---@type function?
local take

--- From now on, passes HUP, INT and TERM to `fn`, and interrupts no loop.
---@param fn? function called with the signal's number; returns the exit status
---  if the program is to end; nil: signals end the program again
function shutdown.pass_signals(fn) take = fn end

-- The first signal unwinds the program, a later one ends it at once. timeout(1)
-- sends each signal twice, so signals within AGAIN count as one.
local function end_by(status)
  if status == SIGNALS.INT and interceptor then return interceptor() end
  local now = host.now()
  if take then
    status = take(status - 128)
    if not status then return end
  end
  if signalled_at and now - signalled_at >= AGAIN then plain_exit(status) end
  signalled_at = signalled_at or now
  host.exit(status)
end

-- The stack depth of the frame at this level of the caller, and of the nearest
-- pcall below it; 0 if only a task's own first frame is one.
local function depths(level)
  local n, found = 0, nil
  local frame = debug.getinfo(level + 1, "f")
  while frame do
    n = n + 1
    local func = frame.func
    frame = debug.getinfo(level + 1 + n, "f")
    if frame and not found and (func == pcall or func == xpcall) then
      found = n
    end
  end
  return n, found and n - found + 1 or 0
end

-- Raises an error that cannot be caught. `<close>` variables above the catching
-- pcall are closed first. When code at or below that depth runs, the error has
-- been caught, and a hook raises it again.
local function raise(unwind)
  local _, catcher = depths(2)
  if catcher > 0 then
    ---@diagnostic disable-next-line: param-type-mismatch
    debug.sethook(function()
      local depth, next_one = depths(2)
      if depth > catcher then return end
      catcher = next_one
      if catcher == 0 then debug.sethook() end
      error(unwind, 0)
    end, "", 1)
  end
  error(unwind, 0)
end

local function status_of(status)
  if status == nil or status == true then return 0 end
  if status == false then return 1 end
  local number = math.tointeger(status)
  if number then return number & 0xFF end
  error(("bad argument #1 to 'exit' (%s)"):format(type(status) == "number"
    and "number has no integer representation"
    or "number expected, got " .. type(status)), 3)
end

-- os.exit: lets the tasks clean up. Does not return, except in a finalizer that
-- runs outside tasks.
local function exit(status)
  local _, unwind = pcall(host.exit, status_of(status))
  if unwind then raise(unwind) end
end

-- interrupting loops that never wait -----------------------------------------

local LIBRARY = debug.getinfo(1, "S") --[[@as table]].source
  :match("^(.*)/host/uv/shutdown%.lua$")
local tools                 -- the same of rlockctl

local function is_in(source, place)
  return source:sub(1, #place) == place and source:find("^[./]", #place + 1)
end

-- A signal unwinds the running task, if it is in the program's code: rlock's
-- own functions must not be interrupted.
local function interrupt(number)
  ---@diagnostic disable-next-line: need-check-nil
  local source = debug.getinfo(2, "S").source
  if take or host.is_unwinding() or is_in(source, LIBRARY)
      or tools and is_in(source, tools) then
    return
  end
  if 128 + number == SIGNALS.INT and interceptor then
    error("interrupted", 0)
  end
  exit(128 + number)
end

-- An unwind of a coroutine continues in the coroutine that resumed it.
local function passed_on(ok, ...)
  if not ok and host.is_unwind((...)) then raise((...)) end
  return ok, ...
end

-- coroutine.resume and coroutine.wrap for coroutines that can be interrupted.
local function resume(co, ...)
  if type(co) ~= "thread" then
    error("bad argument #1 to 'resume' (coroutine expected)", 2)
  end
  return passed_on(host.resume(co, ...))
end

local function unwrapped(co, ok, ...)
  if ok then return ... end
  local message = ...
  local closed, failure = coroutine.close(co)
  if not closed then message = failure end
  if host.is_unwind(message) then raise(message) end
  error(message, 2)
end

local function wrap(fn)
  if type(fn) ~= "function" then
    error("bad argument #1 to 'wrap' (function expected)", 2)
  end
  local co = coroutine.create(fn)
  return function(...) return unwrapped(co, host.resume(co, ...)) end
end

-- output without a reader ----------------------------------------------------

-- Under lua, SIGPIPE ends such a program. We ignore SIGPIPE because of our
-- sockets. Most programs ignore the result of a write, so without this their
-- loops would never end. rlock itself writes with methods of files: a message
-- that nobody reads must not end the program.
local stdout = io.type(io.stdout) and io.stdout

--- The exit status, as that of a program that SIGPIPE ends.
shutdown.UNREAD = 141

---@type function, function, function
local plain_print, plain_write, plain_flush       -- set by prepare

-- The error of a failed write stays with the file, also after a failed flush.
local function end_if_unread()
  if stdout and host.write_failure(stdout) == "unread"
      and not host.is_unwinding() and not host.is_finishing() then
    exit(shutdown.UNREAD)
  end
end

local function print_or_end(...)
  plain_print(...)
  end_if_unread()
end

local function write_or_end(...)
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    if type(value) ~= "string" and type(value) ~= "number" then
      error(("bad argument #%d to 'write' (string expected, got %s)"):format(i,
        type(value)), 2)
    end
  end
  local ok, detail, number = plain_write(...)
  end_if_unread()
  return ok, detail, number
end

local function flush_or_end()
  local ok, detail, number = plain_flush()
  end_if_unread()
  return ok, detail, number
end

-- what is replaced ------------------------------------------------------------

local failed = {}                       -- the last failed assert

--- Adds the detail to a message that ends with the code of a failed assert.
---@param message string may include a traceback
---@return string
function shutdown.explained(message)
  local first, rest = message:match("^([^\n]*)(.*)$")
  local code = ": " .. (failed.code or "\n")
  if (": " .. first):sub(-#code) ~= code then return message end
  return first .. ": " .. failed.detail .. rest
end

local ours = {
  exit = exit, assert = host.new_assert(failed), resume = resume, wrap = wrap,
  print = print_or_end, write = write_or_end, flush = flush_or_end,
}

-- Replaces the global functions; returns the previous ones.
local function install(fns)
  local before = {
    exit = os.exit, assert = assert, resume = coroutine.resume,
    wrap = coroutine.wrap, print = print, write = io.write, flush = io.flush,
  }
  os.exit, assert = fns.exit, fns.assert                 -- luacheck: ignore
  coroutine.resume, coroutine.wrap = fns.resume, fns.wrap -- luacheck: ignore
  print, io.write = fns.print, fns.write                 -- luacheck: ignore
  io.flush = fns.flush                                   -- luacheck: ignore
  return before
end

--- Handles SIGINT without ending the program: calls fn, or raises "interrupted"
--- in a loop that never waits.
---@param fn function
function shutdown.intercept(fn) interceptor = fn end

--- From now on, signals and os.exit unwind the program, and assert keeps the
--- detail for `explained`.
---@param place? string the folder, as in a chunkname, of modules whose loops
---  are not interrupted, either
---@return function # restores everything
function shutdown.prepare(place)
  tools = place
  local handles = {}
  for name, status in pairs(SIGNALS) do
    handles[#handles + 1] = host.on_signal(name, function()
      end_by(status)
    end)
  end
  host.on_interrupt(interrupt)
  host.explain_with(shutdown.explained)
  local before = install(ours)
  plain_print, plain_write, plain_flush =
    before.print, before.write, before.flush
  return function()
    for _, handle in ipairs(handles) do handle:close() end
    host.on_interrupt(nil)
    host.explain_with(nil)
    install(before)
  end
end

return shutdown
