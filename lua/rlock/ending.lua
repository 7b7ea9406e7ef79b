--- How a program ends before its time: a signal or os.exit ends it, but its
--  tasks clean up first; the message of an assert that ends it has the detail
--  beside the code. The same in rlockctl and in rlock.run.

local host = require "rlock.host.uv"

local ending = {}

local SIGNALS = { HUP = 129, INT = 130, TERM = 143 }
local AGAIN = 0.2           -- seconds after which a signal is another one

local plain_exit = os.exit
local pcall, xpcall = pcall, xpcall     -- whatever programs make of the names

-- signals --------------------------------------------------------------------

local told_at

-- The first signal unwinds the program, a later one ends it at once. What comes
-- with the first is the same: timeout(1) sends each twice.
local function end_by(status)
  local now = host.now()
  if told_at and now - told_at >= AGAIN then plain_exit(status) end
  told_at = told_at or now
  host.exit(status)
end

-- os.exit --------------------------------------------------------------------

-- How deep the frame at this level of the caller is, and how deep the first
-- pcall from there on: 0 if there is none, but the one that is a task's first.
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

-- Raises what nobody can catch. While it unwinds, `<close>` variables are
-- closed above the pcall that is to catch it; once anything runs below, it was
-- caught, and is raised again.
local function raise(unwind)
  local _, catcher = depths(2)
  if catcher > 0 then
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

-- os.exit: does not return, but lets the tasks clean up. (It does return in a
-- finalizer that no task runs.)
local function exit(status)
  local _, unwind = pcall(host.exit, status_of(status))
  if unwind then raise(unwind) end
end

-- loops that never wait ------------------------------------------------------

local OURS = debug.getinfo(1, "S").source:match("^(.*)/ending%.lua$")

-- Is this function one of rlock's? To interrupt those would break them.
local function is_ours(fn)
  local source = fn.source
  return source:sub(1, #OURS) == OURS and source:find("^[./]", #OURS + 1)
end

-- The signal unwinds the task that runs, from any of the program's functions.
local function interrupt(number)
  if host.is_told() or is_ours(debug.getinfo(2, "S")) then return end
  exit(128 + number)
end

-- What unwinds a coroutine unwinds the one that resumed it.
local function passed_on(ok, ...)
  if not ok and host.is_unwind((...)) then raise((...)) end
  return ok, ...
end

-- coroutine.resume and coroutine.wrap, whose coroutines can be interrupted.
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

-- assert ---------------------------------------------------------------------

local failed = {}                       -- what assert was given last

--- What ended a program, with the detail if it is the code of a failed assert.
-- @tparam string message  may have lines of a traceback
-- @treturn string
function ending.explained(message)
  local first, rest = message:match("^([^\n]*)(.*)$")
  local code = ": " .. (failed.code or "\n")
  if (": " .. first):sub(-#code) ~= code then return message end
  return first .. ": " .. failed.detail .. rest
end

-- all of them ----------------------------------------------------------------

local ours = {
  exit = exit, assert = host.new_assert(failed), resume = resume, wrap = wrap,
}

-- Puts functions in the place of the program's; returns those.
local function install(fns)
  local before = {
    exit = os.exit, assert = assert, resume = coroutine.resume,
    wrap = coroutine.wrap,
  }
  os.exit, assert = fns.exit, fns.assert                 -- luacheck: ignore
  coroutine.resume, coroutine.wrap = fns.resume, fns.wrap -- luacheck: ignore
  return before
end

--- From now on, signals and os.exit unwind the program, and assert keeps the
--  detail for `explained`.
-- @treturn function puts everything back
function ending.prepare()
  local handles = {}
  for name, status in pairs(SIGNALS) do
    handles[#handles + 1] = host.on_signal(name, function()
      end_by(status)
    end)
  end
  host.on_interrupt(interrupt)
  local before = install(ours)
  return function()
    for _, handle in ipairs(handles) do handle:close() end
    host.on_interrupt(nil)
    install(before)
  end
end

return ending
